"""Stop strings: searched in the decoded text of the newest tokens, independent of tokenization."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from anyformer.errors import UserError

TextOf = Callable[[list[int]], str]
SPARE = 8  # tokens beyond the longest stop: a first token may lose its space, some decode to nothing


class Stops:
    """Stop strings and the detokenizer."""

    def __init__(self, texts: Sequence[str], text_of: TextOf) -> None:
        self.texts, self.text_of = tuple(texts), text_of
        self.tail = max(len(text.encode()) for text in self.texts) + SPARE  # at least a byte per token

    @classmethod
    def of(cls, texts: Sequence[str], text_of: TextOf | None) -> Stops | None:
        """None if there are no stop strings."""
        if not texts:
            return None
        if text_of is None:
            raise UserError("stop_strings need a way to read tokens", where="Generation",
                            fix="pass text_of=, a function from ids to text")  # fmt: skip
        return cls(texts, text_of)

    def end(self, written: Tensor, asked: Tensor) -> Tensor:
        """Which of the rows in `asked` (B,) have a stop string in their output (B,N), without prompts."""
        rows = zip(written[:, -self.tail :].tolist(), asked.tolist(), strict=True)
        found = [ask and self.ends(row) for row, ask in rows]
        return torch.tensor(found, dtype=torch.bool, device=written.device)

    def ends(self, written: list[int]) -> bool:
        """Whether a stop string occurs in the newest of these tokens."""
        text = self.text_of(written[-self.tail :])
        return any(stop in text for stop in self.texts)
