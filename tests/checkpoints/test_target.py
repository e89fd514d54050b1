"""A folder that is written: there whole or not at all, refused in one line before any work where it cannot be."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import anyformer
from anyformer.checkpoints import target
from anyformer.checkpoints.folder import save_own
from anyformer.cli import main
from anyformer.errors import NoRoom, UserError

LONG = "x" * 300


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = anyformer.preset("gpt2-tiny")
    return save_own(tmp_path_factory.mktemp("source") / "model", spec, spec.build(seed=0))


def not_empty(place: Path) -> Path:
    (place / "full").mkdir()
    (place / "full" / "mine.txt").write_text("keep me")
    return place / "full"


def dangling(place: Path) -> Path:
    (place / "link").symlink_to(place / "nowhere")
    return place / "link"


def linked(place: Path) -> Path:
    (place / "empty").mkdir()
    (place / "link").symlink_to(place / "empty")
    return place / "link"


def below_a_file(place: Path) -> Path:
    (place / "file").write_text("keep me")
    return place / "file" / "new"


def a_file(place: Path) -> Path:
    (place / "file").write_text("keep me")
    return place / "file"


PLACES: dict[str, Callable[[Path], Path]] = {
    "not empty": not_empty, "a file": a_file, "below a file": below_a_file, "a dangling link": dangling,
    "a link": linked, "a name that is too long": lambda place: place / LONG,
    "below a name that is too long": lambda place: place / LONG / "new",
    "a name that is not UTF-8": lambda place: Path(os.fsdecode(os.fsencode(place / "b") + b"\xff")),
    "a name with a zero": lambda place: place / "a\0b",
    "a file system that is read-only": lambda place: Path("/sys/anyformer-new"),
    "a file system without folders": lambda place: Path("/proc/anyformer/new"),
}  # fmt: skip


def everything(place: Path) -> list[str]:
    return sorted(str(path) for path in place.rglob("*"))


@pytest.mark.parametrize("case", PLACES)
def test_a_place_that_cannot_be_written_is_refused_in_one_line(
    case: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = PLACES[case](tmp_path)
    before = everything(tmp_path)
    assert main(["convert", str(source), str(place), "--to", "anyformer"]) == 2
    said = capsys.readouterr()
    assert said.err.count("error: ") == 1 and "Traceback" not in said.err and not said.out
    predictor = anyformer.load(source)
    for write in (predictor.save, predictor.export):
        with pytest.raises(UserError):
            write(place)
    assert everything(tmp_path) == before, "something was written or deleted"


def test_what_is_refused_is_refused_before_the_model_is_opened(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["convert", str(tmp_path / "no model"), str(not_empty(tmp_path)), "--to", "anyformer"]) == 2
    assert "not empty" in capsys.readouterr().err


def test_an_empty_folder_and_new_parents_are_fine(source: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    predictor = anyformer.load(source)
    for place in (tmp_path / "empty", tmp_path / "a" / "b" / "new", tmp_path / ("y" * 255)):
        assert predictor.save(place) == place
        anyformer.load(place)
    with pytest.raises(UserError, match="not empty"):
        predictor.save(tmp_path / "empty")


def run(source: Path, place: Path, *, fault: str = "", file_bytes: int | None = None) -> subprocess.CompletedProcess:
    def limit() -> None:
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    words = [sys.executable, "-m", "anyformer.cli", "convert", str(source), str(place), "--to", "anyformer"]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, preexec_fn=limit,
                          env={**os.environ, "ANYFORMER_FAULT": fault})  # fmt: skip


def test_a_full_disk_is_said_and_leaves_nothing(source: Path, tmp_path: Path) -> None:
    done = run(source, tmp_path / "a" / "new", file_bytes=4096)
    assert done.returncode == 4, done.stderr
    assert done.stderr.count("error: ") == 1 and "make room" in done.stderr
    assert everything(tmp_path) == []


def test_what_does_not_fit_is_refused_before_it_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoRoom, match="bytes needed"), target.new_folder(tmp_path / "new", needed=2**60):
        raise AssertionError("it was begun")
    assert everything(tmp_path) == []


def test_what_a_killed_process_leaves_is_removed_by_the_next(source: Path, tmp_path: Path) -> None:
    mine = tmp_path / f"{target.PART}mine"
    mine.mkdir()
    assert run(source, tmp_path / "new", fault="kill@before-rename").returncode == -9
    assert not (tmp_path / "new").exists(), "half a folder has the final name"
    (left,) = [path for path in tmp_path.iterdir() if path != mine]
    assert left.name.startswith(target.PART)
    alive = target.claim_folder(tmp_path / "new")  # another process writes to the same place right now
    predictor = anyformer.load(source)
    predictor.save(tmp_path / "other")
    assert left.is_dir(), "it belongs to another target"
    predictor.save(tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([mine.name, alive[0].name, "new", "other"])
    os.close(alive[1])


def test_of_two_that_write_to_one_place_the_first_wins(source: Path, tmp_path: Path) -> None:
    predictor = anyformer.load(source)
    with pytest.raises(UserError, match="not empty"), target.new_folder(tmp_path / "new") as part:
        (part / "file").write_text("second")
        predictor.save(tmp_path / "new")
    anyformer.load(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_another_error_of_the_disk_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Permission denied"), target.new_folder(tmp_path / "new"):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    assert everything(tmp_path) == []
