"""What holds a text to a form while it is written."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Guide(Protocol):
    """What a text may be, token by token: a grammar in the middle of its work. One object a text."""

    def mask(self) -> Tensor:
        """Which tokens may come next, bool (V,) on the CPU; where the text may end, those that end it too."""

    def accept(self, token: int) -> None:
        """That token came."""

    @property
    def over(self) -> bool:
        """Whether nothing but the end may follow."""
