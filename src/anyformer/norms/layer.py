"""Layer normalisation (1607.06450)."""

from typing import ClassVar

from torch import Tensor, nn

from anyformer.about import About
from anyformer.errors import UserError
from anyformer.slots import Norm


class LayerNorm(Norm):
    """(x - mean) / sqrt(variance + eps) * weight + bias, over the channels of each token."""

    about: ClassVar[About | None] = About(
        "y = (x - mean) / sqrt(var + eps) * w + b, over the channels of a token", "1607.06450", "T D"
    )

    eps: float = 1e-5
    """Added to the variance against division by zero."""
    bias: bool = True
    """Whether there is a learned shift."""

    def check(self) -> None:
        positive_eps(self.eps, "LayerNorm")

    def build(self, width: int) -> nn.Module:
        return LayerNormModule(width, eps=self.eps, bias=self.bias)


class LayerNormModule(nn.LayerNorm):
    """As torch's, but under autocast, which gives single precision, a stream in bf16 stays one."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).to(input.dtype)


def positive_eps(eps: float, where: str) -> None:
    if eps < 0:
        raise UserError(f"eps {eps} is negative", where=where, fix="use 1e-5")
