"""Options of `train` for data, model and settings, shared with `check` and `train --dry-run`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anyformer.errors import UserError

if TYPE_CHECKING:
    from anyformer.training.setup.request import Request

Target = Annotated[list[str] | None, typer.Option(help="The column to predict; several may be given.")]
TASKS = (
    "lm, classify, regress, tag, translate, qa, forecast, detect or adversarial; to pretrain: masked, replaced, spans, "
    "prefix, deshuffle, drop, mass, distill, contrast, patches or image-text."
)
Task = Annotated[str | None, typer.Option(help=TASKS)]
Preset = Annotated[str | None, typer.Option(help="A named model; see: anyformer presets.")]
Start = Annotated[Path | None, typer.Option("--from", help="A model folder or run to fine-tune.")]
Pretrain = Annotated[str | None, typer.Option(help="Learn from the texts alone first: masked or lm.")]
Teacher = Annotated[Path | None, typer.Option(help="A model folder or run whose answers are learned too.")]
Steps = Annotated[int | None, typer.Option(help="Number of steps.")]
Epochs = Annotated[float | None, typer.Option(help="Passes over the training rows, in place of steps.")]
Minutes = Annotated[float | None, typer.Option(help="Time to train for at most.")]
LearningRate = Annotated[float | None, typer.Option("--lr", help="Learning rate after the warm-up.")]
BatchSize = Annotated[int | None, typer.Option(help="Rows a step.")]
MaxLength = Annotated[int | None, typer.Option(help="Tokens of a row at most, or of a window of text.")]
Seed = Annotated[int | None, typer.Option(help="Everything random follows from it.")]
Valid = Annotated[list[Path] | None, typer.Option(help="A file to validate on, in place of a share.")]
Test = Annotated[list[Path] | None, typer.Option(help="A file to test on, in place of a share.")]
SplitColumn = Annotated[str | None, typer.Option(help="A column that says train, valid or test.")]
Group = Annotated[str | None, typer.Option(help="Rows with equal values here stay on one side.")]
Time = Annotated[str | None, typer.Option(help="The latest rows by this column validate and test.")]
Types = Annotated[list[str] | None, typer.Option(help="column=number|category|text|date|image|audio|skip.")]
Inputs = Annotated[list[str] | None, typer.Option(help="A column to learn from; all if none is named.")]
Settings = Annotated[Path | None, typer.Option("--config", help="A YAML file of settings, as a run's config.yaml.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="path=value, e.g. training.batch_size=16.")]


LENGTH = ("training.steps", "training.epochs", "training.minutes")
# An option overrides conflicting entries of the file: other run lengths, and values derived from the batch size.
REPLACES = (*permutations(LENGTH, 2), ("training.batch_size", "training.micro_batch_size"))


@dataclass
class AskOptions:
    """The parsed options."""

    target: list[str] | None = None
    task: str | None = None
    preset: str | None = None
    start: Path | None = None
    steps: int | None = None
    epochs: float | None = None
    minutes: float | None = None
    lr: float | None = None
    batch_size: int | None = None
    max_length: int | None = None
    seed: int | None = None
    device: str = "auto"
    valid: list[Path] | None = None
    test: list[Path] | None = None
    split_column: str | None = None
    group: str | None = None
    time: str | None = None
    types: list[str] | None = None
    inputs: list[str] | None = None
    config: Path | None = None
    settings: list[str] | None = None
    pretrain: str | None = None
    teacher: Path | None = None

    def flags(self) -> dict[str, Any]:
        """The settings that have their own option."""
        found: dict[str, Any] = {
            "data.target": tuple(self.target or ()) or None, "data.types": tuple(spread(self.types)) or None,
            "data.inputs": tuple(self.inputs or ()) or None,
            "data.split.valid_file": tuple(map(str, self.valid or ())) or None,
            "data.split.test_file": tuple(map(str, self.test or ())) or None,
            "data.split.column": self.split_column, "data.split.group": self.group, "data.split.time": self.time,
            "training.steps": self.steps, "training.epochs": self.epochs, "training.minutes": self.minutes,
            "training.optimizer.lr": self.lr, "training.batch_size": self.batch_size, "training.seed": self.seed,
            "data.tokenizer.max_length": self.max_length,
            "objective.teacher": None if self.teacher is None else str(self.teacher),
        }  # fmt: skip
        return {name: value for name, value in found.items() if value is not None}

    def request(self, data: list[Path], out: Path | None = None) -> Request:
        """The combined request: options override `--set`, which overrides the file."""
        from anyformer.training.setup.request import Request
        from anyformer.training.setup.settings_file import Written, from_file, parse_settings

        written = Written() if self.config is None else from_file(self.config)
        typed = parse_settings(self.settings or []) | self.flags()
        for one, other in REPLACES:
            if one in typed and other not in typed:
                written.settings.pop(other, None)
        top = written.top
        return Request(
            data, task=self.task or top.get("task") or None, preset=self.preset or self.model_of(top),
            start=self.start or (Path(top["start"]) if top.get("start") else None), out=out, device=self.device,
            pretrain=self.pretrain,
            settings=written.settings | typed, command=shlex.join(["anyformer", *sys.argv[1:]]),
            places={path: place for path, place in written.places.items() if path not in typed},
        )  # fmt: skip

    def model_of(self, top: dict[str, str]) -> str | None:
        """The preset named in a file; with `start` it only records the origin of the sizes."""
        return None if self.start is not None or top.get("start") else top.get("preset") or None


def spread(words: list[str] | None) -> list[str]:
    """Split arguments of several comma-separated column=kind pairs.

    >>> spread(["year=number,city=category", "note=text"])
    ['year=number', 'city=category', 'note=text']
    """
    return [part for word in words or () for part in word.split(",") if part]


def is_settings(path: Path) -> bool:
    """Whether a path is a settings file by its name; YOLO's data.yaml is data."""
    from anyformer.data.files.yolo import is_yolo

    return path.suffix.lower() in (".yaml", ".yml") and not is_yolo(path)


def refuse_settings(data: list[Path]) -> None:
    """Reject a settings file given as data, with a specific error."""
    for path in data:
        if is_settings(path):
            raise UserError("a file of settings is not data", where=str(path), fix=f"write --config {path}")
