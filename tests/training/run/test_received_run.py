"""A run that somebody else made: going on with it writes nowhere but into its own folder, and forges no line."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from anyformer.errors import UserError
from anyformer.safe_files import append_text, open_plain, replace_file, replacing
from anyformer.training.run.folder import RunFolder
from tests.cli.trying import done, run
from tests.training.tiny import CASES, write_data

SECRET = b"mine\n"
MORE = ("--set", "training.steps=7", "--allow-change", "steps", "--progress", "none")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A whole run of six steps on a table."""
    folder = tmp_path_factory.mktemp("received")
    write_data(folder)
    words = CASES["table"].train(str(folder / "run"), training__steps=6, training__workers=0, training__average=0)
    done(*[str(folder / word) if word == "table.csv" else word for word in words])
    done("resume", folder / "run", "--set", "training.steps=6")
    return folder / "run"


@pytest.fixture
def copy(trained, tmp_path) -> Iterator[Path]:
    """The run, and beside it a file and a folder of the user."""
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "secrets").mkdir()
    yield tmp_path / "run"
    assert (tmp_path / "secret").read_bytes() == SECRET, "a file outside the run was written to"
    assert not list((tmp_path / "secrets").iterdir()), "something was written into a folder outside the run"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "secret", "secrets"]


def entries(folder: Path) -> list[str]:
    """Every file and folder of a run, and the names that a run may yet write."""
    later = ["crash.txt", "averaged", "samples", ".run.json.part"]
    return sorted({str(path.relative_to(folder)) for path in folder.rglob("*")} | set(later))


def test_no_link_in_a_run_is_followed_when_it_goes_on(trained, copy):
    """For every file and folder that a run holds or writes: a link in its place leads nowhere."""
    assert len(entries(trained)) > 25
    for name in entries(trained):
        shutil.rmtree(copy)
        shutil.copytree(trained, copy)
        place = copy / name
        directory = (trained / name).is_dir() or name in ("averaged", "samples")
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        place.symlink_to(copy.parent / ("secrets" if directory else "secret"))
        said = run("resume", copy, *MORE)
        assert (said.code, len(said.errors)) == (2, 1), (name, said.code, said.err)
        assert (copy.parent / "secret").read_bytes() == SECRET and not list((copy.parent / "secrets").iterdir()), name


@pytest.mark.parametrize("name", ["log.txt", "events.jsonl", "metrics.jsonl", "speed.jsonl", "run.json", ".lock"])
def test_a_hard_link_to_a_file_of_the_user_is_not_written_through(copy, name):
    (copy / name).unlink()
    os.link(copy.parent / "secret", copy / name)
    said = run("resume", copy, *MORE)
    assert said.code in (0, 2), said.err
    assert (copy.parent / "secret").read_bytes() == SECRET


def test_control_the_same_run_without_links_goes_on(copy):
    done("resume", copy, *MORE)
    assert json.loads((copy / "run.json").read_text())["step"] == 7


@pytest.mark.quick
def test_text_from_data_stays_on_one_line_of_the_log(tmp_path):
    RunFolder(tmp_path).event("failed", reason="bad cell\n2026-01-01T00:00:00 done step=9\x1b]0;x\x07 \u202e \udcff")
    log = (tmp_path / "log.txt").read_bytes().decode("utf-8")
    assert len(log.splitlines()) == 1 and log.rstrip("\n").isprintable() and "\\n2026" in log and "\\x1b" in log
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert len(lines) == 1 and json.loads(lines[0])["reason"].endswith("\udcff")


def linked(path: Path, target: Path) -> None:
    path.symlink_to(target)


def hard_linked(path: Path, target: Path) -> None:
    os.link(target, path)


def piped(path: Path, target: Path) -> None:
    os.mkfifo(path)


def foldered(path: Path, target: Path) -> None:
    path.mkdir()


@pytest.mark.quick
@pytest.mark.parametrize("plant", [linked, hard_linked, piped, foldered])
def test_only_a_plain_file_is_appended_to(tmp_path, plant: Callable[[Path, Path], None]):
    target = tmp_path / "secret"
    target.write_bytes(SECRET)
    plant(tmp_path / "log.txt", target)
    with pytest.raises(UserError, match=r"log\.txt"):
        append_text(tmp_path / "log.txt", "more")
    with pytest.raises(UserError, match=r"log\.txt"):
        os.close(open_plain(tmp_path / "log.txt", os.O_RDWR | os.O_CREAT))
    if plant is not foldered:
        replace_file(tmp_path / "log.txt", "new")  # takes the name, whatever had it
        assert stat.S_ISREG((tmp_path / "log.txt").lstat().st_mode)
    assert target.read_bytes() == SECRET


@pytest.mark.quick
def test_an_unfinished_file_is_removed_by_the_next_writer_but_not_while_it_is_written(tmp_path):
    path = tmp_path / ("n" * 240 + ".csv")
    left = tmp_path / f".{path.name[:239]}.0123abcd.part"
    left.write_text("half")
    other = tmp_path / f".{path.name[:200]}.0123abcd.part"
    other.write_text("of another file")
    with replacing(path) as first:
        first.write_text("first")
        assert not left.exists() and other.exists()
        replace_file(path, "second")
        assert first.read_text() == "first" and path.read_text() == "second"
    assert path.read_text() == "first" and sorted(tmp_path.iterdir()) == sorted([path, other])
