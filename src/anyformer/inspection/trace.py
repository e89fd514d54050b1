"""The generation trace: every token with its probability, its rank and its alternatives.

Tokens are generated greedily with the KV cache, then the whole text is replayed in one pass: the numbers are those of
the replay, and `Trace.error` is the difference of its log-probabilities from those of the generation. For a masked
language model each token is masked in turn and predicted (1910.14659).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from anyformer.errors import UserError
from anyformer.inspection.distributions import parts, score_tokens

if TYPE_CHECKING:
    from anyformer.generation.config import Generation
    from anyformer.inspection.capture import Capture

MASKED = 128  # most tokens masked one at a time: each needs its own pass


@dataclass(frozen=True)
class Trace:
    """N tokens, the first `given` of which are the prompt; log-probabilities are natural logarithms.

    A token without a prediction (the first of a text, a special one of BERT) is not `scored`: its numbers are nan.
    """

    kind: Literal["written", "masked"]
    ids: Tensor  # (N,)
    given: int
    scored: Tensor  # (N,) bool
    logprobs: Tensor  # (N,)
    ranks: Tensor  # (N,) 1 for the most probable, 0 if not scored
    entropy: Tensor  # (N,) in nats
    top_ids: Tensor  # (N,K) best first
    top_logprobs: Tensor  # (N,K)
    partition: Tensor  # (N, temperatures): log sum over the vocabulary of p ** (1 / temperature)
    milliseconds: Tensor  # (N,) of each generated token; the first includes the prefill
    error: float  # largest difference of replayed and generated log-probabilities; nan if nothing was generated
    reason: str | None  # finish reason: eos or length; None if nothing was generated


class GreedyText(NamedTuple):
    """The result of greedy decoding."""

    ids: list[int]
    logprobs: list[float]
    milliseconds: list[float]
    reason: str | None


# ---------------------------------------------------------------- causal language models


def trace_text(
    network: Any,
    prompt: Sequence[int],
    *,
    new: int = 16,
    top: int = 50,
    settings: Generation | None = None,
    source: Any = None,
    source_mask: Tensor | None = None,
) -> Trace:
    """The trace of a prompt and of at most `new` tokens generated after it.

    For an encoder-decoder the prompt is the start of the target, and `source` the encoder's input.
    """
    from anyformer.generation.runners.eager import eval_mode

    with torch.no_grad(), eval_mode(network):
        written = write(network, prompt, new, settings, source, source_mask)
        ids = torch.tensor([*prompt, *written.ids])
        hidden = replay(network, ids, len(prompt), source, source_mask)  # (N,D)
        first = len(prompt) if network_is_prefix(network) else 1  # tokens of a prefix attend to those after them
        found = score_tokens(network, hidden[first - 1 : -1], ids[first:], top)
    whole = {name: before(value, first) for name, value in found.items()}
    times = torch.full((len(ids),), torch.nan)
    times[len(prompt) :] = torch.tensor(written.milliseconds)
    ours, theirs = whole["logprobs"][len(prompt) :], torch.tensor(written.logprobs)
    return Trace(
        kind="written", ids=ids, given=len(prompt), scored=torch.arange(len(ids)) >= first, milliseconds=times,
        error=float((ours - theirs).abs().max()) if written.ids else float("nan"), reason=written.reason, **whole,
    )  # fmt: skip


def write(
    network: Any, prompt: Sequence[int], new: int, settings: Generation | None, source: Any, source_mask: Tensor | None
) -> GreedyText:
    """Generate at most `new` tokens after the prompt, greedily."""
    from anyformer.generation.config import Generation
    from anyformer.generation.decode import Decoding, check_settings, prefill
    from anyformer.generation.prompts import (
        GenerationInputs,
        check_ids,
        check_model,
        decoder_of,
        max_positions,
        vocabulary_of,
    )
    from anyformer.generation.runners.eager import device_of

    decoder = decoder_of(check_model(network))
    vocab = vocabulary_of(decoder.embed, "the model")
    ids = check_ids(torch.tensor([list(prompt)], dtype=torch.long), vocab).to(device_of(network))
    limit, _ = max_positions(decoder)
    new = new if limit is None else min(new, limit - ids.shape[1])
    chosen = greedy(Generation() if settings is None else settings, new)
    if new < 1 or (int(ids[0, -1]) in chosen.ends and ids.shape[1] > 1):
        return GreedyText([], [], [], None)
    check_settings(chosen, vocab)
    inputs = GenerationInputs(ids, None, ids.shape[1], new, None, source, source_mask)
    tokens: list[int] = []
    logprobs: list[float] = []
    milliseconds: list[float] = []
    began = time.perf_counter()
    decoding = Decoding(network, *prefill(network, inputs, chosen), inputs, chosen)
    for step in decoding:
        tokens.append(int(step.tokens[0]))  # syncs with the device
        logprobs.append(float(step.logprobs[0]))
        milliseconds.append(1000 * (time.perf_counter() - began))
        began = time.perf_counter()
    return GreedyText(tokens, logprobs, milliseconds, decoding.result().reasons[0])


def greedy(settings: Generation, new: int) -> Generation:
    """The generation settings without sampling, beams, draft tokens and stop strings."""
    return replace(
        settings, do_sample=False, num_beams=1, num_return_sequences=1, max_new_tokens=max(1, new), max_length=None,
        logprobs=0, prompt_lookup_num_tokens=None, stop_strings=(),
    )  # fmt: skip


def network_is_prefix(network: Any) -> bool:
    from anyformer.generation.prompts import reads_prompt_whole

    return reads_prompt_whole(network.spec)


def replay(network: Any, ids: Tensor, given: int, source: Any, source_mask: Tensor | None) -> Tensor:
    """The hidden states (N,D) of a whole text, from one pass."""
    from anyformer.core.model import Seq2SeqModule
    from anyformer.generation.runners.eager import device_of

    row = ids[None].to(device_of(network))
    if isinstance(network, Seq2SeqModule):
        return network.before_head(source, row, source_mask=source_mask).hidden[0]
    prefix = torch.tensor([given], device=row.device) if network_is_prefix(network) else None
    hidden: Tensor = network.before_head(row, prefix=prefix).hidden[0]
    return hidden


# ---------------------------------------------------------------- masked language models


def trace_masked(
    network: Any,
    ids: Tensor,
    mask_id: int,
    *,
    top: int = 50,
    special: Sequence[int] = (),
    options: Mapping[str, Any] | None = None,
) -> Trace:
    """The trace of a text (T,) by masking each token in turn, except `special` ids.

    `options` are further arguments of the network for the single row, such as segments.
    """
    from anyformer.generation.runners.eager import device_of, eval_mode

    asked = [t for t in range(min(len(ids), MASKED)) if int(ids[t]) not in special]
    if not asked:
        raise UserError("no word of this text can be masked", where="trace", fix="give a text of words")
    device = device_of(network)
    rows = ids.to(device).repeat(len(asked), 1)  # (n,T)
    rows[torch.arange(len(asked)), asked] = mask_id
    with torch.no_grad(), eval_mode(network):
        hidden = []
        for at in parts(len(asked), max(1, 4096 // len(ids))):
            given = {name: spread_rows(value, at.stop - at.start) for name, value in (options or {}).items()}
            out = network.before_head(rows[at], **given).hidden  # (b,T,D)
            hidden.append(out[torch.arange(len(out)), asked[at]])
        found = score_tokens(network, torch.cat(hidden), ids[asked], top)
    scored = torch.zeros(len(ids), dtype=torch.bool)
    scored[asked] = True
    whole = {name: scattered(value, scored) for name, value in found.items()}
    return Trace(
        kind="masked", ids=ids.cpu(), given=len(ids), scored=scored, error=float("nan"), reason=None,
        milliseconds=torch.full((len(ids),), torch.nan), **whole,
    )  # fmt: skip


def spread_rows(value: Any, rows: int) -> Any:
    """A single row's tensor expanded to several rows."""
    if isinstance(value, Tensor) and value.dim() and value.shape[0] == 1:
        return value.expand(rows, *value.shape[1:])
    return value


def before(value: Tensor, first: int) -> Tensor:
    """Values from token `first` on, padded in front with nan (0 for integers)."""
    return torch.cat([empty(first, value), value])


def scattered(value: Tensor, scored: Tensor) -> Tensor:
    """Values at the scored tokens, nan (0 for integers) at the others."""
    found = empty(len(scored), value)
    found[scored] = value
    return found


def empty(rows: int, like: Tensor) -> Tensor:
    return like.new_full((rows, *like.shape[1:]), torch.nan if like.is_floating_point() else 0)


# ---------------------------------------------------------------- the trace of a capture


def why_no_trace(capture: Capture) -> str | None:
    """None for causal and masked language models, else the reason as a sentence."""
    from anyformer.core.model import ModelModule, Seq2SeqModule
    from anyformer.heads import LM, LMWithPair

    network = capture.model
    if not isinstance(network, ModelModule | Seq2SeqModule):
        return f"A {type(network).__name__} writes no text."
    if not isinstance(network.spec.head, LM | LMWithPair):
        head = network.spec.head
        what = "it has no head" if head is None else f"its head {type(head).__name__} has no logits over a vocabulary"
        return f"This model writes no text: {what}."
    if writes(network):
        return (
            None if capture.token_ids("decoder" if capture.modality == "pair" else "") else "Its tokens are not words."
        )
    if isinstance(network, Seq2SeqModule):
        return "The decoder is not causal, so it writes no text token by token."
    return None if mask_id_of(capture) is not None else "This model is not causal, and its tokenizer has no mask token."


def writes(network: Any) -> bool:
    """Whether the model can decode token by token."""
    from anyformer.generation.prompts import decoder_of
    from anyformer.heads import LM

    return isinstance(network.spec.head, LM) and bool(decoder_of(network.spec).stack.causal)


def mask_id_of(capture: Capture) -> int | None:
    words = None if capture.predictor is None else capture.predictor.tokenizer
    return None if words is None else words.mask


def trace_of(
    capture: Capture, *, new: int = 16, top: int = 50, prefix: Sequence[int] = (), branch: int | None = None
) -> Trace:
    """The trace of a capture's input and of `new` tokens after it; for an encoder-decoder, of its target.

    `prefix` are tokens after the input, or after the target's start, and `branch` is one more token in place of the
    model's own choice; generation continues from there.
    """
    reason = why_no_trace(capture)
    if reason is not None:
        raise UserError(reason, where="trace", fix="look at a model that writes text")
    ids = capture.token_ids("decoder" if capture.modality == "pair" else "")
    assert ids is not None
    if not writes(capture.model):
        mask_id = mask_id_of(capture)
        assert mask_id is not None and capture.predictor is not None
        words = capture.predictor.require_tokenizer()
        special = [number for number in (words.bos, words.eos, words.sep, words.pad, words.cls) if number is not None]
        options = {name: row_of(value, capture.row) for name, value in capture.given.options.items()}
        return trace_masked(capture.model, torch.tensor(ids), mask_id, top=top, special=special, options=options)
    settings = None if capture.predictor is None else capture.predictor.defaults
    added = [*prefix, *(() if branch is None else (branch,))]
    if capture.modality != "pair":
        return trace_text(capture.model, [*ids, *added], new=new, top=top, settings=settings)
    source, mask = row_of(capture.given.args[0], capture.row), capture.given.options.get("source_mask")
    trace = partial(
        trace_text, capture.model, top=top, settings=settings, source=source, source_mask=row_of(mask, capture.row)
    )
    if added:
        return trace([ids[0], *added], new=new)
    own = trace(ids[:1], new=len(ids) - 1)
    # If that is another text, the target was given and differs from what the model generates.
    return own if own.ids.tolist() == ids else trace(ids, new=0)


def row_of(value: Any, row: int) -> Any:
    """One row of a batch as a batch of one."""
    if isinstance(value, tuple):
        return tuple(row_of(part, row) for part in value)
    return value[row : row + 1] if isinstance(value, Tensor) and value.dim() and len(value) > 1 else value
