"""Output of a span-denoising model (T5): each span after its sentinel."""

from __future__ import annotations

from collections.abc import Sequence

from anyformer.data.datasets.blocks import sentinels_of
from anyformer.data.tokenizers.tokenizer import Tokenizer


def has_sentinels(tokenizer: Tokenizer, text: str) -> bool:
    """Whether a prompt contains sentinels such as `<extra_id_0>`."""
    return not set(sentinels_of(tokenizer)).isdisjoint(tokenizer.encode(text))


def decode_spans(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Decode ids, keeping sentinels but no other special tokens: without sentinels spans would run together."""
    marks, parts, start = set(sentinels_of(tokenizer)), [], 0
    for at, token in enumerate([*ids, None]):
        if token is None or token in marks:
            parts.append(tokenizer.decode(ids[start:at]).strip())
            start = at + 1
            if token is not None:
                parts.append(tokenizer.token(token))
    return " ".join(part for part in parts if part)
