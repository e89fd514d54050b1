"""One training step, and everything that a step changes: weights, optimizers, running mean, scaler."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anyformer import faults
from anyformer.errors import UserError
from anyformer.kernels.compile import compile_function
from anyformer.kernels.compile_cache import use_private_cache
from anyformer.objectives import Batch, Objective, Phase
from anyformer.training.duration import Plan
from anyformer.training.loader import seed_of
from anyformer.training.optim import Optimizer, restore, state_tensors
from anyformer.training.settings import Training

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
LEAST_SCALE = 2.0**-14  # half precision that still overflows at this scale will not come back


@dataclass
class Moment:
    """What a step gave; the tensors are still on their device, so that nobody waits for it."""

    step: int  # steps done, this one included
    loss: Tensor  # mean over the targets of the step; of several phases their sum
    norm: Tensor  # of the gradients, before clipping
    rate: float
    rows: list[Tensor]
    losses: dict[str, Tensor] = field(default_factory=dict)  # of each phase, where there are several


@dataclass
class RunningPhase:
    """A phase of the objective with what it trains."""

    phase: Phase
    parameters: list[nn.Parameter]
    optimizers: list[torch.optim.Optimizer]
    loss: Callable[[nn.Module, Batch], Tensor]  # the phase's own, or compiled
    leaves: list[nn.Parameter] | None  # where gradients end, so that nets it only passes through get none; None: all

    @classmethod
    def of(cls, phase: Phase, model: nn.Module, optimizer: Optimizer) -> RunningPhase:
        """The phase with optimizers over the parameters of its submodule."""
        module = model.get_submodule(phase.module)
        optimizers = optimizer.build(module)
        for group in (group for each in optimizers for group in each.param_groups):
            group["full"] *= phase.lr_scale
            group["lr"] = group["full"]
        parameters = [p for p in module.parameters() if p.requires_grad]
        return cls(phase, parameters, optimizers, phase.loss, parameters if phase.module else None)


class TrainingEngine:
    """A model in training. `settings` are resolved: nothing in them is auto."""

    def __init__(self, model: nn.Module, objective: Objective, settings: Training, plan: Plan) -> None:
        self.model, self.objective, self.settings, self.plan = model, objective, settings, plan
        self.device = next(model.parameters()).device
        self.names = {id(p): name for name, p in model.named_parameters()}
        if self.device.type == "cuda":
            from anyformer.kernels import linear_loss

            linear_loss.enable(self.device)
        use_private_cache()  # torch imports its compiler with the first optimizer, and makes the folder of its cache
        self.phases = [RunningPhase.of(phase, model, settings.optimizer) for phase in objective.phases()]
        self.parameters = [p for running in self.phases for p in running.parameters]
        self.optimizers = [optimizer for running in self.phases for optimizer in running.optimizers]
        self.dtype = DTYPES.get(settings.precision)
        self.scaler = torch.amp.GradScaler(self.device.type) if settings.precision == "fp16" else None
        self.averaged = dict(averaged_parameters(model, objective))
        self.mean = None if settings.ema is None else {n: p.detach().clone() for n, p in self.averaged.items()}
        self.followed = 0  # steps the running mean has taken in
        self.spoilt = ""  # the parameter whose gradient stopped the training
        # On a GPU nobody waits for the norm: a step after a bad one changes nothing, and the flag is read a step later.
        self.bad = torch.zeros((), device=self.device)
        self.late = self.device.type == "cuda" and all(
            isinstance(o, torch.optim.AdamW) and o.param_groups[0].get("fused") for o in self.optimizers
        )

    def compile(self) -> None:
        """Turn the loss into kernels of its own, whole; the update stays torch's fused one."""
        for running in self.phases:
            running.loss = compile_function(running.phase.loss)

    # ------------------------------------------------------------ a step

    def step(self, step: int, micros: list[Batch]) -> Moment:
        """Train on the micro-batches of step number `step` (from 0); their gradients are those of one large batch."""
        self.model.train()
        rate = self.plan.factor(self.settings.schedule, step)
        losses: list[Tensor] = []
        norms: list[Tensor] = []
        moved = False
        for number, running in enumerate(self.phases):
            loss, norm, moved = self.run_phase(number, running, step, micros, rate)
            losses.append(loss)
            norms.append(norm)
            if not moved:  # the next phase would build on what failed
                break
        if moved:
            self.follow()
        full = self.phases[-1].optimizers[0].param_groups[0]["full"]
        rows = [batch.rows for batch in micros]
        if len(self.phases) == 1:
            return Moment(step + 1, losses[0], norms[0], full * rate, rows)
        named = {running.phase.name: loss for running, loss in zip(self.phases, losses, strict=False)}
        total, norm = torch.stack(losses).sum(), torch.stack(norms).square().sum().sqrt()
        return Moment(step + 1, total, norm, full * rate, rows, named)

    def run_phase(
        self, number: int, running: RunningPhase, step: int, micros: list[Batch], rate: float
    ) -> tuple[Tensor, Tensor, bool]:
        """One phase of a step: its loss, the norm of its gradients, and whether its weights were moved."""
        whole = max(1, sum(self.objective.known_weight(batch) for batch in micros))
        total: Tensor | float = 0.0
        for part, batch in enumerate(micros):
            self.seed(step, part, number)
            with self.autocast():
                loss = running.loss(self.model, batch.to(self.device)) / whole
            if faults.point("step") == "nan-loss":
                loss = loss * math.nan
            (loss if self.scaler is None else self.scaler.scale(loss)).backward(inputs=running.leaves)
            total = total + loss.detach()
        assert isinstance(total, Tensor)
        if faults.armed:
            poison(running.parameters)
        for optimizer in running.optimizers:
            if self.scaler is not None:
                self.scaler.unscale_(optimizer)
            for group in optimizer.param_groups:
                group["lr"] = group["full"] * rate
        norm = self.clip(running.parameters)
        moved = self.update(running.optimizers, norm, total)
        for optimizer in running.optimizers:
            optimizer.zero_grad(set_to_none=True)
        return total, norm, moved

    def seed(self, step: int, part: int, phase: int) -> None:
        """All randomness of a pass follows from its place: nothing to save, and any step can be run again alone."""
        torch.manual_seed(seed_of(self.settings.seed, step, part, 1 + phase))

    def clip(self, parameters: list[nn.Parameter]) -> Tensor:
        """Shorten the gradients where they are too long; their norm before that."""
        if self.settings.grad_clip is None:
            return nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        return nn.utils.clip_grad_norm_(parameters, self.settings.grad_clip)

    def update(self, optimizers: list[torch.optim.Optimizer], norm: Tensor, loss: Tensor) -> bool:
        """Move the weights, unless something is not finite: then nothing moves, and the norm tells the caller."""
        if self.scaler is not None:  # an overflow is half precision's everyday; it lowers the scale and goes on
            if not math.isfinite(float(loss)):
                return False
            for optimizer in optimizers:
                self.scaler.step(optimizer)
            self.scaler.update()
        elif self.late:
            self.bad = torch.where(torch.isfinite(norm) & torch.isfinite(loss), self.bad, torch.ones_like(self.bad))
            for optimizer in optimizers:
                optimizer.found_inf = self.bad  # type: ignore[attr-defined]
                optimizer.step()
        elif math.isfinite(float(norm)) and math.isfinite(float(loss)):
            for optimizer in optimizers:
                optimizer.step()
        else:
            self.spoilt = self.bad_gradient()
            return False
        return True

    def follow(self) -> None:
        """The running mean takes in the new weights, quickly at first."""
        if self.mean is None or self.settings.ema is None:
            return
        self.followed += 1
        decay = min(self.settings.ema, (1 + self.followed) / (10 + self.followed))
        torch._foreach_lerp_(list(self.mean.values()), [p.detach() for p in self.averaged.values()], 1 - decay)

    def autocast(self) -> AbstractContextManager[Any]:
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def finite(self, moment: Moment) -> bool:
        """Whether a step was all right. Under fp16 gradients may overflow now and then, but not again and again."""
        if not math.isfinite(float(moment.loss)):
            return False
        return math.isfinite(float(moment.norm)) if self.scaler is None else self.scaler.get_scale() > LEAST_SCALE

    def culprit(self, moment: Moment, micros: list[Batch]) -> tuple[list[int], str]:
        """The rows and the first tensor that are not finite, by running a bad step again part by part."""
        for name, parameter in self.model.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                return [], f"the weight {name}"
        self.model.train()
        for number, running in enumerate(self.phases):
            named = f"the {running.phase.name} loss" if running.phase.name else "the loss"
            for part, batch in enumerate(micros):
                self.seed(moment.step - 1, part, number)
                with self.autocast():
                    loss = running.phase.loss(self.model, batch.to(self.device))
                if not bool(torch.isfinite(loss)):
                    if rows := bad_inputs(batch.inputs, batch):
                        return rows, "the input"
                    # The losses of several phases are of the batch as a whole.
                    alone = [] if running.phase.name else bad_rows(self.objective, self.model, batch.to(self.device))
                    return alone, named
                loss.backward(inputs=running.leaves)
            if not bool(torch.isfinite(moment.losses.get(running.phase.name, moment.loss))):
                return [], named
        name = self.spoilt or self.bad_gradient()
        return [], f"the gradient of {name}" if name else "the norm of the gradients"

    def bad_gradient(self) -> str:
        """The first parameter whose gradient is not finite."""
        bad = (name for name, p in self.model.named_parameters()
               if p.grad is not None and not bool(torch.isfinite(p.grad).all()))  # fmt: skip
        return next(bad, "")

    # ------------------------------------------------------------ what is judged and saved

    @contextmanager
    def judged(self) -> Iterator[nn.Module]:
        """The model as it would be used: with the running mean of its weights where there is one."""
        live: list[Tensor] = list(self.averaged.values())
        kept = None if self.mean is None else [p.detach().clone() for p in live]
        if self.mean is not None:
            with torch.no_grad():
                torch._foreach_copy_(live, list(self.mean.values()))
        self.model.eval()
        try:
            yield self.model
        finally:
            if kept is not None:
                with torch.no_grad():
                    torch._foreach_copy_(live, kept)
            self.model.train()

    def weights(self) -> dict[str, Tensor]:
        """The weights to use."""
        return dict(self.model.named_parameters()) | (self.mean or {})

    def memory(self) -> dict[str, Tensor]:
        """All else that going on needs: the optimizers' tensors, and the raw weights behind a running mean."""
        raw = {} if self.mean is None else {f"raw.{n}": p.detach() for n, p in self.averaged.items()}
        return state_tensors(self.optimizers, self.names) | raw

    def state(self) -> dict[str, Any]:
        """The few numbers that are not tensors."""
        return {"scaler": None if self.scaler is None else self.scaler.state_dict(),
                "followed": self.followed}  # fmt: skip

    def load(self, weights: Mapping[str, Tensor], memory: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Put a saved moment back, to the bit."""
        raw = {name.removeprefix("raw."): value for name, value in memory.items() if name.startswith("raw.")}
        put(self.model, dict(weights) | raw)
        for name, value in (self.mean or {}).items():
            value.copy_(weights[name])
        restore(self.optimizers, self.names, {n: v for n, v in memory.items() if n.startswith("opt.")})
        if self.scaler is not None:
            if state.get("scaler") is None:
                raise UserError("no scale of fp16 was saved", where="state.json", fix="train again")
            self.scaler.load_state_dict(state["scaler"])
        self.followed = int(state.get("followed", 0))


def averaged_parameters(model: nn.Module, objective: Objective) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of which training.ema keeps a running mean, by name."""
    left_out = tuple(f"{phase.module}." for phase in objective.phases() if not phase.ema)
    return ((name, p) for name, p in model.named_parameters() if not name.startswith(left_out))


def put(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a model by name; every one must be there."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])


def bad_rows(objective: Objective, model: nn.Module, batch: Batch) -> list[int]:
    """The rows whose own loss is not finite."""
    with torch.no_grad():
        losses = objective.row_losses(model(*batch.inputs, **batch.named), batch)
    return batch.rows[~torch.isfinite(losses.cpu())].tolist()


def bad_inputs(value: Any, batch: Batch) -> list[int]:
    """The rows with a number that no data may hold; nan is what a missing cell of a table looks like."""
    if isinstance(value, tuple):
        return sorted({row for part in value for row in bad_inputs(part, batch)})
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return []
    wrong = value.isinf() if value.dim() == 2 else ~value.isfinite()
    return batch.rows[wrong.flatten(1).any(1).cpu()].tolist()


def poison(parameters: list[nn.Parameter]) -> None:
    """Carry out a fault that a test asked for."""
    action = faults.point("gradients")
    with torch.no_grad():
        if action == "nan-weight":
            parameters[0].view(-1)[0] = math.nan
        if action == "nan-gradient" and parameters[-1].grad is not None:
            parameters[-1].grad.view(-1)[0] = math.nan
