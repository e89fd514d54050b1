"""Root-mean-square normalisation (1910.07467): no mean, no bias."""

from typing import ClassVar

from torch import Tensor, nn

from anyformer.about import About
from anyformer.norms.layer import positive_eps
from anyformer.slots import Norm


class RMSNorm(Norm):
    """x / sqrt(mean of x² + eps) * weight, over the channels of each token."""

    about: ClassVar[About | None] = About("y = x / sqrt(mean(x^2) + eps) * w", "1910.07467", "T D")

    eps: float = 1e-6
    """Added to the variance against division by zero."""

    def check(self) -> None:
        positive_eps(self.eps, "RMSNorm")

    def build(self, width: int) -> nn.Module:
        return RMSNormModule(width, eps=self.eps)


class RMSNormModule(nn.RMSNorm):
    """As torch's, but under autocast, which gives single precision, a stream in bf16 stays one."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(x.dtype)
