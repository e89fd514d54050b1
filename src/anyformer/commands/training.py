"""Commands that train and use trained models: train, resume, evaluate, predict."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anyformer.commands import asking
from anyformer.commands.asking import AskOptions, refuse_settings
from anyformer.commands.launch import Launch
from anyformer.commands.options import Device, Json, Quiet
from anyformer.commands.words import configure_messages, note, note_line, write, write_line
from anyformer.errors import UserError, did_you_mean
from anyformer.log import Log, silence
from anyformer.training.distributed.world import World, report_once_per_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anyformer.training.setup.request import Request
    from anyformer.training.train import Run as Trained


Run = Annotated[Path, typer.Argument(help="The folder of a run.")]
Progress = Annotated[str, typer.Option(help="auto, bar, lines or none.")]
StdinFormat = Annotated[
    str | None, typer.Option("--format", help="What - holds: csv, tsv, jsonl, json, parquet, txt or conll.")
]
BatchSize = Annotated[int, typer.Option(min=1, help="Rows at a time.")]
Threshold = Annotated[
    float | None, typer.Option(help="Least probability at which a label, or the second of two classes, is predicted.")
]
MODES = ("auto", "bar", "lines", "none")


def train(
    context: typer.Context,
    data: Annotated[list[Path], typer.Argument(help="A file, a folder, or two parallel files.")],
    target: asking.Target = None,
    task: asking.Task = None,
    preset: asking.Preset = None,
    start: asking.Start = None,
    pretrain: asking.Pretrain = None,
    teacher: asking.Teacher = None,
    out: Annotated[Path | None, typer.Option(help="A new folder for the run; runs/... if not given.")] = None,
    steps: asking.Steps = None,
    epochs: asking.Epochs = None,
    minutes: asking.Minutes = None,
    lr: asking.LearningRate = None,
    batch_size: asking.BatchSize = None,
    max_length: asking.MaxLength = None,
    seed: asking.Seed = None,
    device: Device = "auto",
    valid: asking.Valid = None,
    test: asking.Test = None,
    split_column: asking.SplitColumn = None,
    group: asking.Group = None,
    time: asking.Time = None,
    types: asking.Types = None,
    inputs: asking.Inputs = None,
    config: asking.Settings = None,
    settings: asking.Set = None,
    tune: Annotated[
        float | None, typer.Option(help="Minutes to try other settings for, before the run itself.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, write nothing.")] = False,
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
      anyformer train reviews.csv --target label --pretrain masked
      anyformer train houses.parquet --target price --tune 20
    """
    launch = launched(context)
    configure_messages(quiet)
    asked = AskOptions(
        target, task, preset, start, steps, epochs, minutes, lr, batch_size, max_length, seed, device, valid, test,
        split_column, group, time, types, inputs, config, settings, pretrain, teacher,
    )  # fmt: skip
    with report_once_per_host(launch.world):
        check_mode(progress)
        refuse_settings(data)
        request = asked.request(list(data), out)
        check_restarts(request, launch.world)
    if dry_run:
        if launch.world.is_first:
            run_rehearsal(request, as_json=as_json, quiet=quiet)
        return
    with settings_named(request):
        run = asked_again(request, progress, quiet, launch)
        if run is None and tune is not None:
            run = start_search(request, tune, progress, quiet, launch)
        run = run or start_training(request, progress, quiet, launch)
    if launch.world.is_first:
        conclude(run, as_json=as_json, quiet=quiet)


def launched(context: typer.Context) -> Launch:
    """How this command was started."""
    return context.obj if isinstance(context.obj, Launch) else Launch()


def start_training(request: Request, progress: str, quiet: bool, launch: Launch) -> Trained:
    """Start a new run; or resume the previous one if the launcher has restarted its processes."""
    from anyformer.training.train import resume, run_request

    world, started = launch.world, launch.started
    log, shown = messages(quiet), progress_mode(progress, quiet)
    if world.restarts and request.out is not None and (request.out / "run.json").is_file():
        return resume(request.out, log=log, progress=shown, quiet=quiet, world=world, started=started)
    return run_request(request, log=log, progress=shown, quiet=quiet, world=world, started=started)


def start_search(request: Request, minutes: float, progress: str, quiet: bool, launch: Launch) -> Trained:
    """Run a hyperparameter search, then the training with the best settings."""
    from anyformer.training.train import run_search

    if not launch.world.is_alone:
        raise UserError("a search is made by one process", where="--tune", fix="tune with one, then train with several")
    return run_search(request, minutes, log=messages(quiet), progress=progress_mode(progress, quiet), quiet=quiet,
                      started=launch.started)  # fmt: skip


def check_restarts(request: Request, world: World) -> None:
    if world.max_restarts and request.out is None:
        raise UserError("a restart would not know which run it belongs to", where="--max-restarts", fix="give --out")


def asked_again(request: Request, progress: str, quiet: bool, launch: Launch) -> Trained | None:
    """If a run exists in the output folder, offer on a terminal to resume it."""
    out = request.out
    if not launch.world.is_alone or out is None or quiet or not (out / "run.json").is_file() or not is_terminal():
        return None
    from anyformer.training.train import resume as resume_run

    note(f"a run is there already: {out}; it is never overwritten")
    if not typer.confirm("resume it?", default=True, err=True):
        return None  # the error lists the alternatives
    return resume_run(out, log=note_line, progress=progress, quiet=quiet, started=launch.started)


def is_terminal() -> bool:
    """Whether the command is interactive."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def run_rehearsal(request: Request, *, as_json: bool, quiet: bool) -> None:
    """Do everything up to the first step in a temporary folder."""
    from anyformer.training.setup.dry_run import rehearse

    lines: list[str] = []
    with settings_named(request):
        facts = rehearse(request, lines.append if as_json else write_line, timed=True)
    if as_json:
        write(json.dumps(facts | {"lines": lines}))
    elif not quiet:
        note("dry run: nothing was written")


def resume(
    context: typer.Context,
    run: Run,
    steps: Annotated[int | None, typer.Option(help="A new total number of steps.")] = None,
    lr: Annotated[float | None, typer.Option("--lr", help="A new learning rate from here on.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="path=value, e.g. training.save_every=50.")
    ] = None,
    allow_change: Annotated[
        list[str] | None, typer.Option(help="A setting that may change although the results change; e.g. steps.")
    ] = None,
    progress: Progress = "auto",
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda[:N] or mps; as before if not given.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Resume a run that was stopped or killed; the result is the same to the bit.

    \b
    Example:
      anyformer resume runs/2026-01-31_120000-book-3f9a1c
      anyformer resume RUN --steps 2000
      anyformer resume RUN --set training.patience=5 --allow-change patience
    """
    from anyformer.training.setup.changes import change_run
    from anyformer.training.setup.settings_file import parse_settings
    from anyformer.training.train import resume as resume_run

    launch = launched(context)
    configure_messages(quiet)
    log = messages(quiet)
    # An explicit option such as --steps implies --allow-change for its setting.
    asked = {"training.steps": steps, "training.optimizer.lr": lr}
    named = {path: value for path, value in asked.items() if value is not None}
    with report_once_per_host(launch.world):
        check_mode(progress)
        changes = parse_settings(settings or []) | named
    allowed = [*(allow_change or []), *named]

    def change() -> None:
        if changes or allowed:
            change_run(run, changes, allowed, log)

    done = resume_run(
        run, log=log, progress=progress_mode(progress, quiet), quiet=quiet, device=device, world=launch.world,
        change=change, started=launch.started,
    )  # fmt: skip
    if launch.world.is_first:
        conclude(done, as_json=as_json, quiet=quiet)


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run, or a folder of a model trained here.")],
    data: Annotated[
        list[Path] | None,
        typer.Argument(help="Files to evaluate, - for standard input; the run's own test rows if none."),
    ] = None,
    shots: Annotated[
        str | None, typer.Option(help="Ask a language model, with so many examples in its prompt: 0,1,5.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="A prompt of columns in braces, {answer} last; default: Question, Answer.")
    ] = None,
    examples: Annotated[Path | None, typer.Option(help="A file to draw examples from, not the other rows.")] = None,
    by: Annotated[str | None, typer.Option(help="choice: the likeliest one; generate: what is written.")] = None,
    normalise: Annotated[str | None, typer.Option(help="Log-likelihoods of choices by sum, token or byte.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Examples are drawn by it.")] = None,
    threshold: Threshold = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A new .csv or .json with the table.")] = None,
    format: StdinFormat = None,
    device: Device = "auto",
    batch_size: BatchSize = 64,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate a trained model on files with known answers, or a language model by prompting it.

    \b
    Example:
      anyformer evaluate RUN test.csv
      anyformer evaluate RUN test.csv --json
      anyformer evaluate FOLDER questions.csv --shots 0,1,5
    """
    from anyformer.inference.evaluate import evaluate_run

    configure_messages(quiet)
    asked = {"template": template, "examples": examples, "by": by, "normalise": normalise, "seed": seed, "out": out}
    if shots is not None:
        with with_standard_input(data or (), format) as files:
            prompt_model(run, files, shots, asked, device=device, batch_size=batch_size, as_json=as_json, quiet=quiet)
        return
    for name, value in asked.items():
        if value is not None:
            raise UserError(f"--{name} is for prompting", where=f"--{name}", fix="add --shots 0,1,5, or leave it out")
    with with_standard_input(data or (), format) as files:
        found = evaluate_run(run, files, device=device, batch_size=batch_size, log=messages(quiet), threshold=threshold)
    if as_json:
        write(json.dumps(found))
        return
    if interval := found.pop("interval", None):
        bounds = f"{interval['low']:.4f} to {interval['high']:.4f}"
        found["95 %"] = f"{interval['metric']} {bounds}, by bootstrap over the rows"
    width = max(map(len, found), default=0)
    write("\n".join(f"{name:<{width}}  {value:.4f}" if isinstance(value, float) else f"{name:<{width}}  {value}"
                    for name, value in found.items()))  # fmt: skip


def prompt_model(
    run: Path, files: list[Path], shots: str, asked: dict[str, Any], *, device: str, batch_size: int, as_json: bool,
    quiet: bool,
) -> None:  # fmt: skip
    """Few-shot evaluation: a table of accuracies by number of examples."""
    from anyformer.inference.shots import ShotSettings, evaluate_shots

    if not files:
        raise UserError("no questions given", where="--shots", fix="give a file with questions and answers")
    try:
        numbers = tuple(int(number) for number in shots.split(","))
    except ValueError:
        raise UserError(f"{shots!r} is not a list of numbers", where="--shots", fix="write 0,1,5") from None
    examples, out = asked.pop("examples"), asked.pop("out")
    settings = ShotSettings(numbers, **{name: value for name, value in asked.items() if value is not None})
    report = evaluate_shots(run, files, settings, examples=examples, out=out, device=device, batch_size=batch_size,
                            log=messages(quiet))  # fmt: skip
    write(json.dumps(report.facts()) if as_json else "\n".join(report.lines()))


def predict(
    run: Annotated[Path, typer.Argument(help="A run, or a folder of a model trained here.")],
    data: Annotated[list[Path], typer.Argument(help="Files with the columns it was trained on, - for standard input.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A new .csv, .jsonl, .parquet, .txt or .conll.")
    ] = None,
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="No answer for rows that cannot be read, rather than an error.")
    ] = False,
    threshold: Threshold = None,
    format: StdinFormat = None,
    device: Device = "auto",
    batch_size: BatchSize = 64,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row, each on a line of its own.")] = False,
    quiet: Quiet = False,
) -> None:
    """Answer new rows: the input rows with a column `prediction`, and `probability` where there is one.

    \b
    Example:
      anyformer predict RUN new.csv -o out.csv
      anyformer predict RUN new.txt
      head -n 20 new.csv | anyformer predict RUN - --json
    """
    from anyformer.inference.prediction_files import predict_files

    configure_messages(quiet)
    with with_standard_input(data, format) as files:
        text = predict_files(run, files, out, device=device, batch_size=batch_size, as_json=as_json,
                             log=messages(quiet), on_bad_rows="skip" if skip_bad_rows else "error",
                             threshold=threshold)  # fmt: skip
    if text is not None:
        write(text)
    elif not quiet:
        note(f"written to {out}")


def conclude(run: Any, *, as_json: bool, quiet: bool) -> None:
    """Print the results of a run and the next commands."""
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


def messages(quiet: bool) -> Log:
    """The stream for messages."""
    return silence if quiet else note_line


def progress_mode(progress: str, quiet: bool) -> str:
    """How progress is shown; quiet: only the final results, which are data."""
    return "silent" if quiet else progress


def check_mode(progress: str) -> None:
    if progress not in MODES:
        raise UserError(f"unknown progress {progress!r}", where="--progress", fix=did_you_mean(progress, MODES))


@contextmanager
def settings_named(request: Request) -> Iterator[None]:
    """Add the file and line of a setting to errors about it."""
    try:
        yield
    except UserError as error:
        raise request.placed(error) from None


STDIN = Path("-")
FORMATS = ("csv", "tsv", "jsonl", "json", "parquet", "txt", "conll")


@contextmanager
def with_standard_input(paths: Sequence[Path], format: str | None) -> Iterator[list[Path]]:
    """The paths with `-` replaced by a temporary file of standard input.

    Its format is detected unless `format` is given.
    """
    if format is not None and format not in FORMATS:
        raise UserError(f"unknown format {format!r}", where="--format", fix=did_you_mean(format, FORMATS))
    count = list(paths).count(STDIN)
    if format is not None and not count:
        raise UserError("--format is for rows from standard input", where="--format", fix="give - in place of a file")
    if count > 1:
        raise UserError("standard input can be read once", where="-", fix="give - once")
    if not count:
        yield list(paths)
        return
    if sys.stdin is None or sys.stdin.isatty():
        raise UserError("nothing comes in on standard input", where="-", fix="pipe rows into it, or name a file")
    with tempfile.TemporaryDirectory(prefix="anyformer-") as folder:
        file = Path(folder) / ("stdin" if format is None else f"stdin.{format}")
        with file.open("wb") as sink:
            shutil.copyfileobj(sys.stdin.buffer, sink)
        if not file.stat().st_size:
            raise UserError("standard input is empty", where="-", fix="pipe rows into it, or name a file")
        yield [file if path == STDIN else path for path in paths]
