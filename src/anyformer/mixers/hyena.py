"""Hyena: long convolutions and gates instead of attention, at T log T instead of T^2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.document_rows import DocumentLines
from anyformer.core.history import InputHistory
from anyformer.core.linear import LinearLayer
from anyformer.errors import UserError, check_at_least
from anyformer.mixers.fft import convolve
from anyformer.mixers.long_filter import LongFilter, ShortFilter
from anyformer.slots import Mixer, Relative

FIRST_TAPS = 64  # initial number of taps in a decoding state, doubled as the text grows


class Hyena(Mixer):
    """`order` gates with `order` - 1 long filters between them, after a `short` filter over the projections.

    The receptive field is `longest` tokens back, itself included (and as many ahead if not causal), independent of the
    text's length. The taps of the long filters come from a network of `filter_depth` sine layers of `filter_width`
    units over the lag and `bands` sines and cosines of it; `frequency` is the initial frequency of the sine layers.
    """

    order: int = 2
    """Number of gates."""
    short: int = 3
    """Taps of the short filter over the projections."""
    longest: int = 1024
    """Receptive field in tokens, itself included."""
    bands: int = 16
    """Sines and cosines of the lag as input of the filter network."""
    filter_width: int = 64
    """Units of the filter network."""
    filter_depth: int = 3
    """Layers of the filter network."""
    frequency: float = 10.0
    """Initial frequency of the filter network's sines."""

    takes_added: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    about: ClassVar[About | None] = About(
        "v, x_1 .. x_N = short * (W u); z_1 = v; z_{n+1} = h_n * (x_n z_n), n < N; y = W' (x_N z_N); "
        "h_k = exp(-a k) network(k) + [k = 0] d",
        "2302.10866",
        "(N+2) T D^2 + (N-1) D T log T; a step of decoding (N-1) S D",
    )

    def check(self) -> None:
        if self.order < 2:
            raise UserError(f"order {self.order} leaves no long filter", where="Hyena.order", fix="use 2 or more")
        for name in ("short", "longest", "filter_width", "filter_depth"):
            check_at_least("Hyena", name, getattr(self, name), 1, fix="use 1 or more")
        check_at_least("Hyena", "bands", self.bands, 0, fix="use 16")

    def build(self, width: int, *, causal: bool, relative: Relative, memory_width: int | None = None) -> nn.Module:
        return HyenaModule(self, width, causal)


class HyenaState:
    """Decoding state: the newest projections, the inputs of every long filter, and its taps."""

    def __init__(self, filters: int, limit: int | None) -> None:
        self.streams = InputHistory(limit=limit)
        self.inputs = [InputHistory(limit=limit) for _ in range(filters)]
        self.taps: Tensor | None = None  # (filters, lags, D), the longest lag first

    def select(self, rows: Tensor) -> None:
        for part in (self.streams, *self.inputs):
            part.select(rows)

    def truncate(self, length: int) -> None:
        for part in (self.streams, *self.inputs):
            part.truncate(length)

    def join(self, others: Sequence[HyenaState]) -> None:
        self.streams.join([other.streams for other in others])
        for n, part in enumerate(self.inputs):
            part.join([other.inputs[n] for other in others])
        known = [past.taps for past in (self, *others) if past.taps is not None]
        self.taps = max(known, key=lambda taps: taps.shape[1], default=None)

    def trim(self, columns: int) -> None:
        for part in (self.streams, *self.inputs):
            part.trim(columns)

    @property
    def span(self) -> int:
        return max(part.span for part in (self.streams, *self.inputs))

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in (self.streams, *self.inputs))


class HyenaModule(nn.Module):
    """`streams` projects to a value and the gates, in order of application."""

    def __init__(self, spec: Hyena, width: int, causal: bool) -> None:
        super().__init__()
        self.spec, self.width, self.causal = spec, width, causal
        self.streams = LinearLayer(width, (spec.order + 1) * width)
        self.short = ShortFilter((spec.order + 1) * width, spec.short, causal)
        self.long = LongFilter(
            width, spec.order - 1, 1 if causal else 2, longest=spec.longest, bands=spec.bands,
            width=spec.filter_width, depth=spec.filter_depth, frequency=spec.frequency,
        )  # fmt: skip
        self.out = LinearLayer(width, width)

    def forward(self, x: Tensor, context: Context, state: HyenaState | None, tables: tuple[Tensor, ...]) -> Tensor:
        streams = self.streams(x)  # (B,T,(N+1)D)
        if context.added is not None:  # positions are added to gates, not values (DETR)
            gates = self.streams(x + context.added)[..., self.width :]
            streams = torch.cat([streams[..., : self.width], gates], -1)
        if state is not None:
            return self.out(self.extend(streams, context, state))
        lines = DocumentLines.of(context)
        if lines is None:
            return self.out(self.whole(self.short(streams)))
        filled = lines.filled[..., None]  # undo the short filter's bias in padding
        return self.out(lines.together(self.whole(self.short(lines.apart(streams)) * filled)))

    def whole(self, streams: Tensor) -> Tensor:
        """Gates and long filters over whole lines (N,T,(N+1)D), zero where there is no token."""
        taps = self.long(min(streams.shape[1], self.spec.longest))
        return self.gated(streams, lambda n, u: along(u, taps[n]))

    def gated(self, streams: Tensor, long: Callable[[int, Tensor], Tensor]) -> Tensor:
        """(N,T,(N+1)D) to (N,T,D); `long(n, u)` is the n-th long filter over its input."""
        value, *gates = streams.chunk(self.spec.order + 1, -1)
        for n, gate in enumerate(gates[:-1]):
            value = long(n, value * gate)
        return value * gates[-1]

    def extend(self, streams: Tensor, context: Context, state: HyenaState) -> Tensor:
        """The same for new tokens (B,T,...) after those of the decoding state."""
        length = streams.shape[1]
        held = state.streams.update(streams, self.spec.short if context.rolling else None)
        lines = DocumentLines.of_keys(context, held.shape[1])
        if lines is None:
            streams = self.short(held[:, -length - self.spec.short + 1 :])[:, -length:]
        else:
            streams = lines.together(self.short(lines.apart(held)))[:, -length:]

        def long(n: int, u: Tensor) -> Tensor:
            held = state.inputs[n].update(u, self.spec.longest if context.rolling else None)  # (B,S,D)
            taps = self.taps(state, min(held.shape[1], self.spec.longest))[n]  # (lags, D)
            if length == 1:
                return step(held, taps, context)
            lines, forward = DocumentLines.of_keys(context, held.shape[1]), taps.flip(0).t()[None]  # (1,D,lags)
            if lines is None:
                return along(held, forward)[:, -length:]
            return lines.together(along(lines.apart(held), forward))[:, -length:]

        return self.gated(streams, long)

    def taps(self, state: HyenaState, lags: int) -> Tensor:
        """The first `lags` taps (filters, lags, D), the longest lag first, cached in the state."""
        known = 0 if state.taps is None else state.taps.shape[1]
        if state.taps is None or known < lags:
            more = min(self.spec.longest, max(lags, FIRST_TAPS, 2 * known))
            state.taps = self.long(more)[:, 0].transpose(1, 2).flip(1).contiguous()
        return state.taps[:, -lags:]

    def state(self, batch: int, limit: int | None) -> HyenaState:
        """An empty decoding state."""
        return HyenaState(self.spec.order - 1, limit)


def along(u: Tensor, taps: Tensor) -> Tensor:
    """A long filter (sides, D, lags) over whole lines (N,T,D)."""
    channels = u.transpose(1, 2).contiguous()  # (N,D,T), as the FFT needs it
    return convolve(channels, taps[0], taps[1] if taps.shape[0] == 2 else None).transpose(1, 2)


def step(held: Tensor, taps: Tensor, context: Context) -> Tensor:
    """The long filter's output for one new token from the cached inputs (B,S,D), its own included: (B,1,D)."""
    lags = taps.shape[0]
    _, index, mask, documents = context.latest(held.shape[1])
    if mask is None and documents is None:
        return (held[:, -lags:] * taps).sum(1, keepdim=True).to(held.dtype)
    lag = context.index[:, -1:] - index  # (B or 1, S): among the real tokens of its document
    seen = (lag >= 0) & (lag < lags)
    seen = seen if mask is None else seen & mask
    if documents is not None and context.documents is not None:
        seen = seen & (documents == context.documents[:, -1:])
    weights = taps[(lags - 1 - lag).clamp(0, lags - 1)] * seen[..., None]  # (B,S,D)
    return (held * weights).sum(1, keepdim=True).to(held.dtype)
