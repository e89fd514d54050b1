"""Token-mixing maps of mixers without attention: long filters, convolutions and recurrences.

Each is linear in some quantity once its gates are fixed, and the matrix of that linear map is exact:

    Hyena         y = x_N (h_{N-1} * ( ... x_1 v)): from values to the gated sum, one matrix (T,S) per channel
    Convolution   y_t = sum_j W_j x_{t-j}: from inputs to outputs, one block W_j per pair of tokens
    LSTM, GRU     c_t = f_t c_{t-1} + i_t g_t: from what is written at s to the state at t, one matrix per unit
    RNN           no gates: the derivative of the state at t by the input at s
    others        the derivative of the output at t by the input at s

A map for the page is the mean magnitude of these over channels, with rows normalised to sum to 1.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.context import Context
from anyformer.errors import UserError
from anyformer.mixers.cells import Cell
from anyformer.mixers.convolution import ConvolutionModule
from anyformer.mixers.hyena import HyenaModule
from anyformer.mixers.recurrent import RecurrentModule

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture

MOST = 2**27  # most elements of all channels' matrices: half a gigabyte in float32
COPIES = 64  # rows of a Jacobian computed in one backward pass
MOST_OUTPUTS = 2**15  # of a Jacobian: tokens times channels


# ---------------------------------------------------------------- for the page


def matrix_of(capture: Capture, site: int, *, row: int | None = None) -> Tensor:
    """The map (1,T,S) of a site without attention; rows sum to 1, or to 0."""
    call = capture.found.mixers[capture.site(site).index]
    x, context = call.given[0], call.given[1]
    at = min(capture.row if row is None else row, len(x) - 1)
    total = x.new_zeros(x.shape[1], x.shape[1], dtype=torch.float32)
    for places in texts_of(context, at, x.shape[1]):
        if isinstance(call.module, HyenaModule | ConvolutionModule | RecurrentModule):
            part = sizes_of(call.module, x[at, places])
        else:
            part = token_jacobian(lambda given: call.module(given, one_text(context, at), None, call.given[3]), x[at])
            part = part[places][:, places]
        total[places[:, None], places] = part.float()
    return shares(total)[None].cpu()


def sizes_of(module: nn.Module, x: Tensor) -> Tensor:
    """The magnitude (T,S) of token s's contribution to token t, over all channels, for one text x (T,D)."""
    with torch.no_grad():
        if isinstance(module, HyenaModule):
            check_size(x.shape[0], module.width)
            return hyena_matrices(module, x).abs().mean(0)
        if isinstance(module, ConvolutionModule):
            return convolution_blocks(module, x).square().sum((-1, -2)).sqrt()
        assert isinstance(module, RecurrentModule)
        check_size(x.shape[0], module.forth.hidden)
        forth = memory(module.forth, x).abs().mean(0)
        if module.back is None:
            return forth
        return forth + memory(module.back, x.flip(0)).abs().mean(0).flip(0, 1)


def shares(sizes: Tensor) -> Tensor:
    """Rows normalised to sum to 1; a row of zeros stays."""
    total = sizes.sum(-1, keepdim=True)
    return sizes / total.masked_fill(total == 0, 1.0)


def check_size(tokens: int, channels: int) -> None:
    if tokens * tokens * channels > MOST:
        most = int((MOST / channels) ** 0.5)
        raise UserError(f"{tokens} tokens in {channels} channels are too many for a map", where="look",
                        fix=f"look at {most} tokens or fewer")  # fmt: skip


def texts_of(context: Context, row: int, length: int) -> list[Tensor]:
    """The indices of the real tokens of each document of one row: these mixers do not cross documents."""
    here = torch.arange(length)
    mask = None if context.mask is None else context.mask[min(row, len(context.mask) - 1)].cpu()
    documents = None if context.documents is None else context.documents[min(row, len(context.documents) - 1)].cpu()
    real = here if mask is None else here[mask]
    if documents is None:
        return [real]
    return [real[documents[real] == number] for number in documents[real].unique()]


def one_text(context: Context, row: int) -> Context:
    """The context of one row of a batch, which broadcasts to any number of copies."""
    batch = max((part.shape[0] for part in vars(context).values() if isinstance(part, Tensor)), default=1)
    own: dict[str, Any] = {field.name: part[row : row + 1] for field in fields(context)
           if isinstance(part := getattr(context, field.name), Tensor) and part.shape[0] == batch > 1}  # fmt: skip
    return replace(context, **own)


# ---------------------------------------------------------------- exact matrices


def hyena_matrices(module: HyenaModule, x: Tensor) -> Tensor:
    """M (D,T,S) with z = M v: from the values of one text x (T,D) to the gated sum before the output projection.

    Gates scale rows and columns of a filter's Toeplitz matrix; successive filters are a matrix product.
    """
    streams = exact(module.short(module.streams(x[None]))[0])  # (T,(N+1)D)
    _, *gates = streams.chunk(module.spec.order + 1, -1)  # each (T,D)
    length = x.shape[0]
    taps = module.long(min(length, module.spec.longest)).to(streams.dtype)  # (filters,sides,D,lags)
    whole = torch.diag_embed(gates[0].T)  # (D,T,S)
    for number, gate in enumerate(gates[1:]):
        whole = gate.T[:, :, None] * (toeplitz(taps[number], length) @ whole)
    return whole


def exact(x: Tensor) -> Tensor:
    """At least float32: products of many gates would lose precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def hyena_values(module: HyenaModule, x: Tensor) -> Tensor:
    """The values (T,D) to which `hyena_matrices` apply."""
    return module.short(module.streams(x[None]))[0, :, : module.width]


def toeplitz(taps: Tensor, length: int) -> Tensor:
    """Toeplitz matrices (D,T,S) of a filter (sides,D,lags): lag t - s back, on the second side s - t ahead."""
    lags = taps.shape[-1]
    at = torch.arange(length, device=taps.device)
    lag = at[:, None] - at  # (T,S)
    back = taps[0][:, lag.clamp(0, lags - 1)] * ((lag >= 0) & (lag < lags))
    if taps.shape[0] == 1:
        return back
    return back + taps[1][:, (-lag).clamp(0, lags - 1)] * ((lag < 0) & (-lag < lags))


def convolution_blocks(module: ConvolutionModule, x: Tensor) -> Tensor:
    """M (T,S,D,D) with y_t = sum_s M_ts x_s (+ bias): the kernel at lag t - s, times the gate of t if gated."""
    spec, (length, width) = module.spec, x.shape
    check_size(length, width * width)
    kernel = module.conv.weight[:width].permute(2, 0, 1)  # (k,D,D), the first tap reaches furthest back
    gate = torch.ones_like(x)
    if spec.gated:
        gate = gate_of(module, x)
    blocks = x.new_zeros(length, length, width, width)
    for cell in range(spec.kernel):
        shift = cell * spec.dilation - module.left  # s = t + shift
        t = torch.arange(max(0, -shift), min(length, length - shift), device=x.device)
        blocks[t, t + shift] = gate[t, :, None] * kernel[cell]
    return blocks


def gate_of(module: ConvolutionModule, x: Tensor) -> Tensor:
    """The gate (T,D) of a gated convolution."""
    reach = module.spec.reach
    padded = F.pad(x.T[None], (module.left, reach - module.left))
    return module.conv(padded)[0, x.shape[1] :].T.sigmoid()


# ---------------------------------------------------------------- recurrences

NAMES = {"lstm": ("input", "forget", "cell", "output"), "gru": ("reset", "update", "new"), "rnn": ("new",)}


def gates_of(capture: Capture, site: int, *, row: int | None = None) -> dict[str, Tensor]:
    """The gates of a recurrent mixer over time, each (T,units); names of the backward direction end in " (back)"."""
    call = capture.found.mixers[capture.site(site).index]
    if not isinstance(call.module, RecurrentModule):
        raise UserError(f"{type(call.module).__name__} has no gates over time", where="look",
                        fix="choose a layer with a Recurrent mixer")  # fmt: skip
    x, context = call.given[0], call.given[1]
    at, found = min(capture.row if row is None else row, len(x) - 1), dict[str, Tensor]()
    for places in texts_of(context, at, x.shape[1]):
        parts = cell_gates(call.module.forth, x[at, places])
        if call.module.back is not None:
            back = cell_gates(call.module.back, x[at, places].flip(0))
            parts |= {f"{name} (back)": gate.flip(0) for name, gate in back.items()}
        for name, gate in parts.items():
            whole = found.setdefault(name, torch.zeros(x.shape[1], gate.shape[1]))
            whole[places] = gate.float().cpu()
    return found


@torch.no_grad()
def cell_gates(cell: Cell, x: Tensor) -> dict[str, Tensor]:
    """Gates and candidates (T,units) of a cell along one text x (T,D), and its hidden states as "state"."""
    held, before, states = cell.nothing(x[None]), [], []
    for t in range(x.shape[0]):
        before.append(held[0][0])
        held = cell.step(x[None, t], held)
        states.append(held[0][0])
    h, x = exact(torch.stack(before)), exact(x)  # (T,units): the state before each token
    weights = [exact(part) for part in (cell.weight_ih_l0, cell.bias_ih_l0, cell.weight_hh_l0, cell.bias_hh_l0)]
    ours = F.linear(x, *weights[:2]).chunk(len(NAMES[cell.kind]), -1)
    theirs = F.linear(h, *weights[2:]).chunk(len(NAMES[cell.kind]), -1)
    made: tuple[Tensor, ...]
    if cell.kind == "lstm":
        i, f, g, o = (a + b for a, b in zip(ours, theirs, strict=True))
        made = (i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid())
    elif cell.kind == "gru":
        reset, update = (ours[k].add(theirs[k]).sigmoid() for k in range(2))
        made = (reset, update, (ours[2] + reset * theirs[2]).tanh())
    else:
        made = ((ours[0] + theirs[0]).tanh(),)
    return dict(zip(NAMES[cell.kind], made, strict=True)) | {"state": exact(torch.stack(states))}


def memory(cell: Cell, x: Tensor) -> Tensor:
    """M (units,T,S): how much of the input written at s unit u still holds at t, given the gates of one text (T,D).

    LSTM: c_t = sum_s M_ts g_s; GRU: h_t = sum_s M_ts n_s; RNN: the norm of the derivative of h_t by the input at s.
    """
    gates = cell_gates(cell, x)
    if cell.kind == "rnn":
        return rnn_memory(cell, gates["state"])
    kept, written = (gates["forget"], gates["input"]) if cell.kind == "lstm" else (gates["update"], 1 - gates["update"])
    length = x.shape[0]
    whole = kept.new_zeros(kept.shape[1], length, length)
    carried = kept.new_zeros(kept.shape[1], length)
    for t in range(length):  # a ratio of cumulative products would divide by one that may underflow to 0
        carried = carried * kept[t][:, None]
        carried[:, t] = written[t]
        whole[:, t] = carried
    return whole


def rnn_memory(cell: Cell, states: Tensor) -> Tensor:
    """For h_t = tanh(U h_{t-1} + u_t), the norm (units,T,S) of each unit's row of dh_t / du_s."""
    length, units = states.shape
    whole = states.new_zeros(units, length, length)
    carried = states.new_zeros(length, units, units)  # dh_t / du_s by s
    for t in range(length):
        slope = (1 - states[t] ** 2)[:, None]  # (units,1)
        carried = slope * (exact(cell.weight_hh_l0) @ carried)
        carried[t] = torch.diag(slope[:, 0])
        whole[:, t, : t + 1] = carried[: t + 1].norm(dim=-1).T
    return whole


# ---------------------------------------------------------------- any mixer, any part


def token_jacobian(part: Any, x: Tensor) -> Tensor:
    """The Frobenius norm (T,S) of the derivative of output t by input s of `part`, which takes (N,T,D), at x (T,D).

    >>> token_jacobian(lambda x: 2 * x, torch.zeros(3, 4)).tolist()
    [[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0]]
    """
    length, width = x.shape
    if length * width > MOST_OUTPUTS:
        raise UserError(f"a derivative of {length} tokens in {width} channels takes too long", where="look",
                        fix=f"look at {MOST_OUTPUTS // width} tokens or fewer")  # fmt: skip
    total = exact(x.new_zeros(length, length))
    outputs = torch.arange(length * width, device=x.device)
    for some in outputs.split(COPIES):
        with torch.enable_grad():
            copies = x.detach().expand(len(some), -1, -1).clone().requires_grad_()
            made = part(copies)
            made = made[0] if isinstance(made, tuple) else made
            # One copy of the text per output: a single backward pass then gives one row of the Jacobian for each.
            picked = made.flatten(1)[torch.arange(len(some), device=x.device), some].sum()
            (slopes,) = torch.autograd.grad(picked, copies)
        total.index_add_(0, some // width, exact(slopes.detach()).square().sum(-1))
    return total.sqrt()
