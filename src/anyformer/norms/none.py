"""No norm at all, to see what norms are for."""

from torch import nn

from anyformer.slots import Norm


class NoNorm(Norm):
    """x as it is."""

    def build(self, width: int) -> nn.Module:
        return nn.Identity()
