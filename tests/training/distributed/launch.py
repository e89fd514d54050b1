"""Several processes of one training, started as a launcher starts them: each is told its rank and where to meet."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.training.nursery import Child, Nursery


@dataclass
class Processes:
    """The processes of one training, by rank."""

    children: list[Child]

    def wait(self) -> list[int]:
        """Their exit codes."""
        return [child.wait() for child in self.children]

    @property
    def errors(self) -> list[str]:
        """Every `error:` line that any of them wrote."""
        return [line for child in self.children for line in child.output.splitlines() if line.startswith("error: ")]

    @property
    def output(self) -> str:
        return "\n".join(f"--- rank {rank}\n{child.output}" for rank, child in enumerate(self.children))

    def send(self, number: int) -> None:
        """A signal to each of them, as a launcher passes it on."""
        for child in self.children:
            child.send(number)

    def until_logged(self, run: Path, step: int) -> None:
        """Wait until a step is in the log of the run."""
        limit = time.monotonic() + 60
        while not (run / "metrics.jsonl").is_file() or f'"step": {step},' not in (run / "metrics.jsonl").read_text():
            assert time.monotonic() < limit and self.children[0].ended() is None, self.output
            time.sleep(0.005)


def start(
    nursery: Nursery, words: Sequence[str], where: Path, size: int, *, faults: Mapping[int, str] | None = None,
    call: str = "", restarts: int = 0,
) -> Processes:  # fmt: skip
    """`anyformer WORDS` in `size` processes; `faults` by rank; `restarts` is how often they were started before."""
    port = free_port()
    children = []
    for rank in range(size):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": str(port), "TORCHELASTIC_RESTART_COUNT": str(restarts)}  # fmt: skip
        children.append(nursery.start(words, where, (faults or {}).get(rank, ""), call, env))
    return Processes(children)


def run(nursery: Nursery, words: Sequence[str], where: Path, size: int, *, call: str = "") -> Processes:
    """The same, to a good end."""
    processes = start(nursery, words, where, size, call=call)
    codes = processes.wait()
    assert codes == [0] * size, f"exit codes {codes}:\n{processes.output}"
    return processes


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
