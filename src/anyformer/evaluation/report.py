"""The report of a run: one self-contained HTML file from the run's folder, without scripts."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from anyformer.amounts import UNITS, count_text
from anyformer.errors import UserError
from anyformer.evaluation import sections
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.data_section import data
from anyformer.evaluation.facts import plain
from anyformer.evaluation.page import document, figures, preformat, section, table, words
from anyformer.evaluation.run_files import EVALUATION, RunFiles, is_number, object_of, read_evaluation, read_run
from anyformer.evaluation.sentences import duration, metric_name
from anyformer.safe_files import AGAIN, replace_file, writing
from anyformer.tasks.known_tasks import find, title_of

NAME = "report.html"
PRETRAIN = "pretrain"  # the folder of the first stage
TUNE = "tune"  # the folder of a search before the run


def write_report(folder: Path, answers: Answers | None = None, evaluation: Mapping[str, Any] | None = None) -> Path:
    """Write report.html into the folder and return its path; the same folder and evaluation give the same bytes.

    `evaluation` is the content of evaluation.json, read from there if not given: "task", "split" (the one
    evaluated), "main" (a metric), "metrics" (split to metrics), "baselines" ("trivial" and "strong", each with name and
    metrics), and "facts" from `Task.report_facts`.
    If `answers` are given, their facts are used instead of the stored ones.
    """
    stored = read_evaluation(folder) if evaluation is None else evaluation
    facts = find(answers.task).report_facts(answers) if answers is not None else None
    try:
        text = report(folder, plain(dict(stored) | ({"facts": facts} if facts is not None else {})))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        if evaluation is not None:
            raise
        # The facts in evaluation.json have many shapes; one that no section can draw was not written by this library.
        where, what = str(folder / EVALUATION), f"its facts cannot be shown ({type(error).__name__})"
        raise UserError(what, where=where, fix=AGAIN) from None
    path = folder / NAME
    with writing(path, len(text), fix=f"make room, then: anyformer runs report {folder}"):
        replace_file(path, text)  # atomic: a reader sees the old report or the new one
    return path


def report(folder: Path, evaluation: Mapping[str, Any]) -> str:
    """The whole page as HTML."""
    files = read_run(folder)
    facts = evaluation.get("facts") or {}
    task = str(evaluation.get("task") or facts.get("task") or files.run.get("task") or files.data.get("task") or "")
    measured = evaluation.get("metrics") or {}
    split = str(evaluation.get("split") or next((name for name in ("test", "valid") if name in measured), "valid"))
    main = evaluation.get("main") or next(iter(facts.get("metrics") or measured.get(split) or {}), None)
    main = str(main or "loss")
    parts = [
        ("result", "Result", sections.headline(evaluation, main, split)),
        ("metrics", "Metrics", sections.scores(evaluation, split)),
        ("curves", "Training", sections.curves(files, main)),
        ("pretraining", "Pretraining, before the labels", pretraining(folder / PRETRAIN)),
        ("tuning", "Settings that were tried", tuning(folder / TUNE)),
        ("confusion", "What was taken for what", sections.confusion(facts)),
        ("predictions", "Predicted and true", sections.numbers(facts)),
        ("labels", "Each span" if facts.get("spans") else "Each label", sections.labels(facts)),
        ("calibration", "Do probabilities mean what they say?", sections.calibration(facts, evaluation)),
        ("worst", "Worst answers", sections.worst(facts)),
        ("inside", "Inside", sections.inside(evaluation.get("inside"))),
        ("samples", "Samples while learning", sections.samples(files)),
        ("data", "Data", data(files.data)),
        ("events", "Events", sections.events(files)),
        ("settings", "Settings and machine", sections.settings(files)),
        ("repeat", "Repeat it", repeat(files)),
    ]
    links = [(name, title) for name, title, inside in parts if inside]
    body = "".join(section(name, title, inside) for name, title, inside in parts)
    title = " · ".join(
        part for part in (title_of(task), model_of(files), str(files.run.get("id") or folder.name)) if part
    )
    foot = "<p>One file, no script, nothing loaded from elsewhere. <code>anyformer runs report</code> rewrites it.</p>"
    return document(title, top(files, folder, task), links, body, foot)


def pretraining(folder: Path) -> str:
    """The pretraining stage of a run, if it had one."""
    if not folder.is_dir():
        return ""
    evaluation, files = read_evaluation(folder), read_run(folder)
    split = str(evaluation.get("split") or "valid")
    title = title_of(str(files.run.get("task") or ""))
    said = f"<p>{escape(title)}, {files.run.get('step', 0):,} steps; its own report is {PRETRAIN}/{NAME}.</p>"
    return said + sections.scores(evaluation, split) + sections.curves(files, "loss")


def tuning(folder: Path) -> str:
    """The trials of a search before the run, the best last, and its outcome."""
    found = object_of(folder / f"{TUNE}.json")
    trials = [one for one in found.get("trials") or () if isinstance(one, Mapping)]
    if not trials:
        return ""
    metric = metric_name(str(found.get("metric") or ""))
    rows = [
        [escape(str(one.get("name"))) + (" <strong>kept</strong>" if one.get("name") == found.get("winner") else ""),
         words(one.get("settings") or "the defaults"), figures(one.get("round")), figures(one.get("step")),
         figures(one.get("value")) if not one.get("problem") else words(one["problem"])]
        for one in trials
    ]  # fmt: skip
    said = "<p>By successive halving on the validation rows: in each round the best third goes on from where it is.</p>"
    return said + table(["trial", "settings beside the defaults", "rounds", "steps", escape(metric)], rows)


def model_of(files: RunFiles) -> str:
    """The name of the model."""
    return str(files.run.get("preset") or files.run.get("model") or "")


def top(files: RunFiles, folder: Path, task: str) -> str:
    """Title and key facts."""
    run = files.run
    sources = files.data.get("sources")
    names = (
        [str(one.get("name", "")) for one in sources if isinstance(one, Mapping)] if isinstance(sources, list) else []
    )
    from_what = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    from_what = from_what or str(run.get("data") or "")
    model = model_of(files)
    title = f"{(title_of(task) or 'run').capitalize()}{f' from {from_what}' if from_what else ''}"
    facts = [model] if model else []
    if is_number(run.get("parameters")):
        facts.append(f"{count_text(run['parameters'], scale=UNITS)} parameters")
    if is_number(run.get("step")):
        facts.append(f"{run['step']:,} steps")
    if is_number(run.get("seconds")):
        facts.append(duration(run["seconds"]))
    if run.get("status"):
        facts.append(str(run["status"]) + (f": {run['reason']}" if run.get("reason") else ""))
    line = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    name = escape(str(run.get("id") or folder.name))
    return f'<p class="id">{name}</p><h1>{escape(title)}</h1><ul class="facts">{line}</ul>'


def repeat(files: RunFiles) -> str:
    """The command that started this run."""
    command = files.command or str(files.run.get("command") or "")
    return preformat(command) if command else ""
