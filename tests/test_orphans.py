"""No process that we start outlives the one that started it, however that one ended."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

if not Path("/proc/self/stat").is_file():
    pytest.skip("this system has no /proc to list processes by", allow_module_level=True)

SOON = 5.0  # seconds in which an orphan must be gone

DECODING = """
import time
from pathlib import Path
from anyformer.data.images import workers
def slow(value, folder):
    time.sleep(0.02 if value else 600)  # one of them hangs in its decoder
    return value
for _ in workers.map_in_workers(slow, list(range(1, 4000)) + [0], Path("."), 3):
    pass
"""
IDLE = """
import time
from pathlib import Path
from anyformer.data.images import workers
with workers.pool(2) as workers:
    list(workers.map(abs, range(8)))
    time.sleep(600)
"""
LOADING = """
import time
from anyformer.data.order import Order
from anyformer.training.loader import Steps, make_batches
class Slow(Steps):
    def __init__(self):
        super().__init__(None, Order(8, 2, 0), None, 2)
    def __getitem__(self, step):
        time.sleep(600 if step > 2 else 0)
        return []
for _ in make_batches(Slow(), 0, 100, workers=2):
    pass
"""
TEMPLATE = """
from anyformer.serving.chat_template import FolderTemplate
loops = 4
endless = "{% for a in range(99999) %}" * loops + "{% endfor %}" * loops
FolderTemplate(endless, {}, seconds=600).text([{"role": "user", "content": "x"}])
"""
UNMINDFUL = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
time.sleep(60)
"""


def children(parent: int) -> set[int]:
    """The processes that this one started, and those that they started."""
    found: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = int(path.parent.name), path.read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if rest[0] != "Z":
            found[pid] = int(rest[1])
    below, added = {parent}, True
    while added:
        more = {pid for pid, above in found.items() if above in below} - below
        below, added = below | more, bool(more)
    return below - {parent}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], object], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        left = children(process.pid) if process.poll() is None else set()
        for pid in (process.pid, *left):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def killed_with_its_workers(process: subprocess.Popen[bytes], count: int, seconds: float = SOON) -> set[int]:
    """Kill the process once it has workers; those that are still there some seconds later."""
    assert wait_for(lambda: len(children(process.pid)) >= count or process.poll() is not None, 120)
    assert process.poll() is None, "it ended before it had workers"
    time.sleep(0.3)
    workers = children(process.pid)
    assert len(workers) >= count
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not any(map(alive, workers)), seconds)
    left = {pid for pid in workers if alive(pid)}
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


@pytest.mark.parametrize("code, count", [(DECODING, 3), (IDLE, 2), (LOADING, 2), (TEMPLATE, 1)],
                         ids=["decoding", "idle", "loading", "template"])  # fmt: skip
def test_workers_end_with_the_process_that_was_killed(code, count):
    with started("-c", code) as process:
        assert not killed_with_its_workers(process, count)


def test_a_killed_preparation_leaves_no_worker(tmp_path):
    """The command itself, killed while it decodes a folder of pictures."""
    from PIL import Image

    if (os.cpu_count() or 1) < 2:
        pytest.skip("pictures are decoded in this process where there is one core")
    noise = Image.frombytes("RGB", (600, 600), random.Random(0).randbytes(600 * 600 * 3))
    noise.save(tmp_path / "one.png", compress_level=1)
    for kind in ("a", "b"):
        (tmp_path / "pictures" / kind).mkdir(parents=True)
        for number in range(300):
            os.link(tmp_path / "one.png", tmp_path / "pictures" / kind / f"{number}.png")
    words = (
        "-m",
        "anyformer.cli",
        "train",
        str(tmp_path / "pictures"),
        "--out",
        str(tmp_path / "run"),
        "--device",
        "cpu",
    )
    with started(*words) as process:
        assert not killed_with_its_workers(process, 2)


def test_control_a_process_that_does_not_look_outlives_its_parent():
    with started("-c", UNMINDFUL) as process:
        assert killed_with_its_workers(process, 1, seconds=1.0)
