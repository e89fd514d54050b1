"""Real processes, cheaply: one process imports everything once and forks another for each command line.

What is forked is a process of its own, in a group of its own: it runs the command line as `python -m anyformer.cli`
would, and can be killed at any moment. Only the seconds of importing torch are saved.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
PATIENCE = 120.0  # seconds after which a process that does not end has failed


@dataclass
class Child:
    """A process that was started; what it says goes into a file."""

    nursery: Nursery
    pid: int
    said: Path

    @property
    def output(self) -> str:
        return self.said.read_text(encoding="utf-8", errors="replace")

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
        self.count += 1
        said = where / f"said-{self.process.pid}-{self.count}.txt"
        env = {"ANYFORMER_FAULT": fault, **(env or {})}
        pid = self.ask({"words": list(words), "where": str(where), "said": str(said), "env": env, "call": call})
        self.pids.append(pid)
        return Child(self, pid, said)

    def run(self, words: Sequence[str], where: Path, fault: str = "", call: str = "") -> tuple[int, str]:
        """Exit code and output of a process."""
        child = self.start(words, where, fault, call)
        return child.wait(), child.output


# ---------------------------------------------------------------- inside


def serve() -> None:
    """Fork a process for each line of JSON on stdin."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import importlib

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


def grow_up(words: list[str], where: str, said: str, env: dict[str, str], call: str) -> None:
    """The new process: its own group, folder, streams and environment, and the usual handling of signals."""
    code = 1
    try:
        os.setsid()
        os.chdir(where)
        os.environ.update(env)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        target = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(target, 1)
        os.dup2(target, 2)
        sys.argv = ["anyformer", *words]
        if call:
            import importlib

            module, _, name = call.partition(":")
            code = getattr(importlib.import_module(module), name)(*words) or 0
        else:
            from anyformer.cli import main

            code = main(words)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
