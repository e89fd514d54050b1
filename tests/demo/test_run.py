"""The demo as people meet it: a real process, away from a terminal and on one, stopped half way, and what it leaves."""

from __future__ import annotations

import fcntl
import json
import math
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from anyformer.cli import main
from anyformer.demo import FOLDER

PATIENCE = 300  # another program may hold the cores; these tests measure the demo, not the machine
DEMO = [str(Path(sys.executable).parent / "anyformer"), "demo", "--device", "cpu"]
HIDE, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"


def environment(**changes: str) -> dict[str, str]:
    """This process's, without what decides on colours; one thread, so that two runs can be compared to the bit."""
    hidden = {"FORCE_COLOR", "PY_COLORS", "NO_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return kept | {"OMP_NUM_THREADS": "1"} | changes


# ------------------------------------------------------------------------------------------------ without a terminal


# What only tables, images and scores of translations need is hidden: the demo must do without.
HIDING = """
from importlib.machinery import PathFinder
find, hidden = PathFinder.find_spec, {"pyarrow", "PIL", "sklearn", "scipy", "sacrebleu", "pandas"}
PathFinder.find_spec = staticmethod(lambda name, *rest: None if name.split(".")[0] in hidden else find(name, *rest))
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """One short run into files, with colours asked for that must not come."""
    folder, hiding = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("hiding")
    (hiding / "sitecustomize.py").write_text(HIDING)
    control = subprocess.run(
        [sys.executable, "-c", "import PIL"], capture_output=True, env=environment(PYTHONPATH=str(hiding))
    )
    assert control.returncode == 1
    done = again(folder, [*DEMO, "--steps", "16"], FORCE_COLOR="1", PYTHONPATH=str(hiding))
    return folder, done


def again(folder: Path, words: list[str], **changes: str) -> subprocess.CompletedProcess[bytes]:
    """Run a program there to its good end."""
    done = subprocess.run(words, cwd=folder, capture_output=True, timeout=PATIENCE, env=environment(**changes))
    assert done.returncode == 0, done.stderr.decode()
    return done


def test_without_a_terminal_there_are_plain_lines(plain):
    _, done = plain
    text, news = done.stdout.decode(), done.stderr.decode()
    for each in (text, news):
        assert all(letter == "\n" or letter.isprintable() for letter in each)
        assert all(line == line.rstrip() for line in each.splitlines())
    for words in ("learn Python", "learns from", "evaluated on", "gzip", "The same as typing", "Bits per byte", "def ",
                  "What it writes now", "Attention", "Layer", "Result", "tokens/s", "Lines to copy"):  # fmt: skip
        assert words in text, words
    for words in ("decoder-mini", "16 (", "it writes", "done: step 16 of 16"):  # the training speaks on stderr
        assert words in news, words


def test_the_result_is_that_of_the_run_and_it_has_learned(plain):
    folder, done = plain
    bits = float(re.search(r"bits per byte\s+([\d.]+) on the held-out files", done.stdout.decode()).group(1))
    found = json.loads((folder / FOLDER / "evaluation.json").read_text())
    assert bits == pytest.approx(found["metrics"]["valid"]["bits_per_byte"], abs=0.005)
    facts = json.loads((folder / FOLDER / "data.json").read_text())
    judged, size = facts["parts"]["valid"], facts["tokenizer"]["size"]
    assert bits < 0.95 * math.log2(size) * judged["tokens"] / judged["bytes"]  # what knowing nothing costs


def test_it_is_the_training_that_its_line_asks_for(plain):
    folder, done = plain
    line = (folder / FOLDER / "command.txt").read_text().strip()
    assert f"The same as typing:\n{line}\n" in done.stdout.decode()
    words = shlex.split(line)
    words[words.index("--out") + 1] = "typed"
    again(folder, words)
    for name in ("metrics.jsonl", "config.yaml"):
        assert (folder / "typed" / name).read_bytes() == (folder / FOLDER / name).read_bytes(), name
    shown = json.loads((folder / FOLDER / "run.json").read_text())
    typed = json.loads((folder / "typed" / "run.json").read_text())
    assert (shown["status"], shown["metrics"], shown["data"]) == (typed["status"], typed["metrics"], typed["data"])


def test_the_lines_to_copy_work(plain):
    folder, done = plain
    lines = done.stdout.decode().partition("Lines to copy\n")[2].splitlines()
    assert [shlex.split(line)[1] for line in lines] == ["generate", "train", "resume"]
    (folder / "yourbook.txt").write_text("".join(f"{n} green bottles hanging on the wall.\n" for n in range(99, 9, -1)))
    before = set((folder / "runs").iterdir())
    written, trained, resumed = (again(folder, shlex.split(line)) for line in lines)
    assert written.stdout.strip() and b"bits_per_byte" in trained.stdout
    assert len(set((folder / "runs").iterdir()) - before) == 1  # a run of its own
    assert b"complete" in resumed.stderr


def test_the_run_gives_back_the_model_that_was_shown(plain):
    import anyformer
    from anyformer.demo import PROMPTS
    from anyformer.demo.sampling import complete, text_of

    opened = anyformer.load(plain[0] / FOLDER)
    pieces = complete(opened.model, opened.tokenizer.core, PROMPTS[0], tokens=6)
    assert opened.spec.embed.vocab == opened.tokenizer.size
    first = text_of(pieces).split("\n")[0].rstrip()
    assert first.strip() and first in plain[1].stdout.decode()


# ------------------------------------------------------------------------------------------------ where it writes


def test_another_demo_gets_a_folder_of_its_own(tmp_path, monkeypatch):
    from anyformer.demo.job import free

    monkeypatch.chdir(tmp_path)
    assert free(FOLDER) == FOLDER
    FOLDER.mkdir(parents=True)
    assert free(FOLDER) == Path("runs/demo-2")
    Path("runs/demo-2-text").mkdir()
    assert free(FOLDER) == Path("runs/demo-3")


def test_a_folder_that_is_used_is_refused_before_any_work(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("mine/thesis.txt", "gone-text/abc.py"):
        Path(name).parent.mkdir()
        Path(name).write_text("mine")
    for out in ("mine", "mine/thesis.txt", "gone", "."):
        assert main(["demo", "--out", out]) == 2
        err = capsys.readouterr().err
        assert err.count("error: ") == 1 and ("another --out" in err or "new folder" in err), out
    assert sorted(p.as_posix() for p in Path().rglob("*") if p.is_file()) == ["gone-text/abc.py", "mine/thesis.txt"]


def test_what_cannot_be_trained_leaves_nothing(tmp_path, monkeypatch, capsys):
    from anyformer.demo import job

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(job.SETTINGS, "training.batch_size", 0)
    assert main(["demo", "--device", "cpu", "--steps", "2"]) == 2
    assert "training.batch_size" in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "tpu", "cpu:x"])
def test_a_device_that_is_not_there_is_one_line(device, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--device", device]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: --device: ") and err.count("\n") == 1


# ------------------------------------------------------------------------------------------------ on a terminal


def heed_interrupts() -> None:
    """A test run started in the background ignores interrupts, and its children with it; a person's shell does not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def own_terminal() -> None:
    heed_interrupts()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A program on a pseudo-terminal of its own, as in a window: Ctrl-C typed there reaches it."""

    def __init__(self, words: list[str], folder: Path, rows: int = 40, columns: int = 100) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""
        self.child = subprocess.Popen(
            words, cwd=folder, stdin=self.slave, stdout=self.slave, stderr=self.slave, start_new_session=True,
            env=environment(TERM="xterm-256color", COLORTERM="truecolor"),
            preexec_fn=own_terminal,
        )  # fmt: skip

    def read(self, until: bytes = b"", patience: float = PATIENCE) -> bytes:
        """What was written so far; waits for `until`, or for the end."""
        stop = time.monotonic() + patience
        while time.monotonic() < stop and not (until and until in self.seen):
            if select.select([self.master], [], [], 0.05)[0]:
                self.seen += os.read(self.master, 65536)
            elif self.child.poll() is not None:
                break
        assert until in self.seen, self.seen.decode(errors="replace")[-2000:]
        return self.seen

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def restored(self) -> bool:
        """The line settings are what they were, and the cursor can be seen."""
        return termios.tcgetattr(self.slave) == self.before and self.seen.rfind(SHOW_CURSOR) >= self.seen.rfind(HIDE)

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(tmp_path):
    opened: list[Terminal] = []

    def start(words: list[str], rows: int = 40, columns: int = 100) -> Terminal:
        opened.append(Terminal(words, tmp_path, rows, columns))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_on_a_terminal_one_block_is_drawn_anew(terminal):
    began = time.monotonic()
    one = terminal([*DEMO, "--seconds", "5"])
    out = one.read()
    assert one.child.wait() == 0
    frames = out.count(b"tokens/s")
    assert 2 <= frames <= 4 * (time.monotonic() - began) + 5
    assert HIDE in out and b"\x1b[1A" in out and one.restored()
    assert b"48;2;" in out  # shades
    for words in (b"it writes, at step", b"held-out files", b"What it writes now", b"Lines to copy"):
        assert words in out, words


def test_a_small_terminal_without_colours(terminal):
    one = terminal(["env", "NO_COLOR=1", *DEMO, "--steps", "3"], rows=24, columns=80)
    out = one.read()
    assert one.child.wait() == 0 and one.restored()
    assert not re.search(rb"\x1b\[[\d;]*(3[0-7]|38|48|9[0-7])[;m]", out)
    lines = re.sub(rb"\x1b\[[\d;?]*[a-zA-Z]", b"", out).decode().splitlines()
    end = lines[lines.index("Bits per byte") : lines.index("Lines to copy")]
    assert max(map(len, end)) <= 80
    # Going up to redraw never leaves the screen: what is above it could not be drawn over.
    assert max(len(ups) for ups in re.findall(rb"(?:\x1b\[1A\x1b\[2K)+", out)) <= 23 * len(b"\x1b[1A\x1b[2K")


# ------------------------------------------------------------------------------------------------ Ctrl-C


def patience(seconds: float) -> float:
    """So many seconds where nothing else runs; a busy machine gives each program its share only."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.mark.alone
def test_it_speaks_within_a_second(terminal):
    began = time.monotonic()
    terminal([*DEMO, "--steps", "1"]).read(b"learn Python")
    assert time.monotonic() - began < patience(1)


# Each moment is known by words that were written just before it.
@pytest.mark.alone
@pytest.mark.parametrize("words", [b"Ctrl-C stops it", b"learns from"])
def test_ctrl_c_before_the_training_leaves_nothing(words, terminal, tmp_path):
    one = terminal([*DEMO, "--seconds", "100"])
    one.read(words)
    one.type(b"\x03")
    began = time.monotonic()
    one.child.wait(timeout=60)
    took = time.monotonic() - began
    out = one.read()
    assert one.child.returncode == 130 and took < patience(3), took
    assert b"Traceback" not in out and out.rstrip().endswith(b"stopped") and one.restored()
    assert not list(tmp_path.iterdir())


@pytest.mark.alone
def test_ctrl_c_while_it_trains_keeps_what_was_learned(terminal, tmp_path):
    one = terminal([*DEMO, "--seconds", "100"])
    one.read(b" left")
    one.type(b"\x03")
    began = time.monotonic()
    one.child.wait(timeout=60)
    took = time.monotonic() - began
    out = one.read()
    assert one.child.returncode == 130 and took < patience(3), took
    assert b"Traceback" not in out and b"anyformer resume runs/demo" in out and one.restored()
    assert list((tmp_path / FOLDER / "checkpoints").glob("step-*/model.safetensors"))


@pytest.mark.alone
def test_an_interrupt_without_a_terminal_can_be_resumed(tmp_path):
    words = [*DEMO, "--steps", "20"]
    child = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment(),
        preexec_fn=heed_interrupts,
    )  # fmt: skip
    for line in child.stderr:
        if line.startswith("step "):
            break
    child.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130 and time.monotonic() - began < patience(5)
    assert "Traceback" not in err and err.rstrip().endswith("anyformer resume runs/demo")
    assert json.loads((tmp_path / FOLDER / "run.json").read_text())["status"] == "interrupted"
    done = again(tmp_path, [DEMO[0], "resume", str(FOLDER)])
    assert b"done: step 20 of 20" in done.stderr and (tmp_path / FOLDER / "report.html").is_file()
