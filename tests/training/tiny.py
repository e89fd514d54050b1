"""Tiny trainings that take a second each: data of every kind, the command lines, and what must be equal in the end."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

STEPS = 12
WORDS = "the a cat dog sat ran on under mat house big small red blue and then it was very happy sad tree".split()
COMMON = {
    "training.steps": STEPS, "training.threads": 1, "training.save_every": 3, "training.eval_every": 4,
    "model.stack.depth": 1, "model.stack.width": 16,
}  # fmt: skip
STREAM = ("--progress", "none", "--device", "cpu")


@dataclass(frozen=True)
class Case:
    """A training: its files and settings. An epoch of each has 5 to 6 steps."""

    files: tuple[str, ...]
    settings: dict[str, object] = field(default_factory=dict)
    words: tuple[str, ...] = ()

    def train(self, out: str, **other: object) -> list[str]:
        """The words of `anyformer train`; `other` settings have __ for the dot."""
        chosen = COMMON | self.settings | {name.replace("__", "."): value for name, value in other.items()}
        sets = [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]
        return ["train", *self.files, *self.words, "--out", out, *STREAM, *sets]


def resume(out: str) -> list[str]:
    """The words of `anyformer resume`."""
    return ["resume", out, "--progress", "none"]


# Dropout, augmentation, blending, accumulation, a running mean and patience are on somewhere, workers 0 and 2.
CASES = {
    "text": Case(("book.txt",), {
        "data.tokenizer.kind": "char", "data.tokenizer.max_length": 24, "training.batch_size": 12,
        "training.micro_batch_size": 4, "model.stack.block.dropout": 0.1, "training.workers": 0,
        "training.eval_every": 6,
    }),
    "image": Case(("pictures",), {
        "training.batch_size": 6, "objective.mixup": 0.4, "objective.cutmix": 0.5, "training.workers": 2,
        "training.ema": 0.9, "model.stack.block.drop_path": 0.1, "model.stack.block.dropout": 0.1,
    }),
    "table": Case(("table.csv",), {
        "training.batch_size": 12, "training.micro_batch_size": 4, "training.workers": 2, "training.average": 2,
        "training.keep": 2, "training.patience": 50,
    }, words=("--target", "y")),
}  # fmt: skip


def write_data(folder: Path) -> None:
    """A book, a table and a folder of pictures."""
    chance = random.Random(0)
    lines = (" ".join(chance.choice(WORDS) for _ in range(8)) for _ in range(48))
    (folder / "book.txt").write_text("\n".join(lines) + "\n")
    rows = []
    for _ in range(80):
        a, b, kind = chance.random(), chance.gauss(0, 1), chance.choice("xyz")
        rows.append(f"{a:.4f},{b:.4f},{kind},{'yes' if a + b > 0.5 else 'no'}")
    (folder / "table.csv").write_text("\n".join(["a,b,kind,y", *rows]) + "\n")
    write_pictures(folder / "pictures")


def write_pictures(folder: Path) -> None:
    """Bright and dark squares of 12 x 12."""
    from PIL import Image

    noise = np.random.default_rng(0)
    for label, level in (("bright", 180), ("dark", 60)):
        (folder / label).mkdir(parents=True)
        for number in range(20):
            pixels = np.clip(noise.normal(level, 30, (12, 12, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number:02}.png")


def differing(one: Path, other: Path) -> list[str]:
    """The files of two runs that must be equal byte for byte, and are not."""
    names = ["metrics.jsonl"]
    for run in (one, other):
        names += [str(path.relative_to(run)) for folder in ("checkpoints", "averaged") for path in
                  sorted((run / folder).rglob("*.safetensors"))]  # fmt: skip
        names += [str(path.relative_to(run)) for path in sorted((run / "samples").glob("*"))]
    return [name for name in dict.fromkeys(names) if bytes_of(one / name) != bytes_of(other / name)]


def bits(one: Path, other: Path) -> int:
    """How many bits differ in all those files; a file that is missing counts whole."""
    count = 0
    for name in differing(one, other):
        a, b = (np.frombuffer(bytes_of(run / name) or b"", np.uint8) for run in (one, other))
        size = min(len(a), len(b))
        count += int(np.unpackbits(a[:size] ^ b[:size]).sum()) + 8 * abs(len(a) - len(b))
    return count


def bytes_of(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def steps_of(run: Path) -> list[int]:
    """The steps of the checkpoints that are there."""
    return sorted(int(path.name[5:]) for path in (run / "checkpoints").glob("step-*"))


def logged_lines(run: Path) -> list[dict[str, Any]]:
    """The steps of metrics.jsonl, evaluations left out."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "loss" in line]
