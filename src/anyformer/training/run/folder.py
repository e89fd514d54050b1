"""The folder of one run: human-readable files, each replaced atomically or appended to."""

from __future__ import annotations

import json
import os
import platform
import socket
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from anyformer.checkpoints import store
from anyformer.errors import UserError
from anyformer.own_parts import UnknownPart
from anyformer.plain_text import printable
from anyformer.safe_files import (
    PART,
    append_text,
    check_output_name,
    hold_lock,
    is_at,
    json_lines,
    make_folder,
    open_plain,
    read_json,
    read_text,
    replace_file,
)
from anyformer.tasks.base import Task
from anyformer.tasks.known_tasks import find
from anyformer.training.settings import Config

RUN_FILE, CONFIG_FILE, METRICS_FILE, EVENTS_FILE = "run.json", "config.yaml", "metrics.jsonl", "events.jsonl"
CHECKPOINTS, CACHE, AVERAGED = "checkpoints", "data", "averaged"
ENVIRONMENT_FILE, LOCK_FILE, LOG_FILE = "env.json", ".lock", "log.txt"
TEXT, WHOLE, NUMBER, TABLE = (str,), (int,), (int, float), (dict,)
FACTS: dict[str, tuple[type, ...]] = {
    "id": TEXT, "status": TEXT, "task": TEXT, "model": TEXT, "data": TEXT, "step": WHOLE, "total": WHOLE,
    "best_step": WHOLE, "best": TABLE, "started": TEXT, "finished": TEXT, "seconds": NUMBER, "reason": TEXT,
    "device": TEXT, "settled": (bool,), "pid": WHOLE, "host": TEXT, "metrics": TABLE, "use": TEXT, "allowed": (list,),
}  # fmt: skip
WORDS_FOR = {TEXT: "text", WHOLE: "a whole number", NUMBER: "a number", TABLE: "a table", (bool,): "true or false",
             (list,): "a list"}  # fmt: skip
# If any of these differ, results may differ in the last bits.
SAME = ("processor", "capability", "threads", "processes", "torch", "numpy", "anyformer", "gpu", "device")
HELD: list[RunFolder] = []  # locked by this process


def release_locks() -> None:
    """Release all locks in a forked child: a shared lock would outlive the process that holds it."""
    for folder in list(HELD):
        folder.unlock()


os.register_at_fork(after_in_child=release_locks)


class RunFolder:
    """All files of one run. `run.json` holds its status; the others are described in docs/how-to/train.md."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock_file: int | None = None  # file descriptor of the held lock

    # ------------------------------------------------------------ making and opening

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run."""
        if not (path / RUN_FILE).is_file():
            what = "is not a run: it has no run.json" if path.is_dir() else "is a file, not the folder of a run"
            what = what if path.exists() else "is not there"
            raise UserError(f"{path} {what}", fix="see: anyformer runs")
        return cls(path)

    def lock(self) -> None:
        """Lock the run until this process ends, however it ends."""
        if self.lock_file is not None:
            return
        with store.writing(self.path):
            lock = open_plain(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT)
        # A lock file that was removed meanwhile, with the whole folder, would lock nothing.
        if not hold_lock(lock) or not is_at(lock, self.path / LOCK_FILE):
            os.close(lock)
            raise UserError("another process is training here", where=str(self.path), fix="wait for it, or stop it")
        self.lock_file = lock
        HELD.append(self)
        try:
            check_plain(self.path)
        except BaseException:
            self.unlock()
            raise

    def unlock(self) -> None:
        if self.lock_file is not None:
            HELD.remove(self)
            os.close(self.lock_file)
            self.lock_file = None

    def sweep(self) -> None:
        """Remove partial files left by a process that died; requires the lock."""
        for parent in (self.path, self.checkpoints):
            store.sweep(parent)
        for path in self.path.glob(f".*{PART}"):
            if not path.is_dir():
                path.unlink()

    # ------------------------------------------------------------ files

    def write(self, name: str, text: str | bytes) -> Path:
        """Replace one file atomically."""
        path = self.path / name
        with store.writing(path, len(text)):
            make_folder(path.parent)
            replace_file(path, text)
        return path

    def write_json(self, name: str, data: Mapping[str, Any]) -> Path:
        return self.write(name, json.dumps(data, indent=1, default=str, ensure_ascii=False) + "\n")

    def read_json(self, name: str) -> dict[str, Any]:
        return read_json(self.path / name)

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add lines of JSON to a file."""
        text = "".join(json.dumps(row, default=str, ensure_ascii=False) + "\n" for row in rows)
        path = self.path / name
        if text:
            with store.writing(path, len(text)):
                append_text(path, text)

    def event(self, kind: str, **facts: Any) -> None:
        """One line in events.jsonl, and in log.txt for people."""
        now = datetime.now().isoformat(timespec="seconds")
        self.append(EVENTS_FILE, [{"time": now, "event": kind, **facts}])
        self.log(f"{kind} " + " ".join(f"{name}={value}" for name, value in facts.items()))

    def log(self, text: str) -> None:
        """A line in log.txt; text from data cannot begin another."""
        path = self.path / LOG_FILE
        with store.writing(path):
            append_text(path, f"{datetime.now().isoformat(timespec='seconds')} {printable(text.rstrip())}\n")

    def update(self, **facts: Any) -> dict[str, Any]:
        """Update entries of run.json."""
        known = self.read_json(RUN_FILE) if (self.path / RUN_FILE).is_file() else {}
        known |= facts
        self.write_json(RUN_FILE, known)
        return known

    def start(self, step: int, total: int) -> None:
        """Mark the run as running in this process."""
        self.update(status="running", pid=os.getpid(), host=socket.gethostname(), step=step, total=total, reason="")

    @property
    def facts(self) -> dict[str, Any]:
        """The contents of run.json, type-checked."""
        return checked_facts(self.read_json(RUN_FILE), str(self.path / RUN_FILE))

    def config_text(self) -> str:
        """The text of config.yaml."""
        return read_text(self.path / CONFIG_FILE)

    def task(self) -> Task:
        """The run's task."""
        with explaining_unknown(self.path):
            return find(str(self.facts["task"]))

    def config(self) -> Config:
        """The settings of the run."""
        with explaining_unknown(self.path):
            return parse_config(self.config_text(), str(self.path / CONFIG_FILE))

    def side_facts(self, name: str) -> dict[str, Any]:
        """An auxiliary file, such as plan.json; a damaged one reads as empty and is rewritten."""
        try:
            return self.read_json(name)
        except UserError:
            return {}

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def cache(self) -> Path:
        return self.path / CACHE

    # ------------------------------------------------------------ metrics

    def metrics(self) -> list[dict[str, Any]]:
        """Every complete line of metrics.jsonl; a truncated last line is left out."""
        return [row for _, row in json_lines(self.path / METRICS_FILE)]

    def cut_back(self, step: int) -> None:
        """Drop what was logged after a step, so that the curve of a resumed run has no duplicate points."""
        for name in (METRICS_FILE, "speed.jsonl"):
            lines = json_lines(self.path / name)
            kept = [line for line, row in lines if isinstance(row.get("step"), int | float) and row["step"] <= step]
            self.write(name, "".join(line + "\n" for line in kept))

    # ------------------------------------------------------------ which weights

    def best(self) -> Path:
        """The run's final model: the averaged checkpoint, the best, or the newest, as recorded in run.json."""
        facts = self.facts
        if facts.get("use") == AVERAGED and not store.problem(self.path / AVERAGED):
            return self.path / AVERAGED
        wanted = facts.get("best_step")
        for step, path in store.committed(self.checkpoints):
            if step == wanted and not store.problem(path):
                return path
        newest = store.latest(self.checkpoints)
        if newest is None:
            raise UserError(
                "the run has no whole checkpoint yet", where=str(self.path), fix=f"anyformer resume {self.path}"
            )
        return newest[1]


class ReadOnlyRunFolder(RunFolder):
    """A read-only view for all processes but the first, which writes for them."""

    def lock(self) -> None:
        """The first process keeps others out."""

    def sweep(self) -> None:
        """The first process removes what is left over."""

    def write(self, name: str, text: str | bytes) -> Path:
        return self.path / name

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """The first process does."""

    def log(self, text: str) -> None:
        """The first process does."""


def check_plain(folder: Path) -> None:
    """Reject a run that contains anything but regular files and folders.

    A write through a link would land outside of it, and opening a pipe would block.
    """
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            kind = path.lstat().st_mode
            if stat.S_ISLNK(kind):
                raise UserError("is a symbolic link, and a run keeps to its own folder", where=str(path),
                                fix="put a copy of what it points to in its place")  # fmt: skip
            if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
                raise UserError("is neither a file nor a folder", where=str(path), fix="remove it")


def checked_facts(facts: dict[str, Any], where: str) -> dict[str, Any]:
    """Type-check the entries of run.json."""
    for name, kinds in FACTS.items():
        value = facts.get(name)
        if value is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
            raise UserError(f"{name} is {printable(str(value))[:40]!r}, not {WORDS_FOR[kinds]}", where=where,
                            fix="copy the run again")  # fmt: skip
    for name in ("status", "step", "task"):
        if facts.get(name) is None:
            raise UserError(f"{name} is missing", where=where, fix="copy the run again")
    return facts


@contextmanager
def explaining_unknown(path: Path) -> Iterator[None]:
    """For an unknown part, name the user modules that may define it; none is imported automatically."""
    try:
        yield
    except UnknownPart as error:
        found = read_json(path / RUN_FILE).get("modules") if (path / RUN_FILE).is_file() else None
        raise error.of_run([printable(str(name)) for name in found] if isinstance(found, list) else []) from None


def parse_config(text: str, where: str) -> Config:
    """Parse the text of config.yaml; `where` is its place in error messages."""
    try:
        found: Config = Config.from_yaml(text)
    except UserError as error:
        raise type(error)(error.what, where=f"{where} {error.where}".strip(), fix=error.fix or "copy the run again",
                          details=error.details) from None  # fmt: skip
    return found


def check_new(path: Path) -> None:
    """Reject a path where no run can be created; an existing run can be resumed."""
    check_output_name(path, "--out")
    another = "give another --out"
    try:
        kind = path.lstat().st_mode
        if path.is_symlink():
            kind = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise UserError("is a link to nothing", where=str(path), fix=another) from None
        return
    except OSError as error:
        raise UserError(f"no run can be made there ({error.strerror})", where=str(path), fix=another) from None
    if not stat.S_ISDIR(kind):
        raise UserError("a file has that name", where=str(path), fix=another)
    if any(path.iterdir()):
        if (path / RUN_FILE).is_file():
            raise UserError("a run is there already and is never overwritten", where=str(path),
                            fix=f"anyformer resume {path}, or another --out")  # fmt: skip
        raise UserError("the folder is there and not empty", where=str(path), fix=another)
    if path.is_mount():
        raise UserError("is a mount point, which the folder of a run cannot replace", where=str(path),
                        fix=f"--out {path / 'run'}")  # fmt: skip


def environment(device: Any, threads: int, processes: int = 1) -> dict[str, Any]:
    """What a run's exact results depend on besides its settings: machine, versions, threads, processes."""
    import numpy
    import torch

    from anyformer.version import __version__

    gpu = torch.cuda.get_device_name(device) if str(device).startswith("cuda") else None
    return {
        "anyformer": __version__, "torch": torch.__version__, "numpy": numpy.__version__,
        "python": platform.python_version(), "system": platform.platform(), "machine": platform.machine(),
        "processor": processor(), "cores": os.cpu_count(), "threads": threads, "processes": processes,
        "device": str(device), "gpu": gpu, "capability": torch.backends.cpu.get_cpu_capability(),
    }  # fmt: skip


def other_machine(before: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Log lines for differences from the previous environment: bit-exact results need the same machine."""
    before = {"processes": 1} | dict(before)  # not recorded by versions with a single process only
    return [
        f"note     {name} is {here.get(name)}, was {before.get(name)}: the rest may differ in the last bits"
        for name in SAME
        if before.get(name) != here.get(name)
    ]


def processor() -> str:
    """The processor's name, as far as the system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().split("\n"):
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def now() -> str:
    """The local date and time as text."""
    return time.strftime("%Y-%m-%d %H:%M:%S")
