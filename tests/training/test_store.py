"""Checkpoints are there whole or not at all: under kills, on bad disks, among other people's files."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anyformer import faults
from anyformer.checkpoints import store, tensors
from anyformer.errors import NoRoom, UserError
from anyformer.training.run.folder import RunFolder, release_locks
from tests.training.nursery import Nursery

HERE = "tests.training.test_store"


@pytest.fixture(autouse=True)
def unarmed() -> Iterator[None]:
    yield
    faults.arm("")


def save(parent: Path, step: int, size: int = 64) -> Path:
    """A small checkpoint; every value of it says which step it is of."""
    values = {"a": torch.full((size,), float(step)), "b": torch.full((2, size), float(step))}
    writers: list[store.Writer] = [
        ("weights", lambda folder: tensors.write(folder / "model.safetensors", values)),
        ("optimizer", lambda folder: tensors.write(folder / "optim.safetensors", values)),
        ("state", lambda folder: (folder / "state.json").write_text(json.dumps({"step": step}))),
    ]
    return store.commit(parent, store.checkpoint_name(step), writers, {"step": step}, needed=size * 4)


def steps(parent: Path) -> list[int]:
    """The steps that are whole, in order; all their values are of one step."""
    found = [step for step, path in store.committed(parent) if not store.problem(path)]
    for step, path in store.committed(parent):
        if step in found:
            for name in ("model", "optim"):
                for entry in tensors.read_folder(path, stem=name).values():
                    assert (entry.read() == step).all()
    return sorted(found)


def others(parent: Path) -> dict[str, str]:
    """Files and folders that are not ours, to be found untouched."""
    held = {"notes.txt": "mine", "step-best/manifest.json": '{"step": 7}', ".tmpfile": "x", "step-000002-copy/a": "b",
            "old/step-000001/manifest.json": '{"step": 1}'}  # fmt: skip
    for name, text in held.items():
        (parent / name).parent.mkdir(parents=True, exist_ok=True)
        (parent / name).write_text(text)
    return held


def untouched(parent: Path, held: dict[str, str]) -> bool:
    return all((parent / name).is_file() and (parent / name).read_text() == text for name, text in held.items())


# ---------------------------------------------------------------- kills


def save_and_die(parent: str, fault: str) -> int:
    """In a process of its own: saves steps 1 to 4, keeping 2, until the fault kills it."""
    faults.arm(fault)
    for step in range(1, 5):
        save(Path(parent), step)
        store.rotate(Path(parent), 2)
    return 0


# At the second save (the first deletion for those two): which steps must be whole afterwards.
AFTER = {
    "weights": [1], "optimizer": [1], "state": [1], "before-manifest": [1], "manifest": [1], "before-rename": [1],
    "renamed": [1, 2], "before-delete": [1, 2, 3], "deleted": [2, 3],
}  # fmt: skip


@pytest.mark.parametrize("point", faults.SAVING)
def test_kill_at_every_point_of_a_save(point: str, tmp_path: Path, nursery: Nursery) -> None:
    held = others(tmp_path)
    count = 1 if point in ("before-delete", "deleted") else 2
    code, said = nursery.run([str(tmp_path), f"kill@{point}:{count}"], tmp_path, call=f"{HERE}:save_and_die")
    assert code == -signal.SIGKILL, said
    assert steps(tmp_path) == AFTER[point]
    left = [path.name for path in tmp_path.iterdir() if path.name.startswith((store.PART, store.GONE))]
    assert bool(left) == (point not in ("renamed", "before-delete"))
    store.sweep(tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((store.PART, store.GONE))]
    assert untouched(tmp_path, held) and steps(tmp_path) == AFTER[point]
    newest = store.latest(tmp_path)
    assert newest is not None and newest[0] == AFTER[point][-1]
    # The next start saves on as if nothing had been.
    for step in range(newest[0] + 1, 6):
        save(tmp_path, step)
        store.rotate(tmp_path, 2)
    assert steps(tmp_path) == [4, 5]


@pytest.mark.quick
def test_every_point_of_a_save_is_tried() -> None:
    assert set(AFTER) == set(faults.SAVING)


def save_in_place(parent: str, fault: str) -> int:
    """The control: what a save without the protocol does, files written straight under the final name."""
    faults.arm(fault)
    for step in (1, 2):
        final = Path(parent) / store.checkpoint_name(step)
        final.mkdir()
        (final / store.MANIFEST).write_text(json.dumps({"step": step, "files": {}}))
        tensors.write(final / "model.safetensors", {"a": torch.full((64,), float(step))})
        faults.point("weights")
        tensors.write(final / "optim.safetensors", {"a": torch.full((64,), float(step))})
        faults.point("optimizer")
    return 0


def test_writing_in_place_would_be_torn(tmp_path: Path, nursery: Nursery) -> None:
    code, _ = nursery.run([str(tmp_path), "kill@weights:2"], tmp_path, call=f"{HERE}:save_in_place")
    assert code == -signal.SIGKILL
    newest = max(tmp_path.glob("step-*"))
    assert newest.name == "step-000002" and not (newest / "optim.safetensors").exists()  # what "latest by name" takes
    assert store.latest(tmp_path) is None  # and what verifying refuses


# ---------------------------------------------------------------- flips and cuts


def test_thousand_flips_and_cuts_are_refused(tmp_path: Path) -> None:
    whole = save(tmp_path, 1, size=16)
    (whole / "extra.txt").write_text("not in the manifest, so nobody reads it")
    names = [name for name in sorted(os.listdir(whole)) if name != "extra.txt"]
    chance = random.Random(0)
    refused = 0
    for trial in range(1000):
        path = whole / names[trial % len(names)]
        before = path.read_bytes()
        data = bytearray(before)
        if chance.random() < 0.7:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        else:
            del data[chance.randrange(len(data)) :]
        path.write_bytes(data)
        refused += bool(store.problem(whole)) and store.latest(tmp_path) is None and store.verified(whole) is None
        path.write_bytes(before)
    assert refused == 1000
    assert store.problem(whole) == ""


def test_a_manifest_without_its_own_seal_would_not_do(tmp_path: Path) -> None:
    """The control: hashes of the files alone let a changed step pass."""
    whole = save(tmp_path, 1)
    path = whole / store.MANIFEST
    text = path.read_text()
    files = json.loads(text)["files"]
    path.write_text(text.replace('"step": 1', '"step": 9'))
    assert all(store.digest(whole / name) == entry["sha256"] for name, entry in files.items())
    assert "manifest.json has changed" in store.problem(whole)


@pytest.mark.parametrize("text", [
    "", "[]", "null", "{}", '{"step": 1}', '{"step": true, "files": {"a": {}}}', '{"step": 1, "files": []}', "[" * 9999,
])  # fmt: skip
@pytest.mark.parametrize("sealed", [False, True])
def test_any_manifest_is_read_without_a_traceback(text: str, sealed: bool, tmp_path: Path) -> None:
    whole = save(tmp_path, 1)
    if sealed and text.startswith("{"):
        text = store.render_manifest(json.loads(text))
    (whole / store.MANIFEST).write_text(text)
    assert store.problem(whole) and store.latest(tmp_path) is None


def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    whole = save(tmp_path, 1)
    for name in ("../secret", "/etc/passwd", ".."):
        (whole / store.MANIFEST).write_text(
            store.render_manifest({"step": 1, "files": {name: {"bytes": 1, "sha256": ""}}})
        )
        assert store.problem(whole)


# ---------------------------------------------------------------- rotation

MOVES = st.lists(
    st.tuples(st.sampled_from(["save", "best", "clock", "stale", "foreign"]), st.integers(0, 40)),
    min_size=1, max_size=12,
)  # fmt: skip


@given(moves=MOVES, keep=st.integers(1, 4))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rotation_keeps_the_newest_by_step_and_the_best(
    moves: list[tuple[str, int]], keep: int, tmp_path: Path
) -> None:
    parent = tmp_path / "checkpoints"
    shutil.rmtree(parent, ignore_errors=True)
    parent.mkdir()
    held = others(parent)
    model: set[int] = set()
    best: int | None = None
    for what, number in moves:
        if what == "save" and number not in model:
            save(parent, number, size=1)
            model.add(number)
            wanted = set(sorted(model)[-keep:]) | ({best} if best is not None else set())
            gone = store.rotate(parent, keep, [] if best is None else [best])
            assert set(gone) == model - wanted
            model &= wanted
        elif what == "best" and model:
            best = sorted(model)[number % len(model)]
        elif what == "clock" and model:  # times of files say nothing
            os.utime(parent / store.checkpoint_name(sorted(model)[number % len(model)]), (number, number))
        elif what == "stale":
            (parent / f"{store.PART}step-{number:06}-dead").mkdir(exist_ok=True)
            (parent / f"step-{number + 100:06}").mkdir(exist_ok=True)  # without a manifest: not a checkpoint
        elif what == "foreign":
            held[f"step-{number}/manifest.json"] = '{"step": 1000000}'  # not a name of ours: too short
            (parent / f"step-{number}").mkdir(exist_ok=True)
            (parent / f"step-{number}" / "manifest.json").write_text('{"step": 1000000}')
        assert {step for step, _ in store.committed(parent)} == model
        assert untouched(parent, held)
    store.sweep(parent)
    assert untouched(parent, held) and {step for step, _ in store.committed(parent)} == model


def test_rotation_by_name_or_time_would_delete_the_wrong_one(tmp_path: Path) -> None:
    """The control: a clock that jumps back makes the newest checkpoint the oldest by time."""
    for step in (1, 2, 3):
        os.utime(save(tmp_path, step), (1000 - step, 1000 - step))
    by_time = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime)
    assert by_time[0].name == "step-000003"
    assert store.rotate(tmp_path, 2) == [1]


def test_damaged_ones_never_push_out_a_whole_one(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step)
    for step in (3, 4):
        (tmp_path / store.checkpoint_name(step) / "state.json").write_text("{")
    said: list[str] = []
    assert (store.latest(tmp_path, said.append) or (0,))[0] == 2
    assert len(said) == 2 and "step-000004: state.json has 1 bytes" in said[0]
    # Going on from 2, a stop saves 2 again as something else; counted with the damaged ones it would be deleted.
    assert store.rotate(tmp_path, 1, newest=2) == [1]
    assert steps(tmp_path) == [2]
    assert store.rotate(tmp_path, 1) == [3, 2]  # the control: without `newest` the only whole one goes


def test_a_stop_between_leaves_no_trace(tmp_path: Path) -> None:
    for step in (3, 6):
        save(tmp_path, step)
    save(tmp_path, 8)
    store.rotate(tmp_path, 2, newest=8, counts=lambda step: step % 3 == 0)
    assert steps(tmp_path) == [3, 6, 8]
    save(tmp_path, 9)
    store.rotate(tmp_path, 2, newest=9, counts=lambda step: step % 3 == 0)
    assert steps(tmp_path) == [6, 9]


def test_a_whole_checkpoint_is_never_replaced(tmp_path: Path) -> None:
    whole = save(tmp_path, 1)
    before = (whole / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match="there already"):
        save(tmp_path, 1, size=8)
    assert (whole / "model.safetensors").read_bytes() == before
    (whole / "state.json").unlink()
    save(tmp_path, 1)
    assert steps(tmp_path) == [1] and sorted(os.listdir(tmp_path)) == ["step-000001"]


# ---------------------------------------------------------------- disks


@pytest.mark.parametrize("fault", ["enospc", "eio"])
@pytest.mark.parametrize("point", faults.SAVING[:6])
def test_a_failing_disk_leaves_what_was_saved(fault: str, point: str, tmp_path: Path) -> None:
    save(tmp_path, 1)
    faults.arm(f"{fault}@{point}")
    with pytest.raises(NoRoom) as error:
        save(tmp_path, 2)
    message = str(error.value)
    assert error.value.exit_code == 4 and len(message) <= 300
    assert str(tmp_path) in message and "256 bytes needed" in message and "bytes free" in message
    assert steps(tmp_path) == [1] and sorted(os.listdir(tmp_path)) == ["step-000001"]


DISK = """
import subprocess, sys
from pathlib import Path
from tests.training.test_store import others, save, steps, untouched
from anyformer.checkpoints import store
from anyformer.errors import NoRoom
from anyformer.training.run.folder import RunFolder
where = Path(sys.argv[1])
def mount(*words):
    subprocess.run(["mount", *words, str(where)], check=True)
size, failed, done = 2**18, [], []
for kib in range(1024, 10 * 1024, 1024):  # a checkpoint is 6 MiB: fails at every megabyte until two of them fit
    mount("-t", "tmpfs", "-o", f"size={kib + 6400}k", "tmpfs")
    held = others(where)
    save(where, 1, size)
    try:
        save(where, 2, size)
        done.append(kib)
        assert steps(where) == [1, 2], kib
    except NoRoom as error:
        failed.append(kib)
        text = str(error)
        assert str(where) in text and f"{size * 4:,} bytes needed" in text and " bytes free" in text, text
        assert "No space left on device" in text and error.exit_code == 4
        assert steps(where) == [1], kib
    assert not [path for path in where.iterdir() if path.name.startswith((".tmp-", ".del-"))]
    assert untouched(where, held)
    subprocess.run(["umount", str(where)], check=True)
print("failed", failed, "done", done)
assert failed and done and failed == list(range(1024, 1024 * (len(failed) + 1), 1024))
mount("-t", "tmpfs", "-o", "size=64m", "tmpfs")
save(where, 1, 16)
mount("-o", "remount,ro")
for what in (lambda: save(where, 2, 16), lambda: RunFolder(where).lock(), lambda: RunFolder(where).write("a", "b"),
             lambda: RunFolder(where).append("m.jsonl", [{"step": 1}])):
    try:
        what()
        raise SystemExit("a read-only disk was written")
    except NoRoom as error:
        assert "Read-only file system" in str(error) and error.exit_code == 4, error
assert steps(where) == [1]
print("read-only said")
"""


def may_mount() -> bool:
    """Whether this machine lets a plain user mount a small disk in a namespace of its own."""
    words = ["unshare", "-Urm", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tempfile.gettempdir()]
    try:
        return subprocess.run(words, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@pytest.mark.skipif(not may_mount(), reason="unshare -Urm mount is not allowed here; the fault points stand in for it")
def test_a_full_and_a_read_only_disk(tmp_path: Path) -> None:
    """A real file system of a few megabytes, full at every megabyte of a save; then one that is read-only."""
    where = tmp_path / "disk"
    where.mkdir()
    done = subprocess.run(["unshare", "-Urm", sys.executable, "-c", DISK, str(where)], capture_output=True, text=True,
                          cwd=Path(__file__).parents[2], timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "read-only said" in done.stdout


# ---------------------------------------------------------------- the lock


def hold_and_fork(folder: str) -> int:
    """Holds the lock and dies, leaving a child that lives on; prints the child's number."""
    run = RunFolder(Path(folder))
    run.lock()
    child = os.fork()
    if child == 0:
        signal.pause()
    os.write(1, f"{child}\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def test_a_lock_ends_with_its_process_even_if_a_worker_lives_on(tmp_path: Path, nursery: Nursery) -> None:
    code, said = nursery.run([str(tmp_path)], tmp_path, call=f"{HERE}:hold_and_fork")
    assert code == -signal.SIGKILL
    try:
        os.kill(int(said), 0)  # the orphan is alive
        folder = RunFolder(tmp_path)
        folder.lock()
        folder.unlock()
    finally:
        os.kill(int(said), signal.SIGKILL)


def test_the_lock_keeps_a_second_one_out(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path), RunFolder(tmp_path)
    first.lock()
    with pytest.raises(UserError, match="another process is training here"):
        second.lock()
    release_locks()
    second.lock()
    second.unlock()


def test_half_written_files_of_a_run_are_swept(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write("run.json", "{}")
    for name in (".run.json.part", ".lock"):
        (tmp_path / name).write_text("")
    (tmp_path / f"{store.PART}averaged-dead").mkdir()
    folder.sweep()
    assert sorted(os.listdir(tmp_path)) == [".lock", "run.json"]
