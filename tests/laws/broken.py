"""Parts broken on purpose: each breaks one law, and the law's own measurement must notice."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anyformer import Mixer, Relative
from anyformer.slots import HeadSizes


class Wrapping(Mixer, slot=True):
    """A mixer around another one."""

    inner: Mixer

    @property
    def takes_relative(self) -> bool:  # type: ignore[override]
        return self.inner.takes_relative

    def sizes(self, width: int) -> HeadSizes:
        return self.inner.sizes(width)

    def build(self, width: int, *, causal: bool, relative: Relative, memory_width: int | None = None) -> nn.Module:
        module = self.inner.build(width, causal=causal, relative=relative, memory_width=memory_width)
        return self.around(module)

    def around(self, module: nn.Module) -> nn.Module:
        raise NotImplementedError


class Peeking(Wrapping):
    """The same mixer, given the next position's input."""

    def around(self, module: nn.Module) -> nn.Module:
        return Ahead(module)


class Forgetful(Wrapping):
    """The same mixer, whose cache loses the values of the newest token but one."""

    def around(self, module: nn.Module) -> nn.Module:
        return Losing(module)


class Ahead(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, *others: Any) -> Tensor:
        return self.inner(torch.cat([x[:, 1:], x[:, -1:]], 1), *others)

    def state(self, batch: int, limit: int | None) -> Any:
        return self.inner.state(batch, limit)


class Losing(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, context: Any, state: Any, tables: Any) -> Tensor:
        if state is not None and state.values is not None and state.held:
            state.values[:, :, state.held - 1] = 0.0
        return self.inner(x, context, state, tables)

    def state(self, batch: int, limit: int | None) -> Any:
        return self.inner.state(batch, limit)
