"""The figures of docs/benchmarks.md, made from the newest CSV: python -m benchmarks.gpu.page

Everything between the two marks of the page is written by this script, pictures included; a test compares them.
"""

from __future__ import annotations

import csv
from pathlib import Path

from benchmarks.gpu import results
from benchmarks.gpu.bars import BARS, Table, number, quotient
from benchmarks.gpu.jobs import OURS
from benchmarks.gpu.plots import Line, Panel, draw_bars, draw_panels
from benchmarks.gpu.results import Row

ROOT = Path(__file__).resolve().parents[2]
PAGE, IMAGES = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "images" / "benchmarks"
BEGIN, END = "<!-- figures: python -m benchmarks.gpu.page -->", "<!-- end of the figures -->"
GROWTH = {"length": "tokens in a row (32,768 in a batch)", "batch": "rows of 1,024 tokens", "depth": "layers"}


def render(source: Path | None, processes: Path | None = None) -> tuple[str, dict[str, str]]:
    """The part of the page between its marks, and the pictures by their names.

    `source` holds what one GPU did, `processes` what several processes did (benchmarks/processes.py).
    """
    text, pictures = ("No run on a GPU is kept yet.\n", {}) if source is None else render_gpu(source)
    if processes is None:
        return text, pictures
    more, picture = render_processes(processes)
    return f"{text}\n{more}", pictures | {"processes": picture}


def render_gpu(source: Path) -> tuple[str, dict[str, str]]:
    rows = results.read(source)
    pictures = draw(rows, losses_of(source))
    machine = next(row for row in rows if row["torch"])
    cuda = f", CUDA {machine['cuda']}" if machine["cuda"] else ""
    link = f"[{source.name}](../benchmarks/results/{source.name})"
    kinds = {kind: [row for row in rows if kind_of(row) == kind] for kind in ("work", "operator", "modes", "growth")}
    parts = [
        f"One {machine['gpu']}, torch {machine['torch']}{cuda}: {link}.\n",
        "### Bars\n", bars_table(rows),
        *section("### Beside others\n", pictures, "peers", table=rows_table(kinds["work"])),
        *section("### An operator alone\n", pictures, "operators", table=rows_table(kinds["operator"])),
        *section("### How it grows\n", pictures, *GROWTH, table=rows_table(kinds["growth"])),
        *section("### Other ways to run it\n", pictures, table=rows_table(kinds["modes"])),
        *section("### The first losses\n", pictures, "losses"),
    ]  # fmt: skip
    return "\n".join(parts), pictures


def losses_of(source: Path) -> dict[str, Line]:
    """The losses written beside the file, by step, where there are any."""
    path = source.with_name(source.name.replace(f"-{results.KIND}.csv", "-losses.csv"))
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        names, *steps = list(csv.reader(file))
    return {name: [(float(row[0]), float(row[n])) for row in steps] for n, name in enumerate(names) if n}


def render_processes(source: Path) -> tuple[str, str]:
    """Text and picture of a file of benchmarks/processes.py."""
    with source.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    lines: dict[str, Line] = {}
    for row in rows:
        lines.setdefault(row["parallel"], []).append((float(row["processes"]), float(row["tokens_per_s"])))
    link = f"[{source.name}](../benchmarks/results/{source.name})"
    cells = [line("processes", "parallel", "ms a step", "tokens a second", "of one"), "|---" * 5 + "|"]
    cells += [line(row["processes"], row["parallel"], cell(row, "ms_per_step", ".0f"),
                   cell(row, "tokens_per_s", ",.0f"), cell(row, "of_one", ".2f")) for row in rows]  # fmt: skip
    where = f"{rows[0]['cores']} cores" if rows[0]["device"] == "cpu" else rows[0]["device"]
    text = "\n".join([
        "### With more processes\n", f"On {where}, torch {rows[0]['torch']}: {link}.\n",
        "![processes](images/benchmarks/processes.svg)\n", *cells,
    ])  # fmt: skip
    panel = Panel("processes", "tokens a second", lines)
    return text + "\n", draw_panels([panel], "tokens a second over processes")


# ---------------------------------------------------------------- tables


def bars_table(rows: list[Row]) -> str:
    table = Table(rows)
    lines = ["| work | bar | measured | |", "|---|---|---|---|"]
    for bar in BARS:
        value, verdict = bar.judge(table)
        lines.append(f"| {bar.work} | {bar.wanted} | {value} | {verdict} |")
    return "\n".join(lines) + "\n"


def kind_of(row: Row) -> str:
    """The table that a row belongs to; none for the losses, which have a bar and a picture."""
    group = row["job"].partition("-")[0]
    return "growth" if group in GROWTH else group if group in ("operator", "modes", "losses") else "work"


def rows_table(rows: list[Row]) -> str:
    """A line for each program; columns without a figure are left out, as is the work where it repeats itself.

    "anyformer is" compares the first of our programs in a job with the program of the line.
    """
    if not rows:
        return ""
    first = {row["job"]: n for n, row in reversed(list(enumerate(rows)))}
    columns = {
        "work": [row["work"] if first[row["job"]] == n else "" for n, row in enumerate(rows)],
        "program": [program(row) for row in rows],
        "ms a step": [row["note"] if is_idle(row) else cell(row, "ms_per_step", ".1f") for row in rows],
        "a second": [rate(row) for row in rows],
        "anyformer is": ["" if (found := faster(rows, row)) is None else f"{found:.2f} x" for row in rows],
        "GiB": [cell(row, "peak_gib", ".1f") for row in rows],
        "first step, s": [cell(row, "first_step_s", ".1f") for row in rows],
        "MFU": [cell(row, "mfu", ".1%") for row in rows],
        "spread": [cell(row, "spread", ".3f") for row in rows],
    }
    columns = {name: values for name, values in columns.items() if any(values)}
    body = [line(*cells) for cells in zip(*columns.values(), strict=True)]
    lines = [line(*columns), "|---" * len(columns) + "|", *body]
    return "\n".join(lines) + "\n"


def line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def program(row: Row) -> str:
    return f"{row['system']}: {row['mode']}"


def is_idle(row: Row) -> bool:
    """Whether a program was not run, or failed; its note says why."""
    return bool(row["note"]) and not row["ms_per_step"]


def rate(row: Row) -> str:
    found = cell(row, "per_second", ",.0f")
    return f"{found} {row['unit']}" if found else ""


def faster(rows: list[Row], row: Row) -> float | None:
    """How many times as fast as this program the first of ours is on the same work; None for our own programs."""
    if row["system"] == OURS or kind_of(row) != "work":
        return None
    mine = next((r for r in rows if r["job"] == row["job"] and r["system"] == OURS), None)
    return None if mine is None else quotient(number(mine, "per_second"), number(row, "per_second"))


def cell(row: Row, column: str, form: str) -> str:
    value = number(row, column)
    return "" if value is None else format(value, form)


# ---------------------------------------------------------------- pictures


def draw(rows: list[Row], losses: dict[str, Line]) -> dict[str, str]:
    """Every picture that these rows give."""
    pictures = {}
    compared = [(f"{row['work'].partition(',')[0]} / {program(row)}", found)
                for row in rows
                if (found := faster(rows, row)) is not None]  # fmt: skip
    if compared:
        pictures["peers"] = draw_bars(compared, "anyformer beside others", "times as fast as the other program")
    operators: dict[str, Line] = {}
    for row in rows:
        if kind_of(row) == "operator" and row["ms_per_step"]:
            operators.setdefault(program(row), []).append((float(row["length"]), float(row["ms_per_step"])))
    if operators:
        panel = Panel("tokens in a row", "ms, forward and backward", operators, log_y=True)
        pictures["operators"] = draw_panels([panel], "operators over length")
    for name, words in GROWTH.items():
        if panels := growth_panels(rows, name, words):
            pictures[name] = draw_panels(panels, f"tokens a second and memory over {name}")
    if losses:
        panel = Panel("step", "loss, nats a token", losses, doubling=False, from_zero=False)
        pictures["losses"] = draw_panels([panel], "the first losses")
    return pictures


def growth_panels(rows: list[Row], name: str, words: str) -> list[Panel]:
    """Rate and memory over one thing that grows; the job that all of them start from is a point of each."""
    grown = [row for row in rows if (row["system"], row["mode"]) == (OURS, "compiled")
             and (row["job"].startswith(f"{name}-") or row["job"] == "gpt2-124m")]  # fmt: skip
    panels = []
    for column, axis in (("per_second", "tokens a second"), ("peak_gib", "GiB")):
        points = [(float(row[name]), found) for row in grown if (found := number(row, column)) is not None]
        if len(points) > 1:
            panels.append(Panel(words, axis, {OURS: points}))
    return panels


def section(title: str, pictures: dict[str, str], *names: str, table: str = "") -> list[str]:
    """A heading with its pictures and its table; nothing where there are neither."""
    found = [text for name in names for text in shown(pictures, name)] + ([table] if table else [])
    return [title, *found] if found else []


def shown(pictures: dict[str, str], name: str) -> list[str]:
    return [f"![{name}](images/benchmarks/{name}.svg)\n"] if name in pictures else []


def main() -> None:
    figures, pictures = render(results.newest(), results.newest_processes())
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    tail = rest.partition(END)[2]
    PAGE.write_text(f"{head}{BEGIN}\n\n{figures}\n{END}{tail}", encoding="utf-8")
    IMAGES.mkdir(parents=True, exist_ok=True)
    for old in IMAGES.glob("*.svg"):
        old.unlink()
    for name, drawn in pictures.items():
        (IMAGES / f"{name}.svg").write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
