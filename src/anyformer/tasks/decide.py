"""From a frame to a decision: the task, the target, the inputs, and what is left out and why."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace

from anyformer.data.columns.look import Facts, look
from anyformer.data.decision import TARGET_NAMES, Decision, Origin, inputs_of, name_of
from anyformer.data.frame import Frame
from anyformer.data.prepared import StartModelConstraints
from anyformer.data.settings import Data
from anyformer.errors import UserError, did_you_mean
from anyformer.tasks.decide_notes import notes_on
from anyformer.tasks.idle_texts import leave_out_idle
from anyformer.tasks.known_tasks import all_tasks
from anyformer.tasks.row_task import RowTask
from anyformer.tasks.target_look import Match, TargetLook

# Names given by file readers to the target column, and the kind of the input column.
NAMED_BY_READER: Mapping[str, str] = {"sentences": "tags", "pairs": "target", "pictures": "label", "sounds": "label"}
FILE_COLUMNS = {"pictures": {"image": "image"}, "sounds": {"audio": "audio"}}


def row_tasks() -> list[RowTask]:
    """The tasks on rows of a table, the newest first, so that custom tasks come before built-in ones."""
    return [task for task in reversed(all_tasks()) if isinstance(task, RowTask)]


def decide(
    frame: Frame,
    settings: Data,
    *,
    task: RowTask | None = None,
    origin: Origin = "table",
    given: StartModelConstraints | None = None,
) -> Decision:
    """The task, target and inputs of a frame: as requested, else as inferred from the columns.

    `given` are the network's constraints on its inputs, if a network is to be trained.
    """
    if len(frame) == 0:
        raise UserError("no row can be used", where=name_of(frame), fix="give a file with rows")
    check_names(frame, settings)
    if task is None and origin in NAMED_BY_READER:
        task = next((each for each in row_tasks() if each.origin == origin), None)
    facts = look(frame, FILE_COLUMNS.get(origin, {}) | settings.kinds())
    if not settings.target and origin not in NAMED_BY_READER:
        for each in candidates_without_target(frame, task):
            made = each.decide_without_target(frame, facts, settings, asked=task is not None)
            if made is not None:
                return made
    target, why = find_target(frame, facts, settings, origin)
    rest, dropped = inputs_of(frame, facts, settings, target)
    seen = TargetLook(frame, facts, target, rest, origin)
    task, match = choose(seen, task)
    rest, unread = task.choose_inputs(seen)
    seen = replace(seen, inputs=rest)
    rest = rest if given is None else task.settle_inputs(rest, settings, given)
    dropped += [(column.name, task.unread) for column in unread]
    refuse_named(settings, [column.name for column in unread], task.reads)
    chosen = settings.inputs is not None or (given is not None and given.chooses_inputs)
    if origin == "table" and not chosen and task.name in ("classify", "regress"):
        rest, idle = leave_out_idle(seen)
        seen, dropped = replace(seen, inputs=rest), dropped + idle
    if not rest:
        details = [f"{name}: {reason}" for name, reason in dropped]
        first = dropped[0][0] if dropped else "NAME"
        raise UserError("no column to learn from is left", where=name_of(frame), fix=f"choose with --inputs {first}",
                        details=details)  # fmt: skip
    reason = (task.origin_reason if task.origin == origin else "") or match.why
    why = "; ".join(part for part in (why, reason) if part)
    return Decision(task, target, tuple(rest), why, match.form, tuple(dropped), separator=match.separator,
                    notes=tuple(notes_on(seen, task.name)),
                    number_forms=tuple(seen.number_form(name) for name in target))  # fmt: skip


def candidates_without_target(frame: Frame, task: RowTask | None) -> list[RowTask]:
    """The tasks that may do without a target: the requested one, or all if no column has a typical target name."""
    if task is not None:
        return [task]
    return [] if any(name.lower() in TARGET_NAMES for name in frame.names) else row_tasks()


def choose(seen: TargetLook, task: RowTask | None) -> tuple[RowTask, Match]:
    """The task for a target: the requested one, or the first that fits."""
    for each in row_tasks() if task is None else [task]:
        match = each.match(seen, asked=task is not None)
        if match is not None:
            return each, match
    named = ", ".join(seen.names[:4])
    if task is not None:
        fits = [each.name for each in row_tasks() if each.match_or_none(seen) is not None]
        what = f"{named} holds lists" if seen.is_list else f"{named} does not fit"
        raise UserError(what, where=f"--task {task.name}",
                        fix=f"use --task {' or '.join(fits)}" if fits else "name another --target")  # fmt: skip
    raise UserError(
        f"{named} fits no task", where=name_of(seen.frame), fix="name another --target, or say which --task"
    )


def refuse_named(settings: Data, dropped: Iterable[str], why: str) -> None:
    """Raise an error if a column that would be left out was explicitly requested as an input."""
    for name in dropped:
        for option, named in (("--inputs", settings.inputs or ()), ("--types", settings.kinds())):
            if name in named and settings.kinds().get(name) != "skip":
                raise UserError(f"the column {name!r} cannot be read: {why}", where=option, fix="leave it out")


def check_names(frame: Frame, settings: Data) -> None:
    """Reject column names that the frame does not have."""
    split = settings.split
    named: dict[str, Iterable[str]] = {
        "--target": settings.target or (), "--inputs": settings.inputs or (), "--types": settings.kinds(),
        "--split-column": [split.column] if split.column else (), "--group": [split.group] if split.group else (),
        "--time": [split.time] if split.time else (),
    }  # fmt: skip
    for option, names in named.items():
        for name in names:
            if name not in frame.names:
                raise UserError(
                    f"{name_of(frame)} has no column {name!r}", where=option, fix=did_you_mean(name, frame.names)
                )


def find_target(
    frame: Frame, facts: Mapping[str, Facts], settings: Data, origin: Origin
) -> tuple[tuple[str, ...], str]:
    """The target columns and how they were found."""
    if settings.target:
        return settings.target, ""
    if origin in NAMED_BY_READER:
        return (NAMED_BY_READER[origin],), ""
    found = [name for name in frame.names if name.lower() in TARGET_NAMES]
    if len(found) == 1:
        return (found[0],), f"the column {found[0]!r} is named like a target"
    columns = ", ".join(frame.names[:12]) + (f" and {len(frame.names) - 12} more" if len(frame.names) > 12 else "")
    raise UserError(
        f"no target column given (columns: {columns[:160]})" + why_no_forecast(frame, facts),
        where=name_of(frame),
        fix=f"add --target {shlex.quote(likely(frame, facts))}",
    )  # fmt: skip


def why_no_forecast(frame: Frame, facts: Mapping[str, Facts]) -> str:
    """Why rows with dates are not a series to forecast: each date occurs several times; "" if there is no date
    column."""
    dates = [name for name in frame.names if facts[name].column.is_time]
    if len(dates) != 1 or facts[dates[0]].unique == "many" or 2 * int(facts[dates[0]].unique) > len(frame):
        return ""
    return (
        f"; each {dates[0]} comes several times, and a forecast asks for the column that names the series: --task "
        "forecast --set data.series.by=COLUMN"
    )


def likely(frame: Frame, facts: Mapping[str, Facts]) -> str:
    """The column to suggest as target: the last without missing values that is no text, date or id, else the last."""
    names = [name for name in frame.names if not (facts[name].column.is_text or facts[name].column.is_time)
             and not facts[name].missing and facts[name].dropped is None]  # fmt: skip
    return (names or frame.names)[-1]
