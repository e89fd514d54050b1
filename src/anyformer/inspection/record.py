"""Record one pass on the model's device, and move the record to the CPU."""

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
    """A shadow of the model, its inputs and the record of its pass, all on the CPU.

    The pass itself runs on the model's device, with its own kernels. Maps are computed later from the record, a few
    rows at a time: that is little work, and on the CPU it is the same for every device. The weights of a model on
    another device are copied to the CPU.
    """
    there = next(model.parameters()).device
    copied = shadow(model)
    found = replay(copied, to_device(given.args, there), to_device(given.options, there), wanted)
    if there == HOST:
        return copied, given, found
    return to_host(copied, given, found)


def to_host(model: nn.Module, given: NetworkInputs, found: PassRecord) -> tuple[nn.Module, NetworkInputs, PassRecord]:
    """Move the record to the CPU, with modules replaced by those of a CPU copy."""
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
    """Move every tensor in a nested value to a device."""
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), value)
