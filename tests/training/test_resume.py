"""Training never loses work: killed, stopped or started twice, a run ends in the bits of one that never was.

Every run here is a real process of the command line (see nursery.py) and every kill a real SIGKILL, 8 in all; the
whole matrix is in prove_resume.py.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from anyformer import faults
from anyformer.checkpoints import store
from anyformer.training.run.folder import RunFolder
from tests.training.nursery import Child, Nursery
from tests.training.tiny import CASES, STEPS, Case, differing, logged_lines, resume, steps_of, write_data

KILLED = -signal.SIGKILL


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_data(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Path:
    """A finished run on the table that nobody stopped; tests look at it and copy it, nothing more."""
    where = tmp_path_factory.mktemp("table")
    write_data(where)
    expect(nursery, CASES["table"].train("whole"), where, 0)
    return where / "whole"


def expect(nursery: Nursery, words: list[str], where: Path, code: int, fault: str = "") -> str:
    """Run a command line to its end; its output, if the exit code is the expected one."""
    found, said = nursery.run(words, where, fault)
    assert found == code, f"exit {found}, not {code}, of {words[:2]} with {fault or 'no fault'}:\n{said}"
    assert "Traceback" not in said
    return said


def logged(run: Path) -> list[int]:
    """The steps of metrics.jsonl."""
    return [line["step"] for line in logged_lines(run)]


def change(run: Path, name: str, value: object) -> None:
    """Edit a line of config.yaml, as a person would."""
    path = run / "config.yaml"
    text, count = re.subn(rf"(?m)^(  {name}:) .*$", rf"\1 {value}", path.read_text())
    assert count == 1
    path.write_text(text)


# ---------------------------------------------------------------- kills


def test_text_killed_three_times_in_an_epoch_and_at_its_end(place: Path, nursery: Nursery, cells: Counter) -> None:
    """Accumulation of 3, dropout. An epoch has 6 steps of 3 parts; the fourth kill is in its last step's save."""
    expect(nursery, CASES["text"].train("whole"), place, 0)
    run = place / "run"
    expect(nursery, CASES["text"].train("run"), place, KILLED, "kill@step:5")  # in step 2: nothing is saved yet
    assert steps_of(run) == [] and logged(run) == [1]
    expect(nursery, resume("run"), place, KILLED, "kill@step:12")  # the last part of step 4
    assert steps_of(run) == [3]
    expect(nursery, resume("run"), place, KILLED, "kill@step:5")  # two steps on from step 3, counted from the resume
    expect(nursery, resume("run"), place, KILLED, "kill@renamed:1")  # of step 6: the epoch is over
    assert steps_of(run)[-1] == 6
    change(run, "workers", 2)
    said = expect(nursery, resume("run"), place, 0)
    assert "from step 6 of 12" in said
    assert logged(run) == list(range(1, STEPS + 1))
    assert differing(place / "whole", run) == []
    cells["resume", "run"] += 1
    cells["resume", "kills"] += 4


def test_image_killed_at_random_and_during_the_resume(place: Path, nursery: Nursery, cells: Counter) -> None:
    """Two workers, augmentation, blended images, dropout, drop path, a running mean of the weights."""
    expect(nursery, CASES["image"].train("whole"), place, 0)
    run, chance = place / "run", random.Random(4)
    child = nursery.start(CASES["image"].train("run"), place)
    child.until(lambda: (run / "metrics.jsonl").is_file())
    time.sleep(chance.uniform(0, 0.3))
    child.send(signal.SIGKILL)
    assert child.wait() == KILLED  # and its workers are still there: they must not keep the next process out
    child = nursery.start(resume("run"), place)
    time.sleep(chance.uniform(0.05, 0.4))
    child.send(signal.SIGKILL)
    child.wait()
    change(run, "workers", 0)
    expect(nursery, resume("run"), place, 0)
    assert differing(place / "whole", run) == []
    cells["resume", "run"] += 1
    cells["resume", "kills"] += 2


def test_table_killed_when_its_folder_appears(place: Path, table: Path, nursery: Nursery, cells: Counter) -> None:
    run = place / "run"
    child = nursery.start(CASES["table"].train("run"), place)
    child.until(run.is_dir)
    child.send(signal.SIGKILL)
    assert child.wait() == KILLED
    assert steps_of(run) == []
    expect(nursery, resume("run"), place, KILLED, "kill@deleted:1")
    assert any(path.name.startswith(store.GONE) for path in (run / "checkpoints").iterdir())
    expect(nursery, resume("run"), place, 0)
    assert differing(table, run) == []
    assert not [path for path in run.rglob(".*") if path.name != ".lock"]  # nothing half done is left
    cells["resume", "run"] += 1
    cells["resume", "kills"] += 2


def test_a_forked_run_has_the_bits_of_a_started_one(place: Path, table: Path) -> None:
    """What the nursery saves is time and nothing else; this is the line a person types."""
    words = [sys.executable, "-m", "anyformer.cli", *CASES["table"].train("run")]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=place, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert differing(table, place / "run") == []


def test_another_seed_would_be_seen(place: Path, table: Path, nursery: Nursery) -> None:
    """The control: the comparison goes red for a run that differs in its randomness alone."""
    expect(nursery, CASES["table"].train("other", training__seed=1, training__steps=3), place, 0)
    found = differing(table, place / "other")
    assert "metrics.jsonl" in found and "checkpoints/step-000003/model.safetensors" in found


def test_losing_the_optimizer_would_be_seen(table: Path, place: Path, nursery: Nursery) -> None:
    """The control: a checkpoint whose optimizer forgot its averages resumes into other bits."""
    import torch

    from anyformer.checkpoints import tensors

    expect(nursery, CASES["table"].train("run"), place, KILLED, "kill@step:25")
    whole = max((place / "run" / "checkpoints").glob("step-*"))
    memory = {name: entry.read() for name, entry in tensors.read_folder(whole, stem="optim").items()}
    tensors.write(whole / "optim.safetensors", {n: torch.zeros_like(v) if "avg" in n else v for n, v in memory.items()})
    manifest = json.loads((whole / store.MANIFEST).read_text())
    manifest["files"]["optim.safetensors"] = store.sealed(whole / "optim.safetensors")
    (whole / store.MANIFEST).write_text(store.render_manifest(manifest))
    expect(nursery, resume("run"), place, 0)
    assert "metrics.jsonl" in differing(table, place / "run")


# ---------------------------------------------------------------- stops


@pytest.mark.parametrize(("fault", "code"), [("term", 143), ("int", 130)])
def test_asked_to_stop_it_saves_where_it_is(fault: str, code: int, place: Path, nursery: Nursery) -> None:
    """The stop's own checkpoint leaves no trace: the mean of the last two is that of a run nobody stopped."""
    case = CASES["table"]
    unheld = {"data__split__valid": 0, "training__patience": "null"}  # no rows validate, so nothing can be waited for
    expect(nursery, case.train("whole", **unheld), place, 0)
    began = time.monotonic()
    said = expect(nursery, case.train("run", **unheld), place, code, f"{fault}@step:31")  # in step 11
    assert time.monotonic() - began < 30
    assert "stopped at step 11 of 12; saved" in said and "anyformer resume run" in said
    assert steps_of(place / "run") == [6, 9, 11]
    assert json.loads((place / "run" / "run.json").read_text())["status"] == "interrupted"
    expect(nursery, resume("run"), place, 0)
    assert (place / "run" / "averaged" / "model.safetensors").is_file()
    assert differing(place / "whole", place / "run") == []
    assert steps_of(place / "run") == [9, 12]


def stopped(nursery: Nursery, child: Child, run: Path, numbers: list[int]) -> int:
    """Signals to the whole group while it trains, as a terminal or a batch system sends them."""
    child.until(lambda: (run / "metrics.jsonl").is_file() and len(logged(run)) >= 4)
    for number in numbers:
        child.send(number, group=True)
        time.sleep(0.01)
    return child.wait()


def test_a_signal_to_the_whole_group_does_not_fail_on_its_workers(place: Path, nursery: Nursery) -> None:
    case, run = CASES["image"], place / "run"
    words = case.train("run", training__steps=2000, training__eval_every=2000, training__save_every=2000)
    child = nursery.start(words, place)
    assert stopped(nursery, child, run, [signal.SIGTERM]) == 143, child.output
    assert "Traceback" not in child.output and "stopped at step" in child.output
    (step,) = steps_of(run)
    assert step == logged(run)[-1]


def test_a_second_request_stops_at_once(place: Path, nursery: Nursery) -> None:
    """Both come within one step, so the second comes before the first could be heard."""
    run, case = place / "run", CASES["table"]
    said = expect(nursery, case.train("run"), place, 130, "int@step:22,int@gradients:8")  # both in step 8
    assert "stopped at once" in said and steps_of(run) == [3, 4, 6]
    assert all(not store.problem(path) for _, path in store.committed(run / "checkpoints"))
    expect(nursery, resume("run"), place, 0)


# ---------------------------------------------------------------- who may go on, and where


def test_a_complete_run_says_so(table: Path, nursery: Nursery) -> None:
    before = {path: path.read_bytes() for path in table.rglob("*") if path.is_file()}
    said = expect(nursery, resume("whole"), table.parent, 0)
    assert "the run is complete: 12 steps" in said
    assert {path: path.read_bytes() for path in table.rglob("*") if path.is_file()} == before


# How often the point is reached, and the checkpoint that is there then; the best ones are of steps 4 and 8.
@pytest.mark.parametrize(("point", "count", "newest"), [
    ("settled", 1, None), ("evaluated", 3, 9), ("saved", 6, 12), ("scored", 1, 12), ("finished", 1, 12),
])  # fmt: skip
def test_killed_around_the_steps_it_is_finished_up(
    point: str, count: int, newest: int | None, place: Path, table: Path, nursery: Nursery
) -> None:
    run = place / "run"
    expect(nursery, CASES["table"].train("run"), place, KILLED, f"kill@{point}:{count}")
    assert (steps_of(run) or [None])[-1] == newest
    expect(nursery, resume("run"), place, 0)
    assert (run / "report.html").is_file() and differing(table, run) == []
    ours, theirs = (json.loads((folder / "run.json").read_text()) for folder in (run, table))
    assert all(ours[name] == theirs[name] for name in ("status", "step", "best_step", "best", "metrics"))


@pytest.mark.parametrize(("point", "newest"), [("evaluated", None), ("saved", 0)])
def test_a_forecast_killed_at_step_0_begins_at_the_same_linear_map(
    point: str, newest: int | None, place: Path, nursery: Nursery
) -> None:
    """What the rows gave without a step is judged and saved before the first one."""
    values = "".join(f"{at},{(at * at) % 37 + at % 5}\n" for at in range(160))
    (place / "series.csv").write_text("t,x\n" + values)
    case = Case(("series.csv",), {"training.batch_size": 24, "data.series.look_back": 24, "data.series.horizon": 4})
    expect(nursery, case.train("whole"), place, 0)
    expect(nursery, case.train("run"), place, KILLED, f"kill@{point}:1")
    assert (steps_of(place / "run") or [None])[-1] == newest
    expect(nursery, resume("run"), place, 0)
    assert differing(place / "whole", place / "run") == []
    lines = [json.loads(line) for line in (place / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines].count(0) == 1


def test_stopped_early_and_killed_it_does_not_train_on(place: Path, nursery: Nursery) -> None:
    case = CASES["table"]
    early = {"training__patience": 0.5, "training__eval_every": 1, "training__optimizer__lr": 1e-30}
    expect(nursery, case.train("whole", **early), place, 0)
    assert logged(place / "whole")[-1] == 4
    expect(nursery, case.train("run", **early), place, KILLED, "kill@saved:3")
    assert steps_of(place / "run")[-1] == 4
    expect(nursery, resume("run"), place, 0)
    assert differing(place / "whole", place / "run") == []


def test_a_second_run_never_overwrites(table: Path, nursery: Nursery) -> None:
    before = (table / "metrics.jsonl").read_bytes()
    said = expect(nursery, CASES["table"].train("whole"), table.parent, 2)
    assert said.count("error:") == 1 and "anyformer resume whole" in said
    assert (table / "metrics.jsonl").read_bytes() == before


def test_two_at_once_are_refused(place: Path, nursery: Nursery) -> None:
    case, run = CASES["table"], place / "run"
    child = nursery.start(case.train("run", training__steps=5000, training__eval_every=5000), place)
    child.until(lambda: (run / "metrics.jsonl").is_file())
    said = expect(nursery, resume("run"), place, 2)
    assert "another process is training here" in said and said.count("error:") == 1
    assert child.ended() is None
    child.send(signal.SIGKILL)
    child.wait()


def test_killed_before_its_folder_is_there_nothing_is_left_for_long(place: Path, nursery: Nursery) -> None:
    """The data is prepared under another name; the next training beside it clears that away, but not a living one's."""
    child = nursery.start(CASES["table"].train("run"), place)
    child.until(lambda: any(path.name.startswith(".new-run") for path in place.iterdir()) or (place / "run").is_dir())
    child.send(signal.SIGKILL)
    child.wait()
    alive = place / ".new-other-12345678"
    alive.mkdir()
    held = RunFolder(alive)
    held.lock()
    expect(nursery, CASES["table"].train("next", training__steps=1), place, 0)
    held.unlock()
    assert [path.name for path in place.glob(".new-*") if (path / ".lock").is_file()] == [alive.name]


def test_a_worker_that_was_killed_is_said(place: Path, nursery: Nursery) -> None:
    run = place / "run"
    # Not compiled: on a busy machine 5,000 steps are planned to take minutes, and compiling has processes of its own.
    words = CASES["image"].train("run", training__steps=5000, training__eval_every=5000, training__compile=False)
    child = nursery.start(words, place)
    child.until(lambda: (run / "metrics.jsonl").is_file() and len(logged(run)) >= 4)
    listed = Path(f"/proc/{child.pid}/task/{child.pid}/children")
    if not listed.is_file():
        pytest.skip("this system does not list the children of a process")
    os.kill(int(listed.read_text().split()[0]), signal.SIGKILL)
    assert child.wait() == 4, child.output
    assert "a process that makes batches was killed" in child.output and child.output.count("error:") == 1
    assert steps_of(run) and not store.problem(run / "checkpoints" / store.checkpoint_name(steps_of(run)[-1]))


def test_a_damaged_newest_checkpoint_is_passed_over(place: Path, table: Path, nursery: Nursery) -> None:
    run = place / "run"
    expect(nursery, CASES["table"].train("run"), place, KILLED, "kill@step:32")
    assert steps_of(run)[-2:] == [8, 9]
    path = run / "checkpoints" / "step-000009" / "optim.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    said = expect(nursery, resume("run"), place, 0)
    assert "step-000009: optim.safetensors has changed" in said and "from step 8 of 12" in said
    assert differing(table, run) == []


def test_what_changed_is_announced_or_refused(place: Path, nursery: Nursery) -> None:
    """Machine and threads may change the last bits; any other setting makes it another run."""
    run = place / "run"
    expect(nursery, CASES["table"].train("run"), place, KILLED, "kill@saved:1")
    facts = json.loads((run / "env.json").read_text())
    (run / "env.json").write_text(json.dumps(facts | {"processor": "abacus"}))
    change(run, "threads", 2)
    said = expect(nursery, resume("run"), place, KILLED, "kill@saved:1")
    assert "threads is 2, was 1: the rest may differ in the last bits" in said
    assert "was abacus" in said
    change(run, "grad_clip", 7.0)
    said = expect(nursery, resume("run"), place, 2)
    assert "training.grad_clip is 7.0, was 1.0 at step" in said and said.count("error:") == 1
    change(run, "grad_clip", 1.0)
    said = expect(nursery, resume("run"), place, KILLED, "kill@saved:1")
    assert "may differ" not in said


# ---------------------------------------------------------------- disks, memory, other precisions


@pytest.mark.parametrize(("fault", "words"), [
    ("enospc@manifest:2", "No space left on device"), ("eio@weights:3", "Input/output error"),
])  # fmt: skip
def test_a_bad_disk_ends_with_4_and_the_run_goes_on(
    fault: str, words: str, place: Path, table: Path, nursery: Nursery
) -> None:
    said = expect(nursery, CASES["table"].train("run"), place, 4, fault)
    assert said.count("error:") == 1 and words in said
    assert re.search(r"run/checkpoints: could not be written .*: about [\d,]+ bytes needed, [\d,]+ bytes free", said)
    assert all(not store.problem(path) for _, path in store.committed(place / "run" / "checkpoints"))
    expect(nursery, resume("run"), place, 0)
    assert differing(table, place / "run") == []


def test_out_of_memory_names_three_ways_down(place: Path, nursery: Nursery) -> None:
    said = expect(nursery, CASES["text"].train("run"), place, 4, "oom@step:14")
    error = next(line for line in said.splitlines() if line.startswith("error:"))
    assert "step 5: out of memory with batch 4 x length 24" in error and "training.micro_batch_size=2" in error
    assert [line.strip() for line in said.splitlines() if line.startswith("  or ")][:3] == [
        "or --set data.tokenizer.max_length=12", "or --set training.precision=bf16", "or a smaller --preset",
    ]  # fmt: skip
    assert steps_of(place / "run") == [3] and logged(place / "run") == [1, 2, 3, 4]


@pytest.mark.parametrize(("precision", "case"), [("bf16", "text"), ("fp16", "table")])
def test_half_precision_resumes_to_the_bit(precision: str, case: str, place: Path, nursery: Nursery) -> None:
    """fp16 meets an overflow before the save, so that its scale is not the first one."""
    other = {"training__precision": precision, "training__workers": 0, "training__steps": 6}
    bad = "nan-gradient@gradients:2" if precision == "fp16" else ""
    expect(nursery, CASES[case].train("whole", **other), place, 0, bad)
    expect(nursery, CASES[case].train("run", **other), place, KILLED, ",".join(filter(None, [bad, "kill@step:14"])))
    expect(nursery, resume("run"), place, 0)
    assert differing(place / "whole", place / "run") == []
    if precision == "fp16":
        state = json.loads((place / "run" / "checkpoints" / "step-000006" / "state.json").read_text())
        assert state["engine"]["scaler"]["scale"] == 2.0**15


def test_every_fault_point_is_known_here() -> None:
    """A new point without a test of its own fails here."""
    known = Path(__file__).read_text()
    untried = [point for point in faults.POINTS if f"@{point}" not in known and f'"{point}"' not in known]
    assert set(untried) <= set(faults.SAVING)  # those are tried in test_store.py, each
