"""The demo as people meet it: a real process, away from a terminal and on one, stopped half way, and what it leaves."""

from __future__ import annotations

import fcntl
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

SECONDS = "6"
PATIENCE = 300  # another program may hold the cores; these tests measure the demo, not the machine
PROGRAM = [str(Path(sys.executable).parent / "anyformer"), "demo", "--seconds", SECONDS, "--device", "cpu"]
HIDE, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"


def environment(**changes: str) -> dict[str, str]:
    hidden = {"FORCE_COLOR", "PY_COLORS", "NO_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
    return {name: value for name, value in os.environ.items() if name not in hidden} | changes


# ------------------------------------------------------------------------------------------------ without a terminal


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """One short run into files, with colours asked for that must not come."""
    folder = tmp_path_factory.mktemp("plain")
    done = subprocess.run(
        PROGRAM, cwd=folder, capture_output=True, timeout=PATIENCE, env=environment(FORCE_COLOR="1")
    )  # fmt: skip
    return folder, done


def test_without_a_terminal_there_are_plain_lines(plain):
    _, done = plain
    assert done.returncode == 0 and done.stderr == b"", done.stderr.decode()
    text = done.stdout.decode()
    assert all(letter == "\n" or letter.isprintable() for letter in text)
    assert all(line == line.rstrip() for line in text.splitlines())
    for words in ("learn Python", "learns from", "judged on", "gzip", "tokenizer", "Attention", "expected", "MB",
                  "def ", "What it writes now", "Layer", "Result", "Lines to copy"):  # fmt: skip
        assert words in text, words


def test_the_bits_fall_and_end_where_the_result_says(plain):
    text = plain[1].stdout.decode()
    bits = [float(found) for found in re.findall(r"held-out ([\d.]+) bits/byte", text)]
    first, last = map(float, re.search(r"bits per byte\s+([\d.]+) at first, ([\d.]+) now", text).groups())
    assert len(bits) >= 2 and first == bits[0] and last == bits[-1] and last < 0.98 * first


def test_expected_is_said_before_and_measured_after(plain):
    text = plain[1].stdout.decode()
    expected, taken = map(int, re.search(r"(\d+) s expected, (\d+) s taken", text).groups())
    assert f"{expected} s in all" in text and taken > 0
    memory, peak = map(int, re.search(r"(\d+) MB expected and (\d+) MB at most", text).groups())
    assert 0.6 < memory / peak < 1.4


def copied(text: str) -> tuple[list[str], list[str]]:
    """Shell lines and Python lines under the last heading."""
    shell, _, python = text.partition("Lines to copy\n")[2].partition("\n\nand in ")
    return shell.splitlines(), python.splitlines()[1:]


def test_the_lines_to_copy_work(plain):
    folder, done = plain
    shell, python = copied(done.stdout.decode())
    assert len(shell) == 3 and len(python) == 3
    for line in shell:
        words = shlex.split(line)
        if "--seconds" in words:  # the same line on a smaller budget
            words[words.index("--seconds") + 1] = "1"
        again = subprocess.run(words, cwd=folder, capture_output=True, timeout=PATIENCE, env=environment())
        assert again.returncode == 0 and again.stdout, again.stderr.decode()
    program = [sys.executable, "-c", "\n".join(python)]
    opened = subprocess.run(program, cwd=folder, capture_output=True, timeout=PATIENCE)
    assert opened.stdout
    assert opened.returncode == 0, opened.stderr.decode()


def test_the_model_folder_gives_back_the_model_that_was_shown(plain):
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    from anyformer import Model
    from anyformer.demo import PROMPTS
    from anyformer.demo.sampling import complete, text_of

    folder = plain[0] / "runs" / "demo"
    assert sorted(path.name for path in folder.iterdir()) == ["anyformer.json", "model.safetensors", "tokenizer.json"]
    net = Model.from_json((folder / "anyformer.json").read_text()).build()
    net.load_state_dict(load_file(folder / "model.safetensors"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == net.spec.embed.vocab
    assert text_of(complete(net, tokenizer, PROMPTS[0], tokens=4)).startswith(PROMPTS[0])


def test_a_folder_with_other_files_is_refused_before_any_work(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    assert main(["demo", "--out", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.count("error: ") == 1 and "new or empty folder" in err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


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

    def start(words: list[str] = PROGRAM, rows: int = 40, columns: int = 100) -> Terminal:
        opened.append(Terminal(words, tmp_path, rows, columns))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_on_a_terminal_one_block_is_drawn_anew(terminal):
    began = time.monotonic()
    one = terminal()
    out = one.read()
    assert one.child.wait() == 0
    frames = out.count(b"tokens/s")
    assert 3 <= frames <= 4 * (time.monotonic() - began) + 5
    assert HIDE in out and b"\x1b[1A" in out and one.restored()
    assert b"48;2;" in out  # shades
    for words in (b"at step 0", b"held-out files", b"What it writes now", b"Lines to copy"):
        assert words in out, words


def test_a_small_terminal_without_colours(terminal):
    one = terminal(["env", "NO_COLOR=1", *PROGRAM[:2], "--seconds", "2"], rows=24, columns=80)
    out = one.read()
    assert one.child.wait() == 0 and one.restored()
    assert not re.search(rb"\x1b\[[\d;]*(3[0-7]|38|48|9[0-7])[;m]", out)
    lines = re.sub(rb"\x1b\[[\d;?]*[a-zA-Z]", b"", out).decode().splitlines()
    assert max(map(len, lines[: lines.index("Lines to copy")])) <= 80
    # Going up to redraw never leaves the screen: what is above it could not be drawn over.
    assert max(len(ups) for ups in re.findall(rb"(?:\x1b\[1A\x1b\[2K)+", out)) <= 23 * len(b"\x1b[1A\x1b[2K")


def patience_for_ctrl_c() -> float:
    """Three seconds where nothing else runs; a busy machine gives each program its share only."""
    return 3 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


# Each moment is known by words that were written just before it.
MOMENTS = {"at once": b"Ctrl-C stops it", "while it reads": b"learns from", "while it trains": b"s left"}


@pytest.mark.alone
@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_ends_it_cleanly_on_a_terminal(moment, terminal):
    one = terminal(PROGRAM[:2] + ["--seconds", "100", "--device", "cpu"])
    one.read(MOMENTS[moment])
    one.type(b"\x03")
    began = time.monotonic()
    one.child.wait(timeout=30)
    took = time.monotonic() - began
    out = one.read()
    assert one.child.returncode == 130 and took < patience_for_ctrl_c(), took
    assert b"Traceback" not in out and out.rstrip().endswith(b"stopped") and one.restored()


@pytest.mark.alone
def test_an_interrupt_without_a_terminal_is_one_line(tmp_path):
    words = PROGRAM[:2] + ["--seconds", "100", "--device", "cpu"]
    child = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    )
    for line in child.stdout:
        if line.startswith("step"):
            break
    child.send_signal(signal.SIGINT)
    began = time.monotonic()
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130 and time.monotonic() - began < patience_for_ctrl_c()
    assert err == "stopped\n" and "Traceback" not in out and not list(tmp_path.iterdir())
