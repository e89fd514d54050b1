"""Whatever is broken in a run: no verb ends in a traceback or waits; it works, or says in one line what is wrong."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.trying import Said, done, run
from tests.training.run.damaged_runs import WRONG, Damage, file_damages, key_damages, removed
from tests.training.tiny import CASES, write_data

SLOWEST = 300  # seconds after which a verb is taken to wait for something; most take well under one
VALUES = 1  # of the wrong values each key is tried with; the next key is tried with the next ones


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Two whole runs, of a table and of a text, and copies of them with a step left to do."""
    folder = tmp_path_factory.mktemp("damaged")
    write_data(folder)
    for kind in ("table", "text"):
        words = CASES[kind].train(str(folder / kind), training__steps=6, training__workers=0)
        done(*[str(folder / word) if word in CASES[kind].files else word for word in words])
        unfinished = folder / f"{kind} open"
        shutil.copytree(folder / kind, unfinished)
        facts = json.loads((unfinished / "run.json").read_text())
        facts |= {"status": "interrupted", "allowed": ["training.steps"], "total": 7, "use": None}
        (unfinished / "run.json").write_text(json.dumps(facts))
        config = unfinished / "config.yaml"
        config.write_text(re.sub(r"(?m)^(\s*)steps: 6$", r"\1steps: 7", config.read_text()))
    return folder


Words = Callable[[Path, Path], list[Any]]
LOOKING: dict[str, Words] = {
    "runs list": lambda run, place: ["runs", "list", run.parent],
    "runs list --json": lambda run, place: ["runs", "list", run.parent, "--json"],
    "runs show": lambda run, place: ["runs", "show", run],
    "runs compare": lambda run, place: ["runs", "compare", run, place / "table"],
    "runs report": lambda run, place: ["runs", "report", run],
    "runs tensorboard": lambda run, place: ["runs", "tensorboard", run, run.parent.parent / "logs"],
}
USING: dict[str, Words] = {
    "check": lambda run, place: ["check", run],
    "evaluate": lambda run, place: ["evaluate", run],
    "predict": lambda run, place: ["predict", run, place / "table.csv"],
}


def resume(run: Path, place: Path) -> list[Any]:
    return ["resume", run, "--progress", "none"]


@contextmanager
def bounded(seconds: int) -> Iterator[None]:
    """An end to waiting, as for the other end of a pipe."""

    def late(signal_number: int, frame: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def told(said: Said) -> str:
    """What is wrong with an answer: '' where it is a result, or a refusal in one line that says how to mend it."""
    if said.code not in (0, 2) or "Traceback" in said.err:
        return f"exit {said.code}: {said.err.splitlines()[-2:]}"
    if said.code == 2 and (len(said.errors) != 1 or "; " not in said.errors[0]):
        return f"not one line with a fix: {said.err}"
    return ""


def trial(whole: Path, damages: list[Damage], words: Words, place: Path, scratch: Path) -> list[str]:
    """Every damage, and what the verb said where that is not what is promised."""
    wrong = []
    broken = scratch / "runs" / "run"
    for damage in damages:
        if words is resume or not broken.exists():
            shutil.rmtree(broken, ignore_errors=True)
            shutil.copytree(whole, broken)
        damage.apply(broken)
        with bounded(SLOWEST):
            trouble = told(run(*words(broken, place)))
        if trouble:
            wrong.append(f"{damage.name}: {trouble}")
        removed(broken / damage.path)
        intact = whole / damage.path
        shutil.copytree(intact, broken / damage.path) if intact.is_dir() else shutil.copy(intact, broken / damage.path)
    return wrong


def rotated(damages: list[Damage]) -> list[Damage]:
    """A few of the wrong values for each key, others for the next."""
    count = len(WRONG)
    return [d for at, d in enumerate(damages) if (at % count - 3 * (at // count)) % count < VALUES]


@pytest.mark.parametrize("verb", LOOKING)
def test_looking_at_a_damaged_run(place, tmp_path, verb):
    whole = place / "table open"
    damages = [*near(file_damages(whole)), *rotated(list(key_damages(whole)))]
    if verb not in ("runs show", "runs report"):
        damages = [d for d in damages if d.name.startswith(("run.json", "metrics.jsonl", "speed.jsonl", "checkpoints"))]
    assert len(damages) > 60
    wrong = trial(whole, damages, LOOKING[verb], place, tmp_path)
    assert not wrong, "\n".join(wrong)


def near(damages: Iterator[Damage]) -> list[Damage]:
    """Damages in the run's own files; those of a model folder are tried for all model folders elsewhere."""
    return [d for d in damages if not d.name.startswith(("checkpoints/step", "data/")) or "manifest" in d.name]


@pytest.mark.parametrize("verb", USING)
def test_using_a_damaged_run(place, tmp_path, verb):
    used = ("run.json", "config.yaml", "checkpoints", "data")
    damages = [d for d in file_damages(place / "table") if d.name.startswith(used)]
    damages = [d for d in damages if "safetensors" not in d.name and "npy" not in d.name]
    wrong = trial(place / "table", damages, USING[verb], place, tmp_path)
    assert not wrong, "\n".join(wrong)


def test_generating_with_a_damaged_run(place, tmp_path):
    damages = [
        d for d in near(file_damages(place / "text")) if d.name.startswith(("run.json", "config", "checkpoints"))
    ]
    words: Words = lambda run, place: ["generate", run, "the", "--max-new-tokens", "1"]  # noqa: E731
    wrong = trial(place / "text", damages, words, place, tmp_path)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("part", ["run.json", "config.yaml", "tables", "the rest"])
def test_going_on_with_a_damaged_run(place, tmp_path, monkeypatch, part):
    monkeypatch.setattr(
        "anyformer.training.finish.find_baselines", lambda *_, **__: {}
    )  # the baselines take most of the time
    whole = place / "table open"
    tables = ("metrics", "speed", "events")
    damages = near(file_damages(whole))
    if part == "run.json":
        damages = [d for d in damages if d.name.startswith(part)]
        keys = [d for d in key_damages(whole) if d.name.startswith(part)]
        damages += [d for at, d in enumerate(keys) if (at - at // len(WRONG)) % len(WRONG) < 1]
    elif part == "tables":
        damages = [d for d in damages if d.name.startswith(tables)]
    elif part == "the rest":
        damages = [d for d in damages if not d.name.startswith(("run.json", "config.yaml", *tables))]
        damages = [d for d in damages if d.name.endswith(("a folder", "a file", "a pipe", "binary", "nothing"))]
    else:
        damages = [d for d in damages if d.name.startswith(part)]
    wrong = trial(whole, damages, resume, place, tmp_path)
    assert not wrong, "\n".join(wrong)


def test_opening_a_whole_run_whose_figures_are_damaged(place, tmp_path):
    """Nothing is left to do: what was judged is shown again."""
    damages = [d for d in key_damages(place / "table") if d.name.startswith(("evaluation.json", "run.json"))]
    wrong = trial(place / "table", rotated(damages), resume, place, tmp_path)
    assert not wrong, "\n".join(wrong)


def test_control_a_traceback_and_a_bare_line_are_seen(place):
    assert not told(run("runs", "show", place / "table"))
    assert told(Said(1, "", "Traceback\nerror: TypeError: x\n", 0.0)) and told(Said(2, "", "error: wrong\n", 0.0))
    with pytest.raises(TimeoutError), bounded(1):
        signal.pause()
