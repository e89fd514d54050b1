"""The generation trace: the tokens, their probabilities, and their alternatives."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.errors import UserError
from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.distributions import TEMPERATURES
from anyformer.inspection.trace import MASKED, Trace, trace_of, why_no_trace, writes
from anyformer.inspection.word_names import names_of, token_facts, words_of

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture

TITLE = "Generation trace"
READ = "Each token is shaded by its probability. Choose one to see what else could have come, and branch from there."
CLAIM = "kv-cache"
NOTES = {
    "alone": "Each number is from a pass of its own in which that word is masked (pseudo-log-likelihood).",
    "read": "This token was read, not written: to change it, give another input.",
    "still": "To go on from another token, run anyformer look.",
    "entropy": "Entropy: how open the choice was. Surprise: −log of the token that came. Both in nats.",
}
FIRST = "nothing stands before it that could predict it."
NOT_ASKED = f"special tokens are not asked for, nor those after the first {MASKED}."
TOP = 50
MOST_NEW = 64
WHOLE = ("ranks", "top_ids")


def applies(capture: Capture) -> str | None:
    return why_no_trace(capture)


def answer(capture: Capture, query: Query) -> ViewAnswer:
    new = query.integer("new", 16, 0, MOST_NEW)
    found = trace_of(capture, new=new, top=TOP, prefix=ids_in(query, "prefix"), branch=branch_in(query))
    own = [float(value) for value, scored in zip(found.logprobs, found.scored, strict=True) if scored]
    facts: dict[str, Any] = {
        "kind": found.kind, "given": found.given, "reason": found.reason, "error": found.error,
        "written": found.kind == "written" and not math.isnan(found.error),
        "branches": writes(capture.model), "first": first_step(capture, found), "temperatures": list(TEMPERATURES),
        "tokens": [token_facts(token) for token in words_of(capture, found.ids.tolist())],
        "names": names_of(capture, found.top_ids[found.scored].flatten().tolist(), "word"),
        "vocabulary": vocabulary(capture), "scored": found.scored.tolist(),
        "unscored": FIRST if found.kind == "written" else NOT_ASKED,
        "total": sum(own), "perplexity": math.exp(-sum(own) / len(own)) if own else None,
        "branched": bool(query.options.get("branch")), "tolerance": tolerance(capture),
        "trusted": math.isnan(found.error) or found.error <= tolerance(capture),
    }  # fmt: skip
    names = ("logprobs", "ranks", "entropy", "top_ids", "top_logprobs", "partition", "milliseconds")
    return ViewAnswer(facts, {name: as_array(name, getattr(found, name)) for name in names})


def ids_in(query: Query, name: str) -> list[int]:
    """Comma-separated token ids."""
    given = query.options.get(name, "")
    parts = given.split(",") if given else []
    if len(parts) > 256 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise UserError(f"{name} {given[:40]!r} is not a list of token ids", where="query", fix="write 12,7,401")
    return [int(part) for part in parts]


def branch_in(query: Query) -> int | None:
    return query.integer("branch", 0, 0, 2**31) if query.options.get("branch") else None


def first_step(capture: Capture, found: Trace) -> int:
    """The index of the first token that can be replaced; the prompt cannot."""
    if not writes(capture.model):
        return len(found.ids)
    ids = capture.token_ids("decoder" if capture.modality == "pair" else "") or []
    return 1 if capture.modality == "pair" else len(ids)


def tolerance(capture: Capture) -> float:
    """Tolerance of replay against generation: different kernels round differently."""
    return 1e-3 if capture.output.logits.dtype.itemsize >= 4 else 0.1


def vocabulary(capture: Capture) -> int:
    return int(capture.output.logits.shape[-1])


def as_array(name: str, value: Any) -> np.ndarray:
    made: np.ndarray = value.numpy().astype(np.int32 if name in WHOLE else np.float32)
    return made
