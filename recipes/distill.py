"""Does a teacher help? A small student alone, and the same student beside a larger model, on a short text.

    python recipes/distill.py --data tinyshakespeare/input.txt
    python recipes/distill.py --data tinyshakespeare/input.txt --full --device cuda --csv distill.csv

A character model is trained on the whole text but for its end. A student of a tenth of its parameters reads the first
characters only, with the same steps, rows and seed both times: once by itself, once with the teacher's answers
(--teacher). Both are judged on the end of the text, which neither they nor the teacher have read.
hardware: one CPU core. cost: 5 minutes.
expect: the distilled student has the lower loss on 5 of 5 seeds (4 are asked for), by .038 nats on average.
reference: 1503.02531; DistilBERT, 1910.01108, table 4: without the teacher's answers the student loses most.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from anyformer import train
from anyformer.presets.decoders import gpt2

JUDGED = 20_000  # characters at the end of the text


class Sizes(NamedTuple):
    """Width and depth of teacher and student, their steps, rows of a step, and characters that the student reads."""

    teacher: tuple[int, int]
    student: tuple[int, int]
    teacher_steps: int
    student_steps: int
    rows: int
    length: int
    characters: int


SMALL = Sizes((128, 4), (48, 2), 400, 200, 16, 64, 60_000)
FULL = Sizes((384, 6), (128, 3), 2000, 1000, 64, 256, 200_000)


def run(text: Path, sizes: Sizes, place: Path, *, seed: int, device: str, teacher: Path | None, name: str) -> Any:
    """A student, or the teacher itself where its name says so."""
    is_teacher = name == "teacher"
    width, depth = sizes.teacher if is_teacher else sizes.student
    steps = sizes.teacher_steps if is_teacher else sizes.student_steps
    settings: dict[str, Any] = {
        "data.tokenizer.max_length": sizes.length, "data.split.valid_file": (str(place / "judged.txt"),),
        "training.batch_size": sizes.rows, "training.steps": steps, "training.eval_every": steps,
        "training.seed": seed, "training.workers": 0, "training.optimizer.lr": 2e-3,
    }  # fmt: skip
    if is_teacher:
        settings["data.tokenizer.kind"] = "char"
    elif teacher is None:  # the same characters, in the same order
        settings["data.tokenizer.folder"] = str(next((place / "teacher" / "checkpoints").iterdir()))
    network = gpt2(width, depth, 4, length=sizes.length, dropout=0.0)
    return train(text, "lm", network, settings=settings, teacher=teacher, out=place / name, device=device, quiet=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a text file")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--full", action="store_true", help="the sizes of a GPU")
    parser.add_argument("--csv", type=Path, help="write a line of figures for each seed to this file")
    asked = parser.parse_args()
    sizes = FULL if asked.full else SMALL
    found = []
    with tempfile.TemporaryDirectory(prefix="distill-") as folder:
        place = Path(folder)
        text = asked.data.read_text(encoding="utf-8")
        (place / "whole.txt").write_text(text[:-JUDGED], encoding="utf-8")
        (place / "short.txt").write_text(text[: sizes.characters], encoding="utf-8")
        (place / "judged.txt").write_text(text[-JUDGED:], encoding="utf-8")
        teacher = run(place / "whole.txt", sizes, place, seed=0, device=asked.device, teacher=None, name="teacher")
        for seed in asked.seeds:
            pair = {
                name: run(place / "short.txt", sizes, place, seed=seed, device=asked.device, name=f"{name}-{seed}",
                          teacher=teacher.path if name == "distilled" else None).metrics["loss"]
                for name in ("alone", "distilled")
            }  # fmt: skip
            found.append({"seed": seed, "teacher": round(teacher.metrics["loss"], 4)}
                         | {name: round(loss, 4) for name, loss in pair.items()})  # fmt: skip
            print(json.dumps(found[-1]), flush=True)
    won = sum(line["distilled"] < line["alone"] for line in found)
    gain = statistics.mean(line["alone"] - line["distilled"] for line in found)
    print(json.dumps({"won": won, "of": len(found), "mean_gain": round(gain, 4)}))
    if asked.csv is not None:
        with asked.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(found[0]))
            writer.writeheader()
            writer.writerows(found)


if __name__ == "__main__":
    main()
