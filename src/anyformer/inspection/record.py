"""One pass where the model is, and everything noted of it on the CPU afterwards."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from anyformer.inspection.given import NetworkInputs
from anyformer.inspection.replay import BlockCall, PassRecord, Wanted, replay
from anyformer.inspection.shadow import shadow

HOST = torch.device("cpu")


def record_pass(model: nn.Module, given: NetworkInputs, wanted: Wanted) -> tuple[nn.Module, NetworkInputs, PassRecord]:
    """A shadow of the model, what it was given and what it did, all on the CPU.

    The pass itself runs where the model is, on its own kernels. Maps are made later of what was noted, for a few rows
    at a time: that is little work, and on the CPU it is the same for every device. A model on another device has its
    weights copied to the CPU for it.
    """
    there = next(model.parameters()).device
    copied = shadow(model)
    found = replay(copied, to_device(given.args, there), to_device(given.options, there), wanted)
    if there == HOST:
        return copied, given, found
    return to_host(copied, given, found)


def to_host(model: nn.Module, given: NetworkInputs, found: PassRecord) -> tuple[nn.Module, NetworkInputs, PassRecord]:
    """The same on the CPU, every call with the module of the copy."""
    copied = shadow(model, HOST)
    mixers = [replace(call, module=attrgetter(call.path)(copied), given=to_device(call.given, HOST),
                      out=to_device(call.out, HOST)) for call in found.mixers]  # fmt: skip
    blocks = [block_to_host(call, copied) for call in found.blocks]
    inputs = replace(given, args=to_device(given.args, HOST), options=to_device(given.options, HOST))
    return copied, inputs, PassRecord(mixers, blocks, to_device(found.output, HOST))


def block_to_host(call: BlockCall, model: nn.Module) -> BlockCall:
    parts = {name: to_device(getattr(call, name), HOST) for name in ("before", "after", "mixed", "crossed", "fed")}
    return replace(call, module=attrgetter(call.path)(model), **parts)


def to_device(value: Any, device: torch.device) -> Any:
    """Every tensor inside on a device."""
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), value)
