"""Compare trainings: their results, differing settings, and one plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from anyformer.commands.runs import columns, cut, plain, render_drawing, row
from anyformer.commands.words import put, write
from anyformer.errors import UserError

if TYPE_CHECKING:
    from anyformer.training.run.history import History, RunRecord

STYLES = ("cyan", "bold yellow", "magenta", "green", "red", "blue", "white", "bright_cyan")
SETTINGS = 30  # largest number of differing settings listed
DEEPEST = 12  # nesting levels of a config that are read


def compare(chosen: Sequence[RunRecord], as_json: bool) -> None:
    """Print a table of the runs, the differences between their configs, and their curves in one plot."""
    from anyformer.training.run.history import history

    pasts = [history(run.folder) for run in chosen]
    different = differences([settings_of(run) for run in chosen])
    name, split = shared_curve(pasts)
    if as_json:
        lines = [
            {**run.summary(), "settings": {key: values[i] for key, values in different.items()}}
            for i, run in enumerate(chosen)
        ]
        write(json.dumps(plain(lines), indent=1))
        return
    head = ("", "ID", "STATUS", "TASK", "MODEL", "DATA", "STEP", "BEST", "WHEN", "MINUTES")
    out = columns([head, *((str(i), *row(run)) for i, run in enumerate(chosen, 1))], right=(6, 9))
    if different:
        table = [("DIFFERENT SETTINGS", *(f"({i})" for i in range(1, len(chosen) + 1)))]
        table += [(key, *(cut(str(v), 24) for v in values)) for key, values in list(different.items())[:SETTINGS]]
        out += ["", *columns(table)]
        if len(different) > SETTINGS:
            out.append(f"and {len(different) - SETTINGS} more")
    write("\n".join(out))
    put("\n" + picture(chosen, pasts, name, split) + "\n")  # its colours are for the terminal to act on


def shared_curve(pasts: Sequence[History]) -> tuple[str, str | None]:
    """The metric to plot: the loss of a split that all runs were evaluated on, else the training loss."""
    for split in pasts[0].splits():
        if all(len(past.curve("loss", split)) > 1 for past in pasts):
            return "loss", split
    return "loss", None


def picture(chosen: Sequence[RunRecord], pasts: Sequence[History], name: str, split: str | None) -> str:
    """One plot of all runs; without colours the lines are drawn with the runs' numbers."""
    from rich.text import Text

    from anyformer.terminal import CurveSeries
    from anyformer.training.display.curve import plot, thin

    curves = [past.curve(name, split) for past in pasts]
    drawable = [curve for curve in curves if curve]
    if not drawable:
        return "no metrics to draw yet"
    start = min(curve[0][0] for curve in drawable)
    end = max(curve[-1][0] for curve in drawable)

    def lines(width: int, ascii_only: bool) -> list[Text]:
        import sys

        numbered = ascii_only or not sys.stdout.isatty()
        series = [
            CurveSeries(thin(curve, 200), STYLES[i % len(STYLES)], mark=str((i + 1) % 10))
            for i, curve in enumerate(curves)
        ]
        title = Text().append(f"{split or 'training'} {name}", "dim")
        for i, run in enumerate(chosen):
            title.append(f"   {i + 1} {cut(run.id, 30)}", STYLES[i % len(STYLES)])
        x_words = (f"step {start:,.0f}", f"step {end:,.0f}")
        return [title, *plot(series, width, 18, x_range=(start, end), x_words=x_words, ascii_only=numbered)]

    return render_drawing(lines)


def settings_of(run: RunRecord) -> dict[str, Any]:
    """The run's flattened config: `training.batch_size` -> 32; empty if it cannot be read."""
    import yaml

    from anyformer.safe_files import read_text

    try:
        loaded = yaml.safe_load(read_text(run.folder / "config.yaml"))
    except (UserError, yaml.YAMLError, RecursionError, ValueError):
        return {}
    out: dict[str, Any] = {}

    def flatten(value: Any, name: str, depth: int) -> None:
        if isinstance(value, dict) and depth < DEEPEST:
            for key, part in value.items():
                flatten(part, f"{name}.{key}" if name else str(key), depth + 1)
        else:
            out[name] = value

    flatten(loaded, "", 0)
    return out


def differences(all_settings: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Settings that differ between runs, in the order of the first config that has them.

    >>> differences([{"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}])
    {'b': [2, 3], 'c': [None, 4]}
    """
    names = dict.fromkeys(name for settings in all_settings for name in settings)
    rows = {name: [settings.get(name) for settings in all_settings] for name in names}
    return {name: values for name, values in rows.items() if any(value != values[0] for value in values[1:])}
