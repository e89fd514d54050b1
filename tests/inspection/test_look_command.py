"""`anyformer look` as a process: beside a training that has just begun, after one that stopped, on a folder."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from anyformer.checkpoints import store
from anyformer.commands.looking import is_training
from anyformer.training.run.history import open_run
from tests.inspection import models
from tests.inspection.runs import LINES

PATIENCE = 120.0  # seconds; the machine may be busy
AROUND = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


class Command:
    """A running `anyformer ...`, whose messages are read as they come."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "anyformer.cli", *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL, text=True, env=os.environ | AROUND,
        )  # fmt: skip
        self.lines: queue.Queue[str] = queue.Queue()
        self.said: list[str] = []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.put(line)

    def line(self, beginning: str) -> str:
        """The next message that begins so."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                line = self.lines.get(timeout=0.2)
            except queue.Empty:
                assert self.process.poll() is None, self.said
                continue
            self.said.append(line)
            if line.startswith(beginning):
                return line
        raise AssertionError(f"no line {beginning!r} among {self.said}")

    def end(self, number: int = signal.SIGINT) -> int:
        """Ask it to stop; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self.reader.join(PATIENCE)
        while not self.lines.empty():
            self.said.append(self.lines.get())
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


def wait_until(holds, what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def asked(address: str, body: object = None) -> dict:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)


@pytest.fixture
def training(tmp_path: Path) -> Iterator[tuple[Command, Path]]:
    """A real training that was stopped in its steps before the first checkpoint, and its folder."""
    data, run = tmp_path / "lines.txt", tmp_path / "run"
    data.write_text("\n".join(LINES * 4) + "\n")
    settings = {"training.save_every": 25, "training.eval_every": 10_000, "training.threads": 1, "training.workers": 0,
                "training.compile": False, "data.tokenizer.max_length": 16}  # fmt: skip
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command = Command("train", str(data), "--task", "lm", "--steps", "100000", "--batch-size", "2", "--device", "cpu",
                      "--out", str(run), "--progress", "none", *words)  # fmt: skip
    try:
        wait_until(lambda: is_training(run) or command.process.poll() is not None, "no run")
        assert command.process.poll() is None, list(command.lines.queue)
        command.process.send_signal(signal.SIGSTOP)
        yield command, run
    finally:
        command.process.send_signal(signal.SIGCONT)
        command.end(signal.SIGKILL)


def test_a_look_at_a_run_that_has_just_begun_waits_and_opens_on_the_training(training):
    command, run = training
    assert not list(store.committed(run / "checkpoints")) and open_run(run).status == "running"
    look = Command("look", str(run), "a b c a b c", "--no-browser", "--device", "cpu")
    try:
        assert "trains, step" in look.line("waiting")
        command.process.send_signal(signal.SIGCONT)
        page = re.search(r"http://127\.0\.0\.1:\d+/\S*", look.line("page")).group()
        assert page.endswith("#view=training")
        root = page.partition("#")[0] + "look/api"
        assert asked(f"{root}/manifest")["input"] == "a b c a b c"
        assert asked(f"{root}/run")["running"] is True
        first = max(step for step, _ in store.committed(run / "checkpoints"))
        wait_until(
            lambda: max(step for step, _ in store.committed(run / "checkpoints")) > first, "no second checkpoint"
        )
        newest = asked(f"{root}/new?capture=1", {"newest": True})
        step = int(re.search(r"run · step ([\d,]+)", newest["title"]).group(1).replace(",", ""))
        assert step > first and newest["input"] == "a b c a b c" and newest["capture"] == "2"
        assert asked(f"{root}/manifest?capture=1")["title"] != newest["title"]  # control: the first is as it was
    finally:
        assert look.end() == 0
    assert "ended" in "".join(look.said)


def test_a_run_that_stopped_before_its_first_checkpoint_says_resume(training):
    command, run = training
    command.process.kill()
    command.process.wait()
    done = subprocess.run([sys.executable, "-m", "anyformer.cli", "look", str(run), "--no-browser"],
                          capture_output=True, text=True, env=os.environ | AROUND, timeout=PATIENCE)  # fmt: skip
    assert done.returncode == 2 and f"anyformer resume {run}" in done.stderr and "waiting" not in done.stderr


def test_the_page_of_a_folder_opens_on_the_selection(tmp_path):
    folder = models.gpt().save(tmp_path / "small")
    look = Command("look", str(folder), models.TEXT, "--no-browser", "--view", "heads", "--layer", "1", "--head", "2")
    try:
        page = re.search(r"http://127\.0\.0\.1:\d+/\S*", look.line("page")).group()
        assert page.endswith("#view=heads&site=1&head=2")
        manifest = asked(page.partition("#")[0] + "look/api/manifest")
        assert manifest["input"] == models.TEXT and len(manifest["sites"]) == 2
        with urllib.request.urlopen(page.partition("#")[0], timeout=PATIENCE) as answer:
            assert b"look/app" in answer.read()
    finally:
        assert look.end() == 0
