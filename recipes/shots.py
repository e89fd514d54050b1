"""In-context learning (2005.14165): a language model answers better the more examples its prompt shows.

    python recipes/shots.py --csv shots.csv

The corpus is lines like `a3 c7 a3 ...`: every line draws its own value for each of three keys, so that nothing can
be known but what the line itself has shown. The trained model is then asked as `anyformer evaluate --shots` does: of
files with the pairs of one line each, `a` is the question and `3` the answer, other pairs of the line are examples. A
key that no example shows can only be guessed, one of ten; with k examples drawn at random nobody is right more often
than 1 - 0.9 (2/3)^k. Whether that comes with size, at a jump or smoothly, is asked by `anyformer lab run few-shot`.

Prints one line a number of shots; --csv writes the same table.
"""

from __future__ import annotations

import argparse
import csv
import random
import tempfile
from pathlib import Path
from typing import Any

import anyformer
from anyformer.inference.prompt_rows import Template, read_prompt_rows
from anyformer.inference.shots import ShotSettings, ask

KEYS, VALUES, PAIRS = "abc", "0123456789", 12
LINES, STEPS, BATCH, FILES, ROWS = 8000, 500, 32, 12, 40
SHOTS = (0, 1, 2, 4, 8)
WIDTH, DEPTH = 64, 2
TEMPLATE = "{question}{answer} "


def line_of(rng: random.Random, pairs: int) -> list[tuple[str, str]]:
    """Pairs of a key and its value, the same value for a key all along."""
    values = {key: rng.choice(VALUES) for key in KEYS}
    return [(key, values[key]) for key in rng.choices(KEYS, k=pairs)]


def write_corpus(path: Path, seed: int) -> Path:
    rng = random.Random(seed)
    lines = ("".join(f"{key}{value} " for key, value in line_of(rng, PAIRS)) for _ in range(LINES))
    path.write_text("\n".join(lines) + "\n")
    return path


def write_questions(path: Path, seed: int) -> Path:
    """The pairs of one line as questions and answers."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["question", "choices", "answer"])
        for key, value in line_of(random.Random(seed), ROWS):
            writer.writerow([key, "|".join(VALUES), value])
    return path


def train(corpus: Path, out: Path, asked: argparse.Namespace) -> Path:
    """A small decoder on the corpus."""
    settings: dict[str, Any] = {
        "training.steps": asked.steps, "training.batch_size": BATCH, "training.optimizer.lr": 3e-3,
        "data.tokenizer.kind": "char", "data.tokenizer.max_length": 3 * PAIRS + 1, "model.stack.width": WIDTH,
        "model.stack.depth": DEPTH, "model.stack.block.mixer.heads": 2,
        "model.init": "xavier", "model.head.tied": False,
    }  # fmt: skip
    run = anyformer.train([corpus], "lm", "decoder-mini", out=out, device=asked.device, settings=settings,
                          seed=asked.seed, progress="silent")  # fmt: skip
    return run.path


def measure(run: Path, folder: Path, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Accuracy by shots, the mean over files whose keys have other values each."""
    predictor = anyformer.load(run, device=asked.device)
    count = sum(parameter.numel() for parameter in predictor.model.parameters())
    reports = []
    for number in range(FILES):
        rows = read_prompt_rows([write_questions(folder / f"{number}.csv", 10**6 + number)], choose=True)
        settings = ShotSettings(SHOTS, TEMPLATE, seed=number)
        reports.append(ask(predictor, rows, None, Template.parse(TEMPLATE), settings, batch_size=64))
    return [{"parameters": count, "shots": shots, "seed": asked.seed,
             "accuracy": round(sum(report.scores[at].accuracy for report in reports) / FILES, 4),
             "ceiling": round(1 - 0.9 * (2 / 3) ** shots, 4)} for at, shots in enumerate(SHOTS)]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--csv", type=Path, help="a new file for the table")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        run = train(write_corpus(folder / "pairs.txt", asked.seed), folder / "run", asked)
        found = [{"width": WIDTH, "depth": DEPTH} | line for line in measure(run, folder, asked)]
    for line in found:
        print(" ".join(f"{name} {value}" for name, value in line.items()))
    if asked.csv is not None:
        with asked.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(found[0]))
            writer.writeheader()
            writer.writerows(found)


if __name__ == "__main__":
    main()
