"""Real processes, cheaply: one process imports everything once and forks another for each command line.

What is forked is a process of its own, in a group of its own: it runs the command line as `python -m anyformer.cli`
would, or a program as `python -c` would, and can be killed at any moment. What it imports itself, in its folder or
elsewhere, no other process sees. Only the seconds of importing torch are saved.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
PATIENCE = 120.0  # seconds after which a process that does not end has failed


@dataclass
class Child:
    """A process that was started; what it says goes into a file."""

    nursery: Nursery
    pid: int
    said: Path
    errors: Path

    @property
    def output(self) -> str:
        return self.said.read_text(encoding="utf-8", errors="replace")

    @property
    def complaints(self) -> str:
        """What it wrote to stderr, where that was kept apart."""
        return self.errors.read_text(encoding="utf-8", errors="replace")

    def send(self, number: int, *, group: bool = False) -> None:
        """A signal, as `kill` sends it; to the whole group as a terminal does."""
        (os.killpg if group else os.kill)(self.pid, number)

    def ended(self) -> int | None:
        """The exit code, minus the signal's number where one ended it; None while it runs."""
        return self.nursery.ask({"poll": self.pid})

    def wait(self) -> int:
        """The exit code, once there is one."""
        limit = time.monotonic() + PATIENCE
        while (code := self.ended()) is None:
            if time.monotonic() > limit:
                self.send(signal.SIGKILL)
                raise AssertionError(f"still running after {PATIENCE} s: {self.output}")
            time.sleep(0.01)
        return code

    def until(self, seen: Callable[[], bool]) -> None:
        """Wait until something is there, as long as the process runs."""
        limit = time.monotonic() + PATIENCE
        while not seen():
            assert self.ended() is None, f"ended before it was seen: {self.output}"
            assert time.monotonic() < limit, self.output
            time.sleep(0.002)


class Nursery:
    """Starts processes; `with Nursery() as nursery:` ends with all of them gone."""

    def __init__(self, threads: int = 1) -> None:
        env = os.environ | dict.fromkeys(THREADS, str(threads))
        self.process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=env)  # fmt: skip
        self.count = 0
        self.pids: list[int] = []

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *error: object) -> None:
        for pid in self.pids:
            if self.ask({"poll": pid}) is None:
                os.killpg(pid, signal.SIGKILL)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()

    def ask(self, what: Mapping[str, Any]) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def start(
        self, words: Sequence[str], where: Path, fault: str = "", call: str = "", env: Mapping[str, str] | None = None
    ) -> Child:
        """`anyformer WORDS`, or a function `module:name` with these words, in a process of its own."""
        said = where / f"said-{self.process.pid}-{self.count + 1}.txt"
        return self.fork(words, where, fault, call=call, env=env, said=said, errors=said)

    def fork(
        self, words: Sequence[str], where: Path, fault: str, *, said: Path, errors: Path, call: str = "",
        code: str = "", env: Mapping[str, str] | None = None,
    ) -> Child:  # fmt: skip
        """A process of its own whose streams go into these two files, or both into one."""
        self.count += 1
        env = {"ANYFORMER_FAULT": fault, **(env or {})}
        pid = self.ask({"words": list(words), "where": str(where), "said": str(said), "errors": str(errors),
                        "env": env, "call": call, "code": code})  # fmt: skip
        self.pids.append(pid)
        return Child(self, pid, said, errors)

    def run(self, words: Sequence[str], where: Path, fault: str = "", call: str = "") -> tuple[int, str]:
        """Exit code and output of a process."""
        child = self.start(words, where, fault, call)
        return child.wait(), child.output

    def command(
        self, *words: str | Path, where: Path, fault: str = "", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`anyformer WORDS` in a folder, to its end: what `subprocess.run` answers."""
        return self.finish([str(word) for word in words], where, fault, "", env)

    def python(self, code: str, where: Path) -> subprocess.CompletedProcess[str]:
        """`python -c CODE` in a folder, to its end."""
        return self.finish([], where, "", code, None)

    def finish(
        self, words: list[str], where: Path, fault: str, code: str, env: Mapping[str, str] | None
    ) -> subprocess.CompletedProcess[str]:
        """Nothing of it is left in the folder: what it said is kept elsewhere."""
        with tempfile.TemporaryDirectory() as kept:
            child = self.fork(words, where, fault, said=Path(kept, "out"), errors=Path(kept, "err"), code=code, env=env)
            return subprocess.CompletedProcess(words or ["-c", code], child.wait(), child.output, child.complaints)


# ---------------------------------------------------------------- inside


def serve() -> None:
    """Fork a process for each line of JSON on stdin."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    for name in ("anyformer.cli", "anyformer.training.train", "torch._dynamo", "torch.distributed.fsdp",
                 "sklearn.ensemble",
                 "sklearn.linear_model", "sklearn.feature_extraction.text",
                 "PIL.Image", "pyarrow.csv", "yaml"):  # fmt: skip
        importlib.import_module(name)
    ended: dict[int, int] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        if "poll" in asked:
            pid = asked["poll"]
            if pid not in ended:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    ended[pid] = os.waitstatus_to_exitcode(status)
            answer = ended.get(pid)
        else:
            answer = os.fork()
            if answer == 0:
                grow_up(**asked)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def grow_up(words: list[str], where: str, said: str, errors: str, env: dict[str, str], call: str, code: str) -> None:
    """The new process: its own group, folder, streams and environment, and the usual handling of signals."""
    ended = 1
    try:
        os.setsid()
        os.chdir(where)
        os.environ.update(env)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream, name in ((1, said), (2, errors)):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), stream)
        sys.argv = ["anyformer", *words]
        sys.path[:0] = [where, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
        if call:
            module, _, name = call.partition(":")
            ended = getattr(importlib.import_module(module), name)(*words) or 0
        elif code:
            program = sys.modules["__main__"] = ModuleType("__main__")
            exec(compile(code, "<string>", "exec"), program.__dict__)
            ended = 0
        else:
            from anyformer.cli import main

            ended = main(words)
    except SystemExit as end:
        ended = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended)


if __name__ == "__main__":
    serve()
