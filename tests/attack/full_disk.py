"""Every verb on a disk that fills up: it finishes, or says in one line what is missing and exits with 4.

`sweep` runs each case on real file systems of many sizes (tmpfs in a namespace of its own, so no rights are needed
beyond those of a plain user) around what the case needs. A try is bad when the process dies of a signal, shows a
traceback, exits with anything but 0 or 4, or says less than one whole line. Nothing else is writable while it runs,
as on a machine with one disk.

    python -m tests.attack.full_disk --tries 24
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMY = 512 * 2**10  # KiB, more than any case needs
STEPS = ("--set", "training.steps=4", "--set", "training.save_every=2", "--device", "cpu", "--quiet")
# What is run with DISK standing for the small disk and MADE for the folder of data and trained models.
CASES: dict[str, tuple[str, ...]] = {
    "train table": ("train", "MADE/table.csv", "--target", "label", "--out", "DISK/run", *STEPS),
    "train text": ("train", "MADE/text.txt", "--out", "DISK/run", *STEPS),
    "train images": ("train", "MADE/images", "--out", "DISK/run", *STEPS),
    "train series": ("train", "MADE/series.csv", "--task", "forecast", "--out", "DISK/run", *STEPS),
    "check": ("check", "MADE/table.csv", "--target", "label"),
    "predict": ("predict", "MADE/run", "MADE/table.csv", "-o", "DISK/out.csv", "--device", "cpu"),
    "evaluate": ("evaluate", "MADE/run", "MADE/table.csv", "--device", "cpu"),
    "convert": ("convert", "MADE/run", "DISK/model", "--to", "anyformer"),
}


@dataclass(frozen=True)
class Row:
    """What became of one case: how often it was tried, how often it finished, and what went wrong."""

    case: str
    tries: int
    finished: int
    bad: tuple[str, ...]


def sweep(cases: Sequence[str] = tuple(CASES), *, tries: int = 24) -> list[Row]:
    """Each case on `tries` disks, from next to nothing to what it needs, the last with room to spare."""
    with tempfile.TemporaryDirectory(prefix="full-disk-") as folder:
        words = ["unshare", "-Urm", sys.executable, "-m", "tests.attack.full_disk", "--inside", folder,
                 "--tries", str(tries), *cases]  # fmt: skip
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=env, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return [Row(**{**row, "bad": tuple(row["bad"])}) for row in json.loads(done.stdout.splitlines()[-1])]


# ---------------------------------------------------------------- inside the namespace


def inside(folder: Path, cases: Sequence[str], tries: int) -> list[dict[str, object]]:
    """The sweep itself, where small disks may be mounted."""
    for name in ("anyformer.cli", "anyformer.training.train", "torch._dynamo", "sklearn.ensemble", "pyarrow.csv"):
        importlib.import_module(name)  # once here, so that each fork has it

    made, disk = folder / "made", folder / "disk"
    made.mkdir()
    disk.mkdir()
    make_data(made)
    code, said = forked(["train", f"{made}/table.csv", "--target", "label", "--out", f"{made}/run", *STEPS], made)
    assert code == 0, said
    for place in ("/tmp", "/var/tmp", "/dev/shm"):
        seal(Path(place))
    rows = []
    for case in cases:
        needed = measured(case, made, disk)
        small = {max(4, round(needed * 1.1 * (at + 0.5) / tries / 4) * 4) for at in range(tries - 1)}
        sizes = [*sorted(small), 2 * needed]
        found = [tried(case, made, disk, size) for size in sizes]
        bad = tuple(f"{size} KiB: {what}" for size, (_, what) in zip(sizes, found, strict=True) if what)
        rows.append({"case": case, "tries": len(sizes), "finished": sum(code == 0 for code, _ in found), "bad": bad})
    return rows


def seal(place: Path) -> None:
    """Let nothing be written below a folder, so that there is one disk; what is mounted in it later is not sealed."""
    if place.is_dir():
        subprocess.run(["mount", "--bind", str(place), str(place)], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)


def measured(case: str, made: Path, disk: Path) -> int:
    """KiB that a case takes at most."""
    mount(disk, ROOMY)
    try:
        child = fork(words_of(case, made, disk), disk)
        most, ended = 0, (0, 0)
        while ended[0] == 0:
            room = os.statvfs(disk)
            most = max(most, (room.f_blocks - room.f_bfree) * room.f_frsize)
            time.sleep(0.002)
            ended = os.waitpid(child.pid, os.WNOHANG)
        assert ended[1] == 0, f"{case} does not even work on a large disk"
        return max(64, most // 2**10)
    finally:
        unmount(disk)


def tried(case: str, made: Path, disk: Path, size: int) -> tuple[int, str]:
    """The exit code on a disk of so many KiB, and what was wrong with it."""
    mount(disk, size)
    try:
        code, said = forked(words_of(case, made, disk), disk)
    finally:
        unmount(disk)
    return code, verdict(code, said)


def verdict(code: int, said: str) -> str:
    """What is wrong with an ending; empty where it is as promised."""
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    if code not in (0, 4) or "Traceback" in said:
        return f"exit {code}: {said[-300:]}"
    if code == 4 and len(errors) != 1:
        return f"{len(errors)} error lines: {said[-300:]}"
    if code == 4 and not ("bytes free" in errors[0] or "TMPDIR" in errors[0]):
        return f"no figures: {errors[0]}"
    return ""


def words_of(case: str, made: Path, disk: Path) -> list[str]:
    return [word.replace("MADE", str(made)).replace("DISK", str(disk)) for word in CASES[case]]


def mount(disk: Path, size: int) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(disk)], check=True)


def unmount(disk: Path) -> None:
    os.chdir("/")
    subprocess.run(["umount", str(disk)], check=True)


@dataclass(frozen=True)
class Child:
    """A forked command line, and where what it says can be read."""

    pid: int
    said: int


def forked(words: list[str], disk: Path) -> tuple[int, str]:
    """Exit code and output of a command line; a signal's number is negative."""
    child = fork(words, disk)
    code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
    os.lseek(child.said, 0, os.SEEK_SET)
    with os.fdopen(child.said, encoding="utf-8", errors="replace") as file:
        return code, file.read()


def fork(words: list[str], disk: Path) -> Child:
    """`anyformer WORDS` in a process of its own, with its folder and its temporary files on the disk."""
    said = os.memfd_create("said")
    pid = os.fork()
    if pid:
        return Child(pid, said)
    code = 1
    try:
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.chdir(disk)
        os.environ["TMPDIR"], tempfile.tempdir = str(disk), None
        sys.argv = ["anyformer", *words]
        from anyformer.cli import main

        code = main(words)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def make_data(folder: Path) -> None:
    """A table, a text, pictures and a series, each of a megabyte or so once prepared."""
    import numpy as np
    from PIL import Image

    chance = np.random.default_rng(0)
    rows = chance.normal(size=(3000, 12))
    names = ",".join(f"x{at}" for at in range(12))
    lines = [",".join(f"{cell:.4f}" for cell in row) + f",{'yes' if row[0] > 0 else 'no'}" for row in rows]
    (folder / "table.csv").write_text(f"{names},label\n" + "\n".join(lines) + "\n")
    words = ["time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school"]
    (folder / "text.txt").write_text(" ".join(chance.choice(words, 20_000)) + "\n")
    for kind in ("dark", "light"):
        (folder / "images" / kind).mkdir(parents=True)
        for at in range(30):
            pixels = chance.integers(0, 128, (48, 48, 3)) + (127 if kind == "light" else 0)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / "images" / kind / f"{at}.png")
    moments = np.datetime64("2020-01-01T00") + np.arange(1000) * np.timedelta64(1, "h")
    series = [f"{moment},{np.sin(at / 12):.4f}" for at, moment in enumerate(moments)]
    (folder / "series.csv").write_text("time,value\n" + "\n".join(series) + "\n")


def main(words: Sequence[str] | None = None) -> int:
    """Print one line a case; 1 where any try was bad."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--tries", type=int, default=24)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.inside is not None:
        found = inside(given.inside, given.cases, given.tries)
        os.write(1, (json.dumps(found) + "\n").encode())
        return 0
    rows = sweep(given.cases, tries=given.tries)
    for row in rows:
        os.write(1, f"{row.case}: {row.tries} disks, {row.finished} finished, {len(row.bad)} bad\n".encode())
        for line in row.bad:
            os.write(1, f"  {line}\n".encode())
    return int(any(row.bad for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
