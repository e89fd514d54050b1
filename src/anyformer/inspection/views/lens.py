"""The logit lens: the model's predictions after each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.axis import Token
from anyformer.inspection.lens import Lens, lens_of, readout_of, why_no_lens
from anyformer.inspection.prediction import has_many_labels
from anyformer.inspection.trace import writes
from anyformer.inspection.word_names import names_of, token_facts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from anyformer.inspection.capture import Capture

TITLE = "Logit lens"
READ = (
    "Each row is a layer, read through the final norm and the head. The stronger a cell, the surer its answer; "
    "the last row is the model's own."
)
NOTES = {
    "labels": "Each label is answered by itself: several may come together.",
}
TOUR = (7, "The lens. What the model would answer after each layer.")
TOP = 10
WINDOW = 64  # positions per answer
WHOLE = ("ids", "ranks")


def applies(capture: Capture) -> str | None:
    return why_no_lens(capture.model)


def answer(capture: Capture, query: Query) -> ViewAnswer:
    tokens = answered_tokens(capture)
    start = query.integer("start", 0, 0, len(tokens) - 1)
    here = slice(start, start + WINDOW)
    found = lens_of(capture, TOP, norm=query.flag("norm", True), at=here)
    facts: dict[str, Any] = {
        "kind": found.kind, "layers": list(found.layers), "start": start, "count": len(tokens), "window": WINDOW,
        "axis": readout_of(capture.model, None).stack, "many": has_many_labels(capture),
        "tokens": [token_facts(token) for token in tokens[here]], "normed": found.normed, "has_norm": found.has_norm,
        "error": found.error, "next": found.kind == "word" and writes(capture.model),
        "outputs": [one.name for one in capture.prediction()] if found.kind == "numbers" else [],
        "names": {} if found.kind == "numbers" else names_of(capture, found.ids.flatten().tolist(), found.kind),
    }  # fmt: skip
    return ViewAnswer(facts, {name: as_array(name, value) for name, value in tensors(found).items()})


def exported(capture: Capture) -> Iterable[Query]:
    """With the final norm and, if there is one, also without it."""
    both = readout_of(capture.model, None).norm is not None
    return [Query(), Query(options={"norm": "0"})] if both else [Query()]


def answered_tokens(capture: Capture) -> list[Token]:
    """The tokens with a prediction each; a single one for a pooled head."""
    if capture.output.logits.dim() < 3:
        return [Token("whole input", "token")]
    return list(capture.axes[readout_of(capture.model, None).stack].tokens)


def tensors(found: Lens) -> dict[str, Any]:
    if found.values is not None:
        return {"values": found.values}
    names = ("ids", "logprobs", "chosen_logprobs", "ranks", "divergence", "entropy")
    return {name: getattr(found, name) for name in names}


def as_array(name: str, value: Any) -> np.ndarray:
    made: np.ndarray = value.numpy().astype(np.int32 if name in WHOLE else np.float32)
    return made
