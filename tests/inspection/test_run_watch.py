"""A page that follows a run reads each byte of its metrics once, and begins anew where the file is another one."""

from __future__ import annotations

import json
import os

import pytest

from anyformer.errors import UserError
from anyformer.inspection import run_watch
from anyformer.inspection.run_watch import read_run, run_news


def write(folder, name, lines, mode="a"):
    with open(folder / name, mode) as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def run(tmp_path):
    facts = {"id": "r", "status": "running", "step": 2, "total": 10, "task": "language", "pid": os.getpid()}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    write(tmp_path, "metrics.jsonl", [{"step": n, "loss": 5.0 - n, "lr": 0.1} for n in (1, 2)])
    write(tmp_path, "speed.jsonl", [{"step": 2, "seconds": 0.5, "tokens_per_s": 100.0}])
    return tmp_path


def test_only_what_is_new_comes(run):
    first = read_run(run)
    assert first["steps"] == [[1, 4.0, 0.1], [2, 3.0, 0.1]] and first["running"] and not first["again"]
    assert first["left"] == 8 * 0.5 and first["speed"]["tokens_per_s"] == 100.0
    nothing = read_run(run, first["since"], first["file"])
    assert nothing["steps"] == [] and nothing["since"] == first["since"]
    write(run, "metrics.jsonl", [{"step": 3, "loss": 1.0, "lr": 0.1, "probe/entropy": 2.5}])
    write(run, "metrics.jsonl", [{"step": 3, "eval": {"split": "valid", "loss": 1.5}}])
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 4, "lo')  # still being written
    new = read_run(run, first["since"], first["file"])
    assert new["steps"] == [[3, 1.0, 0.1]] and new["evaluations"] == [{"step": 3, "loss": 1.5}]
    assert new["probes"] == [{"step": 3, "entropy": 2.5}]
    with open(run / "metrics.jsonl", "a") as file:
        file.write('ss": 0.5, "lr": 0.1}\n')
    assert read_run(run, new["since"], new["file"])["steps"] == [[4, 0.5, 0.1]]


def test_a_file_written_anew_is_read_from_its_beginning(run):
    first = read_run(run)
    (run / "metrics.jsonl").rename(run / "old.jsonl")  # keeps its number in use
    write(run, "metrics.jsonl", [{"step": n, "loss": 1.0} for n in range(1, 9)])
    again = read_run(run, first["since"], first["file"])
    assert again["again"] and len(again["steps"]) == 8
    # Control: by the offset alone, the same file number said, lines would be missing.
    assert len(read_run(run, first["since"], again["file"])["steps"]) < 8


def test_a_long_file_comes_in_pieces(run, monkeypatch):
    monkeypatch.setattr(run_watch, "CHUNK", 100)
    write(run, "metrics.jsonl", [{"step": n, "loss": 1.0, "lr": 0.1} for n in range(3, 40)])
    since, file, steps, answers = 0, 0, [], 0
    while True:
        found = read_run(run, since, file)
        steps += [step for step, *_ in found["steps"]]
        since, file, answers = found["since"], found["file"], answers + 1
        if not found["more"]:
            break
    assert steps == list(range(1, 40)) and answers > 5


def test_a_run_that_ended_or_is_gone_has_no_time_left(run, tmp_path):
    (run / "run.json").write_text(json.dumps({"status": "done", "step": 10, "total": 10, "task": "language"}))
    assert read_run(run)["left"] is None and not read_run(run)["running"]
    assert read_run(tmp_path / "none")["steps"] == []


@pytest.mark.parametrize("wrong", [{"run": "8"}, {"run": "1"}, {"run": "-1"}, {"since": "x"}, {"since": "9" * 30}])
def test_parameters_are_bounded(run, wrong):
    assert run_news([run], {})["runs"] == [run.name]
    with pytest.raises(UserError):
        run_news([run], wrong)
