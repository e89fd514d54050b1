"""After the last step: checkpoint averaging if requested, the final evaluation, baselines and the report."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anyformer import faults
from anyformer.checkpoints import store
from anyformer.checkpoints.adapters import write_adapter
from anyformer.data.examples import Examples
from anyformer.data.preprocess import FILE as PREPROCESS_FILE
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.metric_directions import better
from anyformer.evaluation.report import write_report
from anyformer.objectives.draw import EVALUATION
from anyformer.tasks import Evaluator
from anyformer.tasks.task_evaluation import Baseline
from anyformer.training.calibrate import (
    FittedCalibration,
    effect_line,
    fit_calibration,
    measure_effect,
    write_calibration,
)
from anyformer.training.checkpoint import mean_of, read_checkpoint, read_weights, save_model, size_of
from anyformer.training.duration import CLOSING_SECONDS, PLAN_FILE
from anyformer.training.freezing import is_inside
from anyformer.training.lora import low_rank_adapters
from anyformer.training.model_observer import short_error
from anyformer.training.run.folder import AVERAGED, RunFolder, now
from anyformer.training.setup.memory import usage
from anyformer.training.step import ADAPTER, put
from anyformer.training.trainer import Session

EVALUATION_FILE = "evaluation.json"
ADAPTER_FOLDER = "adapter"


def finish(session: Session, *, strong: bool = True) -> dict[str, Any]:
    """Evaluate the best weights and the baselines on all validation and test rows, and save the results."""
    folder, data, config = session.folder, session.data, session.config
    task = session.task
    metric = session.standing.metric
    evaluator = Evaluator(config.objective, data.preprocess, data.tokenizer, batch_size=max(32, session.steps.micro),
                  autocast=session.engine.autocast())  # fmt: skip
    sides = {
        name: side for name, side in (("valid", data.valid), ("test", data.test)) if side is not None and len(side)
    }
    use = choose_weights(session, evaluator, metric)
    save_adapter(session)
    why_kept = session.standing.explain() if use != AVERAGED else ""
    if why_kept:
        session.log(f"kept     {why_kept}")
    fitted: FittedCalibration | None = None
    effects: dict[str, dict[str, list[float]]] = {}
    splits: dict[str, dict[str, float]] = {}
    answers: Answers | None = None
    left_out: list[str] = []
    for name, side in sides.items():
        rows = rows_in_time(session, sides, name)
        if rows < min(len(side), task.max_eval_rows or len(side)):
            session.log(f"evaluate {name}: {rows:,} of {len(side):,} rows, as many as the time allows; "
                        f"for all of them: anyformer evaluate {folder.path}")  # fmt: skip
            left_out.append(f"{rows:,} of {len(side):,} {name} rows were evaluated: the time of the run was up")
        else:
            session.log(f"evaluate {name}: {rows:,} rows")
        # Texts are generated for one split only: the test rows or, without any, the validation rows.
        last = name == list(sides)[-1]
        began = time.perf_counter()
        answers = evaluator(session.model, side, most=rows, decode=last)
        session.planner.pace.evaluated_rows(rows, time.perf_counter() - began)
        if name == "valid" and (fitted := fit_calibration(task, answers, data.preprocess, config.training, metric)):
            write_calibration(folder, use, fitted.calibration)
            for line in fitted.lines():
                session.log(line)
        if fitted is not None:
            before, answers = answers, task.calibrate(answers, fitted.calibration)
            effects[name] = measure_effect(before, answers)
            session.log(effect_line(name, effects[name]))
        splits[name] = task.all_metrics(answers)
    if task.gives_probabilities and fitted is None:
        session.log("probs    not calibrated: too few validation rows to fit a temperature")
    evaluation: dict[str, Any] = {
        "task": config.task,
        "weights": use,
        "main": config.training.metric or next(iter(splits.get("test") or splits.get("valid") or {}), None),
        "metrics": splits,
        "kept": why_kept,
        "calibration": None if fitted is None else fitted.facts() | {"effect": effects},
    }
    if answers is not None:
        evaluation["split"] = "test" if "test" in splits else "valid"
        evaluation["notes"] = task.notes(answers) + left_out
        evaluation["baselines"] = find_baselines(session, answers, strong=strong) | evaluate_compared(
            session, evaluator, answers
        )
        interval = task.find_interval(answers, config.training.metric)
        evaluation["interval"] = None if interval is None else interval.facts()
        evaluation["facts"] = task.report_facts(answers)
        evaluation["inside"] = look_inside(session, sides["valid" if "valid" in sides else "test"])
    folder.write_json(EVALUATION_FILE, evaluation)
    plan = folder.side_facts(PLAN_FILE)
    memory = usage(str(session.device)).peak
    folder.write_json(
        PLAN_FILE, plan | {"measured": {"seconds": session.clock.facts()["seconds"], "memory_bytes": memory}}
    )
    folder.update(status="done", finished=now(), step=session.done, reason="", metrics=splits, **session.clock.facts())
    folder.event("done", step=session.done)
    faults.point("scored")
    try:
        write_report(folder.path, answers, evaluation)
    except Exception as error:  # the results are saved; `resume` writes the report again
        folder.event("report failed", error=short_error(error))
        session.log(f"report   not written ({short_error(error)}); try again: anyformer resume {folder.path}")
    faults.point("finished")
    return evaluation


def look_inside(session: Session, side: Examples) -> dict[str, Any] | None:
    """An attention map of one row for the report; None if it cannot be drawn."""
    from anyformer.inspection.inside_facts import inside_facts

    try:
        batch = session.config.objective.corrupt(side.batch(np.arange(1)), EVALUATION, side).to(session.device)
        with session.engine.autocast():
            return inside_facts(session.model, session.config.model, session.data, batch)
    except Exception as error:
        session.folder.event("look failed", error=short_error(error))
        return None


def rows_in_time(session: Session, sides: dict[str, Examples], name: str) -> int:
    """Number of rows of one split to evaluate within the time budget; a saved decision is reused on resume."""
    most = session.task.max_eval_rows
    counts = {one: min(len(side), most or len(side)) for one, side in sides.items()}
    budget, folder, pace = session.planner.budget, session.folder, session.planner.pace
    if budget is None:
        return counts[name]
    plan = folder.side_facts(PLAN_FILE)
    decided: dict[str, int] = plan.get("evaluated") or {}
    if name in decided:
        return min(decided[name], counts[name])
    row = budget.row if pace.row is None else pace.row
    decoding = budget.decoding if pace.decoding is None else pace.decoding
    seconds = {one: count * row for one, count in counts.items()}
    seconds[list(sides)[-1]] += decoding  # texts are generated for the last split
    later = sum(value for one, value in seconds.items() if list(sides).index(one) > list(sides).index(name))
    rows = budget.rows_in_time(session.clock.elapsed(), counts[name], seconds[name] / counts[name], later)
    folder.write_json(PLAN_FILE, plan | {"evaluated": decided | {name: rows}})
    return rows


def choose_weights(session: Session, evaluator: Evaluator, metric: str) -> str:
    """Load the best weights into the model: one checkpoint's, or the mean of the last ones; returns their name."""
    folder, settings, task = session.folder, session.config.training, session.task
    best = folder.best()
    put(session.model, read_weights(best, session.device))
    if settings.average < 2:
        return best.name
    paths = [path for step, path in store.committed(folder.checkpoints)
             if (session.is_save_step(step) or step == session.done) and not store.problem(path)]  # fmt: skip
    paths = paths[: settings.average]
    mean = mean_of(paths, session.device)
    if session.data.valid is None:
        put(session.model, mean)
    else:
        most = settings.eval_rows
        alone = task.all_metrics(evaluator(session.model, session.data.valid, most=most, decode=False))[metric]
        kept = {name: p.detach().clone() for name, p in session.model.named_parameters()}
        put(session.model, mean)
        together = task.all_metrics(evaluator(session.model, session.data.valid, most=most, decode=False))[metric]
        session.log(f"average  of {len(paths)} checkpoints: {metric} {together:.4f}, best single {alone:.4f}")
        if not better(metric, together, alone):
            put(session.model, kept)
            return best.name
    path = folder.path / AVERAGED
    if not store.verified(path):
        save_model(path, session.config, session.data, dict(session.model.named_parameters()), session.done)
    folder.update(use=AVERAGED)
    return AVERAGED


def save_adapter(session: Session) -> None:
    """Write the LoRA adapter of the best checkpoint as a separate folder; the checkpoint's weights have it merged."""
    folder, lora = session.folder, session.config.training.lora
    path = folder.path / ADAPTER_FOLDER
    if lora is None or store.verified(path):
        return
    best, start = folder.best(), folder.facts.get("start") or {}
    weights, memory, _ = read_checkpoint(best, torch.device("cpu"))
    held = {name.removeprefix(ADAPTER): memory[name] for name in memory if name.startswith(ADAPTER)}
    whole = {name: weights[name] for name in weights if is_inside(name, lora.trained or ())}
    adapters = low_rank_adapters(session.config.model, lora, held)

    def write(target: Path) -> None:
        write_adapter(target, session.config.model, adapters, whole, base=start["path"],
                      model_type=start.get("model_type", ""), dropout=lora.dropout)  # fmt: skip
        shutil.copyfile(best / PREPROCESS_FILE, target / PREPROCESS_FILE)

    facts = {"checkpoint": best.name}
    store.commit(folder.path, ADAPTER_FOLDER, [("adapter", write)], facts, needed=size_of(held) + size_of(whole))
    session.log(f"adapter  {path}: {sum(value.numel() for value in held.values()):,} parameters beside {start['path']}")


def find_baselines(session: Session, answers: Answers, *, strong: bool) -> dict[str, Any]:
    """The baselines on the same rows, within the time budget; one that fails is reported, not fatal."""
    began = time.perf_counter()
    seconds = seconds_for_baseline(session)
    try:
        with torch.no_grad():
            found = session.task.baselines(answers, session.data.train, strong=strong, seconds=seconds,
                                           metric=session.config.training.metric,
                                           beside=session.task.metrics_beside(session.data.preprocess))  # fmt: skip
    except Exception as error:
        session.folder.event("baseline failed", error=short_error(error))
        return {}
    session.log(f"baseline in {time.perf_counter() - began:.1f} s")
    return found


def evaluate_compared(session: Session, evaluator: Evaluator, answers: Answers) -> dict[str, Any]:
    """Evaluate models that the objective names, such as a student's teacher, on the rows of `answers`; none once the
    time budget is used up."""
    found: dict[str, Any] = {}
    left = seconds_for_baseline(session)
    if answers.examples is None or (left is not None and left <= 0):
        return found
    for name, model in session.config.objective.compared_models(session.device).items():
        began = time.perf_counter()
        metrics = session.task.all_metrics(evaluator(model, answers.examples, decode=answers.predicted is not None))
        found[name] = Baseline(f"the {name}", metrics, time.perf_counter() - began).facts()
    return found


def seconds_for_baseline(session: Session) -> float | None:
    """Time left for the strong baseline, in seconds at the trial's speed; None: no limit."""
    if session.planner.budget is None:
        return None
    left = session.planner.budget.seconds - session.clock.elapsed() - CLOSING_SECONDS
    return left / max(1.0, session.planner.budget.slowdown(session.planner.pace))


def rewrite_report(folder: RunFolder) -> Any:
    """Write the report again from the run folder."""
    return write_report(folder.path)
