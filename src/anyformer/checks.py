"""The laws as functions for user-defined parts: each returns its measured value, for use in tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.core.model import Model, ModelModule, Seq2Seq
from anyformer.embeds.joint import JointModule
from anyformer.embeds.patches import PatchesModule
from anyformer.errors import UserError, did_you_mean
from anyformer.generation.runners.eager import eval_mode
from anyformer.slots import Feed, Mixer


@dataclass(frozen=True)
class Report:
    """The result of a law: truthy if it holds."""

    law: str
    measured: float
    bound: float
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.measured <= self.bound

    def __bool__(self) -> bool:
        return self.holds

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "BROKEN"
        return f"{self.law}: {verdict}, measured {self.measured:.3g}, bound {self.bound:.3g}" + (
            f" ({self.note})" if self.note else ""
        )


def answer_of(out: Any) -> Tensor:
    """The tensor that a law compares: logits per token if there are any, else hidden states, else the output itself."""
    if isinstance(out, Tensor):
        return out
    logits = out.logits
    return logits if logits is not None and logits.dim() == 3 else out.hidden


@torch.no_grad()
def causal(
    model: nn.Module, tokens: Tensor | None = None, *, bound: float | None = None, vocab: int | None = None
) -> Report:
    """Causality: replace the tokens after position t by random ones; the largest change at or before t.

    Changes are relative to the largest output. The default bound is 0, or the rounding error of parts that are not
    exact (a mixer with a Fourier transform, a mixture of experts: `Mixer.exact`, `Feed.exact`).
    """
    size = vocab or vocab_of(model)
    tokens = random_tokens(model, size) if tokens is None else tokens
    check_length(tokens, "causality")
    bound = rounding_of(model) if bound is None else bound
    length, generator = tokens.shape[1], torch.Generator().manual_seed(0)
    with eval_mode(model):
        run = runner(model, tokens.shape[0])
        base, worst = answer_of(run(tokens)), 0.0
        for t in sorted({0, min(length // 3, length - 2), min(length // 2, length - 2), length - 2}):
            shift = torch.randint(1, size, (tokens.shape[0], length - t - 1), generator=generator).to(tokens.device)
            changed = torch.cat([tokens[:, : t + 1], (tokens[:, t + 1 :] + shift) % size], 1)
            worst = max(worst, (answer_of(run(changed))[:, : t + 1] - base[:, : t + 1]).abs().max().item())
    return Report("causality", worst / max(base.abs().max().item(), 1e-30), bound)


@torch.no_grad()
def permutation(model: nn.Module, *inputs: Any, bound: float = 1e-6, seed: int = 0) -> Report:
    """Permutation equivariance: distance of f(RX) from R f(X) for a random permutation R of words, patches or columns.

    Near 0 without positions and causality, clearly above with them. Positions stay in place while the tokens move; a
    table's learned feature vectors are not positions and move with their column. Class tokens of images stay in place.
    """
    spec = getattr(model, "spec", None)
    if spec is not None and not isinstance(spec, Model):
        raise UserError(f"a {type(spec).__name__} has no one sequence to permute", where="permutation",
                        fix="give one of its models, such as model.encoder")  # fmt: skip
    if not inputs:
        raise UserError("there is nothing to permute", where="permutation", fix="give the model's inputs")
    tokens = inputs[0]
    with eval_mode(model):
        if isinstance(tokens, Tensor) and not tokens.is_floating_point() and len(inputs) == 1:
            check_length(tokens, "permutation")
            order = random_order(tokens.shape[1], seed).to(tokens.device)
            run = runner(model, tokens.shape[0])
            moved, kept = answer_of(run(tokens[:, order])), answer_of(run(tokens))[:, order]
        else:
            moved, kept = permuted_below_the_stack(model, inputs, seed)
    return Report("permutation equivariance", (moved - kept).abs().max().item(), bound)


def permuted_below_the_stack(model: nn.Module, inputs: tuple[Any, ...], seed: int) -> tuple[Tensor, Tensor]:
    """f(RX) and R f(X), where X are the tokens of an embedding of pixels, audio or columns."""
    embed, stack = part(model, "embed"), part(model, "stack")
    context = embed.layout(*inputs)
    kept = stack(embed(*inputs, context=context), context)[0]
    orders: list[Tensor] = []
    parts = list(embed.parts) if isinstance(embed, JointModule) else [embed]
    handles = [handle for number, one in enumerate(parts) for handle in move_tokens(one, seed + number, orders)]
    try:
        x = embed(*inputs, context=context)
    finally:
        for handle in handles:
            handle.remove()
    starts = [sum(len(one) for one in orders[:number]) for number in range(len(orders))]
    order = torch.cat([start + one for start, one in zip(starts, orders, strict=True)])
    owned = ("mask", "key_mask", "documents", "key_documents")  # per-token values, which move with the tokens
    own = {name: given[:, order] for name in owned if (given := getattr(context, name)) is not None}
    return stack(x, replace(context, **own))[0], kept[:, order]


def move_tokens(embed: nn.Module, seed: int, orders: list[Tensor]) -> list[Any]:
    """Hooks that permute an embedding's tokens but not its positions; the permutation is appended to `orders`.

    An embedding adds positions to tokens. The hooks apply the inverse permutation to the positions and the permutation
    to the sums, so that the tokens move and the positions are back in place.
    """
    lead, registers = (embed.spec.leading, embed.spec.registers) if isinstance(embed, PatchesModule) else (0, 0)

    def invert(module: nn.Module, given: Any, positions: Tensor) -> Tensor:
        return positions[:, order_behind(lead, positions.shape[1], seed).to(positions.device).argsort()]

    def reorder(module: nn.Module, given: Any, x: Tensor) -> Tensor:
        orders.append(order_behind(lead + registers, x.shape[1], seed).to(x.device))
        return x[:, orders[-1]]

    position = dict(embed.named_children()).get("position")
    handles = [] if position is None else [position.register_forward_hook(invert)]
    return [*handles, embed.register_forward_hook(reorder)]


def order_behind(fixed: int, length: int, seed: int) -> Tensor:
    """A random permutation of `length` tokens that keeps the first `fixed`."""
    return torch.cat([torch.arange(fixed), fixed + random_order(length - fixed, seed)])


def random_order(length: int, seed: int) -> Tensor:
    """A random permutation other than the identity."""
    if length < 2:
        raise UserError("one token has no other order", where="permutation", fix="give two tokens or more")
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
    return order.roll(1) if torch.equal(order, torch.arange(length)) else order


@torch.no_grad()
def cache(model: nn.Module, tokens: Tensor | None = None, *, prefill: int | None = None, bound: float = 1e-4,
          vocab: int | None = None) -> Report:  # fmt: skip
    """KV cache: distance of prefill plus one-token decode steps from one full pass."""
    tokens = random_tokens(model, vocab) if tokens is None else tokens
    start = tokens.shape[1] // 2 if prefill is None else prefill
    if not 0 <= start <= tokens.shape[1]:
        raise UserError(f"prefill {start} is not between 0 and {tokens.shape[1]} tokens", where="cache", fix="use 1")
    with eval_mode(model):
        run, state = runner(model, tokens.shape[0]), state_of(model, tokens.shape[0])
        full = answer_of(run(tokens))
        pieces = [answer_of(run(tokens[:, :start], state=state))] if start else []
        pieces += [answer_of(run(tokens[:, t : t + 1], state=state)) for t in range(start, tokens.shape[1])]
    return Report("stepwise decoding = full pass", (torch.cat(pieces, 1) - full).abs().max().item(), bound)


@torch.no_grad()
def padding(model: nn.Module, tokens: Tensor | None = None, *, side: str = "left", amount: int = 3, bound: float = 1e-4,
            vocab: int | None = None) -> Report:  # fmt: skip
    """How much padding on one side changes the outputs at real tokens."""
    if side not in ("left", "right"):
        raise UserError(f"{side!r} is not a side of a text", where="padding", fix=did_you_mean(side, ("left", "right")))
    if amount < 1:
        raise UserError(f"{amount} tokens of padding change nothing", where="padding", fix="use 3")
    size = vocab or vocab_of(model)
    tokens = random_tokens(model, size) if tokens is None else tokens
    batch, length = tokens.shape
    pads = torch.randint(0, size, (batch, amount), generator=torch.Generator().manual_seed(0)).to(tokens.device)
    real, none = torch.ones(batch, length, dtype=torch.bool), torch.zeros(batch, amount, dtype=torch.bool)
    left = side == "left"
    mask = torch.cat([none, real] if left else [real, none], 1).to(tokens.device)
    with eval_mode(model):
        run = runner(model, batch)
        padded = answer_of(run(torch.cat([pads, tokens] if left else [tokens, pads], 1), mask=mask))
        alone = answer_of(run(tokens))
    cut = padded[:, amount:] if left else padded[:, :length]
    return Report(f"padding on the {side}", (cut - alone).abs().max().item(), bound)


# ---------------------------------------------------------------- inputs and models of the laws


def runner(model: nn.Module, batch: int) -> Callable[..., Any]:
    """The function by which a law calls a model with ids; an encoder-decoder gets random sources.

    A classifier is run on all tokens, also those that its head does not read.
    """
    if isinstance(model, ModelModule) and model.skips_tokens:
        return model.before_head
    spec = getattr(model, "spec", None)
    if not isinstance(spec, Seq2Seq):
        return model
    if spec.encoder.embed.vocabulary is None:
        raise UserError(f"sources for {type(spec.encoder.embed).__name__} cannot be made up", where="checks",
                        fix="ask model.encoder, or wrap the model in a function of its targets")  # fmt: skip
    if spec.decoder.embed.vocabulary is None:
        raise UserError(f"a decoder of {type(spec.decoder.embed).__name__} reads no ids", where="checks",
                        fix="ask model.encoder")  # fmt: skip
    source = random_ids(model, spec.encoder.embed.vocabulary[0], batch, 7, seed=1)

    def run(targets: Tensor, mask: Tensor | None = None, state: Any = None) -> Any:
        return model(source, targets, target_mask=mask, state=state)

    return run


def state_of(model: nn.Module, batch: int) -> Any:
    """An empty decoding state."""
    if not callable(make := getattr(model, "state", None)):
        raise UserError(f"{type(model).__name__} has no decoding state", where="cache", fix="give a built Model")
    return make(batch)


def random_tokens(
    model: nn.Module, vocab: int | None = None, *, batch: int = 2, length: int = 12, seed: int = 0
) -> Tensor:
    """Random input ids."""
    return random_ids(model, vocab or vocab_of(model), batch, length, seed)


def random_ids(model: nn.Module, vocab: int, batch: int, length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (batch, length), generator=generator).to(next(model.parameters()).device)


def check_length(tokens: Tensor, law: str) -> None:
    """Reject sequences of one token, for which the law holds trivially."""
    if tokens.dim() != 2 or tokens.shape[0] < 1 or tokens.shape[1] < 2:
        raise UserError(f"tokens have shape {tuple(tokens.shape)}", where=law,
                        fix="give ids (B, T) with two tokens or more")  # fmt: skip


def vocab_of(model: nn.Module) -> int:
    """Vocabulary size of the model's embedding, or of its decoder's."""
    spec = getattr(model, "spec", None)
    reader = spec.decoder if isinstance(spec, Seq2Seq) else spec
    vocabulary = reader.embed.vocabulary if isinstance(reader, Model) else None
    if vocabulary is None:
        raise UserError("the model does not say how many ids it knows", fix="pass tokens= and vocab=")
    return vocabulary[0]


def rounding_of(model: nn.Module) -> float:
    """Tolerance of a causal leak relative to the outputs: 0, or the rounding error of parts that are not exact."""
    spec = getattr(model, "spec", None)
    parts = [] if spec is None else [part for _, part in spec.walk() if isinstance(part, Mixer | Feed)]
    if all(part.exact for part in parts):
        return 0.0
    dtype = next(model.parameters()).dtype
    return {torch.float64: 1e-12, torch.float32: 1e-6}.get(dtype, 8 * torch.finfo(dtype).eps)


def part(model: nn.Module, name: str) -> Any:
    """A named submodule of a model, for laws that run its parts."""
    found = dict(model.named_children()).get(name)
    if found is None:
        raise UserError(f"{type(model).__name__} has no {name}", where="checks", fix="give a built Model")
    return found
