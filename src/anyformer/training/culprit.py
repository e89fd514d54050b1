"""Diagnose a non-finite step: find the rows and the first non-finite tensor by re-running it in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.data.examples import Examples
from anyformer.errors import Diverged
from anyformer.objectives import Batch, Objective
from anyformer.training.step import StepResult, TrainingEngine


def find_culprit(engine: TrainingEngine, step_result: StepResult, micros: list[Batch]) -> tuple[list[int], str]:
    """The rows at fault, if they can be told apart, and the name of what is not finite."""
    if engine.parallel.shards:  # a re-run needs all processes, and only one of them may have seen the non-finite value
        rows = [row for batch in micros for row in bad_inputs(batch.inputs, batch)]
        return rows, "the input" if rows else "the loss"
    for name, parameter in engine.model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            return [], f"the weight {name}"
    spoilt = bad_gradient(engine.model)  # an aborted step keeps its gradients
    engine.model.train()
    for number, running in enumerate(engine.phases):
        named = f"the {running.phase.name} loss" if running.phase.name else "the loss"
        first = engine.parallel.part * len(micros)
        for part, batch in enumerate(micros):
            engine.seed(step_result.step - 1, first + part, number)
            with engine.autocast():
                loss = running.phase.loss(engine.model, batch.to(engine.device))
            if not bool(torch.isfinite(loss)):
                if rows := bad_inputs(batch.inputs, batch):
                    return rows, "the input"
                # With several phases, losses are defined for the whole batch only.
                alone = [] if running.phase.name else bad_rows(engine.objective, engine.model, batch.to(engine.device))
                return alone, named
            loss.backward(inputs=running.leaves)
        if not bool(torch.isfinite(step_result.losses.get(running.phase.name, step_result.loss))):
            return [], named
    name = spoilt or bad_gradient(engine.model)
    return [], f"the gradient of {name}" if name else "the norm of the gradients"


def bad_gradient(model: nn.Module) -> str:
    """The first parameter whose gradient is not finite."""
    bad = (name for name, p in model.named_parameters()
           if p.grad is not None and not bool(torch.isfinite(p.grad).all()))  # fmt: skip
    return next(bad, "")


def bad_rows(objective: Objective, model: nn.Module, batch: Batch) -> list[int]:
    """The rows whose own loss is not finite."""
    with torch.no_grad():
        losses = objective.row_losses(model(*batch.inputs, **batch.named), batch)
    return batch.rows[~torch.isfinite(losses.cpu())].tolist()


def bad_inputs(value: Any, batch: Batch) -> list[int]:
    """The rows with a non-finite input; nan is allowed in tables, where it encodes a missing cell."""
    if isinstance(value, tuple):
        return sorted({row for part in value for row in bad_inputs(part, batch)})
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return []
    wrong = value.isinf() if value.dim() == 2 else ~value.isfinite()
    return batch.rows[wrong.flatten(1).any(1).cpu()].tolist()


def divergence(
    step_result: StepResult, rows: list[int], tensor: str, examples: Examples, folder: Path, *, phases: int
) -> Diverged:
    """The error of a step in which `tensor` was not finite; `rows` are those to blame, where they are known."""
    all_rows = torch.cat(step_result.rows).tolist()
    shown = [examples.place(row) for row in (rows or all_rows)[:5]]
    best = "" if not rows else f" at {shown[0]}"
    # Of several phases an earlier one may have moved its weights before a later one failed.
    kept = "the weights are those of the step before"
    kept = kept if phases == 1 else "nothing was saved; the last checkpoint is intact"
    return Diverged(
        f"step {step_result.step:,}: {tensor} is not finite (loss {float(step_result.loss)}){best}; "
        f"rows {all_rows[:8]}",
        where=str(folder), fix="lower the learning rate: --set training.optimizer.lr=0.0003",
        details=[f"row {place}" for place in shown] + [kept],
    )  # fmt: skip
