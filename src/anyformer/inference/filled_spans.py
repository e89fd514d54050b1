"""Texts that a model of spans has filled in: each span after the sentinel that it stands for (T5)."""

from __future__ import annotations

from collections.abc import Sequence

from anyformer.data.datasets.blocks import sentinels_of
from anyformer.data.tokenizers.tokenizer import Tokenizer


def has_sentinels(tokenizer: Tokenizer, text: str) -> bool:
    """Whether a prompt has gaps that are marked by sentinels, as `<extra_id_0>`."""
    return not set(sentinels_of(tokenizer)).isdisjoint(tokenizer.encode(text))


def decode_spans(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of ids in which sentinels are kept, other special tokens are not: without them spans run together."""
    marks, parts, start = set(sentinels_of(tokenizer)), [], 0
    for at, token in enumerate([*ids, None]):
        if token is None or token in marks:
            parts.append(tokenizer.decode(ids[start:at]).strip())
            start = at + 1
            if token is not None:
                parts.append(tokenizer.token(token))
    return " ".join(part for part in parts if part)
