"""Texts in which a discriminator of replaced tokens looks for tokens that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from anyformer.data.datasets.blocks import frame_of
from anyformer.errors import UserError
from anyformer.tasks.trained_model import TrainedModel, preprocess_of


@dataclass(frozen=True)
class SuspectedTokens:
    """The tokens of a text, and for each the probability that it is a replacement."""

    tokens: list[str]
    probabilities: list[float]

    @property
    def suspects(self) -> list[str]:
        """The tokens that are more likely replaced than not."""
        return [token for token, share in zip(self.tokens, self.probabilities, strict=True) if share > 0.5]

    def to_json(self) -> dict[str, Any]:
        """The JSON of a server's answer."""
        pairs = zip(self.tokens, self.probabilities, strict=True)
        return {"prediction": self.suspects,
                "tokens": [{"token": token, "probability": round(share, 6)} for token, share in pairs]}  # fmt: skip


@torch.inference_mode()
def find_suspects(predictor: TrainedModel, texts: Sequence[str], batch_size: int) -> list[SuspectedTokens]:
    """Each text's tokens with the discriminator's probabilities, without special tokens."""
    tokenizer = predictor.tokenizer
    if tokenizer is None:
        raise UserError("the model has no tokenizer", fix="give a run of --task replaced")
    before, behind = frame_of(tokenizer)
    limit, rows = preprocess_of(predictor).length, []
    for number, text in enumerate(texts):
        row = [*before, *tokenizer.encode(text, special=False, safe=True), *behind]
        if limit is not None and len(row) > limit:
            raise UserError(f"the text is {len(row):,} tokens long, the model takes {limit:,}",
                            where=f"row {number + 1}", fix="shorten it")  # fmt: skip
        rows.append(row)
    found = []
    for start in range(0, len(rows), batch_size):
        ids, mask = tokenizer.padded(rows[start : start + batch_size], side="right", device=predictor.device)
        shares = predictor.model(ids, mask=mask).logits[..., 0].float().sigmoid().tolist()
        for row, values in zip(rows[start : start + batch_size], shares, strict=True):
            inside = slice(len(before), len(row) - len(behind))
            found.append(SuspectedTokens([tokenizer.token(n) for n in row[inside]], values[inside]))
    return found
