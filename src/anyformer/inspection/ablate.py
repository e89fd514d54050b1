"""Ablation: run a network without some of its heads, layers, tokens or edges.

A head is ablated by zeroing its input to the output projection, which is the same as zeroing its columns there. A
feed or mixer is ablated by adding zeros to the residual stream. A token or an edge is masked before the softmax, so
the remaining weights sum to 1 again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.core.attend import attend
from anyformer.core.context import Context
from anyformer.core.head_names import (
    CROSS,
    LayerName,
    NamedLayer,
    as_heads,
    as_name,
    find_layer,
    layers_of,
    named_layers,
    network_of,
)
from anyformer.errors import UserError
from anyformer.mixers.cross import CrossModule

Handle = Any
PAIRS = 2**28  # most elements (heads x queries x keys) of a mask: a quarter of a gigabyte


@contextmanager
def ablate(
    model: Any,
    *,
    heads: Iterable[Any] = (),
    feeds: Iterable[Any] = (),
    mixers: Iterable[Any] = (),
    tokens: Iterable[Any] = (),
    edges: Iterable[Any] = (),
) -> Iterator[nn.Module]:
    """Ablate parts of a network inside a `with` block; afterwards it is exactly as before.

    `heads` are (layer, head), `feeds` and `mixers` layer numbers, all from 0. `tokens` are positions that no other
    token attends to in any layer. `edges` are (query, key) in all layers and heads, or (layer, head, query, key) in
    one. For an encoder-decoder each starts with its part: ("encoder", 3, 5), ("decoder", 3, 5), or ("cross", 3, 5) for
    the cross-attention. `model` is a network or a predictor. Meanwhile it is changed for all its users; for a network
    in use elsewhere, ablate a shadow.

    >>> from anyformer import preset
    >>> net, ids = preset("gpt2-tiny").build(seed=0).eval(), torch.arange(6)[None]
    >>> before = net(ids).logits
    >>> with ablate(net, heads=[(0, 1)]):
    ...     changed = not torch.equal(net(ids).logits, before)
    >>> changed, torch.equal(net(ids).logits, before)
    (True, True)
    """
    network = network_of(model, "ablate")
    check_not_wrapped(model, network)
    cut = LeftOut.of(network, heads, feeds, mixers, tokens, edges)
    handles: list[Handle] = []
    compiled = {module: module._compiled_call_impl for module in network.modules()}
    try:
        for module in compiled:  # compiled code ignores hooks added later
            module._compiled_call_impl = None
        cut.attach(network, handles)
        yield network
    finally:
        for handle in handles:
            handle.remove()
        for module, call in compiled.items():
            module._compiled_call_impl = call


def check_not_wrapped(model: Any, network: nn.Module) -> None:
    """Raise an error for a network wrapped in compiled code, which ignores hooks: nothing would be ablated."""
    wrapped = any("_orig_mod" in module._modules for module in network.modules())
    if wrapped or type(model).__name__ == "Compiled":
        raise UserError("compiled code cannot leave parts out", where="ablate",
                        fix="give the model that was compiled, and run that")  # fmt: skip


@dataclass
class LeftOut:
    """What is ablated, by layer."""

    heads: dict[LayerName, set[int]] = field(default_factory=dict)
    feeds: set[LayerName] = field(default_factory=set)
    mixers: set[LayerName] = field(default_factory=set)
    tokens: dict[str, set[int]] = field(default_factory=dict)
    edges: dict[LayerName, list[tuple[int | None, int, int]]] = field(default_factory=dict)  # (head or all, i, j)

    @classmethod
    def of(
        cls, model: nn.Module, heads: Iterable[Any], feeds: Iterable[Any], mixers: Iterable[Any],
        tokens: Iterable[Any], edges: Iterable[Any],
    ) -> LeftOut:  # fmt: skip
        """From the arguments of `ablate`; unknown heads and layers are an error."""
        cut = cls()
        for name in as_heads(heads, model):
            cut.heads.setdefault(name.layer_name, set()).add(name.head)
        for one in feeds:
            layer = LayerName(*as_name(one, 1, model, "feeds"))
            found, _ = find_layer(model, layer, "feeds")
            if layer.part == CROSS or found.block.feed is None:
                raise UserError(f"layer {layer} has no feed", where="feeds", fix="name another layer")
            cut.feeds.add(layer)
        for one in mixers:
            layer = LayerName(*as_name(one, 1, model, "mixers"))
            find_layer(model, layer, "mixers")
            cut.mixers.add(layer)
        for one in tokens:
            part, place = as_name(one, 1, model, "tokens")
            if part == CROSS:
                raise UserError("cross-attention has no tokens of its own", where="tokens", fix='write ("encoder", 4)')
            cut.tokens.setdefault(part, set()).add(check_place(place, "tokens"))
        for one in edges:
            cut.add_edge(model, one)
        return cut

    def add_edge(self, model: nn.Module, given: Any) -> None:
        """Add an edge of one layer and head, or of all of a part."""
        count = sum(isinstance(word, int) for word in given) if isinstance(given, tuple | list) else 0
        if count == 4:
            (name,) = as_heads([tuple(given)[:-2]], model, "edges")
            wanted: dict[LayerName, int | None] = {name.layer_name: name.head}
        else:
            part = as_name(given, 2, model, "edges")[0]
            wanted = {name: None for name, _, _ in named_layers(model) if name.part == part}
        query, key = (check_place(place, "edges") for place in tuple(given)[-2:])
        for layer, head in wanted.items():
            self.edges.setdefault(layer, []).append((head, query, key))

    def attach(self, model: nn.Module, handles: list[Handle]) -> None:
        """Register the hooks; each is appended to `handles` at once, so that it is removed if a later one fails."""
        clock = LayerClock()
        for stack in layers_of(model).values():
            for block in {layer.block: layer for layer in stack}:
                handles.append(block.register_forward_pre_hook(clock.enter, prepend=True))
        for name, layer, mixer in named_layers(model):
            around = layer.block.around_cross if name.part == CROSS else layer.block.around_mixer
            if name in self.heads:
                columns = self.columns(mixer, self.heads[name])
                hook = clock.only(layer, lambda _, given, columns=columns: (zeroed(given[0], columns), *given[1:]))
                handles.append(mixer.out.register_forward_pre_hook(hook))  # type: ignore[union-attr]
            if name in self.mixers:
                assert around is not None
                handles.append(around.inside.register_forward_hook(clock.only(layer, nothing)))
            self.attach_rules(name, layer, mixer, clock, handles)
            if name in self.feeds:
                assert layer.block.around_feed is not None
                handles.append(layer.block.around_feed.inside.register_forward_hook(clock.only(layer, nothing)))

    @staticmethod
    def columns(mixer: Any, heads: set[int]) -> Tensor:
        """Mask of the inputs of the output projection that come from these heads, (H*C',)."""
        gone = torch.zeros(mixer.sizes.heads, dtype=torch.bool)
        gone[list(heads)] = True
        return gone.repeat_interleave(mixer.sizes.value_channels)

    def attach_rules(
        self, name: LayerName, layer: NamedLayer, mixer: nn.Module, clock: LayerClock, handles: list[Handle]
    ) -> None:
        """Register hooks that mask tokens and edges in one mixer."""
        edges = self.edges.get(name, [])
        hidden = self.tokens.get("encoder" if name.part == CROSS else name.part, set())
        if not edges and not hidden:
            return
        if isinstance(mixer, CrossModule):
            hook = clock.only(layer, lambda module, given, out: look_again(module, given, edges, hidden))
            handles.append(mixer.register_forward_hook(hook))
            return
        spec = layer.block.spec.mixer
        if not spec.takes_rules:
            raise UserError(f"{type(spec).__name__} in layer {name} has no weights between two tokens to leave out",
                            where="edges" if edges else "tokens", fix="name heads, mixers or feeds")  # fmt: skip
        hook = clock.only(layer, lambda module, given: (given[0], hiding(given[1], module, edges, hidden), *given[2:]))
        handles.append(mixer.register_forward_pre_hook(hook))


class LayerClock:
    """Tracks which layer is running: layers that share a block are told apart by the order of calls."""

    def __init__(self) -> None:
        self.calls: dict[nn.Module, int] = {}
        self.running: nn.Module | None = None

    def enter(self, block: nn.Module, given: Any) -> None:
        self.running = block
        self.calls[block] = self.calls.get(block, -1) + 1

    def only(self, layer: NamedLayer, hook: Callable[..., Any]) -> Callable[..., Any]:
        """The hook, restricted to one layer."""

        def called(*given: Any) -> Any:
            here = self.running is layer.block and self.calls[layer.block] % layer.uses == layer.use
            return hook(*given) if here else None

        return called


def check_place(place: int, where: str) -> int:
    if place < 0:
        raise UserError(f"token {place} is out of range", where=where, fix="count from 0")
    return place


def zeroed(x: Tensor, columns: Tensor) -> Tensor:
    """x (..., H*C') with the columns of some heads set to 0, even if they were nan."""
    return x.masked_fill(columns.to(x.device), 0.0)


def nothing(module: nn.Module, given: Any, out: Tensor) -> Tensor:
    """A hook that replaces a branch's output by zeros."""
    return torch.zeros_like(out)


def hiding(
    context: Context, mixer: nn.Module, edges: list[tuple[int | None, int, int]], hidden: set[int]
) -> Context:  # fmt: skip
    """The context with a mask that hides edges and tokens from a layer's queries."""
    if context.gaps:
        raise UserError("a static cache has no places that could be left out", where="ablate",
                        fix="run the model over the whole text")  # fmt: skip
    queries, keys = context.index.shape[1], context.key_index.shape[1]
    rule = allowed(mixer, queries, keys, context.past, context.past + queries - keys, edges, hidden, own=True)
    rule = rule.to(context.index.device)
    rule = rule if context.allowed is None else rule & context.allowed
    return replace(context, allowed=rule, ordered=False)


def allowed(
    mixer: Any, queries: int, keys: int, first_query: int, first_key: int, edges: list[tuple[int | None, int, int]],
    hidden: set[int], *, own: bool,
) -> Tensor:  # fmt: skip
    """The mask (1, H or 1, T, S); in self-attention (`own`) a hidden token still attends to itself."""
    heads = mixer.sizes.heads if any(head is not None for head, _, _ in edges) else 1
    if heads * queries * keys > PAIRS:
        raise UserError(f"a mask of {heads} x {queries} x {keys} would be needed", where="ablate",
                        fix="give a shorter text, or edges of all heads at once")  # fmt: skip
    rule = torch.ones(1, heads, queries, keys, dtype=torch.bool)
    for place in hidden:
        if 0 <= (column := place - first_key) < keys:
            rule[..., column] = False
            if own and 0 <= (row := place - first_query) < queries:
                rule[:, :, row, column] = True
    for head, query, key in edges:
        row, column = query - first_query, key - first_key
        if 0 <= row < queries and 0 <= column < keys:
            rule[:, slice(None) if head is None else head, row, column] = False
    return rule


def look_again(module: nn.Module, given: Any, edges: list[tuple[int | None, int, int]], hidden: set[int]) -> Tensor:
    """Recompute cross-attention with some of the memory masked, as it takes no mask from outside."""
    assert isinstance(module, CrossModule)
    x, context, state, tables = given[:4]
    q, k, v, scores = module.prepare(x, context, state, tables)
    rule = allowed(module, q.shape[2], k.shape[2], context.past, 0, edges, hidden, own=False).to(q.device)
    y = attend(q, k, v, replace(scores, allowed=rule, ordered=False))  # (B,H,T,C')
    made: Tensor = module.out(y.transpose(1, 2).flatten(2))
    return made
