"""What the training will need, computed before it starts, and what it needed, measured after."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core.model import Model
from anyformer.demo.training import Settings

COPIES = 4  # of every parameter: itself, its gradient and Adam's two averages


def training_bytes(spec: Model, settings: Settings) -> int:
    """Parameters with gradients and optimizer state, and everything one step keeps for its backward pass.

    The step is run on `meta`, where tensors have shapes and no memory, and what autograd saves is added up.
    """
    net = spec.build(device="meta")
    saved: dict[int, tuple[Tensor, int]] = {}  # the tensor is held too, so that no address is used twice

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = tensor, storage.nbytes()
        return tensor

    shape = settings.batch, settings.length
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        logits = net(torch.zeros(shape, dtype=torch.long, device="meta")).logits
        F.cross_entropy(logits.flatten(0, 1), torch.zeros(settings.tokens, dtype=torch.long, device="meta"))
    own = {parameter.untyped_storage()._cdata: parameter.nbytes for parameter in net.parameters()}
    return COPIES * sum(own.values()) + sum(size for key, (_, size) in saved.items() if key not in own)


def held_now() -> int:
    """Bytes of memory this process holds now, Python and torch themselves included; 0 where it cannot be asked."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0
    return int(statm.read_text().split()[1]) * 4096


def held_at_most(device: torch.device) -> int:
    """The most memory held so far: of the GPU where it trains there, else of this process; 0 where unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.is_file():  # Linux's ru_maxrss would still hold what the parent had before it started this process
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    try:
        import resource
    except ModuleNotFoundError:  # not on Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
