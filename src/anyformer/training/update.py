"""From gradients to new weights: clipping and the optimizer step, skipped if anything is not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyformer.errors import UserError
from anyformer.kernels import adamw
from anyformer.training.distributed.parallel import Parallel
from anyformer.training.master_weights import MasterWeights
from anyformer.training.muon import BatchedMuon
from anyformer.training.settings import Training

Optimizers = list[torch.optim.Optimizer]
LEAST_SCALE = 2.0**-14  # fp16 that still overflows at this loss scale will not recover


class Update:
    """Checks the gradient norm on the host before updating; also the interface of the other updates."""

    is_late: ClassVar[bool] = False  # whether a non-finite step is only known after the next one has been launched

    def __init__(self, parallel: Parallel, settings: Training) -> None:
        self.parallel, self.grad_clip = parallel, settings.grad_clip

    def apply(self, parameters: list[nn.Parameter], optimizers: Optimizers, loss: Tensor) -> tuple[Tensor, bool]:
        """Clip, update the weights and zero the gradients; returns the norm and whether the weights were updated."""
        self.prepare(optimizers)
        norm = self.parallel.clip(parameters, self.grad_clip)
        moved = self.move(optimizers, norm, loss)
        if moved:  # the gradients of a failed step are kept for diagnosis
            drop_gradients(optimizers)
        return norm, moved

    def prepare(self, optimizers: Optimizers) -> None:
        """Prepare the gradients for clipping (unscale, cast)."""

    def move(self, optimizers: Optimizers, norm: Tensor, loss: Tensor) -> bool:
        """Run the optimizer steps unless norm or loss is not finite; returns whether they ran."""
        if not (math.isfinite(float(norm)) and math.isfinite(float(loss))):
            return False
        for optimizer in optimizers:
            optimizer.step()
        return True

    def is_fine(self, norm: Tensor) -> bool:
        """Whether training can continue after a step with this norm."""
        return math.isfinite(float(norm))

    def state(self) -> dict[str, Any] | None:
        """State needed to resume besides weights and optimizers."""
        return None

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Load a saved state."""


class ScaledUpdate(Update):
    """fp16 with loss scaling. Overflows are expected: the scale is lowered, the step skipped, training continues."""

    def __init__(self, parallel: Parallel, settings: Training, device: torch.device) -> None:
        super().__init__(parallel, settings)
        self.scaler = torch.amp.GradScaler(device.type)

    def prepare(self, optimizers: Optimizers) -> None:
        for optimizer in optimizers:
            self.scaler.unscale_(optimizer)

    def move(self, optimizers: Optimizers, norm: Tensor, loss: Tensor) -> bool:
        if not math.isfinite(float(loss)):
            return False
        for optimizer in optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()
        return True

    def is_fine(self, norm: Tensor) -> bool:
        return self.scaler.get_scale() > LEAST_SCALE

    def state(self) -> dict[str, Any] | None:
        return self.scaler.state_dict()

    def load(self, state: Mapping[str, Any] | None) -> None:
        if state is None:
            raise UserError("no fp16 loss scale was saved", where="state.json", fix="train again")
        self.scaler.load_state_dict(dict(state))


class DeviceUpdate(Update):
    """For a GPU: no host synchronisation; after a non-finite step a device-side flag freezes the weights."""

    is_late = True

    def __init__(
        self, parallel: Parallel, settings: Training, device: torch.device, masters: MasterWeights | None
    ) -> None:
        super().__init__(parallel, settings)
        self.masters = masters
        self.bad = torch.zeros((), device=device)

    def apply(self, parameters: list[nn.Parameter], optimizers: Optimizers, loss: Tensor) -> tuple[Tensor, bool]:
        found = super().apply(parameters, optimizers, loss)
        if self.masters is not None:
            self.masters.refresh()
        return found

    def prepare(self, optimizers: Optimizers) -> None:
        if self.masters is not None:
            self.masters.widen()

    def move(self, optimizers: Optimizers, norm: Tensor, loss: Tensor) -> bool:
        self.mark(norm, loss)
        for optimizer in optimizers:
            optimizer.found_inf = self.bad  # type: ignore[attr-defined]
            optimizer.step()
        return True

    def mark(self, norm: Tensor, loss: Tensor) -> None:
        """Set the device-side flag if the norm or the loss is not finite."""
        self.bad.copy_(torch.where(torch.isfinite(norm) & torch.isfinite(loss), self.bad, 1.0))


class KernelUpdate(DeviceUpdate):
    """AdamW on master weights by one kernel that clips, updates and rounds to bf16."""

    def __init__(
        self, parallel: Parallel, settings: Training, device: torch.device, masters: MasterWeights,
        optimizers: Optimizers,
    ) -> None:  # fmt: skip
        super().__init__(parallel, settings, device, masters)
        self.by_id = masters.by_id
        self.whole = torch.ones((), device=device)
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self.recorded = adamw.RecordedPointers([len(group["params"]) for group in groups], device)

    def apply(self, parameters: list[nn.Parameter], optimizers: Optimizers, loss: Tensor) -> tuple[Tensor, bool]:
        norm = adamw.gradient_norm([p.grad for p in parameters if p.grad is not None])
        self.mark(norm, loss)
        clip = self.whole if self.grad_clip is None else (self.grad_clip / (norm + 1e-6)).clamp(max=1.0)
        for optimizer in optimizers:
            assert isinstance(optimizer, torch.optim.AdamW)
            adamw.update(optimizer, self.by_id, clip, self.bad, self.recorded)
        drop_gradients(optimizers)
        return norm, True


def drop_gradients(optimizers: Optimizers) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)


def can_skip(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer supports skipping the update by a device-side flag (`found_inf`)."""
    if isinstance(optimizer, torch.optim.AdamW):
        return bool(optimizer.param_groups[0].get("fused"))
    return isinstance(optimizer, BatchedMuon)


def has_kernel(optimizers: Optimizers, device: torch.device) -> bool:
    """Whether our fused AdamW kernel can do the whole update."""
    return all(isinstance(optimizer, torch.optim.AdamW) for optimizer in optimizers) and adamw.enable(device)


def set_lr(optimizers: Optimizers, factor: float) -> None:
    """Set every group's lr to `factor` times its full lr; in place if it is a device tensor."""
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(group["full"] * factor)
        else:
            group["lr"] = group["full"] * factor


def keep_rates_on_device(optimizers: Optimizers, device: torch.device) -> None:
    """Turn learning rates into device tensors, which a captured step reads on every replay."""
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        group["lr"] = torch.tensor(float(group["full"]), device=device)
