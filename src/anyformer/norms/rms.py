"""Root-mean-square normalisation (1910.07467): no mean, no bias."""

from torch import nn

from anyformer.norms.layer import positive_eps
from anyformer.slots import Norm


class RMSNorm(Norm):
    """x / sqrt(mean of x² + eps) * weight, over the channels of each token."""

    eps: float = 1e-6

    def check(self) -> None:
        positive_eps(self.eps, "RMSNorm")

    def build(self, width: int) -> nn.Module:
        return nn.RMSNorm(width, eps=self.eps)
