"""docs/pretraining-results.md from the newest CSV of `benchmarks.pretraining`.

python -m benchmarks.pretraining_page
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "pretraining-results.md", ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- figures: python -m benchmarks.pretraining_page -->", "<!-- end of figures -->"
SCRATCH = " from scratch"
NAMES = {"gpt": "GPT", "bert": "BERT", "roberta": "RoBERTa", "electra": "ELECTRA", "albert": "ALBERT",
         "distilbert": "DistilBERT", "t5": "T5"}  # fmt: skip


def newest() -> Path | None:
    """The newest file of figures, by the date in its name."""
    return max(RESULTS.glob("*-pretraining.csv"), key=lambda path: path.name[-26:], default=None)


def render(path: Path | None) -> str:
    """The figures in Markdown."""
    if path is None:
        return "Not measured yet."
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["score"]:
            scores[row["model"], row["stage"]].append(float(row["score"]))
    tasks = list(dict.fromkeys(row["stage"].removesuffix(SCRATCH) for row in rows if row["stage"] != "pretrain"))
    first = {row["model"]: row for row in rows if row["stage"] == "pretrain"}
    head = ["model", "parameters", "steps", "FLOPs", "loss", *tasks, "mean", "mean from scratch"]
    lines = [f"From [{path.name}](../benchmarks/results/{path.name}).", "",
             f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]  # fmt: skip
    for name in (name for name in NAMES if name in first):
        row = first[name]
        if row["note"]:
            lines.append(f"| {NAMES[name]} | not run: {row['note']} |" + " |" * (len(head) - 2))
            continue
        cells = [NAMES[name], f"{int(row['parameters']) / 1e6:.2f} M", f"{int(row['steps']):,}",
                 f"{float(row['flops']):.2g}", f"{float(row['score']):.3f}"]  # fmt: skip
        for task in tasks:
            cells.append(f"{show(scores[name, task])} ({show(scores[name, task + SCRATCH])})")
        cells += [show([mean_of(scores, name, tasks, suffix)]) for suffix in ("", SCRATCH)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def mean_of(scores: dict[tuple[str, str], list[float]], name: str, tasks: list[str], suffix: str) -> float:
    """The mean over the tasks of the mean over the seeds; nan where a task was not run."""
    each = [scores[name, task + suffix] for task in tasks]
    return statistics.mean(map(statistics.mean, each)) if all(each) else float("nan")


def show(values: list[float]) -> str:
    return f"{100 * statistics.mean(values):.1f}" if values and values[0] == values[0] else "–"


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{render(newest())}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
