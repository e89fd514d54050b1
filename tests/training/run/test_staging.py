"""The folder of a run before it has its name: trainings under one parent leave each other's alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from anyformer.safe_files import hold_lock
from anyformer.training.run.folder import LOCK_FILE
from anyformer.training.setup.staging import claim_new, sweep_new
from tests.cli.trying import refused, run, tree
from tests.training.tiny import CASES, write_data

LOOPS, WORKERS = 150, 4
LOOP = """
import shutil, sys
from pathlib import Path
from anyformer.training.setup.staging import claim_new, sweep_new
parent, me = Path(sys.argv[1]), sys.argv[2]
for number in range(int(sys.argv[3])):
    folder = claim_new(parent)
    (folder.path / "held").write_text(me)
    sweep_new(parent)
    assert (folder.path / "held").read_text() == me, "a held folder was swept"
    final = parent / f"run-{me}-{number}"
    folder.path.rename(final)
    folder.unlock()
    assert (final / "held").read_text() == me, "a finished folder was swept"
    shutil.rmtree(final)
"""
HOLDING = """
import sys, time
from pathlib import Path
from anyformer.training.setup.staging import claim_new
print(claim_new(Path(sys.argv[1])).path, flush=True)
time.sleep(600)
"""


def test_trainings_under_one_parent_never_sweep_what_another_holds(tmp_path):
    started = [
        subprocess.Popen(
            [sys.executable, "-c", LOOP, str(tmp_path), str(me), str(LOOPS)], stderr=subprocess.PIPE, text=True
        )
        for me in range(WORKERS)
    ]
    for process in started:
        _, said = process.communicate(timeout=240)
        assert process.returncode == 0, said[-2000:]
    assert not list(tmp_path.iterdir())


def test_what_a_killed_training_left_is_swept_and_a_living_one_keeps_its_folder(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDING, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        held = Path(other.stdout.readline().strip())
        sweep_new(tmp_path)
        assert held.is_dir()
        other.send_signal(signal.SIGKILL)
        other.wait()
        sweep_new(tmp_path)
        assert not held.exists()


def test_a_folder_swept_between_its_making_and_its_lock_is_made_again(tmp_path, monkeypatch):
    """The narrow moment, made wide: a sweeper comes between the making of the lock file and the lock."""
    taken: list[Path] = []

    def late(handle: int) -> bool:
        if not taken:
            taken.extend(tmp_path.glob(".new-*"))
            sweep_new(tmp_path)
        return hold_lock(handle)

    monkeypatch.setattr("anyformer.training.run.folder.hold_lock", late)
    folder = claim_new(tmp_path)
    assert taken and not taken[0].exists() and folder.path != taken[0] and (folder.path / LOCK_FILE).is_file()
    folder.unlock()


# ---------------------------------------------------------------- places where no run can be made


@pytest.fixture
def place(tmp_path) -> Path:
    write_data(tmp_path)
    return tmp_path


def train(place: Path, out: Path | str) -> list[str]:
    words = CASES["table"].train(str(out), training__steps=2, training__workers=0, training__average=0)
    return [str(place / word) if word == "table.csv" else word for word in words]


def dangling(place: Path) -> Path:
    (place / "out").symlink_to(place / "nothing")
    return place / "out"


def looping(place: Path) -> Path:
    (place / "out").symlink_to(place / "out")
    return place / "out"


def too_long(place: Path) -> Path:
    return place / ("n" * 256)


def much_too_long(place: Path) -> Path:
    return place.joinpath(*["n" * 200] * 30)


def not_utf8(place: Path) -> Path:
    return place / os.fsdecode(b"caf\xe9")


def below_a_file(place: Path) -> Path:
    return place / "table.csv" / "run"


def a_file(place: Path) -> Path:
    return place / "table.csv"


def link_to_a_file(place: Path) -> Path:
    (place / "out").symlink_to(place / "table.csv")
    return place / "out"


def a_mount_point(place: Path) -> Path:
    return Path("/proc/sys/fs/binfmt_misc") if os.path.ismount("/proc/sys/fs/binfmt_misc") else Path("/dev/shm")


PLACES = [dangling, looping, too_long, much_too_long, not_utf8, below_a_file, a_file, link_to_a_file, a_mount_point]


@pytest.mark.parametrize("make", PLACES)
def test_a_place_where_no_run_can_be_made_is_refused_before_the_data_is_read(place, make, monkeypatch):
    out = make(place)
    before = tree(place)
    monkeypatch.setattr("anyformer.training.setup.resolve.prepare", None)  # reading the data would be an error of ours
    line = refused(run(*train(place, out)), before, place, slowest=30)
    assert "--out" in line


@pytest.mark.parametrize("kind", ["empty folder", "link to an empty folder", "name of 255 bytes"])
def test_a_run_is_made_where_somebody_would_expect_it(place, kind):
    out = place / ("n" * 255 if kind.startswith("name") else "out")
    if kind == "empty folder":
        out.mkdir()
    if kind.startswith("link"):
        (place / "elsewhere").mkdir()
        out.symlink_to(place / "elsewhere")
    said = run(*train(place, out))
    assert said.code == 0, said.err[-2000:]
    assert (out / "run.json").is_file() and out.is_symlink() == kind.startswith("link")
    assert not list(place.glob(".new-*"))
    assert run("predict", out, place / "table.csv", "-o", place / ("p" * 251 + ".csv")).code == 0
    before = tree(place)
    refused(run("predict", out, place / "table.csv", "-o", place / ("p" * 252 + ".csv")), before, place, slowest=30)
    refused(run("predict", out, place / "table.csv", "-o", place), before, place, slowest=30)
