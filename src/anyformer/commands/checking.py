"""The command `check`: inspect and verify a file or folder without training on it or changing it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from anyformer.commands import asking
from anyformer.commands.asking import AskOptions, is_settings
from anyformer.commands.options import Json, Quiet
from anyformer.commands.words import configure_messages, note, write, write_line
from anyformer.errors import UserError

MODEL_FILES = ("config.json", "anyformer.json")


def check(
    data: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Data to train on, a model folder, a run, or settings (.yaml)."),
    ],
    target: asking.Target = None,
    task: asking.Task = None,
    preset: asking.Preset = None,
    start: asking.Start = None,
    teacher: asking.Teacher = None,
    seed: asking.Seed = None,
    valid: asking.Valid = None,
    test: asking.Test = None,
    split_column: asking.SplitColumn = None,
    group: asking.Group = None,
    time: asking.Time = None,
    types: asking.Types = None,
    inputs: asking.Inputs = None,
    config: asking.Settings = None,
    settings: asking.Set = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Look at data as `train` would, or test whether a model folder, a run or a file of settings is whole.

    \b
    Example:
      anyformer check reviews.csv --target label
      anyformer check FOLDER
      anyformer check RUN
      anyformer check run.yaml
    """
    configure_messages(quiet)
    asked = AskOptions(
        target, task, preset, start, seed=seed, valid=valid, test=test, split_column=split_column, group=group,
        time=time, types=types, inputs=inputs, config=config, settings=settings, device="cpu",
        teacher=teacher,
    )  # fmt: skip
    if len(data) > 1 or not (data[0].is_dir() or is_settings(data[0])):
        of_data(data, asked, as_json=as_json, quiet=quiet)
        return
    path = data[0]
    if is_settings(path) and not path.is_dir():
        facts, bad = of_settings(path, asked)
    elif (path / "run.json").is_file():
        facts, bad = of_run(path)
    elif any((path / name).is_file() for name in MODEL_FILES) or any(path.glob("*.safetensors")):
        facts, bad = of_model(path)
    else:
        of_data(data, asked, as_json=as_json, quiet=quiet)
        return
    write_facts(facts | {"problems": bad}, as_json)
    if bad:
        fix = "do not use this folder" if "status" not in facts else "resume or use only what is whole"
        raise UserError(f"{len(bad)} problem{'s' * (len(bad) > 1)}, first: {bad[0]}"[:240], where=path.name, fix=fix,
                        details=bad)  # fmt: skip


def write_facts(facts: dict[str, Any], as_json: bool) -> None:
    """Print facts as JSON or as lines."""
    if as_json:
        write(json.dumps(facts))
        return
    width = max(16, *map(len, facts))
    write("\n".join(f"{name:<{width}} {show_value(value)}" for name, value in facts.items()))


def show_value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) if value else "none"
    return f"{value:,}" if type(value) is int else str(value if value is not None else "none")


# ---------------------------------------------------------------- each kind of thing


def of_data(paths: list[Path], asked: AskOptions, *, as_json: bool, quiet: bool) -> None:
    """The data scan that precedes training, and what would be trained; nothing is saved."""
    from anyformer.training.setup.dry_run import rehearse

    request = asked.request(paths)
    lines: list[str] = []
    try:
        facts = rehearse(request, lines.append if as_json else write_line, timed=False)
    except UserError as error:
        raise request.placed(error) from None
    if as_json:
        write(json.dumps({name: facts[name] for name in ("task", "model", "parameters", "data")} | {"lines": lines}))
    elif not quiet:
        note("fine; nothing was written")


def of_settings(path: Path, asked: AskOptions) -> tuple[dict[str, Any], list[str]]:
    """Validate a settings file: known names and valid values."""
    from anyformer.training.setup.settings_file import from_file

    if asked.config is not None:
        raise UserError("two files of settings", where="--config", fix="give one of them")
    asked.config = path
    request = asked.request([])
    written = from_file(path)
    named = {name: getattr(request, name) for name in ("task", "preset") if getattr(request, name)}
    whole = {name: plainly(value) for name, value in written.settings.items()}
    return {"file": str(path), **named, "settings": len(whole), **whole}, []


def plainly(value: Any) -> Any:
    return str(value.get("type", value)) if isinstance(value, dict) else value


def of_run(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Verify a run: every checkpoint against its manifest, the prepared data, and the selected model."""
    from anyformer.checkpoints import store
    from anyformer.data.reopen import reopen
    from anyformer.training.run.folder import AVERAGED, RunFolder

    run = RunFolder.open(path)
    facts, bad = run.facts, []
    folders = sorted(entry for entry in run.checkpoints.iterdir() if entry.is_dir()) if run.checkpoints.is_dir() else []
    folders = [entry for entry in folders if not entry.name.startswith(".")]
    for folder in [*folders, *([path / AVERAGED] if (path / AVERAGED).is_dir() else [])]:
        wrong = store.problem(folder)
        if wrong:
            bad.append(f"{folder.relative_to(path)}: {wrong}")
    if reopen(run.cache) is None:
        bad.append("data: what was prepared is not whole")
    told: dict[str, Any] = {
        "run": str(path), "status": facts.get("status"), "task": facts.get("task"), "model": facts.get("model"),
        "step": facts.get("step"), "total": facts.get("total"), "checkpoints": [folder.name for folder in folders],
    }  # fmt: skip
    if not folders:
        return told, bad
    try:
        best = run.best()
        about, wrong_model = of_model(best)
    except UserError as error:
        return told, [*bad, str(error)]
    told |= {"in use": str(best.relative_to(path)), "parameters": about["parameters"], "tokenizer": about["tokenizer"]}
    return told, [*bad, *wrong_model]


def of_model(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Load and verify a model folder."""
    import torch

    import anyformer

    predictor = anyformer.load(folder)
    opened = predictor.opened
    bad = [
        f"{name} holds values that are not finite"
        for name, parameter in predictor.model.named_parameters()
        if not torch.isfinite(parameter).all()
    ]
    tokenizer = predictor.tokenizer
    vocabulary = getattr(predictor.spec, "embed", None)
    known = None if vocabulary is None or vocabulary.vocabulary is None else vocabulary.vocabulary[0]
    if tokenizer is not None and known is not None and tokenizer.size > known:
        bad.append(f"the tokenizer has {tokenizer.size} tokens, the model knows {known}")
    return {
        "folder": str(folder),
        "family": opened.family.model_type if opened.family else "anyformer",
        "head": opened.head or type(getattr(predictor.spec, "head", predictor.spec)).__name__,
        "parameters": sum(p.numel() for p in predictor.model.parameters()),
        "dtype": str(opened.dtype).removeprefix("torch."),
        "tokenizer": None if tokenizer is None else f"{tokenizer.size} tokens",
        "labels": predictor.labels,
        "unknown options": opened.unread,
    }, bad
