"""One training step, and everything that a step changes: weights, optimizers, running mean, scaler."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anyformer import faults
from anyformer.errors import UserError
from anyformer.kernels.compile import compile_function
from anyformer.kernels.compile_cache import use_private_cache
from anyformer.objectives import Batch, Objective
from anyformer.training.duration import Plan
from anyformer.training.loader import seed_of
from anyformer.training.optim import restore, state_tensors
from anyformer.training.settings import Training

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
LEAST_SCALE = 2.0**-14  # half precision that still overflows at this scale will not come back


@dataclass
class Moment:
    """What a step gave; the tensors are still on their device, so that nobody waits for it."""

    step: int  # steps done, this one included
    loss: Tensor  # mean over the targets of the step
    norm: Tensor  # of the gradients, before clipping
    rate: float
    rows: list[Tensor]


class Engine:
    """A model in training. `settings` are resolved: nothing in them is auto."""

    def __init__(self, model: nn.Module, objective: Objective, settings: Training, plan: Plan) -> None:
        self.model, self.objective, self.settings, self.plan = model, objective, settings, plan
        self.device = next(model.parameters()).device
        self.names = {id(p): name for name, p in model.named_parameters()}
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        use_private_cache()  # torch imports its compiler with the first optimizer, and makes the folder of its cache
        self.optimizers = settings.optimizer.build(model)
        self.dtype = DTYPES.get(settings.precision)
        self.scaler = torch.amp.GradScaler(self.device.type) if settings.precision == "fp16" else None
        self.mean = None if settings.ema is None else {n: p.detach().clone() for n, p in model.named_parameters()}
        self.followed = 0  # steps the running mean has taken in
        self.spoilt = ""  # the parameter whose gradient stopped the training
        self.loss: Callable[[nn.Module, Batch], Tensor] = objective.loss
        # On a GPU nobody waits for the norm: a step after a bad one changes nothing, and the flag is read a step later.
        self.bad = torch.zeros((), device=self.device)
        self.late = self.device.type == "cuda" and all(
            isinstance(o, torch.optim.AdamW) and o.param_groups[0].get("fused") for o in self.optimizers
        )

    def compile(self) -> None:
        """Turn the loss into kernels of its own, whole; the update stays torch's fused one."""
        self.loss = compile_function(self.objective.loss)

    # ------------------------------------------------------------ a step

    def step(self, step: int, micros: list[Batch]) -> Moment:
        """Train on the micro-batches of step number `step` (from 0); their gradients are those of one large batch."""
        self.model.train()
        whole = max(1, sum(self.objective.weight(batch) for batch in micros))
        total: Tensor | float = 0.0
        for number, batch in enumerate(micros):
            # All randomness of this pass follows from its place: nothing to save, and any step can be run again alone.
            torch.manual_seed(seed_of(self.settings.seed, step, number, 1))
            with self.autocast():
                loss = self.loss(self.model, batch.to(self.device)) / whole
            if faults.point("step") == "nan-loss":
                loss = loss * math.nan
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
            total = total + loss.detach()
        assert isinstance(total, Tensor)
        if faults.armed:
            poison(self.parameters)
        rate = self.plan.factor(self.settings.schedule, step)
        for optimizer in self.optimizers:
            if self.scaler is not None:
                self.scaler.unscale_(optimizer)
            for group in optimizer.param_groups:
                group["lr"] = group["full"] * rate
        norm = nn.utils.clip_grad_norm_(self.parameters, self.settings.grad_clip)
        self.update(norm, total)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        full = self.optimizers[0].param_groups[0]["full"]
        return Moment(step + 1, total, norm, full * rate, [batch.rows for batch in micros])

    def update(self, norm: Tensor, loss: Tensor) -> None:
        """Move the weights, unless something is not finite: then nothing moves, and the norm tells the caller."""
        if self.scaler is not None:  # an overflow is half precision's everyday; it lowers the scale and goes on
            if not math.isfinite(float(loss)):
                return
            for optimizer in self.optimizers:
                self.scaler.step(optimizer)
            self.scaler.update()
        elif self.late:
            self.bad = torch.where(torch.isfinite(norm) & torch.isfinite(loss), self.bad, torch.ones_like(self.bad))
            for optimizer in self.optimizers:
                optimizer.found_inf = self.bad  # type: ignore[attr-defined]
                optimizer.step()
        elif math.isfinite(float(norm)) and math.isfinite(float(loss)):
            for optimizer in self.optimizers:
                optimizer.step()
        else:
            self.spoilt = self.bad_gradient()
            return
        self.follow()

    def follow(self) -> None:
        """The running mean takes in the new weights, quickly at first."""
        if self.mean is None or self.settings.ema is None:
            return
        self.followed += 1
        decay = min(self.settings.ema, (1 + self.followed) / (10 + self.followed))
        torch._foreach_lerp_(list(self.mean.values()), [p.detach() for p in self.model.parameters()], 1 - decay)

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
        for number, batch in enumerate(micros):
            torch.manual_seed(seed_of(self.settings.seed, moment.step - 1, number, 1))
            with self.autocast():
                loss = self.objective.loss(self.model, batch.to(self.device))
            if not bool(torch.isfinite(loss)):
                if rows := bad_inputs(batch.inputs, batch):
                    return rows, "the input"
                return bad_rows(self.objective, self.model, batch.to(self.device)), "the loss"
            loss.backward()
        if not math.isfinite(float(moment.loss)):
            return [], "the loss"
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
        kept = None if self.mean is None else [p.detach().clone() for p in self.model.parameters()]
        if self.mean is not None:
            put(self.model, self.mean)
        self.model.eval()
        try:
            yield self.model
        finally:
            if kept is not None:
                with torch.no_grad():
                    torch._foreach_copy_(list(self.model.parameters()), kept)
            self.model.train()

    def weights(self) -> dict[str, Tensor]:
        """The weights to use."""
        return dict(self.model.named_parameters()) if self.mean is None else self.mean

    def memory(self) -> dict[str, Tensor]:
        """All else that going on needs: the optimizers' tensors, and the raw weights behind a running mean."""
        raw = {} if self.mean is None else {f"raw.{n}": p.detach() for n, p in self.model.named_parameters()}
        return state_tensors(self.optimizers, self.names) | raw

    def state(self) -> dict[str, Any]:
        """The few numbers that are not tensors."""
        return {"scaler": None if self.scaler is None else self.scaler.state_dict(),
                "followed": self.followed}  # fmt: skip

    def load(self, weights: Mapping[str, Tensor], memory: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Put a saved moment back, to the bit."""
        raw = {name.removeprefix("raw."): value for name, value in memory.items() if name.startswith("raw.")}
        put(self.model, raw or weights)
        if self.mean is not None:
            for name, value in weights.items():
                self.mean[name].copy_(value)
        restore(self.optimizers, self.names, {n: v for n, v in memory.items() if n.startswith("opt.")})
        if self.scaler is not None:
            if state.get("scaler") is None:
                raise UserError("no scale of fp16 was saved", where="state.json", fix="train again")
            self.scaler.load_state_dict(state["scaler"])
        self.followed = int(state.get("followed", 0))


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
