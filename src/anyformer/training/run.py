"""The folder of one run: plain files that a person can read, each written whole or appended to."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import socket
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from anyformer.checkpoints import store
from anyformer.errors import UserError
from anyformer.files import read_json

RUN_FILE, CONFIG_FILE, METRICS_FILE, EVENTS_FILE = "run.json", "config.yaml", "metrics.jsonl", "events.jsonl"
CHECKPOINTS, CACHE, AVERAGED = "checkpoints", "data", "averaged"
ENVIRONMENT_FILE, LOCK_FILE = "env.json", ".lock"
SAME = ("processor", "capability", "threads", "torch", "numpy", "anyformer", "gpu", "device")  # or bits may differ
HELD: list[RunFolder] = []  # by this process


def let_all_go() -> None:
    """In a forked child: a lock that it shares would outlive the process that holds it, and keep the next one out."""
    for folder in list(HELD):
        folder.let_go()


os.register_at_fork(after_in_child=let_all_go)


class RunFolder:
    """Everything one training was. `run.json` says how it stands; the rest is described in docs/how-to/train.md."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock: Any = None

    # ------------------------------------------------------------ making and opening

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of a run that exists."""
        if not (path / RUN_FILE).is_file():
            what = "is no run: it has no run.json" if path.is_dir() else "is a file, not the folder of a run"
            what = what if path.exists() else "is not there"
            raise UserError(f"{path} {what}", fix="see: anyformer runs")
        return cls(path)

    def hold(self) -> None:
        """Keep other processes out until this one ends, however it ends."""
        if self.lock is not None:
            return
        with store.writing(self.path):
            lock = (self.path / LOCK_FILE).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise UserError(
                "another process is training here", where=str(self.path), fix="wait for it, or stop it"
            ) from None
        self.lock = lock
        HELD.append(self)

    def let_go(self) -> None:
        if self.lock is not None:
            HELD.remove(self)
            self.lock.close()
            self.lock = None

    def sweep(self) -> None:
        """Remove what a process that died left half written; only with the lock held."""
        for parent in (self.path, self.checkpoints):
            store.sweep(parent)
        for path in self.path.glob(".*.part"):
            path.unlink()

    # ------------------------------------------------------------ files

    def write(self, name: str, text: str) -> Path:
        """Replace one file at once."""
        path = self.path / name
        part = path.with_name(f".{path.name}.part")
        with store.writing(path, len(text)):
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(text, encoding="utf-8")
            store.flush(part)
            os.replace(part, path)
            store.flush(path.parent)
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
            with store.writing(path, len(text)), path.open("a", encoding="utf-8") as file:
                file.write(text)

    def event(self, kind: str, **facts: Any) -> None:
        """One line in events.jsonl, and in log.txt for people."""
        now = datetime.now().isoformat(timespec="seconds")
        self.append(EVENTS_FILE, [{"time": now, "event": kind, **facts}])
        self.log(f"{kind} " + " ".join(f"{name}={value}" for name, value in facts.items()))

    def log(self, text: str) -> None:
        """Lines in log.txt, without control characters."""
        plain = "".join(c if c.isprintable() else " " for c in text.rstrip())
        path = self.path / "log.txt"
        with store.writing(path), path.open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now().isoformat(timespec='seconds')} {plain}\n")

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
        return self.read_json(RUN_FILE)

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def cache(self) -> Path:
        return self.path / CACHE

    # ------------------------------------------------------------ metrics

    def metrics(self) -> list[dict[str, Any]]:
        """Every whole line of metrics.jsonl; a last line that was cut short is left out."""
        path = self.path / METRICS_FILE
        rows = []
        for line in path.read_text(encoding="utf-8").split("\n") if path.is_file() else ():
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
        return rows

    def cut_back(self, step: int) -> None:
        """Forget what was logged after a step, so that the curve of a resumed run has no double points."""
        for name in (METRICS_FILE, "speed.jsonl"):
            path = self.path / name
            kept = []
            for line in path.read_text(encoding="utf-8").split("\n") if path.is_file() else ():
                try:
                    if json.loads(line)["step"] <= step:
                        kept.append(line)
                except (ValueError, KeyError, TypeError):
                    continue
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


def check_new(path: Path) -> None:
    """Refuse a folder that holds something; a run in it can be resumed."""
    if path.is_file():
        raise UserError("a file has that name", where=str(path), fix="give another --out")
    if path.is_dir() and any(path.iterdir()):
        if (path / RUN_FILE).is_file():
            raise UserError("a run is there already and is never overwritten", where=str(path),
                            fix=f"anyformer resume {path}, or another --out")  # fmt: skip
        raise UserError("the folder is there and not empty", where=str(path), fix="give another --out")


def environment(device: Any, threads: int) -> dict[str, Any]:
    """What the bits of a run depend on beside its settings: machine, versions, threads."""
    import numpy
    import torch

    from anyformer.version import __version__

    gpu = torch.cuda.get_device_name(device) if str(device).startswith("cuda") else None
    return {
        "anyformer": __version__, "torch": torch.__version__, "numpy": numpy.__version__,
        "python": platform.python_version(), "system": platform.platform(), "machine": platform.machine(),
        "processor": processor(), "cores": os.cpu_count(), "threads": threads, "device": str(device), "gpu": gpu,
        "capability": torch.backends.cpu.get_cpu_capability(),
    }  # fmt: skip


def other_machine(before: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What is different from the process before, in lines for people: bits are promised on the same machine only."""
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
