"""Changing settings of an existing run before resuming. Changes that affect results must be allowed by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anyformer.checkpoints import store
from anyformer.errors import UserError, did_you_mean
from anyformer.log import Log
from anyformer.spec import plain
from anyformer.training.duration import PLAN_FILE, Plan
from anyformer.training.run.folder import AVERAGED, CONFIG_FILE, RunFolder
from anyformer.training.settings import Config, Training
from anyformer.training.setup.request import replace_paths
from anyformer.training.setup.setting_paths import is_setting, suggestion

FREE = (
    "training.save_every", "training.keep", "training.workers", "training.threads", "training.parallel",
)  # without effect on results  # fmt: skip
MAY = (
    "training.steps", "training.micro_batch_size", "training.optimizer.lr", "training.optimizer.weight_decay",
    "training.schedule", "training.grad_clip", "training.patience", "training.eval_every", "training.eval_rows",
    "training.average", "training.precision", "training.compile", "objective",
)  # fmt: skip


def change_run(path: Path, settings: dict[str, Any], allowed: Sequence[str], log: Log) -> None:
    """Change settings of a run; those that affect results are rejected unless named in `allowed`."""
    folder = RunFolder.open(path)
    config = folder.config()
    for name in settings:
        if not is_setting(name):
            raise UserError("no such setting", where=name[:100], fix=suggestion(name))
    made = after(config, settings, path)
    different = {name: (value_at(config, name), value_at(made, name)) for name in settings}
    plan = read_plan(folder, config)
    if "training.steps" in different:  # a time-limited run may have corrected its number of steps since it was planned
        different["training.steps"] = (plan.total(newest_step(folder)), made.training.steps)
    different = {name: pair for name, pair in different.items() if pair[0] != pair[1]}
    for name in different:
        check_allowed(name, different[name], allowed, path)
    for word in allowed:
        if not any(is_named(name, [word]) for name in settings):
            fix = did_you_mean(word, settings) if settings else f"add --set training.{word}=..."
            raise UserError(f"{word!r} is not changed by any --set", where="--allow-change", fix=fix)
    if not different:
        return
    check_steps(folder, made.training, path)
    folder.lock()
    try:
        for name, (old, new) in different.items():
            log(f"change   {name} {show_setting(old)} -> {show_setting(new)}")
        for line in rates(config.training, plan, made.training, newest_step(folder)):
            log(line)
        reopen(folder, made, list(different))
        if "training.steps" in different:
            forget_time(folder)
        folder.event(
            "change", **{name: f"{show_setting(old)} -> {show_setting(new)}" for name, (old, new) in different.items()}
        )
    finally:
        folder.unlock()


def after(config: Config, settings: dict[str, Any], path: Path) -> Config:
    """The run's settings with the changes applied; settings that cannot change within a run are rejected."""
    sides: dict[str, dict[str, Any]] = {"training": {}, "objective": {}}
    for name, value in settings.items():
        section, _, rest = name.partition(".")
        if name in ("training.minutes", "training.epochs"):
            raise UserError("the number of steps is fixed by now", where=name, fix="write --set training.steps=N")
        if not any(name == known or name.startswith(f"{known}.") for known in (*FREE, *MAY)):
            raise UserError("cannot change within a run", where=name, fix=f"train anew with --from {path}")
        sides[section][rest] = value
    training = replace_paths(config.training, sides["training"], "training")
    if type(training.optimizer) is not type(config.training.optimizer):
        raise UserError("cannot change within a run", where="training.optimizer", fix=f"train anew with --from {path}")
    return config.replace(training=training, objective=replace_paths(config.objective, sides["objective"], "objective"))


def value_at(config: Any, path: str) -> Any:
    """The value at a dotted path."""
    found = config
    for step in path.split("."):
        found = getattr(found, step)
    return found


def is_named(path: str, words: Sequence[str]) -> bool:
    """Whether one of the words names this path: the whole path, its last name, or a prefix.

    >>> is_named("training.schedule.warmup", ["schedule"]), is_named("training.steps", ["training.steps"])
    (True, True)
    """
    short = path.partition(".")[2]
    return any(word in (path, short, short.rpartition(".")[2]) or f"{short}.".startswith(f"{word}.") for word in words)


def check_allowed(name: str, pair: tuple[Any, Any], allowed: Sequence[str], path: Path) -> None:
    if name in FREE or is_named(name, allowed):
        return
    short = name.removeprefix("training.")
    raise UserError(
        f"{show_setting(pair[0])} -> {show_setting(pair[1])} gives other results than the run as it began",
        where=f"{path} {name}", fix=f"add --allow-change {short}",
    )  # fmt: skip


def newest_step(folder: RunFolder) -> int:
    """The step of the newest intact checkpoint."""
    newest = store.latest(folder.checkpoints)
    return 0 if newest is None else newest[0]


def check_steps(folder: RunFolder, training: Training, path: Path) -> None:
    done = newest_step(folder)
    if training.steps is not None and training.steps < done:
        raise UserError(f"{training.steps:,} steps, and {done:,} are done", where=f"{path} training.steps",
                        fix=f"use {done:,} or more")  # fmt: skip


def read_plan(folder: RunFolder, config: Config) -> Plan:
    """The run's plan: its number of steps with the time-based corrections so far."""
    facts = folder.read_json(PLAN_FILE) if (folder.path / PLAN_FILE).is_file() else {}
    return Plan.of(config.training.steps or 1, facts)


def forget_time(folder: RunFolder) -> None:
    """Drop the time budget: an explicit number of steps is not corrected by time any more."""
    if (folder.path / PLAN_FILE).is_file():
        folder.write_json(PLAN_FILE, folder.read_json(PLAN_FILE) | {"budget": None, "corrections": []})


def rates(old: Training, plan: Plan, new: Training, step: int) -> list[str]:
    """Log line on how the change affects the learning rate from here on; empty if it does not."""
    before, now = plan.total(step), new.steps or 1
    full_before, full_now = (getattr(one.optimizer, "lr", 0.0) for one in (old, new))
    here = [full_before * plan.factor(old.schedule, min(step, before - 1)),
            full_now * new.schedule.factor(min(step, now - 1), now)]  # fmt: skip
    if here[0] == here[1] and before == now:
        return []
    kind = type(new.schedule).__name__.lower()
    return [f"change   the {kind} schedule now ends at step {now:,} (was {before:,}): the learning rate at step "
            f"{step:,} is {here[1]:.3g} (was {here[0]:.3g})"]  # fmt: skip


def reopen(folder: RunFolder, config: Config, changes: list[str]) -> None:
    """Save the settings and mark them as changed; a finished run becomes unfinished if there are more steps to do."""
    facts = folder.facts
    more = facts.get("status") == "done" and (config.training.steps or 0) > newest_step(folder)
    if more and (folder.path / AVERAGED).is_dir():
        store.discard(folder.path / AVERAGED)
    undone = {"status": "interrupted", "use": None, "finished": None} if more else {}
    allowed = [*(facts.get("allowed") or ()), *changes]
    folder.update(allowed=list(dict.fromkeys(allowed)), total=config.training.steps, **undone)
    folder.write(CONFIG_FILE, config.to_yaml())


def show_setting(value: Any) -> str:
    value = plain(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
