"""A real server in a process of its own, on a free port of the loopback, and what is seen of it from outside."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

KEY = "a-key-of-some-length"
PATIENCE = 60.0  # seconds until a server is ready, and until it is gone
LEAKS = re.compile(r"Traceback|0x[0-9a-f]{6,}|/[\w.-]+/[\w./-]+\.(?:py|so)\b|site-packages|\bFile \"", re.IGNORECASE)


class Server:
    """`anyformer serve FOLDER` on a free port. Always ends with the process gone."""

    def __init__(
        self, folder: Path, *words: str, fault: str = "", env: dict[str, str] | None = None, files: int | None = None
    ) -> None:
        self.folder, self.words = folder, words
        around = {name: value for name, value in os.environ.items() if name != "ANYFORMER_API_KEY"}
        around |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | (env or {})
        if fault:
            around["ANYFORMER_FAULT"] = fault
        self.said = folder.parent / f"serve-{time.monotonic_ns()}.txt"
        command = [sys.executable, "-m", "anyformer.cli", "serve", str(folder), "--json", *words]
        if "--port" not in words:
            command += ["--port", "0"]
        if files is not None:
            command = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *command]
        began = time.monotonic()
        with self.said.open("wb") as error:
            # A session of its own: whatever it starts can be counted, and killed with it.
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=error, env=around,
                                            stdin=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
        self.line = self.first_line()
        self.started_in = time.monotonic() - began
        self.url: str = self.line["url"].rstrip("/")
        self.port = int(self.url.rpartition(":")[2])
        self.pid: int = self.process.pid
        self.client = httpx.Client(base_url=self.url, timeout=30.0, trust_env=False)

    def first_line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            self.kill()
            self.process.stdout.close()
            raise AssertionError(f"no server came up: exit {self.process.returncode}\n{self.errors()}")
        return json.loads(line)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close()
        if error is not None and isinstance(error, Exception):
            error.add_note(f"the server said:\n{self.errors()[-6000:]}")

    # ------------------------------------------------------------ asking

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.client.get(path, headers=headers)

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return self.client.post(path, json=body, headers=headers)

    def complete(self, prompt: Any, **settings: Any) -> dict[str, Any]:
        """The first choice of a completion that must succeed."""
        answer = self.post("/v1/completions", {"model": self.line["model"], "prompt": prompt} | settings)
        assert answer.status_code == 200, (answer.status_code, answer.text)
        return answer.json()["choices"][0]

    def metrics(self) -> dict[str, float]:
        """`name` or `name{labels}` to its value."""
        return metrics_of(self.get("/metrics").text)

    # ------------------------------------------------------------ looking from outside

    def errors(self) -> str:
        return self.said.read_text(encoding="utf-8", errors="replace")

    def memory(self) -> float:
        """Resident MB."""
        return status_of(self.pid)["VmRSS"] / 1024

    def threads(self) -> int:
        return status_of(self.pid)["Threads"]

    def files(self) -> int:
        """Open file descriptors."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def group(self) -> list[int]:
        """Every process of the session it leads."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(words[3]) == self.pid and words[0] != "Z":
                found.append(int(name))
        return found

    # ------------------------------------------------------------ ending

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        return self.process.wait(seconds)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)

    def close(self) -> None:
        self.client.close()
        self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


def metrics_of(text: str) -> dict[str, float]:
    """Prometheus' text form."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


def status_of(pid: int) -> dict[str, int]:
    """The numbers of /proc/PID/status; sizes in kB."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if value.split() and value.split()[0].isdigit():
            found[name] = int(value.split()[0])
    return found


@contextmanager
def serving(folder: Path, *words: str, **settings: Any) -> Iterator[Server]:
    """A server for the length of a block; what it said on stderr is added to an error."""
    with Server(folder, *words, **settings) as server:
        yield server
