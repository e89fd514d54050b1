"""The cost of a whole model, extrapolated from models with fewer layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from anyformer.core.model import Model, Seq2Seq
from anyformer.core.stack import Stack
from anyformer.core.state import State
from anyformer.embeds.queries import Queries
from anyformer.errors import UserError
from anyformer.planning.inputs import blank_inputs
from anyformer.planning.trace import OpCost, PassCost, trace, trace_training
from anyformer.slots import Network, compiles
from anyformer.spec import replace_in

SIZES = OpCost._fields[2:]  # the numeric fields
STEPS = 3  # tokens of the shortest text on which a recurrence is traced


@dataclass(frozen=True)
class LayerCost:
    """The layers of one stack: their number, and the bytes of saved activations and of the input of each."""

    path: str
    layers: int
    saved: float
    stream: int  # saved bytes with activation recomputation: the layer's input


@dataclass(frozen=True)
class ModelCosts:
    """Costs for one batch: inference, forward and backward pass of training, and one decode step, if any."""

    forward: PassCost
    training: PassCost  # the forward pass of training, with its saved activations
    backward: PassCost
    decode: PassCost  # one new token per row after `length - 1` cached ones; empty if the model does not decode
    cache: int = 0  # bytes of the decoding state, without those of cross-attention
    cross: int = 0  # bytes of its cross-attention keys and values
    stacks: tuple[LayerCost, ...] = ()
    streams: dict[str, int] = field(default_factory=dict)  # bytes of each stack's input, by path

    @property
    def step(self) -> PassCost:
        """Forward and backward."""
        return self.training.plus(self.backward)

    def plus(self, other: ModelCosts, times: int = 1) -> ModelCosts:
        """This cost plus `times` the other."""
        return ModelCosts(
            self.forward.plus(other.forward, times), self.training.plus(other.training, times),
            self.backward.plus(other.backward, times), self.decode.plus(other.decode, times),
            self.cache + times * other.cache, self.cross + times * other.cross, self.stacks, self.streams,
        )  # fmt: skip


def count_costs(spec: Network, batch: int, length: int, dtype: torch.dtype) -> ModelCosts:
    """The cost of a model at a batch size and length, from traces of shorter stacks on the meta device.

    A recurrence runs token by token, so it is traced on short texts only: its cost is a polynomial in the length of
    degree two at most, which three lengths determine.
    """
    if batch < 1:
        raise UserError(f"batch {batch} is below 1", where="plan", fix="use --batch 1")
    if not compiles(spec) and length > 3 * STEPS:
        return over_length(spec, batch, length, dtype)
    base, longer = shorter(spec)
    first = found = count_once(base, batch, length, dtype)
    stacks = []
    for path, more, times, stack in longer:
        difference = count_once(more, batch, length, dtype).plus(first, -1)
        found = found.plus(difference, times)
        tile = len(stack.tiles)
        stacks.append(LayerCost(path, stack.depth, difference.training.saved / tile, first.streams[path]))
    return replace(found, stacks=tuple(stacks))


def shorter(spec: Network) -> tuple[Network, list[tuple[str, Network, int, Stack]]]:
    """The spec with every stack at its least representative depth; for each stack, the spec with one more repetition
    of its block pattern, and how many repetitions the whole model has beyond the short one."""
    stacks = {path: part for path, part in spec.walk() if isinstance(part, Stack) and part.depth}
    found = {path: divmod(stack.depth, len(stack.tiles)) for path, stack in stacks.items()}
    least = {path: len(stacks[path].tiles) + rest for path, (runs, rest) in found.items() if runs > 1}

    def with_depths(depths: dict[str, int]) -> Network:
        changes: dict[str, Any] = {}
        for path, depth in depths.items():
            at = f"{path}." if path else ""
            changes |= {f"{at}depth": depth, f"{at}groups": None}  # sharing weights does not change the compute
        made = replace_in(spec, changes) if changes else spec
        assert isinstance(made, Network)
        return made

    longer = [
        (path, with_depths(least | {path: depth + len(stacks[path].tiles)}), found[path][0] - 1, stacks[path])
        for path, depth in least.items()
    ]
    return with_depths(least), longer


def count_once(spec: Network, batch: int, length: int, dtype: torch.dtype) -> ModelCosts:
    """The cost of a model, traced at full depth."""
    net = spec.build(device="meta", dtype=dtype)
    given = blank_inputs(spec, batch, length, dtype=dtype)
    with streams_of(net, spec) as streams:
        forward = trace(net.eval(), given.args, given.named)
    training, backward = trace_training(net.train(), given.args, given.named)
    if not decodes(spec):
        return ModelCosts(forward, training, backward, PassCost(), streams=streams)
    decode, state = trace_decoding(net.eval(), spec, given.args, batch, length)
    cross = sum(layer.cross.bytes for layer in state.layers if layer.cross is not None)
    return ModelCosts(forward, training, backward, decode, state.bytes - cross, cross, streams=streams)


@contextmanager
def streams_of(net: nn.Module, spec: Network) -> Iterator[dict[str, int]]:
    """Record the bytes of each stack's input during a pass."""
    found: dict[str, int] = {}

    def note(path: str) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            found[path] = args[0].numel() * args[0].element_size()

        return hook

    paths = [path for path, part in spec.walk() if isinstance(part, Stack)]
    handles = [net.get_submodule(path).register_forward_pre_hook(note(path)) for path in paths]
    yield found
    for handle in handles:
        handle.remove()


def decodes(spec: Network) -> bool:
    """Whether the model decodes token by token."""
    decoder = spec.decoder if isinstance(spec, Seq2Seq) else spec
    if not isinstance(decoder, Model) or isinstance(decoder.embed, Queries):
        return False
    return bool(decoder.stack.causal) and decoder.embed.vocabulary is not None


def trace_decoding(
    net: Any, spec: Network, args: tuple[Any, ...], batch: int, length: int
) -> tuple[PassCost, State]:  # fmt: skip
    """The cost of decoding one token after `length - 1` cached ones, and the state that then holds all of them."""
    state = net.state(batch, length)
    with torch.no_grad():
        if isinstance(spec, Seq2Seq):
            source, target = args
            memory = net.encode(source)
            if length > 1:
                net(None, target[:, :-1], memory=memory, state=state)
            return trace(net, (None, target[:, -1:]), {"memory": memory, "state": state}), state
        if length > 1:
            net(args[0][:, :-1], state=state)
    return trace(net, (args[0][:, -1:],), {"state": state}), state


# ---------------------------------------------------------------- recurrences


def over_length(spec: Network, batch: int, length: int, dtype: torch.dtype) -> ModelCosts:
    """The cost at a length, extrapolated from three traced ones."""
    points = [STEPS, 2 * STEPS, 3 * STEPS]
    found = [count_costs(spec, batch, point, dtype) for point in points]

    def at_length(values: list[int]) -> int:
        return extrapolate(points, values, length)

    def at_length_of(name: str) -> PassCost:
        return extrapolate_pass([getattr(costs, name) for costs in found], at_length)

    stacks = tuple(
        LayerCost(one.path, one.layers, at_length([round(costs.stacks[i].saved) for costs in found]),
                  at_length([costs.stacks[i].stream for costs in found]))
        for i, one in enumerate(found[0].stacks)
    )  # fmt: skip
    return ModelCosts(
        at_length_of("forward"), at_length_of("training"), at_length_of("backward"), at_length_of("decode"),
        at_length([costs.cache for costs in found]), at_length([costs.cross for costs in found]), stacks,
    )  # fmt: skip


def extrapolate_pass(found: list[PassCost], at_length: Any) -> PassCost:
    """Extrapolated totals of each part and kind as one operation; the number of launches is kept separately."""
    totals: list[Counter[tuple[str, str, str]]] = []
    for cost in found:
        total: Counter[tuple[str, str, str]] = Counter()
        for op, count in cost.ops.items():
            for name in SIZES:
                total[op.part, op.kind, name] += count * getattr(op, name)
        totals.append(total)
    kinds = {(part, kind) for total in totals for part, kind, _ in total}
    ops: Counter[OpCost] = Counter()
    for part, kind in kinds:
        sizes = [at_length([total[part, kind, name] for total in totals]) for name in SIZES]
        ops[OpCost(part, kind, *sizes)] += 1
    launches = at_length([cost.launches for cost in found])
    kept = {part: at_length([cost.kept[part] for cost in found]) for cost in found for part in cost.kept}
    saved = at_length([cost.saved for cost in found])
    beside, calls = (at_length([getattr(cost, name) for cost in found]) for name in ("beside", "calls"))
    return PassCost(ops, saved, Counter(kept), launches - len(ops), beside, calls)


def extrapolate(points: list[int], values: list[int], at: int) -> int:
    """The polynomial through three points, evaluated at another in exact integer arithmetic.

    >>> extrapolate([1, 2, 3], [1, 4, 9], 10)
    100
    """
    a, step = points[0], points[1] - points[0]
    first, second = values[1] - values[0], values[2] - 2 * values[1] + values[0]
    runs = at - a
    # Newton's form: v + first * k + second * k (k - 1) / 2 with k = runs / step.
    top = 2 * values[0] * step * step + 2 * first * runs * step + second * runs * (runs - step)
    return round(top / (2 * step * step)) if top % (2 * step * step) else top // (2 * step * step)
