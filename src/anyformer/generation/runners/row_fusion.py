"""Compiler passes for decode steps. For one row, linear layers are fused with norm, activation and residual.

The passes run on the pre-grad graph of torch functions, before decomposition, so they can match layers by function.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

LINEAR = F.linear
NORMS: dict[Any, str] = {torch.rms_norm: "rms", F.rms_norm: "rms", F.layer_norm: "layer"}
ACTS: dict[Any, str] = {F.relu: "relu", torch.relu: "relu", F.gelu: "gelu", torch._C._nn.gelu: "gelu", F.silu: "silu"}
WORDS = 8192  # output features from which a linear layer is taken to be the vocabulary projection
TYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Pass:
    """A graph pass with a uuid, so that the compiler can cache its results until this file changes."""

    change: Callable[[fx.Graph], None]

    def __call__(self, graph: fx.Graph) -> None:
        """Apply the pass."""
        self.change(graph)

    def uuid(self) -> str:
        """The cache key."""
        return f"{self.change.__name__} {sha256(Path(__file__).read_bytes()).hexdigest()}"


def split_biases(graph: fx.Graph) -> None:
    """Split each bias from its matmul: for one row the compiler then generates one fused reduction.

    Together they would be one library call, made for large matrices, which cannot be fused with what follows.
    """
    for node in list(graph.nodes):
        if node.target is not LINEAR:
            continue
        x, weight, bias = call_arguments(node, "input", "weight", "bias")
        if bias is None:
            continue
        with graph.inserting_before(node):
            product = graph.call_function(LINEAR, (x, weight))
            total = graph.call_function(torch.add, (product, bias))
        node.replace_all_uses_with(total)
        graph.erase_node(node)


def transpose_heads(graph: fx.Graph) -> None:
    """Compute logits (B,1,V) transposed if V is odd, as GPT-2's 50,257, so that rows of length B are aligned.

    Libraries read and write eight numbers at a time, and only have slow kernels for unaligned rows.
    """
    for node in list(graph.nodes):
        x, weight, bias = (
            call_arguments(node, "input", "weight", "bias") if node.target is LINEAR else (None, None, None)
        )
        held, rows = example_of(weight), example_of(x)
        if held is None or rows is None or bias is not None or held.shape[0] < WORDS or held.shape[0] % 8 == 0:
            continue
        if rows.dim() != 3 or rows.shape[1] != 1:
            continue
        with graph.inserting_before(node):
            across = graph.call_method("t", (graph.call_method("flatten", (x, 0, 1)),))
            product = graph.call_function(torch.mm, (weight, across))  # (V,B)
            turned = graph.call_method("unsqueeze", (graph.call_method("t", (product,)), 1))
        node.replace_all_uses_with(turned)
        graph.erase_node(node)


def fuse_rows(graph: fx.Graph) -> None:
    """Replace every linear layer of one row and its surrounding operations by `row_linear` (kernels/row.py)."""
    from anyformer.kernels import row  # noqa: F401  registers the operation

    remove_dropout(graph)
    for node in list(graph.nodes):
        if node.target is LINEAR:
            fuse_linear(graph, node)
        if node.target is torch.ops.anyformer.rows_attention.default:
            fuse_cache_write(graph, node)


def fuse_cache_write(graph: fx.Graph, node: fx.Node) -> None:
    """Fuse the cache write of `StaticCache.update` into attention over the static cache."""
    q, keys, values, index, *rest = node.args
    example = example_of(q)
    if example is None or example.shape[2] != 1:
        return
    puts = [put for buffer in (keys, values) if (put := find_cache_write(buffer, index)) is not None]
    if len(puts) < 2:
        return
    new = [turned.args[0] for put in puts if isinstance(turned := put.args[2], fx.Node)]
    operation = torch.ops.anyformer.rows_attention_put.default
    with graph.inserting_before(node):
        fused = graph.call_function(operation, (q, *new, keys, values, index, *rest))
    fused.meta = dict(node.meta)
    node.replace_all_uses_with(fused)
    for old in (node, *puts):
        graph.erase_node(old)


def find_cache_write(buffer: Any, index: Any) -> fx.Node | None:
    """The only write to a buffer: `buffer[rows, :, at] = new.transpose(1, 2)`, where `at` is the index that is read."""
    puts = [user for user in buffer.users if user.target is operator.setitem and user.args[0] is buffer]
    if len(puts) != 1 or not isinstance(puts[0].args[1], tuple) or len(puts[0].args[1]) != 3:
        return None
    new, at = puts[0].args[2], puts[0].args[1][2]
    seen = index.args[0] if index.target == "expand" else index
    turned = isinstance(new, fx.Node) and new.target == "transpose" and tuple(new.args[1:]) == (1, 2)
    return puts[0] if turned and at is seen else None


def remove_dropout(graph: fx.Graph) -> None:
    """Remove inactive dropout, which would prevent fusion."""
    for node in list(graph.nodes):
        if node.target is F.dropout and call_arguments(node, "input", "p", "training")[2] is False:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def fuse_linear(graph: fx.Graph, node: fx.Node) -> None:
    """Fuse one linear layer, if it has one row, with its surrounding operations."""
    x, weight, bias = call_arguments(node, "input", "weight", "bias")
    held, row = example_of(weight), example_of(x)
    if held is None or row is None or row.numel() != held.shape[-1] or held.dtype not in TYPES:
        return
    if row.dtype != held.dtype or held.stride(-1) != 1:
        return
    norm, gain, shift, eps = "none", None, None, 0.0
    gone: list[fx.Node] = [node]
    before = NORMS.get(x.target)
    if before is not None and all(user.target is LINEAR for user in x.users):
        names = ("input", "normalized_shape", "weight", "eps") if before == "rms" else (
            "input", "normalized_shape", "weight", "bias", "eps")  # fmt: skip
        parts = dict(zip(names, call_arguments(x, *names), strict=True))
        least = parts["eps"] if parts["eps"] is not None else 1e-5 if before == "layer" else None
        if least is not None and len(parts["normalized_shape"]) == 1:
            norm, gain, shift, eps, gone = before, parts["weight"], parts.get("bias"), least, [x, node]
            x = parts["input"]
    last, act, gated = node, "none", False
    after = find_gate(last) or find_activation(last)
    if after is not None:
        nodes, act, gated = after
        gone, last = [*gone, *nodes], nodes[-1]
    added = None
    sum_node = only_user(last)
    if sum_node is not None and sum_node.target in (operator.add, torch.add) and len(sum_node.args) == 2:
        other = sum_node.args[1] if sum_node.args[0] is last else sum_node.args[0]
        one, two = example_of(other), example_of(sum_node)
        if (
            other is not last
            and one is not None
            and two is not None
            and one.shape == two.shape
            and one.dtype == row.dtype
        ):
            added, last = other, sum_node
            gone.append(sum_node)
    with graph.inserting_before(last):
        fused = graph.call_function(
            torch.ops.anyformer.row_linear.default, (x, weight, bias, norm, gain, shift, eps, act, gated, added)
        )
    fused.meta = dict(last.meta)
    last.replace_all_uses_with(fused)
    for old in reversed(gone):
        if not old.users:  # a norm may have other users
            graph.erase_node(old)


def find_activation(node: fx.Node) -> tuple[list[fx.Node], str, bool] | None:
    """The activation that follows a linear layer."""
    user = only_user(node)
    act = None if user is None else activation_name(user)
    return None if user is None or act is None else ([user], act, False)


def find_gate(node: fx.Node) -> tuple[list[fx.Node], str, bool] | None:
    """act(gate) * value of interleaved outputs, as in feeds/mlp.py."""
    pairs = only_user(node)
    if pairs is None or pairs.target != "unflatten" or tuple(pairs.args[1:]) != (-1, (-1, 2)):
        return None
    both = only_user(pairs)
    if both is None or both.target != "unbind" or tuple(both.args[1:]) != (-1,) or len(both.users) != 2:
        return None
    gate, passed = sorted(both.users, key=lambda user: int(str(user.args[1])))
    shaped, product = only_user(gate), only_user(passed)
    act = None if shaped is None else activation_name(shaped)
    if shaped is None or act is None or product is None or product.target is not operator.mul:
        return None
    if only_user(shaped) is not product:
        return None
    return [pairs, both, gate, passed, shaped, product], act, True


def activation_name(node: fx.Node) -> str | None:
    act = ACTS.get(node.target)
    if act == "gelu":
        how = node.kwargs.get("approximate", node.args[1] if len(node.args) > 1 else "none")
        return "gelu_tanh" if how == "tanh" else "gelu"
    return act


def only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def call_arguments(node: fx.Node, *names: str) -> list[Any]:
    """A call's arguments by name, in its order; None for those left out."""
    known = dict(zip(names, node.args, strict=False)) | node.kwargs
    return [known.get(name) for name in names]


def example_of(node: Any) -> Tensor | None:
    """The fake example tensor of a node."""
    example = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return example if isinstance(example, Tensor) else None
