"""Names of token and class ids for the page, and the output token of each decode step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from anyformer.core.model import Seq2Seq
from anyformer.inspection.axis import Token, word_token, word_tokens

if TYPE_CHECKING:
    from anyformer.data.tokenizers.tokenizer import Tokenizer
    from anyformer.inspection.capture import Capture


def written_words(capture: Capture) -> Tokenizer | None:
    """The tokenizer of a model's output text."""
    words = None if capture.predictor is None else capture.predictor.tokenizer
    return words.target if words is not None and isinstance(capture.model.spec, Seq2Seq) else words


def words_of(capture: Capture, ids: Iterable[int]) -> list[Token]:
    """The tokens of a model's output text; numbers without a tokenizer."""
    return word_tokens(written_words(capture), list(ids))


def names_of(capture: Capture, ids: Iterable[int], kind: str) -> dict[int, str]:
    """The names of ids, for words or classes."""
    different = sorted(set(ids))
    if kind == "word":
        words = written_words(capture)  # decoded individually: these ids are not a text
        return {number: str(number) if words is None else word_token(words, number).text for number in different}
    if capture.predictor is None:
        return {number: f"class {number}" for number in different}
    return {number: capture.predictor.label(number) for number in different}


def written_tokens(capture: Capture) -> tuple[Token, ...]:
    """The output token of each step of an encoder-decoder: the next token, at the end the predicted one.

    A step attends in order to predict that token, so these label the rows of cross-attention. Empty if the model does
    not generate text.
    """
    from anyformer.inspection.trace import writes

    ids = capture.token_ids("decoder")
    logits = getattr(capture.output, "logits", None)
    if not isinstance(getattr(capture.model, "spec", None), Seq2Seq) or ids is None or not writes(capture.model):
        return ()
    if not isinstance(logits, Tensor) or logits.dim() != 3 or logits.shape[1] != len(ids):
        return ()
    words = written_words(capture)
    pad = None if words is None else words.pad
    last = next((place for place, number in enumerate(ids) if place and number == pad), len(ids)) - 1
    answered = int(logits[min(capture.row, len(logits) - 1), last].argmax())
    read = capture.axes["decoder"].tokens
    following = [*ids[1:], answered]
    following[last] = answered
    found = words_of(capture, following)
    notes = [f"after {token.text.strip() or repr(token.text)}" for token in read]
    notes[last] = f"predicted {notes[last]}"
    return tuple(replace(token, note=f"{note}, {token.note}" if token.note else note)
                 for token, note in zip(found, notes, strict=True))  # fmt: skip


def token_facts(token: Token) -> dict[str, Any]:
    """A token as JSON-compatible data."""
    return {"text": token.text, "kind": token.kind, "id": token.id, "note": token.note}
