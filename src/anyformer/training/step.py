"""One training step, and all state that it changes: weights, optimizers, EMA weights, loss scaler."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anyformer import faults
from anyformer.feeds.mlp import MLPModule
from anyformer.heads.lm import LMModule
from anyformer.kernels.compile import compile_function
from anyformer.kernels.compile_cache import use_private_cache
from anyformer.objectives import Batch, Objective, Phase
from anyformer.objectives.members import with_member_losses
from anyformer.training.distributed.parallel import Parallel
from anyformer.training.distributed.parts import copy_into, locals_of
from anyformer.training.distributed.peers import Peers
from anyformer.training.distributed.world import ALONE
from anyformer.training.duration import Plan
from anyformer.training.freezing import train_last
from anyformer.training.layers import Layer, layers_of
from anyformer.training.loader import seed_of
from anyformer.training.lora import adapted_layers, adapter_names, merge
from anyformer.training.master_weights import MasterWeights
from anyformer.training.optim import Optimizer, restore, state_tensors
from anyformer.training.settings import Training
from anyformer.training.step_graph import StepGraph, is_small
from anyformer.training.update import (
    DeviceUpdate,
    KernelUpdate,
    ScaledUpdate,
    Update,
    can_skip,
    has_kernel,
    keep_rates_on_device,
    set_lr,
)

ADAPTER = "adapter."  # prefix of adapter tensors in a checkpoint's optimizer file
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class StepResult:
    """The result of a step; tensors stay on their device to avoid a synchronisation."""

    step: int  # steps done, this one included
    loss: Tensor  # mean over the targets of the step; summed over phases
    norm: Tensor  # gradient norm before clipping
    lr: float
    rows: list[Tensor]
    losses: dict[str, Tensor] = field(default_factory=dict)  # by phase, if there are several
    probe: dict[str, float] = field(default_factory=dict)  # the probe's measurements after this step


@dataclass
class RunningPhase:
    """A phase of the objective with the parameters and optimizers it trains."""

    phase: Phase
    parameters: list[nn.Parameter]
    optimizers: list[torch.optim.Optimizer]
    loss: Callable[[nn.Module, Batch], Tensor]  # the phase's own, or compiled
    leaves: list[nn.Parameter] | None  # `inputs` of backward: networks only passed through get no gradients

    @classmethod
    def of(cls, phase: Phase, model: nn.Module, optimizer: Optimizer) -> RunningPhase:
        """The phase with optimizers over the parameters of its submodule."""
        module = model.get_submodule(phase.module)
        optimizers = optimizer.build(module)
        for group in (group for each in optimizers for group in each.param_groups):
            group["full"] *= phase.lr_scale
            group["lr"] = group["full"]
        parameters = [p for p in module.parameters() if p.requires_grad]
        phase = with_member_losses(phase, model)
        return cls(phase, parameters, optimizers, phase.loss, parameters if phase.module else None)


class TrainingEngine:
    """A model in training. `settings` are resolved: nothing in them is auto."""

    def __init__(
        self, model: nn.Module, objective: Objective, settings: Training, plan: Plan, parallel: Parallel | None = None,
    ) -> None:  # fmt: skip
        self.model, self.objective, self.settings, self.plan = model, objective, settings, plan
        self.device = next(model.parameters()).device
        self.parallel = Parallel(Peers(ALONE, self.device)) if parallel is None else parallel
        self.names = {id(p): name for name, p in model.named_parameters()}
        if self.device.type == "cuda":
            enable_kernels(model, self.device)
        use_private_cache()  # with the first optimizer torch imports its compiler, which creates its cache folder
        self.phases = [RunningPhase.of(phase, model, settings.optimizer) for phase in objective.phases()]
        self.parameters = [p for running in self.phases for p in running.parameters]
        self.optimizers = [optimizer for running in self.phases for optimizer in running.optimizers]
        self.dtype = DTYPES.get(settings.precision)
        # bf16 weights need float32 master weights; on a CPU autocast is as fast.
        self.alone_on_gpu = (
            self.device.type == "cuda"
            and self.parallel.peers.world.is_alone
            and not self.parallel.shards
            and len(self.phases) == 1
        )
        self.masters = MasterWeights(model) if self.alone_on_gpu and self.dtype is torch.bfloat16 else None
        self.adapters = frozenset(adapter_names(model))
        self.adapted = frozenset(f"{path}.weight" for path, _ in adapted_layers(model))  # merged in files
        self.averaged = [name for name, _ in averaged_parameters(model, objective) if name not in self.adapted]
        self.layers = trained_layers(model)
        single = self.single
        self.mean = None if settings.ema is None else {n: single[n].clone() for n in self.averaged}
        self.followed = 0  # steps averaged into the EMA weights
        self.update = self.choose_update()
        self.graph: StepGraph | None = None
        self.has_seen_batch = False

    def choose_update(self) -> Update:
        """The update strategy for this precision and device."""
        if self.settings.precision == "fp16":
            return ScaledUpdate(self.parallel, self.settings, self.device)
        if self.device.type != "cuda" or self.parallel.shards or not all(map(can_skip, self.optimizers)):
            return Update(self.parallel, self.settings)
        keep_rates_on_device(self.optimizers, self.device)
        return DeviceUpdate(self.parallel, self.settings, self.device, self.masters)

    @property
    def single(self) -> dict[str, Tensor]:
        """Every parameter in full precision, by name; not cached, since FSDP replaces parameters on first use."""
        return {name: self.in_full(p) for name, p in self.model.named_parameters()}

    def in_full(self, parameter: nn.Parameter) -> Tensor:
        """A parameter's full-precision tensor: its master copy if it has one."""
        return parameter.detach() if self.masters is None else self.masters.of(parameter)

    def release(self) -> None:
        """Restore full-precision weights; the engine cannot be used for training afterwards."""
        if self.masters is not None:
            self.masters.release()
        self.graph = None

    def train_last(self, count: int) -> bool:
        """Train only the last `count` layers from the next step on; returns whether the set changed.

        Optimizers skip parameters without a gradient. A captured step is captured again, a compiled one recompiles.
        """
        if not train_last(self.model, self.layers, count):
            return False
        self.graph, self.has_seen_batch = None, False
        if isinstance(self.update, KernelUpdate):  # its pointer table is valid for a single CUDA graph capture
            self.update = self.choose_update()
        return True

    def compile(self) -> None:
        """Compile the whole loss computation; the update stays torch's fused one."""
        for running in self.phases:
            running.loss = compile_function(running.phase.loss)

    # ------------------------------------------------------------ a step

    def step(self, step: int, micros: list[Batch]) -> StepResult:
        """Train on the micro-batches of step `step` (from 0); gradient accumulation gives the gradients of one large
        batch."""
        self.model.train()
        factor = self.plan.factor(self.settings.schedule, step)
        losses: list[Tensor] = []
        norms: list[Tensor] = []
        moved = False
        for number, running in enumerate(self.phases):
            loss, norm, moved = self.run_phase(number, running, step, micros, factor)
            losses.append(loss)
            norms.append(norm)
            if not moved:  # the next phase would build on the failed one
                break
        if moved:
            self.follow()
        full = self.phases[-1].optimizers[0].param_groups[0]["full"]
        rows = [batch.rows for batch in micros]
        if len(self.phases) == 1:
            return StepResult(step + 1, losses[0], norms[0], full * factor, rows)
        named = {running.phase.name: loss for running, loss in zip(self.phases, losses, strict=False)}
        total, norm = torch.stack(losses).sum(), torch.stack(norms).square().sum().sqrt()
        return StepResult(step + 1, total, norm, full * factor, rows, named)

    def run_phase(
        self, number: int, running: RunningPhase, step: int, micros: list[Batch], factor: float
    ) -> tuple[Tensor, Tensor, bool]:
        """Run one phase of a step: its loss, its gradient norm, and whether its weights were updated."""
        whole = max(1, self.parallel.sum_weight(sum(self.objective.known_weight(b) for b in micros if not b.filler)))
        set_lr(running.optimizers, factor)
        if not self.has_seen_batch:
            self.settle(micros)
        if self.graph is not None and len(micros) == 1 and self.graph.takes(micros[0]):
            self.seed(step, 0, number)
            return *self.graph(micros[0], whole), True
        # Divide by a tensor, as in a CUDA graph: a GPU would multiply by a number's inverse, which rounds differently.
        divisor = whole if self.device.type == "cpu" else torch.full((), float(whole), device=self.device)
        total: Tensor | float = 0.0
        first = self.parallel.part * len(micros)  # the number of this process's first micro-batch in the whole step
        for part, batch in enumerate(micros):
            self.seed(step, first + part, number)
            total = total + self.backward(running, batch.to(self.device), divisor, last=part == len(micros) - 1)
        assert isinstance(total, Tensor)
        total = self.parallel.sum_loss(total)
        norm, moved = self.apply_gradients(running, total)
        return total, norm, moved

    def backward(self, running: RunningPhase, batch: Batch, whole: int | Tensor, *, last: bool) -> Tensor:
        """Accumulate the gradients of one micro-batch; returns its share of the loss."""
        with self.autocast():
            loss = running.loss(self.model, batch) / whole
        if faults.point("step") == "nan-loss":
            loss = loss * math.nan
        loss = loss * 0 if batch.filler else loss
        scaled = self.update.scaler.scale(loss) if isinstance(self.update, ScaledUpdate) else loss
        self.parallel.backward(scaled, running.leaves, last=last)
        return loss.detach()

    def apply_gradients(self, running: RunningPhase, loss: Tensor) -> tuple[Tensor, bool]:
        """Update the weights of a phase: returns its gradient norm, and whether the weights were updated."""
        if faults.armed:
            poison(running.parameters)
        return self.update.apply(running.parameters, running.optimizers, loss)

    def settle(self, micros: list[Batch]) -> None:
        """Decide by the first batch whether steps are captured as a CUDA graph, and which kernel updates the weights.

        Small steps are captured, bit-identical to eager ones. In larger ones memory passes over the weights dominate,
        so
        a single kernel does the update; those are captured if launching takes long, unless they must be deterministic:
        which steps are captured depends on timing, and on where a run was resumed.
        """
        self.has_seen_batch = True
        if not (self.update.is_late and self.alone_on_gpu):
            return
        wanted = self.settings.cuda_graph
        recordable = wanted is not False and len(micros) == 1 and not faults.armed
        small = len(micros) == 1 and is_small(sum(p.numel() for p in self.parameters), micros[0])
        if recordable and (wanted is True or small):
            self.graph = StepGraph(self.run_recorded, self.device)
        if small or self.graph is not None:  # captured or not, the same update: bit-identical results
            return
        if self.masters is not None and has_kernel(self.optimizers, self.device):
            self.update = KernelUpdate(self.parallel, self.settings, self.device, self.masters, self.optimizers)
        if recordable and not self.settings.deterministic:
            self.graph = StepGraph(self.run_recorded, self.device, always=False)

    def run_recorded(self, batch: Batch, whole: Tensor) -> tuple[Tensor, Tensor]:
        """The device work of a whole step: the body of the CUDA graph."""
        for parameter in self.parameters:
            parameter.grad = None
        loss = self.backward(self.phases[0], batch, whole, last=True)
        norm, _ = self.apply_gradients(self.phases[0], loss)
        return loss, norm

    def seed(self, step: int, part: int, phase: int) -> None:
        """Seed a pass from its position in the run: no RNG state to save, and any step can be re-run by itself."""
        torch.manual_seed(seed_of(self.settings.seed, step, part, 1 + phase))

    def follow(self) -> None:
        """Update the EMA weights, with a smaller decay at first."""
        if self.mean is None or self.settings.ema is None:
            return
        self.followed += 1
        decay = min(self.settings.ema, (1 + self.followed) / (10 + self.followed))
        single = self.single
        torch._foreach_lerp_(locals_of(self.mean.values()), locals_of(single[n] for n in self.averaged), 1 - decay)

    def autocast(self) -> AbstractContextManager[Any]:
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def finite(self, step_result: StepResult) -> bool:
        """Whether a step was finite. Under fp16 gradients may overflow occasionally, but not persistently."""
        return math.isfinite(float(step_result.loss)) and self.update.is_fine(step_result.norm)

    # ------------------------------------------------------------ what is evaluated and saved

    @contextmanager
    def evaluating(self) -> Iterator[nn.Module]:
        """The model in eval mode with the weights to evaluate and save: the EMA weights if there are any."""
        with self.mean_copied() if self.parallel.shards else self.full_precision():
            self.model.eval()
            try:
                yield self.model
            finally:
                self.model.train()

    @contextmanager
    def full_precision(self) -> Iterator[None]:
        """Swap in the full-precision weights without copying; adapters are merged and their own tensors zeroed."""
        values = self.weights()
        values |= {
            name: torch.zeros_like(self.in_full(p))
            for name, p in self.model.named_parameters()
            if name in self.adapters
        }
        kept = [(p, p.data) for p in self.model.parameters()]
        for name, parameter in self.model.named_parameters():
            parameter.data = values[name]
        try:
            yield
        finally:
            for parameter, value in kept:
                parameter.data = value

    @contextmanager
    def mean_copied(self) -> Iterator[None]:
        """Copy the EMA weights into the model's own memory, which FSDP does not let us swap."""
        single = self.single
        live = locals_of(single[name] for name in self.averaged)
        kept = [] if self.mean is None else [value.clone() for value in live]
        if self.mean is not None:
            torch._foreach_copy_(live, locals_of(self.mean.values()))
        try:
            yield
        finally:
            if self.mean is not None:
                torch._foreach_copy_(live, kept)

    def weights(self) -> dict[str, Tensor]:
        """The weights to evaluate and save: EMA weights if any, adapters merged."""
        return merge(self.model, self.adapted_weights())

    def adapted_weights(self) -> dict[str, Tensor]:
        """The weights to evaluate and save, adapters not merged."""
        return self.single | (self.mean or {})

    def memory(self) -> dict[str, Tensor]:
        """Everything else needed to resume: optimizer state, the raw weights if there are EMA weights, and the adapters
        separate from the weights that they are merged into."""
        single, used = self.single, self.adapted_weights()
        raw = {} if self.mean is None else {f"raw.{n}": single[n] for n in self.averaged}
        adapters = {f"{ADAPTER}{n}": used[n] for n in sorted(self.adapters)}
        return state_tensors(self.optimizers, self.names) | raw | adapters

    def state(self) -> dict[str, Any]:
        """The non-tensor state."""
        return {"scaler": self.update.state(), "followed": self.followed}

    def load(self, weights: Mapping[str, Tensor], memory: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Load a checkpoint bit-exactly. Weights under adapters are frozen, so the model's own are kept."""
        used = {
            name: (memory, f"{ADAPTER}{name}") if name in self.adapters else (weights, name) for name in self.single
        }
        for name, value in self.single.items():
            raw = f"raw.{name}"
            source, key = (memory, raw) if raw in memory else used[name]
            if name not in self.adapted:
                copy_into(value, source[key])
        if self.masters is not None:
            self.masters.refresh()
        for name, value in (self.mean or {}).items():
            source, key = used[name]
            copy_into(value, source[key])
        restore(self.optimizers, self.names, memory)
        self.update.load(state.get("scaler"))
        self.followed = int(state.get("followed", 0))


def trained_layers(model: nn.Module) -> list[Layer]:
    """The layers of a network, restricted to parameters with requires_grad."""
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    layers = [Layer(layer.name, tuple(n for n in layer.parameters if n in trained)) for layer in layers_of(model)]
    return [layer for layer in layers if layer.parameters]


def enable_kernels(model: nn.Module, device: torch.device) -> None:
    """Enable the kernels that this model can use; each is compiled and checked once per process."""
    from anyformer.kernels import activation, linear_loss

    for module in model.modules():
        if isinstance(module, LMModule):
            linear_loss.enable(device)
        elif isinstance(module, MLPModule):
            activation.enable(device, module.spec.act, module.spec.gated)


def averaged_parameters(model: nn.Module, objective: Objective) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters averaged by training.ema, by name."""
    left_out = tuple(f"{phase.module}." for phase in objective.phases() if not phase.ema)
    return ((name, p) for name, p in model.named_parameters() if not name.startswith(left_out))


def put(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a model by name; every parameter must be present."""
    for name, parameter in model.named_parameters():
        copy_into(parameter, weights[name])


def poison(parameters: list[nn.Parameter]) -> None:
    """Inject a fault that a test requested."""
    action = faults.point("gradients")
    with torch.no_grad():
        if action == "nan-weight":
            parameters[0].view(-1)[0] = math.nan
        if action == "nan-gradient" and parameters[-1].grad is not None:
            parameters[-1].grad.view(-1)[0] = math.nan
