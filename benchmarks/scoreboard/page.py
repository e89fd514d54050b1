"""The figures of docs/results.md and their picture, from the newest CSVs: python -m benchmarks.scoreboard.page

Everything between the two marks of the page is written by this script; a test compares them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from anyformer.evaluation.metric_directions import better, direction
from anyformer.evaluation.svg import Scale, label, tag
from benchmarks.gpu.plots import COLOURS, picture
from benchmarks.scoreboard import recipes, results
from benchmarks.scoreboard.results import Row
from benchmarks.scoreboard.sets import SETS, DataSet

ROOT = Path(__file__).resolve().parents[2]
PAGE, PICTURE = ROOT / "docs" / "results.md", ROOT / "docs" / "images" / "scoreboard.svg"
BEGIN, END = "<!-- figures: python -m benchmarks.scoreboard.page -->", "<!-- end of the scoreboard -->"
SHARES = ("accuracy", "macro_f1", "f1", "span_f1", "ap", "auc", "r2", "rouge_l")  # from 0 to 1: three places
NOISE = "#9aa0a6"


def describe_row(row: Row) -> str:
    """One run as a line for the terminal."""
    if not row.get("ours"):
        return f"{row['set']:<16} {row.get('note', '')}"
    words = f"{row['set']:<16} {row['metric']:<12} ours {row['ours']:<10} trivial {row['trivial']:<10}"
    note = f"  ({row['note']})" if row["note"] else ""
    return f"{words} strong {row['strong'] or '–':<10} {row['minutes']} min, {row['steps']} steps{note}"


def render(boards: Sequence[Path], seeds: Path | None, baselines: Path | None = None) -> tuple[str, str | None]:
    """The part of the page between its marks, and its picture: the scoreboard, and the recipes by several seeds.

    Of the scoreboard's files, the first to the latest, a set's figures are those of the latest that has it.
    """
    figures, drawn = render_board(boards, baselines) if boards else ("No scoreboard is kept yet.", None)
    if seeds is not None:
        rows = recipes.read(seeds)
        head = (f"### By recipe\n\n{rows[0]['device']}, torch {rows[0]['torch']}: "
                f"[{seeds.name}](../benchmarks/results/{seeds.name}).\n\n")  # fmt: skip
        figures = "\n".join([figures, "", head + "\n".join(recipes.table(rows))])
    return figures, drawn


def newest_files() -> tuple[list[Path], Path | None, Path | None]:
    """The files that the page is made from."""
    return results.in_order(), results.newest(kind=recipes.KIND), results.newest(kind=results.BASELINES)


def render_board(paths: Sequence[Path], baselines: Path | None) -> tuple[str, str | None]:
    found, source = results.latest_rows(paths)
    rows = results.with_whole_baselines(found, results.read(baselines) if baselines else [])
    known = [(one, [row for row in rows if row["set"] == one.name]) for one in SETS]
    known = [(one, found) for one, found in known if found]
    head = " ".join(
        describe_file(path, [row for row in rows if source[row["set"]] == path], again=path != paths[0])
        for path in paths
        if path in source.values()
    )
    if baselines is not None:
        head += f" Baselines that had no time for all rows: [{baselines.name}](../benchmarks/results/{baselines.name})."
    measured = [(one, found) for one, found in known if mean(found, "ours") is not None]
    judged = [(one, found) for one, found in measured if mean(found, "strong") is not None]
    ahead = sum(is_ahead(found) for _, found in judged)
    even = sum(not is_ahead(found) and is_within_noise(found) for _, found in judged)
    behind = [one.title for one, found in judged if not is_ahead(found) and not is_within_noise(found)]
    parts = [
        "### By the defaults", "", head, "",
        f"Of {len(judged)} sets with a strong baseline, ours is at least as good on **{ahead}**, behind it within "
        f"noise on **{even}**, and behind it on **{len(behind)}**{f' ({list_words(behind)})' if behind else ''}.", "",
        "![ours beside the strong baseline](images/scoreboard.svg)", "",
        *sets_table(known), "", "### Beside published figures", "", *others_table(measured),
    ]  # fmt: skip
    return "\n".join(parts).rstrip(), draw(judged) if judged else None


def describe_file(path: Path, rows: Sequence[Row], *, again: bool) -> str:
    """What a file's runs had in common, and which sets were run again in it."""
    seeds = len({row["seed"] for row in rows})
    budgets = " or ".join(sorted({row["budget"] for row in rows}, key=float)) if all(r["budget"] for r in rows) else "–"
    workers = max((int(row["workers"]) for row in rows if row["workers"]), default=1)
    titles = {one.name: one.title for one in SETS}
    names = list_words(list(dict.fromkeys(titles.get(row["set"], row["set"]) for row in rows)))
    return (f"{f'Run again: {names}. ' if again else ''}{rows[0]['device']}, torch {rows[0]['torch']}, "
            f"`--minutes {budgets}`, up to {workers} at a time, {seeds} seed{'s' if seeds > 1 else ''}: "
            f"[{path.name}](../benchmarks/results/{path.name}).")  # fmt: skip


def sets_table(known: Sequence[tuple[DataSet, list[Row]]]) -> list[str]:
    """A line a set."""
    lines = ["| set | kind | rows to train | metric | ours | trivial | strong | the strong one | minutes |",
             "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for one, found in known:
        good = [row for row in found if row["ours"]]
        if not good:
            lines.append(f"| {one.title} | {one.kind} | | failed: {found[0]['note']} | | | | | |")
            continue
        metric = good[0]["metric"]
        ours = show_figure(metric, mean(good, "ours"))
        if is_ahead(good) and mean(good, "strong") is not None:
            ours = f"**{ours}**"
        minutes = statistics.mean(float(row["minutes"]) for row in good)
        rows = f"{int(good[0]['train_rows']):,}" if good[0]["train_rows"].isdigit() else good[0]["train_rows"]
        strong = show_figure(metric, mean(good, "strong")) + (" ≈" if is_within_noise(good) else "")
        trivial = show_figure(metric, mean(good, "trivial"))
        cells = [one.title, one.kind, rows, metric, ours + show_spread(good), trivial, strong, good[0]["strong_name"],
                 f"{minutes:.1f}"]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def others_table(known: Sequence[tuple[DataSet, list[Row]]]) -> list[str]:
    """Our figure by the measure of a published one, where there is one."""
    lines = ["| set | measure | ours | published | by | |", "|---|---|---|---|---|---|"]
    for one, found in known:
        if one.published is not None:
            sign = "" if one.published.checked else "about "
            note = "; ".join(filter(None, ["" if one.published.checked else "not checked", one.note]))
            cells = [one.title, one.published.metric, show(mean(found, "published_ours")),
                     f"{sign}{show(one.published.value)}", one.published.who, note]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return lines if len(lines) > 2 else []


def list_words(words: Sequence[str]) -> str:
    """
    >>> list_words(["a", "b", "c"]), list_words(["a"])
    ('a, b and c', 'a')
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def mean(rows: Sequence[Row], column: str) -> float | None:
    """Over the seeds that have the figure."""
    found = [float(row[column]) for row in rows if row[column]]
    return statistics.mean(found) if found else None


def show_spread(rows: Sequence[Row]) -> str:
    """The confidence interval of a single run, or the lowest and the highest of several seeds."""
    if len(rows) > 1:
        found = sorted(float(row["ours"]) for row in rows)
        return f" ({show(found[0])} to {show(found[-1])})"
    row = rows[0]
    return f" ({show(float(row['low']))} to {show(float(row['high']))})" if row["low"] and row["high"] else ""


def is_ahead(rows: Sequence[Row]) -> bool:
    """Whether ours is at least the strong baseline."""
    ours, strong = mean(rows, "ours"), mean(rows, "strong")
    return ours is not None and strong is not None and not better(rows[0]["metric"], strong, ours)


def is_within_noise(rows: Sequence[Row]) -> bool:
    """Whether 0 lies in the interval of the difference to the strong baseline, in most of the runs that have one."""
    known = [(float(row["difference_low"]), float(row["difference_high"])) for row in rows if row["difference_low"]]
    return bool(known) and 2 * sum(low <= 0 <= high for low, high in known) > len(known)


def show_figure(metric: str, value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}" if metric in SHARES else show(value)


def show(value: float | None) -> str:
    """Four digits."""
    return "–" if value is None else f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


# ---------------------------------------------------------------- picture


def measure_gain(rows: Sequence[Row]) -> float:
    """The share of the strong baseline's error that ours is without; below 0 where it has more.

    The error of a share is what it lacks to 1, and of BLEU what it lacks to 100; of other figures it is the figure.
    """
    ours, strong = mean(rows, "ours"), mean(rows, "strong")
    assert ours is not None and strong is not None
    metric = rows[0]["metric"]
    if direction(metric) == "max":
        whole = 1.0 if max(ours, strong) <= 1 else 100.0
        ours, strong = whole - ours, whole - strong
    return 1 - ours / strong if strong > 0 else 0.0


def draw(known: Sequence[tuple[DataSet, list[Row]]]) -> str:
    """A bar a set, to the right where ours is better than the strong baseline."""
    most, height, left, right = 0.5, 24, 260, 700
    across = Scale(-most, most, left, right)
    inside = [label(across(0), 22, "error, beside the strong baseline of the same run", "name", "middle")]
    for n, (one, found) in enumerate(known):
        y, value = 40 + height * n, measure_gain(found)
        shown = max(-most, min(most, value))
        begin, end = sorted((across(0), across(shown)))
        inside.append(label(left - 10, y + 13, one.title, anchor="end"))
        inside.append(tag("rect", x=begin, y=y, width=max(1.0, end - begin), height=height - 8,
                          fill=NOISE if is_within_noise(found) else COLOURS[value < 0]))  # fmt: skip
        words = f"{-100 * value:+.0f} %" if not math.isclose(value, 0, abs_tol=5e-3) else "equal"
        beyond = "" if abs(value) <= most else " (beyond the picture)"
        inside.append(label(right + 12, y + 13, words + beyond))
    bottom = 40 + height * len(known)
    inside.append(tag("line", x1=across(0), x2=across(0), y1=32, y2=bottom, stroke="#222"))
    inside.append(label(left, bottom + 18, "more"))
    inside.append(label(across(0), bottom + 18, "grey: within noise", anchor="middle"))
    inside.append(label(right, bottom + 18, "less", anchor="end"))
    return picture(940, bottom + 30, inside, "ours beside the strong baseline")


def main() -> None:
    figures, drawn = render(*newest_files())
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n\n{figures}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    if drawn is not None:
        PICTURE.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
