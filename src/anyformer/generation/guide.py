"""The interface of constrained decoding."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Guide(Protocol):
    """Constrains one output token by token, such as a grammar with its matching state."""

    def mask(self) -> Tensor:
        """Mask of allowed next tokens, bool (V,) on the CPU; includes end ids if the output may end here."""

    def accept(self, token: int) -> None:
        """Advance by a sampled token."""

    @property
    def over(self) -> bool:
        """Whether the output is complete and must end."""
