"""The command `runs`: list, show, compare and watch trainings, and write their reports."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anyformer.commands.words import configure_messages, note, put, write
from anyformer.errors import UserError, did_you_mean
from anyformer.extras import require

if TYPE_CHECKING:
    from anyformer.training.run.history import RunRecord

HOME = Path("runs")
ACTIONS = ("list", "show", "compare", "watch", "report", "tensorboard")


def runs(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FOLDER] | [ACTION ID ...]",
            help="A folder of runs to list, or show, compare, watch, report or tensorboard and the run.",
        ),
    ] = None,
    folder: Annotated[Path, typer.Option("--folder", help="Where the runs are.")] = HOME,
    every: Annotated[float, typer.Option(min=0.05, help="watch: seconds between two looks.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="The result only, no messages.")] = False,
) -> None:
    """List trainings, look at one, compare several.

    An ID may be shortened as long as only one run fits; the path of a run folder does as well.

    \b
    Example:
      anyformer runs                           all runs below runs/
      anyformer runs show 2026-11-03           one of them, with its curve
      anyformer runs compare 3f9a1c 77b02e     a table and one plot
      anyformer runs watch 3f9a1c              follow it until it ends; Ctrl-C leaves it running
      anyformer runs report 3f9a1c             write report.html
      anyformer runs tensorboard 3f9a1c LOGS   write an event file into LOGS
    """
    configure_messages(quiet)
    action, rest = parse_words(words or [], folder)
    if action == "list":
        list_runs(Path(rest[0]) if rest else folder, as_json, quiet)
    elif action == "compare":
        from anyformer.commands.runs_compare import compare

        need(rest, 2, None, "anyformer runs compare ID ID")
        compare([look_up_run(folder, name) for name in dict.fromkeys(rest)], as_json)
    elif action == "tensorboard":
        from anyformer.training.display.tensorboard import export

        need(rest, 2, 2, "anyformer runs tensorboard ID FOLDER")
        path = export(look_up_run(folder, rest[0]).folder, Path(rest[1]))
        write(json.dumps({"file": str(path)}) if as_json else str(path))
    else:
        need(rest, 1, 1, f"anyformer runs {action} ID")
        run = look_up_run(folder, rest[0])
        if action == "show":
            show(run, as_json)
        elif action == "watch":
            watch(run, every, quiet)
        else:
            from anyformer.evaluation.report import write_report

            write(str(write_report(run.folder)))


def parse_words(words: Sequence[str], folder: Path) -> tuple[str, list[str]]:
    """Parse the action and its arguments; a folder alone is listed, a run alone is shown."""
    from anyformer.training.run.history import is_run

    if not words:
        return "list", []
    first, rest = words[0], list(words[1:])
    if first in ACTIONS:
        return first, rest
    if not rest and Path(first).is_dir():
        return ("show", [first]) if is_run(Path(first)) else ("list", [first])
    try:
        if not rest and folder.is_dir():
            return "show", [str(look_up_run(folder, first).folder)]
    except UserError:
        pass
    raise UserError(f"no action or folder is called {first!r}", where="runs", fix=did_you_mean(first, ACTIONS))


def need(rest: Sequence[str], least: int, most: int | None, form: str) -> None:
    if len(rest) < least or (most is not None and len(rest) > most):
        raise UserError(f"{len(rest)} names are given", where="runs", fix=f"write: {form}")


def look_up_run(folder: Path, name: str) -> RunRecord:
    from anyformer.training.run.history import find_run

    return find_run(folder, name)


# ---------------------------------------------------------------------------------------------------- list


def list_runs(folder: Path, as_json: bool, quiet: bool) -> None:
    """Print one line per run, newest last; damaged folders are reported."""
    from anyformer.training.run.history import runs_in

    # No runs yet is no error; a missing folder given by the user is.
    all_runs = [] if folder == HOME and not folder.exists() else runs_in(folder)
    if as_json:
        write(json.dumps([plain(run.summary()) for run in all_runs], indent=1))
        return
    if not all_runs:
        if not quiet:
            note(f"no runs in {folder}; anyformer train FILE makes one")
        return
    rows: list[tuple[str, ...]] = [("ID", "STATUS", "TASK", "MODEL", "DATA", "STEP", "BEST", "WHEN", "MINUTES")]
    rows += [row(run) for run in all_runs]
    lines = columns(rows, right=(5, 8))
    for i, run in enumerate(all_runs, 1):
        lines[i] += f"  {cut(run.problem, 120)}" if run.problem else ""
    write("\n".join([run.id for run in all_runs] if quiet else lines))


def row(run: RunRecord) -> tuple[str, ...]:
    """The table cells of one run."""
    from anyformer.training.display.format import figure

    if run.problem:
        return run.id, run.status, *[""] * 7
    step, total, best, seconds = run.step, run.number("total"), run.best, run.seconds
    return (
        run.id,
        run.status,
        run.text("task"),
        cut(run.text("model"), 20),
        cut(Path(run.text("data")).name, 24),
        f"{step or 0:,.0f} / {total:,.0f}" if total is not None else f"{step or 0:,.0f}",
        f"{best[0]} {figure(best[1])}" if best else "",
        run.started.strftime("%Y-%m-%d %H:%M") if run.started else "",
        f"{seconds / 60:.1f}" if seconds is not None else "",
    )


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Format rows in aligned columns, separated by two spaces.

    >>> columns([("a", "1"), ("bb", "22")], right=[1])
    ['a    1', 'bb  22']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:>{width}}" if i in right else f"{cell:<{width}}"
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in rows
    ]


def cut(text: str, most: int) -> str:
    """Truncate to one line without control characters.

    >>> cut("a long name", 8)
    'a lon...'
    """
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def plain(value: Any) -> Any:
    """The value as strict JSON: nan and infinity become null."""
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---------------------------------------------------------------------------------------------------- show and watch


def show(run: RunRecord, as_json: bool) -> None:
    """Print the facts of one run, its latest metrics and its curve."""
    from anyformer.training.display.format import bare, duration, figure
    from anyformer.training.run.history import STOPPED, history

    past = history(run.folder)
    last = {split: plain_figures(past, split) for split in past.splits()}
    if as_json:
        last_step = past.steps[-1] if past.steps else {}
        write(json.dumps(plain(run.summary() | {"last": last_step, "evaluations": last}), indent=1))
        return
    best, seconds = run.best, run.seconds
    step, total = run.step, run.number("total")
    facts = {
        "run": str(run.folder), "status": run.status, "problem": run.problem, "reason": run.text("reason"),
        "task": run.text("task"), "model": run.text("model"), "data": run.text("data"),
        "step": f"{step or 0:,.0f}" + (f" of {total:,.0f}" if total is not None else ""),
        "best": f"{best[0]} {figure(best[1])} at step {run.text('best_step')}" if best else "",
        "began": run.started.strftime("%Y-%m-%d %H:%M:%S") if run.started else "",
        "time": duration(seconds) if seconds is not None else "",
    }  # fmt: skip
    for split, values in last.items():
        step_words = f"at step {values.pop('step'):,.0f}: "
        facts[split] = step_words + ", ".join(f"{name} {figure(value)}" for name, value in values.items())
    lines = [f"{name:<12}{bare(value).replace(chr(10), ' ')}" for name, value in facts.items() if value]
    write("\n".join(lines))
    if past.steps or past.evals:
        put("\n" + picture(run) + "\n")  # its colours are for the terminal to act on
    if run.status in (STOPPED, "interrupted", "failed"):
        write(f"\nresume with: anyformer resume {run.folder}")


def plain_figures(past: Any, split: str) -> dict[str, float]:
    from anyformer.training.run.history import figures_of

    line = [line for line in past.evals if str(line["eval"].get("split", "")) == split][-1]
    return {"step": line["step"], **figures_of(line["eval"])}


def picture(run: RunRecord) -> str:
    """The loss curves at terminal width."""
    from anyformer.training.display.block import curves, legend
    from anyformer.training.run.replay import Replay

    replay = Replay(run)
    replay.read()
    now = replay.progress.snapshot()
    if not now.training and not now.evaluated:
        return ""
    return render_drawing(
        lambda width, ascii_only: [legend(now, width, ascii_only), *curves(now, width, 16, ascii_only)]
    )


def render_drawing(lines: Callable[[int, bool], list[Any]]) -> str:
    """Render a drawing for stdout: with colours on a terminal, otherwise plain."""
    import io

    require("rich", "curves need")
    from rich.console import Console

    terminal = sys.stdout.isatty()
    size = Console(force_jupyter=False).width if terminal else 100
    ascii_only = not (sys.stdout.encoding or "").lower().startswith("utf")
    width = min(size, 110)
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width, force_jupyter=False, highlight=False)
    for line in lines(width, ascii_only):
        console.print(line, soft_wrap=True)
    file = console.file
    assert isinstance(file, io.StringIO)
    return "\n".join(line.rstrip() for line in file.getvalue().rstrip("\n").split("\n"))


def watch(run: RunRecord, every: float, quiet: bool) -> None:
    """Follow a run until it ends; Ctrl-C stops watching, not the run."""
    import time

    from anyformer.training.display.display import display
    from anyformer.training.run.replay import Replay

    replay = Replay(run)
    replay.read()
    with display(replay.progress, stream=sys.stdout, quiet=quiet) as shown:
        still = ""
        try:
            while replay.run.status.startswith("running"):
                time.sleep(every)
                replay.read()
        except KeyboardInterrupt:
            still = "still "
        shown.last = f"{run.id}: {still}{replay.run.status}, step {replay.progress.at:,}"
