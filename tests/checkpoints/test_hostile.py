"""A model folder is data: nothing in it runs, nothing outside it is opened, and a bad one ends in one line."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import anyformer
from anyformer.errors import UserError
from tests.attack.model_folders import BYTES, VERBS, attack, attempt, try_one, warm_up
from tests.checkpoints.hostile import CASES, HARMLESS, tokenizer

ALLOWED = ("/proc/", "/sys/", "/dev/")  # the allocator and the loader look at the machine, never at a name in a folder
WATCHED: dict[str, list[str]] = {"open": [], "pickle.find_class": [], "subprocess.Popen": [], "socket.connect": []}
STATE = {"on": False}


def hook(event: str, arguments: tuple) -> None:
    if STATE["on"] and event in WATCHED:
        WATCHED[event].append(str(arguments[0]) if event == "open" else event)


sys.addaudithook(hook)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small GPT-2 folder that opens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from tests.families.parity import save

    torch.manual_seed(0)
    config = GPT2Config(n_embd=24, n_layer=2, n_head=4, vocab_size=50, n_positions=32)
    folder = save(GPT2LMHeadModel(config), tmp_path_factory.mktemp("good") / "model")
    anyformer.load(folder)  # imports what it needs, so that the audit below sees the folder's files only
    return folder


@pytest.fixture
def spoiled(good: Path, tmp_path: Path) -> Iterator[Path]:
    shutil.copytree(good, tmp_path / "model")
    yield tmp_path / "model"


def outside(folder: Path) -> list[str]:
    """Files opened for their content beyond the folder and Python's own modules."""
    library = (sys.prefix, sys.base_prefix, str(Path(anyformer.__file__).parent), *ALLOWED)
    found = []
    for name in WATCHED["open"]:
        path = Path(name).absolute() if not name.isdigit() else None
        if path is not None and not str(path).startswith((str(folder), *library)):
            found.append(name)
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_hostile_folder_ends_in_one_line(case: str, spoiled: Path) -> None:
    CASES[case](spoiled)
    before = sorted(p.name for p in spoiled.parent.rglob("*"))
    for events in WATCHED.values():
        events.clear()
    STATE["on"], started = True, time.process_time()  # of ours: neighbours may keep the machine busy
    try:
        if case in HARMLESS:
            anyformer.load(spoiled)
        else:
            with pytest.raises(UserError) as caught:
                anyformer.load(spoiled)
            line = str(caught.value)
            assert len(line.splitlines()) == 1 and len(line) <= 400, line
    finally:
        STATE["on"] = False
    assert time.process_time() - started < 5
    assert not WATCHED["pickle.find_class"] and not WATCHED["subprocess.Popen"] and not WATCHED["socket.connect"]
    assert outside(spoiled) == []
    assert sorted(p.name for p in spoiled.parent.rglob("*")) == before, "something was written"


def test_there_are_at_least_sixty_cases() -> None:
    assert len(CASES) >= 60


def test_the_audit_would_notice(tmp_path: Path) -> None:
    for events in WATCHED.values():
        events.clear()
    STATE["on"] = True
    try:
        Path("/etc/hostname").read_bytes()
    finally:
        STATE["on"] = False
    assert outside(tmp_path) == ["/etc/hostname"]


def test_a_good_folder_opens_without_a_look_outside(good: Path) -> None:
    WATCHED["open"].clear()
    STATE["on"] = True
    try:
        anyformer.load(good)
    finally:
        STATE["on"] = False
    assert any("model.safetensors" in name for name in WATCHED["open"])
    assert outside(good) == []


@pytest.mark.parametrize(
    "case", ["pickle pytorch_model.bin", "giant depth", "header is deep", "shard at '/etc/passwd'"]
)
def test_the_command_says_it_in_one_line_and_exits_2(case: str, spoiled: Path) -> None:
    CASES[case](spoiled)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))

    done = subprocess.run(
        [sys.executable, "-m", "anyformer.cli", "check", str(spoiled)],
        capture_output=True, text=True, timeout=60, preexec_fn=limit, env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    lines = done.stderr.strip().splitlines()
    assert sum(line.startswith("error: ") for line in lines) == 1 and "Traceback" not in done.stderr
    assert not (spoiled.parent / "ran").exists()


# ---------------------------------------------------------------- every verb, in a process of its own

COSTLY = (
    "depth 20,000", "50,000 tensors of no bytes", "token id 4e9", "chained normalizers that double",
    "a thousand million beams", "labels named by words", "a spec of depth 10^9", "vocabulary of 1e30",
)  # fmt: skip


@pytest.mark.parametrize("case", COSTLY)
def test_no_verb_takes_long_or_much_memory_over_it(case: str, good: Path, tmp_path: Path) -> None:
    warm_up(good)
    for verb in VERBS:
        outcome = try_one(CASES[case], good, verb, tmp_path / "try")
        assert outcome.bad == "" and outcome.code == 2, (verb, outcome)


def test_a_good_folder_is_no_trouble_to_any_verb_but_those_that_want_words(good: Path, tmp_path: Path) -> None:
    warm_up(good)
    for verb in VERBS:  # control: the same measurement where nothing is wrong
        outcome = try_one(lambda folder: tokenizer()(folder), good, verb, tmp_path / "try")
        assert outcome.bad == "" and outcome.code == 0, (verb, outcome)


def test_the_measurement_would_notice(tmp_path: Path) -> None:
    def abort() -> int:
        os.abort()

    def trace() -> int:
        raise RuntimeError("of ours")

    def greedy() -> int:
        held = bytearray(BYTES + 2**29)
        return len(held) % 2

    for action, said in ((abort, "signal 6"), (trace, "traceback"), (greedy, "MiB"), (lambda: 3, "exit 3")):
        assert said in attempt(action, tmp_path).bad


def test_fields_of_every_file_can_be_spoiled_in_every_way(tmp_path: Path) -> None:
    """A small part of what `python -m tests.attack.model_folders` tries, the same every time."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        figures = attack(60, 7)
    assert sum(tries for tries, _ in figures.values()) == 60
    assert not any(bad for _, bad in figures.values()), said.getvalue()
