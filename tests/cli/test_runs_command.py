"""The verb `runs`, on folders that are whole, growing, stopped and damaged."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from anyformer import cli
from anyformer.commands import runs as verb
from anyformer.commands.runs_compare import differences
from anyformer.errors import UserError
from anyformer.training.run.history import STOPPED, Follower, History, find_run, open_run
from anyformer.training.run.replay import Replay

GONE = 2**22 + 1  # above the largest process number


def call(*words: str) -> int:
    """The command line with this verb alone, errors and exit codes as in the real one."""
    if not any(command.callback is verb.runs for command in cli.app.registered_commands):
        cli.app.command()(verb.runs)
    return cli.main(["runs", *words])


def make(folder: Path, name: str, steps: int = 100, pace: float = 30, **facts) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    with (path / "metrics.jsonl").open("w") as file:
        for step in range(10, steps + 1, 10):
            file.write(json.dumps({"step": step, "loss": 1 + 3 * math.exp(-step / pace), "lr": 0.001}) + "\n")
            if step % 50 == 0:
                line = {"split": "valid", "loss": 1.1 + 3 * math.exp(-step / pace), "accuracy": 0.9}
                file.write(json.dumps({"step": step, "eval": line}) + "\n")
    known = {
        "id": name, "status": "done", "task": "classify", "model": "bert-tiny", "data": "some/reviews.csv",
        "step": steps, "total": 100, "best_step": 50, "best": {"metric": "accuracy", "value": 0.9},
        "started": "2026-11-03 14:05:06", "finished": "2026-11-03 14:06:06", "seconds": 90.0, "pid": GONE,
        "host": socket.gethostname(), "reason": "",
    }  # fmt: skip
    (path / "run.json").write_text(json.dumps(known | facts))
    (path / "config.yaml").write_text(f"task: classify\ntraining: {{batch_size: {steps}, seed: 0}}\n")
    return path


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def damage(home: Path) -> list[str]:
    """Folders of every kind of damage; each must be listed, none may crash anything."""
    contents = {
        "cut": '{"id": "cu', "empty": "", "list": "[1, 2]", "binary": "\x00\x01", "deep": "[" * 5000,
        "number": "3", "types": json.dumps({"status": "done", "step": "many", "best": [1], "started": {}, "pid": "x"}),
        "words": json.dumps({"status": "flying"}), "odd": json.dumps({"status": "running", "pid": -1, "seconds": True}),
        "huge": json.dumps({"status": "running", "pid": 10**30, "started": 1e300, "total": 1e308}),
    }  # fmt: skip
    for name, text in contents.items():
        (home / name).mkdir(parents=True)
        (home / name / "run.json").write_text(text)
    (home / "no-run-json" / "checkpoints").mkdir(parents=True)
    (home / "a-folder" / "run.json").mkdir(parents=True)
    (home / "metrics-only").mkdir()
    (home / "metrics-only" / "metrics.jsonl").write_bytes(
        b'{"step": 1, "loss": 2}\nnonsense\n[]\n\xff\xfe\n{"loss": 1}\n'
    )
    return [*contents, "no-run-json", "a-folder", "metrics-only"]


# ---------------------------------------------------------------------------------------------------- list


@pytest.mark.quick
def test_runs_are_listed_the_newest_last(home, capsys):
    make(home, "b-new", started="2026-11-04 10:00:00")
    make(home, "c-old", status="failed", step=40)
    (home / "no-run").mkdir()
    assert call() == 0
    out, err = capsys.readouterr()
    head, first, second = out.splitlines()
    assert head.split()[:2] == ["ID", "STATUS"] and not err
    assert first.startswith("c-old") and "failed" in first and "40 / 100" in first
    for word in ("b-new", "done", "classify", "bert-tiny", "reviews.csv", "100 / 100", "accuracy 0.9000", "1.5"):
        assert word in second
    assert call(str(home), "--quiet") == 0
    assert capsys.readouterr().out.split() == ["c-old", "b-new"]


def test_json_is_strict(home, capsys):
    make(home, "a", best={"metric": "loss", "value": math.nan}, seconds=math.inf)
    damage(home)
    assert call("--json") == 0

    def refuse(word: str) -> None:
        raise AssertionError(word)

    listed = json.loads(capsys.readouterr().out, parse_constant=refuse)
    by_id = {run["id"]: run for run in listed}
    assert by_id["a"]["metric"] == "loss" and by_id["a"]["value"] is None and by_id["a"]["total"] == 100
    assert by_id["cut"]["status"] == "damaged" and "not JSON" in by_id["cut"]["problem"]


def test_no_runs_is_no_error_but_a_wrong_folder_is(home, capsys):
    assert call() == 0
    assert capsys.readouterr() == ("", "no runs in runs; anyformer train FILE makes one\n")
    assert call("--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert call("--folder", "nowhere") == 2
    assert "nowhere" in capsys.readouterr().err


def test_damaged_folders_are_listed_and_nothing_crashes(home, capsys):
    names = damage(home)
    make(home, "whole")
    assert call() == 0
    out = capsys.readouterr().out
    assert {line.split()[0] for line in out.splitlines()[1:]} == {*names, "whole"}
    assert out.count("damaged") >= 8
    for name in names:
        for action in ("show", "watch"):
            assert call(action, name) == 0, (name, action)
        assert call("compare", name, "whole") == 0
        assert call("tensorboard", name, "logs") == (0 if name == "metrics-only" else 2)
    assert "Traceback" not in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------- which run


def test_a_run_is_found_by_its_beginning_or_a_part(home, capsys):
    make(home, "2026-11-03_1-gpt2-3f9a1c")
    make(home, "2026-11-04_1-gpt2-77b02e")
    for name in ("2026-11-03", "3f9a1c", "runs/2026-11-03_1-gpt2-3f9a1c", "2026-11-03_1-gpt2-3f9a1c"):
        assert find_run(home, name).id == "2026-11-03_1-gpt2-3f9a1c"
    with pytest.raises(UserError, match="2 runs are called"):
        find_run(home, "2026")
    make(home, "2026")
    assert find_run(home, "2026").id == "2026"  # a whole name is never too short
    assert call("show", "2026-11-04_1-gtp2-77b02e") == 2
    err = capsys.readouterr().err
    assert "did you mean '2026-11-04_1-gpt2-77b02e'?" in err and len(err.splitlines()) == 1
    assert call("shw", "x") == 2
    assert "did you mean 'show'?" in capsys.readouterr().err
    for words in (["show"], ["compare", "2026"], ["tensorboard", "2026"], ["show", "a", "b"]):
        assert call(*words) == 2
        assert "write: anyformer runs" in capsys.readouterr().err


def test_a_running_run_is_believed_only_while_its_process_lives(home):
    run = make(home, "mine", status="running", pid=os.getpid())
    assert open_run(run).status == "running"
    assert open_run(make(home, "gone", status="running")).status == STOPPED
    assert open_run(make(home, "none", status="running", pid=None)).status == STOPPED
    assert open_run(make(home, "far", status="running", host="elsewhere")).status == "running (elsewhere)"
    if Path("/proc/self/stat").exists():
        # The number was given to another process since: what wrote the file must be older than the file.
        os.utime(run / "run.json", (1e9, 1e9))
        assert open_run(run).status == STOPPED


def test_a_running_run_is_as_far_as_its_metrics(home):
    assert open_run(make(home, "a", status="running", pid=os.getpid(), step=50)).step == 100
    assert open_run(make(home, "b", step=50)).step == 50
    run = make(home, "c", status="running", step=None)
    with (run / "metrics.jsonl").open("a") as file:
        file.write("nonsense\n" + '{"step": 110, "lo')
    assert open_run(run).step == 100


def test_a_killed_process_that_nobody_waited_for_is_gone(home):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    run = make(home, "r", status="running", pid=child.pid)
    assert open_run(run).status == "running"
    child.kill()
    deadline = time.monotonic() + 10
    while open_run(run).status == "running" and time.monotonic() < deadline:
        time.sleep(0.02)
    status = open_run(run).status  # a zombie as yet
    child.wait()
    child.stdin.close()
    assert status == STOPPED


# ---------------------------------------------------------------------------------------------------- show, compare


def test_show_tells_the_facts_and_draws_the_curve(home, capsys):
    make(home, "a", status="interrupted", reason="Ctrl-C\x1b[2J")
    assert call("show", "a") == 0
    out = capsys.readouterr().out
    for word in ("interrupted", "Ctrl-C", "reviews.csv", "at step 100: loss", "1 min 30 s", "●", "▀", "step 100"):
        assert word in out
    assert "resume with: anyformer resume runs/a" in out and "\x1b" not in out
    assert call("a") == 0  # the name alone
    assert capsys.readouterr().out == out
    assert call("show", "a", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["evaluations"]["valid"]["step"] == 100 and shown["last"]["step"] == 100


def test_compare_is_a_table_the_differences_and_one_plot(home, capsys):
    make(home, "a")
    make(home, "b", steps=200, total=200, pace=90)
    assert call("compare", "a", "b") == 0
    out = capsys.readouterr().out
    assert "training.batch_size" in out and "training.seed" not in out and "valid loss" in out and "\x1b" not in out
    plot = out[out.index("valid loss") :].splitlines()[1:-1]
    assert any("1" in line.split("|")[-1] for line in plot) and any("2" in line.split("|")[-1] for line in plot)
    assert call("compare", "a", "b", "--json") == 0
    assert [run["settings"]["training.batch_size"] for run in json.loads(capsys.readouterr().out)] == [100, 200]
    assert differences([{"a": 1}, {"a": 1}]) == {}


# ---------------------------------------------------------------------------------------------------- growing files


def test_a_follower_reads_only_what_is_new_and_whole(tmp_path):
    path = tmp_path / "metrics.jsonl"
    follower = Follower(path)
    assert follower.read() == []
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    assert follower.read() == [{"step": 1}] and follower.offset == 12
    with path.open("a") as file:
        file.write('ss": 3}\nnonsense\n{"step": 3}\n')
    assert follower.read() == [{"step": 2, "loss": 3}, {"step": 3}] and follower.bad == 1
    assert follower.read() == []
    path.write_text('{"step": 1}\n')  # cut back and written anew
    assert follower.read() == [{"step": 1}]
    other = tmp_path / "other"
    other.write_text('{"step": 1}\n{"step": 9}\n')
    os.replace(other, path)  # another file under the same name, longer than the old one
    assert follower.read() == [{"step": 1}, {"step": 9}]


def test_a_resumed_run_replaces_what_it_did_again():
    past = History()
    first = [{"step": s, "loss": float(s)} for s in (10, 20, 30)]
    past.add([*first, {"step": 30, "eval": {"split": "valid", "loss": 7.0}}])
    past.add([{"step": 20, "loss": 99.0}, {"step": 20, "eval": {"split": "valid", "loss": 8.0}}])
    assert past.curve("loss") == [(10, 10.0), (20, 99.0)] and past.curve("loss", "valid") == [(20, 8.0)]


def test_a_replay_knows_what_the_display_shows(home):
    folder = make(home, "a", status="running", pid=os.getpid(), steps=50)
    (folder / "speed.jsonl").write_text(
        "".join(json.dumps({"step": s, "seconds": 2.0, "tokens_per_s": 500.0, "wait": 0.1}) + "\n" for s in (20, 50))
    )
    (folder / "samples").mkdir()
    (folder / "samples" / "step-000050.txt").write_text("Once upon")
    replay = Replay(open_run(folder))
    assert replay.read() == 6 and replay.read() == 0
    now = replay.progress.snapshot()
    assert (now.step, now.total, now.unit, now.per_second) == (50, 100, "tokens", 500.0)
    assert now.step_seconds == 2.0 and now.left == pytest.approx(100.0) and now.wait == pytest.approx(0.1)
    assert now.sample == (50, "Once upon") and now.metrics["accuracy"] == 0.9


@pytest.mark.quick
def test_watch_follows_a_growing_file_until_the_run_ends(home, capsys):
    folder = make(home, "a", steps=20, status="running", pid=os.getpid())

    def train() -> None:
        for step in range(30, 60, 10):
            time.sleep(0.1)
            with (folder / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"step": step, "loss": 1.0}) + "\n")
                file.flush()
                time.sleep(0.02)
                file.write(json.dumps({"step": step, "eval": {"split": "valid", "loss": step / 100}}) + "\n")
        facts = json.loads((folder / "run.json").read_text())
        (folder / "part").write_text(json.dumps(facts | {"status": "done"}))
        os.replace(folder / "part", folder / "run.json")

    trainer = threading.Thread(target=train)
    trainer.start()
    assert call("watch", "a", "--every", "0.05") == 0
    trainer.join()
    out = capsys.readouterr().out
    assert all(f"validation: loss {step / 100:.4f}" in out for step in (30, 40, 50))
    assert out.splitlines()[-1] == "a: done, step 50" and "\x1b" not in out


def test_ctrl_c_ends_the_watching_only(home, capsys, monkeypatch):
    make(home, "a", status="running", pid=os.getpid())

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    assert call("watch", "a") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "a: still running, step 100"


# ---------------------------------------------------------------------------------------------------- manners


def test_the_verb_has_help_with_an_example(capsys):
    assert call("--help") == 0
    out = capsys.readouterr().out
    assert "Example:" in out and "anyformer runs compare" in out


def test_listing_does_not_import_torch(home):
    make(home, "a")
    code = (
        "import sys\nfrom anyformer.commands.runs import runs\nassert 'rich' not in sys.modules\n"
        "runs(['show', 'a'], folder=__import__('pathlib').Path('runs'), every=1.0, as_json=False, quiet=False)\n"
        "assert 'torch' not in sys.modules and 'anyformer.training.run.folder' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
