"""The layers of a plain decoder on a CPU as one call of C++ (kernels/layers.cpp), for a few tokens per row.

Plain means like GPT-2 or Llama: pre-norm attention and feed-forward with residuals; rotary positions or none; weights
in float32 or 8 bits. Other decoders are compiled by torch, which is slower to compile and to run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.core.block import BlockModule
from anyformer.core.context import Context
from anyformer.core.linear import is_plain_linear
from anyformer.core.model import Model
from anyformer.core.static_cache import StaticState
from anyformer.feeds.mlp import MLPModule
from anyformer.kernels.cpu import load_library
from anyformer.kernels.int8 import Int8Linear
from anyformer.mixers.attention import AttentionModule
from anyformer.norms.layer import LayerNormModule
from anyformer.norms.rms import RMSNormModule
from anyformer.positions.none import NoRelative
from anyformer.positions.rope import Rope

ACTS = ("relu", "gelu", "gelu_tanh", "quick_gelu", "silu")  # in the order of layers.cpp


class NormStruct(ctypes.Structure):
    _fields_ = [("gain", ctypes.c_void_p), ("shift", ctypes.c_void_p), ("eps", ctypes.c_double),
                ("centred", ctypes.c_long)]  # fmt: skip


class LinearStruct(ctypes.Structure):
    _fields_ = [("weight", ctypes.c_void_p), ("scale", ctypes.c_void_p), ("bias", ctypes.c_void_p),
                ("ins", ctypes.c_long), ("outs", ctypes.c_long)]  # fmt: skip


class LayerStruct(ctypes.Structure):
    _fields_ = [
        ("before_mixer", NormStruct), ("before_feed", NormStruct), ("qkv", LinearStruct), ("out", LinearStruct),
        ("up", LinearStruct), ("down", LinearStruct),
        *((name, ctypes.c_long) for name in ("heads", "groups", "channels", "value_channels")),
        ("scale", ctypes.c_double),
        *((name, ctypes.c_long) for name in ("window", "turned", "interleaved", "act", "gated")),
    ]  # fmt: skip


def is_plain(model: Any) -> bool:
    """Whether `PlainStep` can run this decoder's layers."""
    if not isinstance(model.spec, Model) or not model.stack.blocks:
        return False
    if any(weight.device.type != "cpu" or weight.dtype != torch.float32 for weight in model.parameters()):
        return False
    return all(isinstance(block, BlockModule) and is_plain_block(block) for block in model.stack.blocks)


def is_plain_block(block: BlockModule) -> bool:
    spec, mixer, feed = block.spec, block.mixer, block.feed
    if spec.place != "pre" or spec.order != "serial" or not spec.residual or spec.layer_scale is not None:
        return False
    if block.cross is not None or type(mixer) is not AttentionModule or type(feed) is not MLPModule:
        return False
    if mixer.q_norm is not None or mixer.spec.soft_cap is not None or not mixer.causal or feed.spec.act not in ACTS:
        return False
    if not isinstance(spec.relative, NoRelative | Rope) or not spec.relative.shared:
        return False
    norms = (block.around_mixer.before, block.around_feed.before)  # type: ignore[union-attr]
    return all(type(norm) in (LayerNormModule, RMSNormModule) for norm in norms) and all(
        is_plain_linear(part) or isinstance(part, Int8Linear) for part in (mixer.qkv, mixer.out, feed.up, feed.down)
    )


class PlainStep:
    """Pointers to one decoder's weights and buffers: built for one call of `generate`, since they may move later."""

    def __init__(self, model: Any, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        code = load_library()
        assert code is not None
        self.code, self.model, self.held = code, model, [*keys, *values]  # keep the pointed-to tensors alive
        blocks = [model.stack.blocks[which] for which in model.stack.order]
        self.layers = (LayerStruct * len(blocks))(*(self.layer(block) for block in blocks))
        self.keys, self.values = pointers(keys), pointers(values)
        self.columns, self.width = keys[0].shape[2], model.stack.spec.width
        self.room = (  # scratch floats per token: the widest of qkv, attention output and inner channels
            max(layer.qkv.outs for layer in self.layers) + max(layer.out.ins for layer in self.layers)
            + max(layer.up.outs for layer in self.layers)
        )  # fmt: skip
        self.work = torch.empty(0)
        none = (ctypes.c_void_p * len(blocks))()
        self.turns = none, none  # for models without rotary positions

    def layer(self, block: BlockModule) -> LayerStruct:
        mixer, feed, relative = block.mixer, block.feed, block.spec.relative
        sizes, turned = mixer.sizes, 0
        if isinstance(relative, Rope):
            turned = sizes.channels if relative.width is None else relative.width
        assert block.around_feed is not None
        return LayerStruct(
            self.norm(block.around_mixer.before), self.norm(block.around_feed.before), self.product(mixer.qkv),
            self.product(mixer.out), self.product(feed.up), self.product(feed.down), sizes.heads, sizes.groups,
            sizes.channels, sizes.value_channels, mixer.scale, mixer.spec.window or 0, turned,
            isinstance(relative, Rope) and relative.layout == "interleaved", ACTS.index(feed.spec.act), feed.spec.gated,
        )  # fmt: skip

    def norm(self, norm: Any) -> NormStruct:
        centred = isinstance(norm, nn.LayerNorm)
        eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
        return NormStruct(self.point(norm.weight), self.point(norm.bias if centred else None), eps, centred)

    def product(self, part: Any) -> LinearStruct:
        is_int8 = isinstance(part, Int8Linear)
        weight = part.values if is_int8 else part.weight
        return LinearStruct(self.point(weight), self.point(part.scales if is_int8 else None), self.point(part.bias),
                       weight.shape[1], weight.shape[0])  # fmt: skip

    def point(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        tensor = tensor.detach().contiguous()
        self.held.append(tensor)
        return tensor.data_ptr()

    def hidden(self, tokens: Tensor, positions: Tensor, at: Tensor, columns: Tensor) -> Tensor:
        """As `run_static` in compiled.py, with the bound buffers."""
        model, (rows, length) = self.model, tokens.shape
        context = model.embed.layout(tokens, state=StaticState([], rows, new_positions=positions, columns=columns))
        x = model.embed(tokens, context=context).contiguous()  # (B,T,D)
        cos, sin, _held = self.tables(context, x)
        if self.work.numel() < rows * length * self.room:
            self.work = torch.empty(rows * length * self.room)
        positions, at = positions.contiguous(), at.contiguous()
        self.code.layers(
            self.layers, len(self.layers), x.data_ptr(), self.width, positions.data_ptr(), at.data_ptr(), rows, length,
            self.columns, self.keys, self.values, cos, sin, self.work.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip
        return x if model.stack.final is None else model.stack.final(x)

    def tables(self, context: Context, x: Tensor) -> tuple[Any, Any, object]:
        """Pointers to each layer's cosines and sines (B,T,turned/2), and the tensors to keep alive while they are
        read."""
        stack = self.model.stack
        made = [relative(context, x.dtype) for relative in stack.relatives]
        if not any(made):
            return *self.turns, None
        made = [[one.expand(*x.shape[:2], -1).contiguous() for one in found] or [x, x] for found in made]
        of = [[x, x] if at is None else made[at] for at in stack.table_of]
        return pointers([cos for cos, _ in of]), pointers([sin for _, sin in of]), made


def pointers(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
