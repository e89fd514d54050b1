"""No relative positions: attention sees a set."""

from torch import nn

from anyformer.slots import Relative


class NoRelative(Relative):
    """Nothing is turned and nothing is added."""

    def build(self, heads: int, channels: int, value_channels: int, causal: bool) -> nn.Module | None:
        return None
