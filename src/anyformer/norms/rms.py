"""Root-mean-square normalisation (1910.07467): no mean, no bias."""

from typing import ClassVar

import torch
import torch.nn.functional as F
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
    """As torch's, but a stream in bf16 stays one whatever type the gains have; they meet in the wider of both."""

    def forward(self, x: Tensor) -> Tensor:
        exact = torch.promote_types(x.dtype, self.weight.dtype)
        return F.rms_norm(x.to(exact), self.normalized_shape, self.weight.to(exact), self.eps).to(x.dtype)
