"""Convolution over time."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.document_rows import DocumentLines
from anyformer.core.history import InputHistory
from anyformer.errors import check_at_least
from anyformer.slots import Mixer, Relative
from anyformer.spec import field


class Convolution(Mixer):
    """y_t = b + sum_j W_j x_{t - j dilation} over `kernel` tokens: the newest ones in a causal stack, else around t.

    Texts are zero-padded. An even kernel around t extends one token further to the right, as torch's padding "same".
    `gated` is a gated linear unit: (convolution) * sigmoid(another one), as in 1705.03122.
    """

    kernel: int = field(default=3, kw_only=False)  # Convolution(3)
    """Kernel size in tokens."""
    dilation: int = 1
    """Dilation of the kernel."""
    gated: bool = False
    """Whether a second convolution gates the first."""

    about: ClassVar[About | None] = About(
        "y_t = b + sum_j W_j x_{t - j d}, j = 0 .. k-1; gated: y * sigmoid(y')",
        "1408.5882; gated 1705.03122",
        "T k D^2",
    )

    def check(self) -> None:
        for name in ("kernel", "dilation"):
            check_at_least("Convolution", name, getattr(self, name), 1, fix="use 1 or more")

    @property
    def reach(self) -> int:
        """Receptive field in tokens, without the token itself."""
        return (self.kernel - 1) * self.dilation

    def build(self, width: int, *, causal: bool, relative: Relative, memory_width: int | None = None) -> nn.Module:
        return ConvolutionModule(self, width, causal)


class ConvolutionModule(nn.Module):
    def __init__(self, spec: Convolution, width: int, causal: bool) -> None:
        super().__init__()
        self.spec = spec
        self.left = spec.reach if causal else spec.reach // 2
        self.conv = nn.Conv1d(width, width * (1 + spec.gated), spec.kernel, dilation=spec.dilation)

    def forward(self, x: Tensor, context: Context, state: InputHistory | None, tables: tuple[Tensor, ...]) -> Tensor:
        length = x.shape[1]
        if state is not None:
            x = state.update(x, self.spec.reach + 1 if context.rolling else None)  # (B,S,D)
        lines = DocumentLines.of_keys(context, x.shape[1])
        if lines is None:
            return self.convolve(x[:, -length - self.spec.reach :])[:, -length:]  # the new tokens' receptive field
        return lines.together(self.convolve(lines.apart(x)))[:, -length:]

    def convolve(self, x: Tensor) -> Tensor:
        """Convolve whole lines (N,T,D), zero-padded."""
        padded = F.pad(x.transpose(1, 2), (self.left, self.spec.reach - self.left))  # (N,D,T+reach)
        y = self.conv(padded).transpose(1, 2)  # (N,T,D) or, with its gate, (N,T,2D)
        return F.glu(y, -1) if self.spec.gated else y

    def state(self, batch: int, limit: int | None) -> InputHistory:
        """An empty history of the newest inputs."""
        return InputHistory(limit=limit)
