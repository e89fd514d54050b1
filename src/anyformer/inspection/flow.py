"""Parameters and FLOPs of a model by part, and how much each branch of a block adds to the residual stream.

FLOPs are counted by torch while the shadow runs: matmuls and convolutions, two for a multiply-add, all pairs of queries
and keys. Norms, softmaxes and Fourier transforms are small beside them and not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.flop_counter import flop_registry

from anyformer.amounts import UNITS, count_text
from anyformer.core.attend import attend
from anyformer.core.block import BlockModule
from anyformer.core.model import Seq2SeqModule
from anyformer.core.residual import Residual
from anyformer.errors import UserError
from anyformer.inspection.replay import stack_of
from anyformer.inspection.shadow import shadow
from anyformer.mixers.attention import AttentionModule
from anyformer.mixers.cross import CrossModule

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture

Shape = tuple[int, ...]
ROLES = {"embed": "Embedding", "mixer": "Mixer", "cross": "Cross-attention", "feed": "Feed-forward", "norms": "Norms",
         "final": "Final norm", "relative": "Relative positions", "head": "Head", "other": "Other"}  # fmt: skip


@dataclass
class Part:
    """One part of a model in one layer: its parameters, and its FLOPs and shapes in a pass."""

    path: str
    role: str  # a key of ROLES
    name: str  # of its spec: Attention, MLP, LayerNorm
    stack: str = ""
    layer: int = -1  # from 0; -1 outside of blocks
    parameters: int = 0  # shared parameters are counted in the first part that has them
    flops: int = 0
    entered: Shape = ()
    left: Shape = ()


@dataclass
class Summary:
    """Every part of a model in execution order; as text, a table with repeated blocks on one line."""

    parts: list[Part] = field(default_factory=list)

    @property
    def parameters(self) -> int:
        return sum(part.parameters for part in self.parts)

    @property
    def flops(self) -> int:
        return sum(part.flops for part in self.parts)

    def blocks(self) -> list[Part]:
        """The parts inside blocks."""
        return [part for part in self.parts if part.layer >= 0]

    def share(self, role: str, *, of: str = "parameters") -> float:
        """A role's fraction of the parameters (or "flops") of all blocks: 2/3 for a feed of 4 times the width."""
        total = sum(getattr(part, of) for part in self.blocks())
        own = sum(getattr(part, of) for part in self.blocks() if part.role == role)
        return own / total if total else 0.0

    def groups(self) -> list[list[list[Part]]]:
        """Runs of equal layers: each a list of layers, each a list of parts. A part outside blocks is its own run."""
        places = [(part.stack, part.layer, "" if part.layer >= 0 else part.path) for part in self.parts]
        paired = groupby(zip(places, self.parts, strict=True), key=lambda pair: pair[0])
        layers = [[part for _, part in pairs] for _, pairs in paired]
        return [list(run) for _, run in groupby(layers, key=kind_of_layer)]

    def __str__(self) -> str:
        head = ("part", "parameters", "FLOPs", "output")
        rows = [head]
        for run in self.groups():
            first, times = run[0], len(run)
            if first[0].layer >= 0:
                rows.append((layer_name(run), *totals([part for parts in run for part in parts]), ""))
            for part in first:
                indent = "  " if part.layer >= 0 else ""
                each = " each" if times > 1 else ""
                shape = " x ".join(map(str, part.left))
                rows.append((f"{indent}{ROLES[part.role]} ({part.name})", f"{part.parameters:,}{each}",
                             f"{count_text(part.flops, scale=UNITS)}{each}", shape))  # fmt: skip
        rows.append(("total", f"{self.parameters:,}", count_text(self.flops, scale=UNITS), ""))
        sizes = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = ["  ".join((row[0].ljust(sizes[0]), row[1].rjust(sizes[1]), row[2].rjust(sizes[2]), row[3])).rstrip()
                 for row in rows]  # fmt: skip
        feeds = f"feed-forward networks hold {self.share('feed'):.0%} of the blocks' parameters"
        return "\n".join([*lines, feeds]) if any(part.role == "feed" for part in self.parts) else "\n".join(lines)


def kind_of_layer(parts: list[Part]) -> Any:
    """The grouping key of a layer; unique for a part outside blocks."""
    if parts[0].layer < 0:
        return parts[0].path
    return parts[0].stack, tuple((p.role, p.name, p.parameters, p.flops, p.entered, p.left) for p in parts)


def layer_name(run: list[list[Part]]) -> str:
    first, last = run[0][0], run[-1][0]
    side = f"{first.stack} " if first.stack else ""
    return f"{side}layer {first.layer}" if len(run) == 1 else f"{side}layers {first.layer} to {last.layer}"


def totals(parts: list[Part]) -> tuple[str, str]:
    return f"{sum(part.parameters for part in parts):,}", count_text(sum(part.flops for part in parts), scale=UNITS)


# ---------------------------------------------------------------- counting


def model_summary(model: nn.Module, *inputs: Any, length: int | None = None, **options: Any) -> Summary:
    """Parameters, FLOPs and shapes of every part in one pass: `model_summary(net, tokens)` or, for text, `length=128`.

    >>> from anyformer import Attention, Block, LM, Model, Stack, Tokens
    >>> stack = Stack(width=32, depth=2, causal=True, block=Block(mixer=Attention(heads=4)))
    >>> found = model_summary(Model(embed=Tokens(vocab=65), stack=stack, head=LM()).build(seed=0), length=16)
    >>> round(found.share("feed"), 2)
    0.66
    """
    if length is not None:
        if inputs:
            raise UserError("both inputs and a length are given", where="model_summary", fix="give one of them")
        ids = torch.zeros(1, length, dtype=torch.long, device=next(model.parameters()).device)
        inputs = (ids, ids) if isinstance(model, Seq2SeqModule) else (ids,)
    if not inputs:
        raise UserError("there is nothing to run the model on", where="model_summary", fix="give inputs, or length=128")
    return measure(model, inputs, options)


@torch.no_grad()
def measure(model: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> Summary:
    """Run a shadow of the model once and count the FLOPs of each part."""
    found, seen, model = Summary(), set[int](), shadow(model)
    with FlopCounter() as counter, watched(model, counter, found, seen):
        for module in model.modules():
            if type(module) in (AttentionModule, CrossModule):
                module.forward = outside_of(counter, module)  # of the shadow only
        model(*args, **options)
    rest = sum(p.numel() for p in model.parameters() if id(p) not in seen)
    missed = counter.total - found.flops
    if rest or missed:
        found.parts.append(
            Part("", "other", "parameters and products outside of these parts", parameters=rest, flops=missed)
        )
    return found


class FlopCounter(TorchDispatchMode):
    """Sums the FLOPs of the operations in this thread, by torch's own formulas.

    Torch's FlopCounterMode uses global module hooks, which fail for a part that returns a view of its parameter, and
    does not know the fused attention of a CPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        self.formulas: dict[Any, Any] = {**flop_registry, fused: attention_flops}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        formula = self.formulas.get(func._overloadpacket)
        if formula is None:  # composite operations are counted by their parts
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        if formula is not None:
            self.total += formula(*args, **kwargs, out_val=out)
        return out


def outside_of(counter: FlopCounter, module: Any) -> Any:
    """An attention's forward with its kernel outside the counter mode, in which compiled kernels cannot run.

    Its FLOPs are added by formula: all pairs of queries and keys, whatever the kernel.
    """

    def forward(x: Tensor, context: Any, state: Any, tables: tuple[Tensor, ...]) -> Tensor:
        q, k, v, scores = module.prepare(x, context, state, tables)
        with _disable_current_modes():
            y = attend(q, k, v, scores)
        counter.total += attention_flops(q, k, v)
        out: Tensor = module.out(y.transpose(1, 2).flatten(2))
        return out

    return forward


def attention_flops(q: Tensor, k: Tensor, v: Tensor, *args: Any, **named: Any) -> int:
    """FLOPs of two matmuls: queries with keys, weights with values."""
    batch, heads, queries, channels = q.shape
    return 2 * batch * heads * queries * k.shape[2] * (channels + v.shape[3])


@contextmanager
def watched(model: nn.Module, counter: FlopCounter, found: Summary, seen: set[int]) -> Iterator[None]:
    """Record every part of a shadow as it runs; `seen` collects the parameters counted so far."""
    layers: dict[str, int] = {}
    at: list[tuple[str, int]] = []  # the running block
    starts: list[int] = []

    def enter_block(path: str) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            stack = stack_of(path)
            layers[stack] = layers.get(stack, -1) + 1
            at.append((stack, layers[stack]))

        return hook

    def leave_block(module: nn.Module, args: Any, out: Any) -> None:
        around = sums_of(module)
        stack, layer = at.pop()
        held = own(around, seen)  # norms, and the factors of a branch
        if held or norms_of(around):
            x = out[0] if isinstance(out, tuple) else out
            name = type(next(iter(norms_of(around)), None)).__name__.removesuffix("Module")
            found.parts.append(Part("", "norms", name, stack, layer, held, 0, tuple(x.shape), tuple(x.shape)))

    def enter(module: nn.Module, args: Any) -> None:
        starts.append(counter.total)

    def leave(path: str, role: str) -> Any:
        def hook(module: nn.Module, args: Any, named: Any, out: Any) -> None:
            flops, left = counter.total - starts.pop(), shape_of((out,))
            if starts or (role == "relative" and not left):  # counted by the enclosing part; nothing to compute
                return
            stack, layer = at[-1] if at else (stack_of(path) if "stack" in path else path.rpartition(".")[0], -1)
            name = type(getattr(module, "spec", module)).__name__.removesuffix("Module")
            found.parts.append(Part(path, role, name, stack, layer, own([module], seen), flops,
                                    shape_of((*args, *named.values())), left))  # fmt: skip

        return hook

    handles = []
    for path, role, module in parts_of(model):
        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(leave(path, role), with_kwargs=True))
    for path, module in model.named_modules():
        if isinstance(module, BlockModule):
            handles.append(module.register_forward_pre_hook(enter_block(path)))
            handles.append(module.register_forward_hook(leave_block))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def parts_of(model: nn.Module) -> Iterator[tuple[str, str, nn.Module]]:
    """Path, role and module of every part that is counted separately, each module once: layers may share them."""
    used: set[int] = set()
    for path, module in model.named_modules():
        inside = [("mixer", "mixer"), ("cross", "cross"), ("feed", "feed"), ("relative", "relative")]
        outside = [("embed", "embed"), ("head", "head"), ("final", "final")]
        for name, role in inside if isinstance(module, BlockModule) else outside:
            part = getattr(module, name, None)
            if isinstance(part, nn.Module) and id(part) not in used:
                used.add(id(part))
                yield f"{path}.{name}".lstrip("."), role, part
        relatives = getattr(module, "relatives", None)
        for number, part in enumerate(relatives if isinstance(relatives, nn.ModuleList) else ()):
            yield f"{path}.relatives.{number}".lstrip("."), "relative", part


def sums_of(block: nn.Module) -> list[nn.Module]:
    """The residual connections of a block's branches."""
    return [around for name in ("around_mixer", "around_cross", "around_feed")
            if isinstance(around := getattr(block, name, None), Residual)]  # fmt: skip


def norms_of(around: list[nn.Module]) -> list[nn.Module]:
    """The norms around a block's branches."""
    norms = (getattr(part, at) for part in around for at in ("before", "inside", "after"))
    return [norm for norm in norms if not isinstance(norm, nn.Identity)]


def own(modules: list[nn.Module], seen: set[int]) -> int:
    """Number of parameters not counted before; adds them to `seen`."""
    total = 0
    for module in modules:
        for parameter in module.parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                total += parameter.numel()
    return total


def shape_of(given: Any) -> Shape:
    """The shape of the first tensor inside."""
    for part in given:
        if isinstance(part, Tensor):
            return tuple(part.shape)
        if isinstance(part, tuple) and (inner := shape_of(part)):
            return inner
        logits = getattr(part, "logits", None)  # of a head
        if isinstance(logits, Tensor):
            return tuple(logits.shape)
    return ()


# ---------------------------------------------------------------- the residual stream


@dataclass(frozen=True)
class StreamNorms:
    """Norms by layer and token: of the residual stream, and of what each branch adds to it.

    If layers change the number of tokens (a pyramid), missing tokens are nan.
    """

    stream: Tensor  # (L+1,T): before the first block, after each
    mixer: Tensor  # (L,T)
    cross: Tensor | None  # (L,T)
    feed: Tensor | None  # (L,T)

    def shares(self) -> dict[str, Tensor]:
        """Each branch's fraction (L,) of the norms added in a layer, mean over tokens."""
        named = {"mixer": self.mixer, "cross": self.cross, "feed": self.feed}
        means = {name: norms.nanmean(-1) for name, norms in named.items() if norms is not None}
        total = torch.stack(list(means.values())).sum(0)
        return {name: mean / total.masked_fill(total == 0, 1.0) for name, mean in means.items()}


@torch.no_grad()
def stream_norms(capture: Capture, stack: str = "", *, row: int | None = None) -> StreamNorms:
    """Norms of the residual stream and of each branch, for one row of a capture."""
    calls = capture.blocks(stack)
    if not calls:
        raise UserError(f"unknown stack {stack!r}", where="look", fix=f"use one of {capture.stacks}")
    at = capture.row if row is None else row
    added: dict[str, list[Tensor]] = {"mixer": [], "cross": [], "feed": []}
    for call in calls:
        block = call.module
        for name, made, around in (
            ("mixer", call.mixed, block.around_mixer),
            ("cross", call.crossed, block.around_cross),
            ("feed", call.fed, block.around_feed),
        ):
            if made is not None and around is not None:
                added[name].append(length_of(around.leave(made), at))
    stream = stack_rows([length_of(x, at) for x in capture.residuals(stack)])
    whole = {name: stack_rows(norms) if len(norms) == len(calls) else None for name, norms in added.items()}
    assert whole["mixer"] is not None
    return StreamNorms(stream, whole["mixer"], whole["cross"], whole["feed"])


def stack_rows(rows: list[Tensor]) -> Tensor:
    """Rows (t,) stacked as (N,T), padded with nan."""
    most = max(len(row) for row in rows)
    return torch.stack([nn.functional.pad(row, (0, most - len(row)), value=torch.nan) for row in rows])


def length_of(x: Tensor, row: int) -> Tensor:
    """The norm of each token's vector (T,), in float32 on the CPU."""
    return x[min(row, len(x) - 1)].float().norm(dim=-1).cpu()
