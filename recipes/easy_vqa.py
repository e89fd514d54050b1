"""easy-VQA: a question about a picture of one shape, 13 answers.

    python recipes/easy_vqa.py --data easy_vqa/easy_vqa.tar.xz

What `anyformer train questions.csv --target answer` does with a table of images, questions and answers. A tenth of the
training images validates with all its questions; the official test images test.
hardware: one H200.
reference: 93.8 % (convolutions and a bag of words), the author's best 99.5 %.
"""

from __future__ import annotations

import csv
import json
import tarfile
from pathlib import Path

from common import arguments, report, settings_of

import anyformer
from anyformer.training.train import train

VALID = 400  # of the 4,000 training images
# Questions ask for colours, which RandAugment changes.
SETTINGS: dict[str, object] = {"data.images.randaugment": 0, "data.images.flip": False, "training.eval_every": 500}


def write_tables(archive: Path, folder: Path) -> dict[str, Path]:
    """The images unpacked, and a table of image, question and answer for each side."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    data = folder / "easy_vqa" / "data"
    found = {}
    for side, part in (("train", "train"), ("valid", "train"), ("test", "test")):
        rows = json.loads((data / part / "questions.json").read_text())
        if part == "train":
            rows = [row for row in rows if (row[2] < VALID) == (side == "valid")]
        found[side] = folder / f"{side}.csv"
        with found[side].open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["image", "question", "answer"])
            writer.writerows([data / part / "images" / f"{number}.png", *row] for *row, number in rows)
    return found


def accuracy_by_type(run: Path, table: Path, device: str) -> dict[str, float]:
    """The share of right answers among yes and no, and among the others."""
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    said = anyformer.load(run, device=device).predict(table)
    right = [answer == row["answer"] for answer, row in zip(said, rows, strict=True)]
    found = {}
    for name, wanted in (("yes_no", True), ("other", False)):
        some = [good for good, row in zip(right, rows, strict=True) if (row["answer"] in ("yes", "no")) is wanted]
        found[f"test_accuracy_{name}"] = round(sum(some) / len(some), 5)
    return found


def main() -> None:
    asked = arguments(__doc__, runs=3)
    tables = write_tables(asked.data, asked.out / "easy_vqa")
    for seed in asked.seeds:
        changes = SETTINGS | settings_of(asked) | {
            "training.seed": seed, "data.split.valid_file": str(tables["valid"]),
            "data.split.test_file": str(tables["test"]),
        }  # fmt: skip
        run = train(tables["train"], "classify", asked.preset, "answer", device=asked.device, settings=changes,
                    out=asked.out / f"easy_vqa-{seed}", progress="lines")  # fmt: skip
        report("easy_vqa", seed, run, asked, **accuracy_by_type(run.path, tables["test"], asked.device))


if __name__ == "__main__":
    main()
