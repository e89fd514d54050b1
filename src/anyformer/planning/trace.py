"""Trace a pass on the meta device: FLOPs and bytes of every operation from its shapes, and saved activations.

FLOPs are those of matmuls, convolutions and attention, two for a multiply-add, over all pairs of queries and keys, as
in torch's FlopCounterMode. Fourier transforms, which that does not count, are kept apart (`fourier`); norms,
activations and softmaxes cost bytes, not FLOPs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from anyformer.core.block import BlockModule
from anyformer.kernels.shape_only import count_backward, count_forward

PARTS = ("embedding", "attention", "mlp", "head", "other")


class OpCost(NamedTuple):
    """The compute and memory traffic of one operation."""

    part: str
    kind: str  # "product", "attention", "fourier" or "pointwise"
    flops: int
    bytes: int
    visible: int  # FLOPs of unmasked pairs: a fused GPU kernel skips the others
    numbers: int = 0  # elements of exp, tanh and the like, which on a CPU take longer than their memory traffic
    drawn: int = 0  # attention weights with dropout, which no fused CPU kernel supports
    weights: int = 0  # bytes of parameters, part of `bytes`
    pairs: int = 0  # (query, key) pairs that a CPU's attention kernel computes
    computed: int = 0  # FLOPs of these pairs
    experts: int = 0  # of a grouped matmul, each with a part of the rows


class AttentionCost(NamedTuple):
    """The fields of an operation's cost that are specific to attention."""

    visible: int
    numbers: int = 0
    drawn: int = 0
    pairs: int = 0
    computed: int = 0


@dataclass
class PassCost:
    """How often each operation runs in a pass, and the bytes saved for the backward pass."""

    ops: Counter[OpCost] = field(default_factory=Counter)
    saved: int = 0
    kept: Counter[str] = field(default_factory=Counter)  # the same by model part
    unlisted: int = 0  # launches that `ops` counts as part of a total
    beside: int = 0  # host-only operations: views, and on a CPU the loop over experts
    calls: int = 0  # module calls; for a backward pass those of its forward pass

    @property
    def flops(self) -> int:
        """FLOPs of matmuls, convolutions and attention."""
        return sum(count * op.flops for op, count in self.ops.items() if op.kind != "fourier")

    @property
    def fourier(self) -> int:
        """FLOPs of Fourier transforms, 5 n log2 n for n complex numbers."""
        return sum(count * op.flops for op, count in self.ops.items() if op.kind == "fourier")

    @property
    def bytes(self) -> int:
        """Bytes read and written without fusion."""
        return sum(count * op.bytes for op, count in self.ops.items())

    @property
    def launches(self) -> int:
        """Number of operations that compute or move data."""
        return sum(self.ops.values()) + self.unlisted

    def by_part(self) -> dict[str, int]:
        """FLOPs of each part."""
        found = dict.fromkeys(PARTS, 0)
        for op, count in self.ops.items():
            found[op.part] += count * op.flops if op.kind != "fourier" else 0
        return found

    def plus(self, other: PassCost, times: int = 1) -> PassCost:
        """This cost plus `times` the other; `times` may be negative."""
        ops = Counter(self.ops)
        for op, count in other.ops.items():
            ops[op] += times * count
        kept = Counter(self.kept)
        for part, size in other.kept.items():
            kept[part] += times * size
        return PassCost(
            Counter({op: n for op, n in ops.items() if n}), self.saved + times * other.saved, kept,
            self.unlisted + times * other.unlisted, self.beside + times * other.beside,
            self.calls + times * other.calls,
        )  # fmt: skip

    def times(self, factor: float) -> PassCost:
        """The cost scaled by a factor."""
        ops = Counter({op: round(count * factor) for op, count in self.ops.items()})
        kept = Counter({part: round(size * factor) for part, size in self.kept.items()})
        whole = [round(n * factor) for n in (self.unlisted, self.beside, self.calls)]
        return PassCost(ops, round(self.saved * factor), kept, *whole)


# ---------------------------------------------------------------- FLOP formulas by input and output shapes


def product(out: Tensor, inner: int) -> int:
    return 2 * out.numel() * inner


def of_convolution(x: Tensor, weight: Tensor, out: Tensor, transposed: bool) -> int:
    """Every output (or input, if transposed) is multiplied with one kernel over the channels of its group."""
    return 2 * (x if transposed else out).numel() * math.prod(weight.shape[1:])


def of_fourier(n: int, numel: int) -> int:
    """FLOPs for `numel` complex numbers in transforms of length n."""
    return int(5 * numel * math.log2(max(2, n)))


def convolution_backward(args: Any, out: Any) -> int:
    grad, x, weight, transposed, wanted = args[0], args[1], args[2], args[7], args[10]
    once = of_convolution(x, weight, grad, transposed)
    return once * (int(wanted[0]) + int(wanted[1]))


ATEN = torch.ops.aten
FORMULAS: dict[Any, Callable[[Any, Any], int]] = {
    ATEN.mm: lambda args, out: product(out, args[0].shape[1]),
    ATEN.addmm: lambda args, out: product(out, args[1].shape[1]),
    ATEN.bmm: lambda args, out: product(out, args[0].shape[2]),
    ATEN.baddbmm: lambda args, out: product(out, args[1].shape[2]),
    ATEN.convolution: lambda args, out: of_convolution(args[0], args[1], out, args[6]),
    ATEN.convolution_backward: convolution_backward,
}
FOURIER: dict[Any, Callable[[Any, Any], int]] = {  # a real transform costs half of a complex one
    ATEN._fft_r2c: lambda args, out: of_fourier(args[0].shape[args[1][0]], args[0].numel() // 2),
    ATEN._fft_c2r: lambda args, out: of_fourier(args[2], out.numel() // 2),
    ATEN._fft_c2c: lambda args, out: of_fourier(args[0].shape[args[1][0]], args[0].numel()),
}
CIRCLES = ("circle", "circle_forward", "circle_backward")  # circular convolutions of mixers/fft.py


def of_circle(args: Any) -> int:
    """Transforms of the input and the taps, and one inverse; complex numbers are pairs (..., size, 2)."""
    x, taps = args[0], args[-1]
    return of_fourier(x.shape[-2], 2 * (x.numel() // 2) + taps.numel() // 2)


FUNCTIONS = {  # functions of every element that are slow on a CPU
    ATEN._softmax, ATEN._softmax_backward_data, ATEN._log_softmax, ATEN.gelu, ATEN.gelu_backward, ATEN.silu,
    ATEN.silu_backward, ATEN.exp, ATEN.tanh, ATEN.sigmoid, ATEN.sin, ATEN.cos, ATEN.erf, ATEN.log, ATEN.softplus,
    ATEN.elu, ATEN.native_layer_norm, ATEN.native_layer_norm_backward, ATEN.native_group_norm,
    ATEN.native_batch_norm, ATEN.bernoulli_, ATEN.native_dropout, ATEN.rand, ATEN.where, ATEN.masked_fill,
}  # fmt: skip
UNFUSED = 3  # functions per attention weight with our own dropout: softmax, 16 random bits, the mask
LEARNED = 6  # the same with a trainable bias, which torch adds and normalises in separate steps
# Cost of a softmax, forward and backward, for each element beyond the last full SIMD vector of a row, in functions:
# these are computed one by one (18,432 rows of 9 elements: 124 ns a row, of 16 elements: 14).
LANES, BESIDE, BESIDE_BACK = 16, 30, 10
BLOCK = 512  # keys per block of torch's CPU kernel; it skips blocks that causality masks entirely
# Host operations per expert of the loop over experts: a slice, a padded slice, a matmul, a slice; backward, two matmuls
# with their slices.
EXPERT, EXPERT_BACK = 6, 10
GATHERS = {ATEN.embedding, ATEN.index, ATEN.index_select, ATEN.gather}  # read as many elements as they write
FREE = {  # allocations that are not initialised, and metadata
    ATEN.empty, ATEN.empty_like, ATEN.new_empty, ATEN.empty_strided, ATEN.detach, ATEN.new_empty_strided,
}  # fmt: skip


class PassCounter(TorchDispatchMode):
    """Sums the cost of the operations in this thread, by model part."""

    def __init__(self, weights: nn.Module) -> None:
        super().__init__()
        self.cost = PassCost()
        self.part = "other"
        self.fixed = {storage_of(p) for p in (*weights.parameters(), *weights.buffers())}
        self.dropout = 0.0  # of the attention weights in the current part
        self.biased = False
        self.learned = False  # whether the bias is trainable, which the fused CPU kernel does not support
        self.held: dict[int, Tensor] = {}  # saved storages, each with a tensor that keeps its address from being reused

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, as nothing is compiled here; otherwise torch imports its compiler, seconds for every first plan."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func._overloadpacket
        known = packet in FORMULAS or packet in FOURIER
        if not known and func.namespace == "aten":  # composite operations are counted by their parts
            with self:
                made = func.decompose(*args, **(kwargs or {}))
            if made is not NotImplemented:
                return made
        out = func(*args, **(kwargs or {}))
        self.count(packet, args, out)
        return out

    def count(self, packet: Any, args: Any, out: Any) -> None:
        """Count one operation, after it ran."""
        if packet in FREE:
            return
        given, made = tensors(args), tensors((out,))
        if not made or (len(made) == 1 and any(storage_of(made[0]) == storage_of(x) for x in given[:1])
                        and not packet.__name__.endswith("_")):  # fmt: skip
            self.cost.beside += 1  # a view moves no data
            return
        size = sum(bytes_of(x) for x in (*given, *made))
        name = packet.__name__
        if packet in FOURIER:
            flops, kind = FOURIER[packet](args, out), "fourier"
        elif name in CIRCLES:
            flops, kind = of_circle(args), "fourier"
        elif packet in FORMULAS:
            flops, kind = FORMULAS[packet](args, out), "product"
        elif name == "attention_shape":
            flops, kind = count_forward(*(x.shape for x in args[:3]), args[3]), "attention"
        elif name == "attention_shape_backward":
            flops, kind = count_backward(*(x.shape for x in args[:4]), args[4]), "attention"
        elif name == "grouped":  # the rows of all experts, whatever the routing
            flops, kind = product(out, args[0].shape[1]), "product"
        elif name == "grouped_backward":
            flops, kind = 2 * product(args[0], args[1].shape[1]), "product"
        else:
            flops, kind = 0, "pointwise"
        numbers = max(x.numel() for x in (*given, *made)) if packet in FUNCTIONS else 0
        looks, experts = AttentionCost(flops), 0
        if kind == "attention":
            q, k, pairs = (args[0], args[1], args[3]) if name == "attention_shape" else (args[1], args[2], args[4])
            looks = self.attended(flops, q, k, pairs, forward=name == "attention_shape")
            numbers = looks.numbers
        elif name.startswith("grouped"):
            experts = len(args[1]) if name == "grouped" else len(args[2])
            self.cost.beside += experts * (EXPERT if name == "grouped" else EXPERT_BACK)
        weights = sum(bytes_of(x) for x in given if storage_of(x) in self.fixed)
        if packet in GATHERS:
            weights, size = 0, sum(bytes_of(x) for x in (*given[1:], *made, *made))
        sizes = (flops, size, looks.visible, numbers, looks.drawn, weights, looks.pairs, looks.computed, experts)
        self.cost.ops[OpCost(self.part, kind, *sizes)] += 1

    def attended(self, flops: int, q: Tensor, k: Tensor, pairs: int, *, forward: bool) -> AttentionCost:
        """The cost of attention, forward or backward, with `pairs` unmasked pairs per head."""
        lines, both = q.shape[0] * q.shape[1], q.shape[2] * k.shape[2]
        weights, rest = lines * both, lines * q.shape[2] * (k.shape[2] % LANES)
        met = lines * min(both, pairs + q.shape[2] * BLOCK // 2)
        numbers = drawn = 0
        # core/attend.py: without a mask or bias a CPU uses our own dropout, else torch's.
        if self.learned:
            numbers = LEARNED * weights + BESIDE * rest if forward else BESIDE_BACK * rest
        elif self.dropout and (pairs < both or self.biased):
            drawn = weights if forward else 0
        elif self.dropout:
            numbers = UNFUSED * weights + BESIDE * rest if forward else BESIDE_BACK * rest
        return AttentionCost(flops * pairs // both, numbers, drawn, met, flops * met // weights)

    def keep(self, x: Tensor) -> Tensor:
        """Count a tensor saved for the backward pass: each storage once, and no weights."""
        storage = storage_of(x)
        if storage not in self.held and storage not in self.fixed:
            self.held[storage] = x.detach()
            self.cost.saved += x.untyped_storage().nbytes()
            self.cost.kept[self.part] += x.untyped_storage().nbytes()
        return x


def storage_of(x: Tensor) -> int:
    """An id that is the same for tensors sharing memory."""
    return x.untyped_storage()._cdata


def tensors(given: Any) -> list[Tensor]:
    """All tensors in nested lists and tuples."""
    found: list[Tensor] = []
    for part in given:
        if isinstance(part, Tensor):
            found.append(part)
        elif isinstance(part, list | tuple):
            found.extend(tensors(part))
    return found


def bytes_of(x: Tensor) -> int:
    """Bytes of a tensor's elements; an expanded axis counts once."""
    return math.prod(n for n, step in zip(x.shape, x.stride(), strict=True) if step) * x.element_size()


# ---------------------------------------------------------------- running


def trace(net: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> PassCost:
    """The cost of one forward pass."""
    counter = PassCounter(net)
    with torch.no_grad(), named_parts(net, counter), counter:
        net(*args, **named)
    return counter.cost


def trace_training(net: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[PassCost, PassCost]:
    """The cost of a training forward pass, with its saved activations, and of the backward pass."""
    counter = PassCounter(net)
    counter.fixed |= {storage_of(x) for x in tensors(args)}
    with counter:
        with named_parts(net, counter), torch.autograd.graph.saved_tensors_hooks(counter.keep, lambda x: x):
            out = net(*args, **named)
        forward, counter.cost = counter.cost, PassCost(calls=counter.cost.calls)
        answers = [x for x in answers_of(out) if x.requires_grad]
        torch.autograd.backward(answers, [torch.empty_like(x) for x in answers])
    return forward, counter.cost


def answers_of(out: Any) -> list[Tensor]:
    """The outputs that a loss would use: the last ones computed."""
    if isinstance(out, Tensor):
        return [out]
    for names in (("logits", "boxes", "patches"), ("pooled",), ("hidden",)):
        found = [x for name in names if isinstance(x := getattr(out, name, None), Tensor)]
        if found:
            return found
    raise TypeError(f"a {type(out).__name__} has no tensor to train on")


@contextmanager
def named_parts(net: nn.Module, counter: PassCounter) -> Iterator[None]:
    """Attribute operations to model parts and count module calls, by hooks on the network, a throw-away copy on
    `meta`."""
    handles, at = [], list[str]()

    def called(module: nn.Module, args: Any) -> None:
        counter.cost.calls += 1

    def attends(dropout: float, biased: bool, learned: bool) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            counter.dropout, counter.biased, counter.learned = dropout, biased, learned

        return hook

    def enter(part: str) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            at.append(counter.part)
            counter.part = part

        return hook

    def leave(module: nn.Module, args: Any, out: Any) -> None:
        counter.part = at.pop()

    for inner in net.modules():
        handles.append(inner.register_forward_pre_hook(called))
        if isinstance(inner, BlockModule):
            relative = inner.spec.relative
            for mixer, spec, biased in (
                (inner.mixer, inner.spec.mixer, relative.has_bias), (inner.cross, inner.spec.cross, False)
            ):  # fmt: skip
                if mixer is not None:
                    share = getattr(spec, "dropout", 0.0) if net.training else 0.0
                    learned = biased and net.training and relative.wide_bias  # from a learned table, as in T5
                    handles.append(mixer.register_forward_pre_hook(attends(share, biased, learned)))
    for part, module in parts_of(net):
        handles.append(module.register_forward_pre_hook(enter(part)))
        handles.append(module.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def parts_of(net: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Each module with the part to which it belongs, once: embeddings, mixers, MLPs and heads."""
    seen: set[int] = set()
    for path, module in net.named_modules():
        named: list[tuple[str, Any]] = []
        if isinstance(module, BlockModule):
            named = [("attention", module.mixer), ("attention", module.cross), ("mlp", module.feed)]
        elif path.rpartition(".")[2] == "embed":
            named = [("embedding", module)]
        elif path.rpartition(".")[2] == "head":
            named = [("head", module)]
        for part, inner in named:
            if inner is not None and id(inner) not in seen:
                seen.add(id(inner))
                yield part, inner
