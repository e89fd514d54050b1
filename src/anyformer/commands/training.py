"""Verbs that train and use what was trained: train, resume, evaluate, predict."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from anyformer.commands.words import configure_messages, note, write
from anyformer.errors import UserError

Run = Annotated[Path, typer.Argument(help="The folder of a run.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="The result only, no messages.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda[:N] or mps.")]
Progress = Annotated[str, typer.Option(help="auto, bar, lines or none.")]


def train(
    data: Annotated[list[Path], typer.Argument(help="A file, a folder, or two parallel files.")],
    target: Annotated[list[str] | None, typer.Option(help="The column to predict; several may be given.")] = None,
    task: Annotated[
        str | None, typer.Option(help="lm, classify, regress, tag or translate; guessed if not given.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A named model; see: anyformer presets.")] = None,
    start: Annotated[Path | None, typer.Option("--from", help="A model folder or run to fine-tune.")] = None,
    out: Annotated[Path | None, typer.Option(help="A new folder for the run; runs/... if not given.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of steps.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Time to train for, in place of steps.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Everything random follows from it.")] = None,
    device: Device = "auto",
    valid: Annotated[list[Path] | None, typer.Option(help="A file to validate on, in place of a share.")] = None,
    test: Annotated[list[Path] | None, typer.Option(help="A file to test on, in place of a share.")] = None,
    split_column: Annotated[str | None, typer.Option(help="A column that says train, valid or test.")] = None,
    group: Annotated[str | None, typer.Option(help="Rows with equal values here stay on one side.")] = None,
    time: Annotated[str | None, typer.Option(help="The latest rows by this column validate and test.")] = None,
    types: Annotated[list[str] | None, typer.Option(help="column=number|category|text|date|image|skip.")] = None,
    inputs: Annotated[list[str] | None, typer.Option(help="A column to learn from; all if none is named.")] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings, such as a run's config.yaml.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="path=value, e.g. training.batch=16.")] = None,
    progress: Progress = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model on your own files; what is not said is decided by looking at them.

    \b
    Example:
      anyformer train book.txt
      anyformer train reviews.csv --target label
      anyformer train train.en train.de
      anyformer train houses.parquet --target price --minutes 10
      anyformer train photos/
      anyformer train reviews.csv --target label --from FOLDER
    """
    from anyformer.training.job import run_request
    from anyformer.training.request import Request, from_file, parsed

    configure_messages(quiet)
    arm_faults()
    asked: dict[str, Any] = {}
    top: dict[str, Any] = {}
    if config is not None:
        asked, top = from_file(config)
    asked |= parsed(settings or [])
    flags: dict[str, Any] = {
        "data.target": tuple(target or ()) or None, "data.types": tuple(spread(types)) or None,
        "data.inputs": tuple(inputs or ()) or None,
        "data.split.valid_file": tuple(str(path) for path in valid or ()) or None,
        "data.split.test_file": tuple(str(path) for path in test or ()) or None,
        "data.split.column": split_column, "data.split.group": group, "data.split.time": time,
        "training.steps": steps, "training.minutes": minutes, "training.seed": seed,
    }  # fmt: skip
    asked |= {name: value for name, value in flags.items() if value is not None}
    request = Request(
        list(data), task=task or top.get("task"), preset=preset or top.get("preset"),
        start=start or (Path(top["start"]) if top.get("start") else None), out=out, device=device, settings=asked,
        command=shlex.join(["anyformer", *sys.argv[1:]]),
    )  # fmt: skip
    run = run_request(request, say=(lambda line: None) if quiet else note, progress=progress, quiet=quiet)
    conclude(run, as_json=as_json, quiet=quiet)


def resume(
    run: Run,
    progress: Progress = "auto",
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda[:N] or mps; as before if not given.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run that was stopped or killed, to the same bits as if it had not been.

    \b
    Example:
      anyformer resume runs/2026-01-31_120000-book-3f9a1c
    """
    from anyformer.training.job import resume as go_on

    configure_messages(quiet)
    arm_faults()
    done = go_on(run, say=(lambda line: None) if quiet else note, progress=progress, quiet=quiet, device=device)
    conclude(done, as_json=as_json, quiet=quiet)


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run, or a folder of a model trained here.")],
    data: Annotated[list[Path] | None, typer.Argument(help="Files to judge; the run's own test rows if none.")] = None,
    device: Device = "auto",
    batch: Annotated[int, typer.Option(min=1, help="Rows at a time.")] = 64,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Judge a trained model on files with known answers.

    \b
    Example:
      anyformer evaluate RUN test.csv
      anyformer evaluate RUN test.csv --json
    """
    from anyformer.training.evaluation import evaluate_run

    configure_messages(quiet)
    found = evaluate_run(run, list(data or []), device=device, batch=batch, say=(lambda line: None) if quiet else note)
    if as_json:
        write(json.dumps(found))
        return
    width = max(map(len, found), default=0)
    write("\n".join(f"{name:<{width}}  {value:.4f}" if isinstance(value, float) else f"{name:<{width}}  {value}"
                    for name, value in found.items()))  # fmt: skip


def predict(
    run: Annotated[Path, typer.Argument(help="A run, or a folder of a model trained here.")],
    data: Annotated[list[Path], typer.Argument(help="Files with the columns it was trained on.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A new .csv, .jsonl, .parquet, .txt or .conll file.")
    ] = None,
    device: Device = "auto",
    batch: Annotated[int, typer.Option(min=1, help="Rows at a time.")] = 64,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Answer new rows: the input rows with a column `prediction`, and `probability` where there is one.

    \b
    Example:
      anyformer predict RUN new.csv -o out.csv
      anyformer predict RUN new.txt
    """
    from anyformer.training.prediction import predict_files

    configure_messages(quiet)
    text = predict_files(run, list(data), out, device=device, batch=batch, as_json=as_json,
                         say=(lambda line: None) if quiet else note)  # fmt: skip
    if text is not None:
        write(text)
    elif not quiet:
        note(f"written to {out}")


def conclude(run: Any, *, as_json: bool, quiet: bool) -> None:
    """The figures of a run, and what can be done with it now."""
    if as_json:
        facts = run.facts
        write(json.dumps({"run": str(run.path), "status": facts["status"], "steps": facts["step"],
                          "task": facts["task"], "metrics": run.metrics}))  # fmt: skip
        return
    for line in run.summary():
        write(line)
    if not quiet:
        for line in run.next_commands():
            note(line)


def spread(words: list[str] | None) -> list[str]:
    """Several column=kind may stand in one word, separated by commas."""
    return [part for word in words or () for part in word.split(",") if part]


def arm_faults() -> None:
    """Let a test break the run at a named point; see anyformer.faults."""
    asked = os.environ.get("ANYFORMER_FAULT", "")
    if asked:
        from anyformer import faults

        faults.arm(asked)


def no_model(folder: Path) -> UserError:
    return UserError("the folder holds no model trained here", where=str(folder), fix="give a run; see: anyformer runs")
