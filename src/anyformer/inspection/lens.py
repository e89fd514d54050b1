"""The logit lens: the predictions from the residual stream after each layer.

The stream after every layer goes through the final norm, with that layer's own statistics, and then through the model's
head. So the last layer's prediction should equal the model's own; `Lens.error` is the difference. Logits are computed
for a few positions of one layer at a time: (L,T,V) is never materialised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from anyformer.errors import UserError

if TYPE_CHECKING:
    from anyformer.core.context import Context
    from anyformer.core.ensemble import EnsembleModule
    from anyformer.inspection.capture import Capture

PIECE = 2**22  # logits of one layer in memory at once
ALL = slice(None)
Kind = Literal["word", "classes", "numbers"]


@dataclass(frozen=True)
class Lens:
    """Predictions of L = depth + 1 layers (the first is the embedding) at T positions; the last layer is the model.

    A pooled head has one prediction for the whole sequence: T is 1. A regression head has only `values`.
    """

    kind: Kind
    layers: tuple[str, ...]  # their names
    ids: Tensor  # (L,T,K) the most probable words or classes, best first
    logprobs: Tensor  # (L,T,K)
    chosen: Tensor  # (T,) the last layer's top prediction
    chosen_logprobs: Tensor  # (L,T) its log-probability in each layer
    ranks: Tensor  # (L,T) its rank in each layer, 1 for the first
    divergence: Tensor  # (L,T) KL(last layer || this layer), in nats
    entropy: Tensor  # (L,T) in nats
    values: Tensor | None  # (L,T,outputs) of a regression head, in the target's units from `capture.lens`
    error: float  # largest difference of the last layer's logits from the model's own
    normed: bool  # whether the final norm was applied
    has_norm: bool  # whether the stack has one


@dataclass(frozen=True)
class Readout:
    """The end of a network, which turns its residual stream into logits."""

    kind: Kind
    norm: nn.Module | None
    head: Any
    table: Tensor | None
    context: Context | None
    members: EnsembleModule | None
    by_token: bool  # whether a token's logits depend on that token alone, so that positions can be chunked
    stack: str  # whose residual stream it reads
    heat: Tensor | None = None  # temperature of calibrated logits
    many: bool = False  # whether it is multi-label

    def logits(self, x: Tensor, *, norm: bool = True) -> Tensor:
        """(B,T,D) to (B,T,V), or (B,1,V) of a pooled head, as the model itself computes them."""
        x = self.norm(x) if norm and self.norm is not None else x
        found: Tensor = self.head(x, self.context, self.table).logits
        found = found if self.members is None else self.members.average(found)
        return found if found.dim() == 3 else found[:, None]

    def distribution(self, logits: Tensor) -> Distribution:
        """Logits (t,V) as log-probabilities, calibrated like the model's own predictions."""
        logits = logits if self.heat is None else logits / self.heat.to(logits)
        if self.many:
            return Distribution(logsigmoid(logits), logsigmoid(-logits))
        return Distribution(logits.log_softmax(-1), None)


class Distribution(NamedTuple):
    """Log-probabilities (t,V): of one class among V or, with `without`, of V independent labels."""

    logs: Tensor
    without: Tensor | None  # log(1 - p)

    def entropy(self) -> Tensor:
        """Entropy (t,) in nats, summed over labels; nansum, since 0 log 0 is nan and counts as 0."""
        return -sum_of((logs.exp() * logs).nansum(-1) for logs in self if logs is not None)

    def divergence(self, other: Distribution) -> Tensor:
        """KL(this || other), (t,)."""
        pairs = [(own, there) for own, there in zip(self, other, strict=True) if own is not None and there is not None]
        return sum_of((own.exp() * (own - there)).nansum(-1) for own, there in pairs).clamp(min=0.0)


def sum_of(parts: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(parts)).sum(0)


def why_no_lens(network: nn.Module) -> str | None:
    """None if the lens applies, else the reason as a sentence."""
    from anyformer.core.model import Model, ModelModule, Seq2SeqModule
    from anyformer.core.stack import Stack
    from anyformer.heads import LM

    if not isinstance(network, ModelModule | Seq2SeqModule):
        return f"The lens reads one stack of layers and its head; this network is a {type(network).__name__}."
    spec: Model = network.spec if isinstance(network, ModelModule) else network.spec.decoder
    if not isinstance(spec.stack, Stack):
        return f"The lens reads a stack of blocks of one width; this model has a {type(spec.stack).__name__}."
    if not spec.stack.depth:
        return "This model has no layers between its embedding and its head."
    if network.spec.head is None:
        return "This model has no head, so its layers have no answers to compare."
    if isinstance(network, Seq2SeqModule) and not isinstance(network.spec.head, LM):
        return "The lens of an encoder-decoder needs a language-model head."
    if kind_of(network.spec.head) is None:
        return f"The head {type(network.spec.head).__name__} gives no logits of words or classes."
    return None


def kind_of(head: Any) -> Kind | None:
    """What a head's logits stand for; None for boxes, pixels and other outputs."""
    from anyformer.heads import CRF, LM, Distilled, LMWithPair, Pooled, TokenHead

    if isinstance(head, LM | LMWithPair):
        return "word"
    if isinstance(head, TokenHead | CRF | Distilled):
        return "classes"
    if isinstance(head, Pooled) and head.classes is None:
        return None
    return head.answers


def readout_of(network: nn.Module, context: Context | None) -> Readout:
    """The norm and head after a network's last layer; `context` is that of its own pass."""
    from anyformer.core.model import ModelModule, Seq2SeqModule
    from anyformer.heads.lm_with_pair import LMWithPairModule

    reason = why_no_lens(network)
    if reason is not None:
        raise UserError(reason, where="lens", fix="look at a model of words or classes")
    assert isinstance(network, ModelModule | Seq2SeqModule)
    kind = kind_of(network.spec.head)
    assert kind is not None
    body = network if isinstance(network, ModelModule) else network.decoder
    head = network.head.words if isinstance(network.head, LMWithPairModule) else network.head
    return Readout(
        kind=kind, norm=body.stack.final, head=head, table=network.table(), context=context, members=body.members,
        by_token=kind == "word", stack="" if body is network else "decoder",
    )  # fmt: skip


def lens_of(capture: Capture, top: int = 10, *, norm: bool = True, at: slice = ALL) -> Lens:
    """The lens of a capture's row, at the positions of `at`. Without `norm` the head gets the stream unnormalised."""
    from anyformer.inspection.prediction import has_many_labels, in_units, temperature

    readout = readout_of(capture.model, capture.output.context)
    streams, logits = capture.residuals(readout.stack), capture.output.logits
    heat = temperature(capture, logits) if readout.kind == "classes" else None
    readout = replace(readout, heat=heat, many=readout.kind == "classes" and has_many_labels(capture))
    found = read_layers(readout, streams, logits, row=capture.row, top=top, norm=norm, at=at)
    return found if found.values is None else replace(found, values=in_units(capture, found.values))


@torch.no_grad()
def read_layers(
    readout: Readout, streams: list[Tensor], logits: Tensor, *, row: int = 0, top: int = 10, norm: bool = True,
    at: slice = ALL,
) -> Lens:  # fmt: skip
    """The lens of residual streams (B,T,D), for one row; `logits` are the model's own."""
    if top < 1:
        raise UserError(f"top is {top}", where="lens", fix="use 10")
    own = (logits if logits.dim() == 3 else logits[:, None])[row]  # (T,V)
    names = ("Embedding", *(f"Layer {i}" for i in range(len(streams) - 1)))
    parts = [read_piece(readout, streams, own[part], row, part, top, norm) for part in pieces(readout, own, at)]
    whole = {name: torch.cat([part[name] for part in parts], 1).cpu() for name in parts[0] if name != "error"}
    error = max(float(part["error"]) for part in parts)
    ids = whole["ids"]
    return Lens(
        kind=readout.kind, layers=names, ids=ids, logprobs=whole["logprobs"], chosen=ids[-1, :, 0],
        chosen_logprobs=whole["chosen_logprobs"], ranks=whole["ranks"], divergence=whole["divergence"],
        entropy=whole["entropy"], values=whole.get("values"), error=error, normed=norm and readout.norm is not None,
        has_norm=readout.norm is not None,
    )  # fmt: skip


def pieces(readout: Readout, own: Tensor, at: slice) -> Iterator[slice]:
    """Chunks of positions whose logits are in memory together: all, if the head needs all tokens."""
    count, vocab = own.shape
    first, end, _ = at.indices(count)
    if first >= end:
        raise UserError(f"positions from {first} to {end} are out of range", where="lens", fix=f"use 0 to {count}")
    size = max(1, PIECE // vocab) if readout.by_token else count
    for start in range(first, end, size):
        yield slice(start, min(end, start + size))


def read_piece(
    readout: Readout, streams: list[Tensor], own: Tensor, row: int, at: slice, top: int, norm: bool
) -> dict[str, Tensor]:
    """The results for some positions, (L,t,...) each."""
    final = layer_logits(readout, streams[-1], row, at, norm)  # (t,V)
    error = (final - own.to(final)).abs().max()
    last, count = readout.distribution(final), min(top, final.shape[-1])
    chosen = last.logs.topk(count, -1).indices[:, :1]  # not argmax, which breaks ties differently
    found: dict[str, list[Tensor]] = {}
    for i, stream in enumerate(streams):
        logits = final if i == len(streams) - 1 else layer_logits(readout, stream, row, at, norm)
        here = last if logits is final else readout.distribution(logits)
        best, own_logs = here.logs.topk(count, -1), here.logs.gather(-1, chosen)
        layer = {
            "ids": best.indices, "logprobs": best.values, "chosen_logprobs": own_logs[:, 0],
            "ranks": 1 + (here.logs > own_logs).sum(-1), "divergence": last.divergence(here), "entropy": here.entropy(),
        }  # fmt: skip
        if readout.kind == "numbers":
            layer["values"] = logits
        for name, value in layer.items():
            found.setdefault(name, []).append(value)
    return {name: torch.stack(values) for name, values in found.items()} | {"error": error}


def layer_logits(readout: Readout, stream: Tensor, row: int, at: slice, norm: bool) -> Tensor:
    """One layer's logits (t,V) of one row, in float32 or better."""
    if readout.by_token:
        logits = readout.logits(stream[row : row + 1, at], norm=norm)[0]
    else:
        logits = readout.logits(stream, norm=norm)[row, at]
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
