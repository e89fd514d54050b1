"""Optimizers: which parameters get which lr and weight decay. The update rules themselves are torch's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.errors import UserError, check_fraction
from anyformer.spec import Spec, field
from anyformer.training.distributed.parts import is_distributed, spread_like
from anyformer.training.layers import layer_factors
from anyformer.training.muon import BatchedMuon


class Optimizer(Spec, slot=True):
    """`build(model) -> optimizers`; each group keeps its full lr as `full`, which the schedule multiplies."""

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        raise NotImplementedError


class AdamW(Optimizer):
    """Adam with decoupled weight decay (1711.05101), applied to matrices only, not to embeddings, norms and biases.

    `layer_lr_decay` below 1 multiplies the lr by that factor for each layer further from the head, for fine-tuning.
    """

    lr: float = 1e-3
    """Learning rate after the warm-up."""
    weight_decay: float = 0.1
    """Decoupled weight decay of the matrices."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of the running means of the gradient and of its square."""
    eps: float = 1e-8
    """Added to the denominator of the update."""
    layer_lr_decay: float = 1.0
    """Factor on the learning rate for each layer further from the head."""

    def check(self) -> None:
        check_rates("AdamW", self.lr, self.weight_decay)
        check_fraction("AdamW", "layer_lr_decay", self.layer_lr_decay, zero=False, one=True, fix="use 0.9 or 1")

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [adamw(self.groups(trained_parameters(model), layer_factors(model, self.layer_lr_decay)), self, model)]

    def groups(self, parameters: Iterable[tuple[str, Tensor]], factors: Mapping[str, float]) -> list[dict[str, Any]]:
        """torch parameter groups: one per learning rate and weight decay."""
        groups: dict[tuple[bool, float, bool], list[Tensor]] = {}
        for name, parameter in parameters:
            kind = (
                has_weight_decay(name, parameter),
                factors[name],
                is_distributed(parameter),
            )  # a fused kernel takes sharded or plain tensors, not both
            groups.setdefault(kind, []).append(parameter)
        return [
            {"params": members, "lr": self.lr * factor, "full": self.lr * factor,
             "weight_decay": self.weight_decay if decayed else 0.0}
            for (decayed, factor, _), members in groups.items()
        ]  # fmt: skip


class Muon(Optimizer):
    """Orthogonalised momentum for the matrices inside the blocks, AdamW for the rest."""

    lr: float = 0.02
    """Learning rate of the matrices inside blocks, after the warm-up."""
    weight_decay: float = 0.1
    """Decoupled weight decay of those matrices."""
    momentum: float = 0.95
    """Decay of the running mean of the gradient."""
    others: AdamW = field(default_factory=lambda: AdamW(lr=3e-3))
    """AdamW for all other parameters; its `layer_lr_decay` is that of the matrices too."""

    def check(self) -> None:
        check_rates("Muon", self.lr, self.weight_decay)

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        named = list(trained_parameters(model))
        matrices = {name: p for name, p in named if p.dim() == 2 and ".blocks." in name}
        if not matrices:
            raise UserError("there are no matrices inside blocks", where="training.optimizer", fix="use AdamW")
        factors = layer_factors(model, self.others.layer_lr_decay)
        by_factor: dict[float, list[Tensor]] = {}
        for name, matrix in matrices.items():
            by_factor.setdefault(factors[name], []).append(matrix)
        muon = BatchedMuon(
            [{"params": members, "lr": self.lr * factor, "full": self.lr * factor}
             for factor, members in by_factor.items()],
            lr=self.lr, weight_decay=self.weight_decay, momentum=self.momentum, match_adamw=self.lr < 0.01,
        )  # fmt: skip
        rest = self.others.groups(((name, p) for name, p in named if name not in matrices), factors)
        return [muon, adamw(rest, self.others, model)] if rest else [muon]


def adamw(groups: list[dict[str, Any]], settings: AdamW, model: nn.Module) -> torch.optim.AdamW:
    """torch's AdamW, fused where possible; on a GPU capturable in a CUDA graph."""
    on_gpu = all(p.is_cuda for group in groups for p in group["params"])
    return torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=is_fusable(model),
                             capturable=on_gpu)  # fmt: skip


def check_rates(where: str, lr: float, weight_decay: float) -> None:
    if not 0 < lr < 10:
        raise UserError(f"lr {lr} is not a learning rate", where=where, fix="use 0.001")
    if not 0 <= weight_decay < 10:
        raise UserError(f"weight_decay {weight_decay} is not a weight decay", where=where, fix="use 0.1")


def trained_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Names and parameters with requires_grad."""
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)


def has_weight_decay(name: str, parameter: Tensor) -> bool:
    """True for matrices of layers; False for embeddings (tokens, positions, categories), vectors and norms."""
    return parameter.dim() >= 2 and "embed" not in name.split(".")


def is_fusable(model: nn.Module) -> bool:
    """Whether torch's fused update supports every parameter."""
    return all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in model.parameters())


# ---------------------------------------------------------------- what is saved


def state_tensors(optimizers: list[torch.optim.Optimizer], names: Mapping[int, str]) -> dict[str, Tensor]:
    """All optimizer state tensors by flat name: `opt.exp_avg.stack.blocks.0.mixer.out.weight`."""
    return {
        f"opt.{kind}.{names[id(parameter)]}": value
        for optimizer in optimizers
        for parameter, remembered in optimizer.state.items()
        for kind, value in remembered.items()
        if isinstance(value, Tensor)
    }


def restore(optimizers: list[torch.optim.Optimizer], names: Mapping[int, str], saved: Mapping[str, Tensor]) -> None:
    """Load saved optimizer state; tensors without a parameter are an error, never dropped."""
    left = {name for name in saved if name.startswith("opt.")}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                path = names[id(parameter)]
                found = {name: name.split(".")[1] for name in left if name.split(".", 2)[2] == path}
                state: dict[str, Any] = {}
                for name, kind in found.items():
                    left.remove(name)
                    # The fused kernel needs the step count on the parameter's device.
                    value = saved[name].to(parameter.device)
                    state[kind] = spread_like(value, parameter) if value.shape == parameter.shape else value
                if state:
                    optimizer.state[parameter] = state
    if left:
        raise UserError(f"{min(left)} belongs to no parameter", where="optim.safetensors", fix="train again")
