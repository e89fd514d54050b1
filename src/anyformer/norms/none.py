"""No norm at all, to see what norms are for."""

from typing import ClassVar

from torch import nn

from anyformer.about import About
from anyformer.slots import Norm


class NoNorm(Norm):
    """x as it is."""

    about: ClassVar[About | None] = About("y = x", "-", "0")

    def build(self, width: int) -> nn.Module:
        return nn.Identity()
