"""The folder of one run: plain files that a person can read, each written whole or appended to."""

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
# What must be the same, or bits may differ.
SAME = ("processor", "capability", "threads", "processes", "torch", "numpy", "anyformer", "gpu", "device")
HELD: list[RunFolder] = []  # by this process


def let_all_go() -> None:
    """In a forked child: a lock that it shares would outlive the process that holds it, and keep the next one out."""
    for folder in list(HELD):
        folder.unlock()


os.register_at_fork(after_in_child=let_all_go)


class RunFolder:
    """Everything one training was. `run.json` says how it stands; the rest is described in docs/how-to/train.md."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock_file: int | None = None  # the descriptor that holds it

    # ------------------------------------------------------------ making and opening

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of a run that exists."""
        if not (path / RUN_FILE).is_file():
            what = "is not a run: it has no run.json" if path.is_dir() else "is a file, not the folder of a run"
            what = what if path.exists() else "is not there"
            raise UserError(f"{path} {what}", fix="see: anyformer runs")
        return cls(path)

    def lock(self) -> None:
        """Keep other processes out until this one ends, however it ends."""
        if self.lock_file is not None:
            return
        with store.writing(self.path):
            lock = open_plain(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT)
        # One that was removed in the meantime, with the whole folder, would keep nobody out.
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
        """Remove what a process that died left half written; only with the lock held."""
        for parent in (self.path, self.checkpoints):
            store.sweep(parent)
        for path in self.path.glob(f".*{PART}"):
            if not path.is_dir():
                path.unlink()

    # ------------------------------------------------------------ files

    def write(self, name: str, text: str | bytes) -> Path:
        """Replace one file at once."""
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
        """Change what run.json says."""
        known = self.read_json(RUN_FILE) if (self.path / RUN_FILE).is_file() else {}
        known |= facts
        self.write_json(RUN_FILE, known)
        return known

    def start(self, step: int, total: int) -> None:
        """The run is alive from here on, in this process."""
        self.update(status="running", pid=os.getpid(), host=socket.gethostname(), step=step, total=total, reason="")

    @property
    def facts(self) -> dict[str, Any]:
        """What run.json says, every entry of its kind."""
        return checked_facts(self.read_json(RUN_FILE), str(self.path / RUN_FILE))

    def config_text(self) -> str:
        """config.yaml as it is."""
        return read_text(self.path / CONFIG_FILE)

    def task(self) -> Task:
        """What the run's model is trained to do."""
        with explaining_unknown(self.path):
            return find(str(self.facts["task"]))

    def config(self) -> Config:
        """The settings of the run."""
        with explaining_unknown(self.path):
            return parse_config(self.config_text(), str(self.path / CONFIG_FILE))

    def side_facts(self, name: str) -> dict[str, Any]:
        """A file that only informs, such as plan.json; a damaged one says nothing, and is written anew."""
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
        """Every whole line of metrics.jsonl; a last line that was cut short is left out."""
        return [row for _, row in json_lines(self.path / METRICS_FILE)]

    def cut_back(self, step: int) -> None:
        """Forget what was logged after a step, so that the curve of a resumed run has no double points."""
        for name in (METRICS_FILE, "speed.jsonl"):
            lines = json_lines(self.path / name)
            kept = [line for line, row in lines if isinstance(row.get("step"), int | float) and row["step"] <= step]
            self.write(name, "".join(line + "\n" for line in kept))

    # ------------------------------------------------------------ which weights

    def best(self) -> Path:
        """The model to use: the mean of the last checkpoints, the best, or the newest, whichever the run settled on."""
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
    """The folder as the other processes of a training see it: to read. What they would write, the first one writes."""

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
    """Refuse a run that holds anything but files and folders.

    What is written through a link would land outside of it, and a pipe would be waited for.
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
    """What run.json says, where each entry is of its kind."""
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
    """Where a part of a run is unknown, say which of the user's modules knows it; none is imported by itself."""
    try:
        yield
    except UnknownPart as error:
        found = read_json(path / RUN_FILE).get("modules") if (path / RUN_FILE).is_file() else None
        raise error.of_run([printable(str(name)) for name in found] if isinstance(found, list) else []) from None


def parse_config(text: str, where: str) -> Config:
    """Settings as config.yaml holds them; `where` is said where they are damaged."""
    try:
        found: Config = Config.from_yaml(text)
    except UserError as error:
        raise type(error)(error.what, where=f"{where} {error.where}".strip(), fix=error.fix or "copy the run again",
                          details=error.details) from None  # fmt: skip
    return found


def check_new(path: Path) -> None:
    """Refuse a place where no run can be made; a run that is there can be resumed."""
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
    """What the bits of a run depend on beside its settings: machine, versions, threads, processes."""
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
    """What is different from the process before, in lines for people: bits are promised on the same machine only."""
    before = {"processes": 1} | dict(before)  # not written down when there could be one only
    return [
        f"note     {name} is {here.get(name)}, was {before.get(name)}: the rest may differ in the last bits"
        for name in SAME
        if before.get(name) != here.get(name)
    ]


def processor() -> str:
    """The name of the processor, as well as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().split("\n"):
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def now() -> str:
    """The time of day, for people."""
    return time.strftime("%Y-%m-%d %H:%M:%S")
