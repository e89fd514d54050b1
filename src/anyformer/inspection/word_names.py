"""Words and classes by their ids, as a page writes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from anyformer.core.model import Seq2Seq
from anyformer.inspection.axis import Token, word_tokens

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture


def words_of(capture: Capture, ids: Iterable[int]) -> list[Token]:
    """The tokens of ids that a model writes; numbers where there is no tokenizer."""
    words = None if capture.predictor is None else capture.predictor.tokenizer
    if words is not None and isinstance(capture.model.spec, Seq2Seq):
        words = words.target
    return word_tokens(words, list(ids))


def names_of(capture: Capture, ids: Iterable[int], kind: str) -> dict[int, str]:
    """What each id stands for, among words or classes."""
    different = sorted(set(ids))
    if kind == "word":
        return {token.id: token.text for token in words_of(capture, different) if token.id is not None}
    if capture.predictor is None:
        return {number: f"class {number}" for number in different}
    return {number: capture.predictor.label(number) for number in different}


def token_facts(token: Token) -> dict[str, Any]:
    """A token for a page."""
    return {"text": token.text, "kind": token.kind, "id": token.id, "note": token.note}
