"""What a person sees while a run trains: the record behind it, the lines, the live block, the notebook's cell."""

from __future__ import annotations

import io
import math
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
import types

import pytest
from rich.console import Console

from anyformer.errors import Stopped, UserError
from anyformer.terminal import CurveSeries
from anyformer.training.display.block import block
from anyformer.training.display.curve import heights, plot, ticks
from anyformer.training.display.display import Display, choose, display
from anyformer.training.display.lines import SILENCE, LineDisplay, last_line, of_few_outputs
from anyformer.training.display.notebook import NotebookCell, kernel_display
from anyformer.training.display.progress import Progress
from anyformer.training.display.stream import Safe
from anyformer.training.setup import memory
from anyformer.training.setup.device_peaks import peak_flops
from anyformer.training.setup.memory import Memory


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def trained(steps: int = 320, total: int = 500, clock: Clock | None = None, **settings) -> Progress:
    """A progress in the middle of things."""
    clock = clock or Clock()
    used = Memory(3 * 2**30, 4 * 2**30, 139 * 2**30, "GPU memory")
    settings = {"metric": "accuracy", "better": "max", "baseline": 0.31, "memory": lambda: used} | settings
    progress = Progress(total, 16384, flops_per_step=1.4e13, peak=989e12, clock=clock, **settings)
    for step in range(10, steps + 1, 10):
        clock.now += 0.6
        progress.step(step, 0.6, 1.5 + 9 * math.exp(-step / 15) + math.sin(step) / 10, 6e-4, 0.91, 0.006)
        if step % 100 == 0:
            clock.now += 8
            progress.evaluated(step, {"loss": 1.7, "accuracy": 0.7, "macro_f1": 0.66})
            progress.sample(step, "ROMEO:\n\x1b[31mred\x07\t" + "long " * 80 + "\n你好，世界 e\u0301\n" * 3)
            progress.note(f"saved step {step}")
    return progress


# ---------------------------------------------------------------------------------------------------- the record


@pytest.mark.quick
def test_rates_are_of_the_steps_alone_and_the_first_ones_do_not_count():
    clock = Clock()
    progress = Progress(100, 512, flops_per_step=1e9, peak=1e12, clock=clock)
    progress.step(1, 60.0, 5.0)  # compiling
    for step in range(11, 41, 10):
        clock.now += 2
        progress.step(step, 2.0, 4.0, wait_seconds=0.5)
    now = progress.snapshot()
    assert now.step_seconds == pytest.approx(0.2) and now.per_second == pytest.approx(2560)
    assert now.wait == pytest.approx(0.25) and now.mfu == pytest.approx(1e9 / 0.2 / 1e12)
    assert progress.snapshot().left == pytest.approx((100 - 31) * 0.2)


def test_time_left_counts_evaluations_to_come_and_shrugs_off_a_hiccup():
    clock = Clock()
    progress = Progress(1000, 1, clock=clock)
    for step in range(1, 501):
        seconds = 30.0 if step == 480 else 0.1  # one stall of half a minute
        clock.now += seconds
        progress.step(step, seconds, 1.0)
        if step % 100 == 0:
            clock.now += 7.0
            progress.evaluated(step, {"loss": 1.0})
    # 500 steps and five evaluations; the last one's length is not known before the next step.
    left = progress.snapshot().left
    assert left == pytest.approx(500 * 0.1 + 5 * 7, rel=0.08)
    plain = 500 * (30.0 + 49 * 0.1) / 50
    assert plain > 300 > left  # control: the bare mean of the same steps is five times that


def test_one_long_pause_does_not_count_for_all():
    clock = Clock()
    progress = Progress(1000, 1, clock=clock)
    for step in range(1, 601):
        clock.now += 0.1
        progress.step(step, 0.1, 1.0)
        if step % 100 == 0:
            clock.now += 3600.0 if step == 300 else 2.0  # the machine slept
            progress.evaluated(step, {"loss": 1.0})
    assert progress.snapshot().left == pytest.approx(400 * 0.1 + 4 * 2, rel=0.05)


def test_unknown_stays_unknown():
    now = Progress(None, 512).snapshot()
    assert (now.left, now.mfu, now.per_second, now.memory, now.loss) == (None,) * 5
    progress = Progress(10, 512, flops_per_step=1e9, peak=None)
    progress.step(1, 0.1, math.nan)
    progress.step(2, 0.1, 2.0)
    now = progress.snapshot()
    assert now.mfu is None and now.smooth == 2.0


def test_a_step_back_replaces_the_curve_and_the_curve_stays_small():
    progress = Progress(10**6, 1)
    for step in range(1, 9001):
        progress.step(step, 0.1, float(step))
    points = progress.snapshot().training
    assert len(points) <= 2000 and points[-1][0] == 9000
    progress.step(50, 0.1, 1.0)
    points = progress.snapshot().training
    assert points[-1][0] == 50 and [x for x, _ in points] == sorted({x for x, _ in points})


def test_the_best_follows_the_metric_and_its_direction():
    for better, best in (("max", (2, 0.9)), ("min", (1, 0.5)), (None, None)):
        progress = Progress(10, 1, metric="accuracy", better=better)
        for step, value in ((1, 0.5), (2, 0.9), (3, 0.7), (4, math.nan)):
            progress.evaluated(step, {"accuracy": value})
        assert progress.snapshot().best == best


@pytest.mark.parametrize(
    "name, precision, peak",
    [
        ("NVIDIA H200", "bf16", 989e12), ("NVIDIA H100 80GB HBM3", "bfloat16", 989e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12), ("NVIDIA A100-SXM4-80GB", "fp16", 312e12), ("NVIDIA A10", "bf16", 125e12),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2e12), ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16", None),
        ("Tesla T4", "fp16", 65e12), ("Tesla T4", "bf16", None), ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
        ("CPU, 2 threads", "bf16", None), ("AMD EPYC 7763", "fp32", None), ("NVIDIA H200", "int3", None),
    ],
)  # fmt: skip
def test_peaks_are_known_or_not_invented(name, precision, peak):
    assert peak_flops(name, precision) == peak


def test_two_threads_may_write_and_others_read():
    progress = Progress(10**6, 8)
    failures: list[BaseException] = []
    stop = threading.Event()

    def write(offset: int) -> None:
        try:
            for step in range(3000):
                progress.step(2 * step + offset, 0.01, 1.0 + offset)
                if step % 10 == 0:
                    progress.evaluated(step, {"loss": 1.0})
                    progress.note("x")
        except BaseException as error:
            failures.append(error)

    def read() -> None:
        try:
            while not stop.is_set():
                block(progress.snapshot(), 80, 20)
                events = progress.events(0)
                assert [event.number for event in events] == sorted({event.number for event in events})
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(i,)) for i in range(2)]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert not failures and progress.numbered == 2 * 2 * 300 and progress.calls == 6000


# ---------------------------------------------------------------------------------------------------- memory


def fake_system(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal:       16000000 kB\nMemFree: 1 kB\n"}


@pytest.mark.parametrize(
    "files, expected",
    [
        ({}, 16000000 * 1024),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 16000000 * 1024),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "1048576000\n",
          "sys/fs/cgroup/a/b/memory.max": "max\n"}, 1048576000),
        # in a container the path is the host's: its own limit stands at the top
        ({"proc/self/cgroup": "0::/docker/0123\n", "sys/fs/cgroup/memory.max": "2097152000\n"}, 2097152000),
        ({"proc/self/cgroup": "5:cpu:/x\n4:memory,hugetlb:/x\n0::/\n",
          "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "536870912\n"}, 536870912),
        ({"proc/self/cgroup": "4:memory:/\n",
          "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 16000000 * 1024),
        ({"proc/self/cgroup": "garbage\n0::/../../x\n", "sys/fs/cgroup/memory.max": "-5\n"}, 16000000 * 1024),
    ],
)  # fmt: skip
def test_the_limit_is_the_machine_s_or_the_group_s(tmp_path, files, expected):
    assert memory.limit(fake_system(tmp_path, MEMINFO | files)) == expected


def test_memory_of_this_process(tmp_path):
    now = memory.usage()
    assert now.peak and now.limit and 10**6 < now.peak < now.limit
    if sys.platform == "linux":
        assert now.used and now.used <= now.peak
        fake_system(tmp_path, {"proc/self/status": "Name: x\nVmHWM:\t  200 kB\nVmRSS:\t  100 kB\n"})
        assert (memory.resident_bytes(tmp_path), memory.peak(tmp_path)) == (102400, 204800)
    assert memory.limit(tmp_path / "nothing") is None


# ---------------------------------------------------------------------------------------------------- plain lines


@pytest.mark.quick
def test_lines_come_at_events_and_every_ten_seconds():
    clock, stream = Clock(), io.StringIO()
    progress = Progress(100, 10, clock=clock)
    lines = LineDisplay(progress, Safe(stream), clock)

    def new() -> list[str]:
        lines.tick()
        text = stream.getvalue()
        stream.seek(0)
        stream.truncate()
        return text.splitlines()

    assert new() == []
    clock.now += SILENCE
    assert "first step" in new()[0]  # nothing has happened, and that is said
    progress.step(1, 0.1, 2.0)
    assert len(new()) == 1 and new() == []  # the first loss at once
    for _ in range(9):
        clock.now += 1
        progress.step(progress.at + 1, 0.1, 2.0)
        assert new() == []
    clock.now += 1
    assert len(new()) == 1
    clock.now += 5
    progress.evaluated(11, {"loss": 1.9})
    progress.note("saved step 11")
    told = new()
    assert "validation: loss 1.900" in told[0] and told[1] == "saved step 11"
    clock.now += 9
    assert new() == []  # the ten seconds count from the last line of any kind
    progress.doing("evaluating")
    clock.now += 1
    assert "evaluating" in new()[0]


def test_lines_hold_no_control_characters():
    stream = io.StringIO()
    progress = trained()
    progress.note("two\nlines \x1b[2J")
    lines = LineDisplay(progress, Safe(stream))
    lines.tick()
    lines.finish(last_line(progress.snapshot()))
    text = stream.getvalue()
    assert "ROMEO" in text and "\x1b" in trained().events()[1].text  # control: there was something to remove
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    assert max(map(len, text.splitlines())) < 200


def test_a_stream_that_cannot_say_a_letter_gets_question_marks():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="strict")
    with display(trained(), "lines", stream) as shown:
        pass
    assert not shown.trouble and b"??" in raw.getvalue()


@pytest.mark.parametrize(
    "error, done, word",
    [(None, True, "done"), (None, False, "ended"), (KeyboardInterrupt, False, "stopped"), (Stopped, False, "stopped"),
     (ValueError, False, "failed")],
)  # fmt: skip
def test_the_last_line_says_how_it_ended(error, done, word):
    text = last_line(trained(total=320 if done else 500).snapshot(), error)
    assert text.startswith(f"{word}: step 320 of ") and "accuracy 0.7000 (baseline 0.3100)" in text


# ---------------------------------------------------------------------------------------------------- the block


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("width", [8, 20, 40, 60, 80, 100, 120, 300])
def test_the_block_fits(width, ascii_only):
    progress = trained()
    states = [progress.snapshot(), Progress(None, 1).snapshot(), Progress(10, 1).snapshot(), trained(500).snapshot()]
    console = Console(width=width, file=io.StringIO())
    for height in (1, 2, 5, 8, 12, 19, 20, 24, 40, 100):
        for now in states:
            lines = block(now, width, height, ascii_only=ascii_only)
            assert 1 <= len(lines) <= height
            assert all(line.cell_len <= width and "\n" not in line.plain for line in lines)
            assert not any(re.search(r"[\x00-\x1f]", line.plain) for line in lines)
            with console.capture() as captured:
                for line in lines:
                    console.print(line)
            assert len(captured.get().splitlines()) == len(lines)  # nothing was folded on the way


@pytest.mark.parametrize("width, height", [(60, 19), (80, 23), (110, 39)])
def test_the_block_names_every_figure(width, height):
    text = "\n".join(line.plain for line in block(trained().snapshot(), width, height))
    words = [
        "step 320 of 500", "left", "loss", "6.0e-04", "0.91", "tokens/s", "60 ms a step", "MFU 24 %", "1.0 %",
        "3.0 GiB", "peak 4.0 GiB", "accuracy 0.7000", "baseline 0.3100", "it writes", "ROMEO", "●", "▀",
    ]  # fmt: skip
    for word in words:
        assert word in text, (word, text)
    ascii_text = "\n".join(line.plain for line in block(trained().snapshot(), width, height, ascii_only=True))
    assert not re.search(r"[▀-▟─│┤└●·█░]", ascii_text)


@pytest.mark.parametrize("scale", [1e-7, 1e-3, 1.0, 1e3, 1e8])
def test_the_axis_has_numbers_at_every_scale(scale):
    series = [CurveSeries([(x, scale * (2 + math.cos(x / 9))) for x in range(100)])]
    lines = plot(series, 60, 12, x_range=(0, 99))
    labels = [line.plain.split("┤")[0].strip() for line in lines if "┤" in line.plain]
    assert len(lines) == 12 and 2 <= len(labels) <= 6
    assert [float(label) for label in labels] == sorted(map(float, labels), reverse=True)


def test_odd_curves_are_drawn_too():
    for points in ([], [(0, 5.0)], [(0, 5.0), (1, 5.0)], [(0, 1e300), (1, 1.0), (9, 1.0)], [(0, 0.0)], [(1, math.inf)]):
        low, high = heights([CurveSeries(points)], [math.nan])
        assert math.isfinite(low) and low < high and ticks(low, high, 8)
        assert len(plot([CurveSeries(points)], 30, 8, x_range=(0, 9))) == 8


# ---------------------------------------------------------------------------------------------------- which display


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "stream, mode, variables, chosen",
    [
        (Terminal, "auto", {"TERM": "xterm"}, "bar"), (Terminal, "bar", {"TERM": "xterm"}, "bar"),
        (Terminal, "lines", {"TERM": "xterm"}, "lines"), (Terminal, "none", {"TERM": "xterm"}, "none"),
        (Terminal, "auto", {"TERM": "dumb"}, "lines"), (Terminal, "bar", {"TERM": "dumb"}, "lines"),
        (io.StringIO, "auto", {"TERM": "xterm"}, "lines"), (io.StringIO, "bar", {"FORCE_COLOR": "1"}, "lines"),
    ],
)  # fmt: skip
def test_the_display_fits_the_stream(stream, mode, variables, chosen, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert choose(Progress(1, 1), mode, Safe(stream()))[0] == chosen


def test_an_unknown_mode_is_an_error():
    with pytest.raises(UserError, match="did you mean 'lines'"):
        display(Progress(1, 1), "line")


@pytest.mark.parametrize("mode, quiet", [("none", False), ("auto", True), ("lines", True)])
def test_quiet_is_one_line(mode, quiet):
    stream = io.StringIO()
    with display(trained(), mode, stream, quiet):
        pass
    assert len(stream.getvalue().splitlines()) == 1


def test_no_colour_where_none_is_wanted(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    texts = {}
    for name in ("with", "without"):
        if name == "without":
            monkeypatch.setenv("NO_COLOR", "1")
        stream = Terminal()
        with display(trained(), "bar", stream):
            pass
        texts[name] = stream.getvalue()
    colour = re.compile(r"\x1b\[[\d;]*3\d[\d;]*m")
    assert colour.search(texts["with"]) and not colour.search(texts["without"])


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_a_closed_stream_never_stops_the_training(kind, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = kind()
    progress = trained()
    with display(progress, "auto", stream) as shown:
        stream.close()
        time.sleep(0.6)
        progress.step(330, 0.1, 1.0)
    assert shown.stream.gone and not shown.trouble and not shown.thread.is_alive()
    closed = kind()
    closed.close()
    with display(progress, "auto", closed):
        pass


def test_a_broken_pipe_never_stops_the_training():
    read, write = os.pipe()
    os.close(read)
    with display(trained(), "lines", os.fdopen(write, "w")) as shown:
        pass
    assert shown.stream.gone
    shown.stream.stream.buffer.raw.close() if not shown.stream.stream.closed else None


def test_a_display_that_fails_is_replaced_by_lines():
    class Broken:
        def start(self):
            raise ZeroDivisionError

        tick = finish = start

    stream = io.StringIO()
    progress = trained()
    with Display(progress, "bar", [Broken()], Safe(stream)) as shown:
        pass
    assert isinstance(shown.trouble[0], ZeroDivisionError) and shown.mode == "lines"
    assert stream.getvalue().splitlines()[-1].startswith("ended: step 320")


def test_an_error_passes_through(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for error in (KeyboardInterrupt, ValueError):
        stream = Terminal()
        with pytest.raises(error), display(trained(), "bar", stream):
            raise error
        text = stream.getvalue()
        assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") >= 0  # the cursor is back


def test_the_log_gets_lines_whatever_the_screen_shows(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    log, stream = io.StringIO(), Terminal()
    with display(trained(), "bar", stream, log=log) as shown:
        pass
    assert shown.mode == "bar" and "\x1b" in stream.getvalue()
    assert "\x1b" not in log.getvalue() and "saved step 300" in log.getvalue()


# ---------------------------------------------------------------------------------------------------- notebook


def pretend_kernel(monkeypatch, shell_name="ZMQInteractiveShell"):
    shown: list = []

    class Handle:
        def update(self, bundle, raw):
            assert raw
            shown.append(bundle)

    def show(bundle, raw, display_id):
        assert raw and display_id
        shown.append(bundle)
        return Handle()

    shell = type(shell_name, (), {})()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=show))
    return shown


def test_a_notebook_has_one_cell_updated_in_place(monkeypatch):
    shown = pretend_kernel(monkeypatch)
    stream = io.StringIO()
    with display(trained(), stream=stream) as live:
        assert live.mode == "notebook"
    assert not live.trouble and stream.getvalue() == "" and len(shown) == 2
    assert "step 320 of 500" in shown[-1]["text/plain"] and "ended: step 320" in shown[-1]["text/plain"]
    html = shown[-1]["text/html"]
    assert html.startswith("<pre style=") and "ROMEO" in html and "\x1b" not in html and "<script" not in html


def test_a_cell_is_not_updated_too_often():
    clock, shown = Clock(), []

    class Handle:
        def update(self, bundle, raw):
            shown.append(bundle)

    cell = NotebookCell(trained(), lambda bundle, raw, display_id: Handle(), clock)
    cell.start()
    for _ in range(20):
        clock.now += 0.25
        cell.tick()
    assert len(shown) == 5


def test_a_terminal_is_no_notebook(monkeypatch):
    pretend_kernel(monkeypatch, "TerminalInteractiveShell")
    assert kernel_display() is None
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))
    assert kernel_display() is None
    monkeypatch.delitem(sys.modules, "IPython")
    assert kernel_display() is None and "IPython" not in sys.modules


def test_markup_in_a_sample_is_text_in_the_cell():
    progress = trained()
    progress.sample(320, "<script>alert(1)</script> [bold]x[/bold]")
    html = NotebookCell(progress, lambda *a, **k: None).bundle()["text/html"]
    assert "<script" not in html and "&lt;script&gt;" in html and "[bold]x" in html


# ---------------------------------------------------------------------------------------------------- a real terminal

PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background passes on that it is ignored
from anyformer.training.display.display import display
from anyformer.training.display.progress import Progress
progress = Progress(200, 64, metric="loss", baseline=3.0)
with display(progress):
    for step in range(1, 201):
        time.sleep(0.01)
        progress.step(step, 0.01, 1 + 3 / step)
        if step == 60:
            progress.note("kept for good", keep=True)
        if step % 50 == 0:
            progress.evaluated(step, {"loss": 1.2})
        if step == 100 and "hang" in sys.argv:
            while True:
                time.sleep(0.1)
"""


def screen(data: str) -> list[str]:
    """What a terminal would show, all that scrolled away included: enough of one for what rich sends."""
    rows, y, x = [""], 0, 0
    for part in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|[^\x1b]", data):
        if part.startswith("\x1b["):
            if part.endswith("A"):
                y = max(0, y - int(part[2:-1] or 1))
            elif part == "\x1b[2K":
                rows[y] = ""
        elif part == "\r":
            x = 0
        elif part == "\n":
            y += 1
            rows += [""] * (y + 1 - len(rows))
        else:
            rows[y] = rows[y].ljust(x)[:x] + part + rows[y][x + 1 :]
            x += 1
    return [row.rstrip() for row in rows]


def in_terminal(*words: str, when: str = "", send: int = 0) -> tuple[str, int]:
    """Run the program on a pseudo terminal; send a signal once `when` has been seen."""
    master, slave = pty.openpty()
    variables = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES")}
    variables |= {"TERM": "xterm-256color", "COLUMNS": "70", "LINES": "20", "PYTHONIOENCODING": "utf-8"}
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], stdin=slave, stdout=slave, stderr=slave, env=variables, close_fds=True
    )
    os.close(slave)
    data = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:
            break
        if not part:
            break
        data += part
        if when and when in data.decode("utf-8", "ignore"):
            child.send_signal(send)
            when = ""
    os.close(master)
    return data.decode("utf-8", "replace"), child.wait(timeout=20)


def test_on_a_terminal_one_block_is_drawn_in_place():
    data, code = in_terminal()
    rows = screen(data)
    assert code == 0
    assert sum("step 200 of 200" in row and "█" in row for row in rows) == 1
    assert sum("tokens/s" in row for row in rows) == 1  # earlier blocks are gone
    assert next(row for row in rows if row) == "kept for good"
    assert [row for row in rows if row][-1].startswith("done: step 200 of 200")
    assert max(map(len, rows)) <= 100 and data.count("\x1b[?25h") >= 1
    assert data.rfind("\x1b[?25h") > data.rfind("\x1b[?25l")
    assert sum("tokens/s" in row for row in re.split(r"[\r\n]+", data)) > 2  # control: several were drawn


def test_ctrl_c_on_a_terminal_leaves_it_usable():
    data, code = in_terminal("hang", when="validation", send=signal.SIGINT)
    assert code in (1, 130, -signal.SIGINT) and "KeyboardInterrupt" in data
    assert data.rfind("\x1b[?25h") > data.rfind("\x1b[?25l")
    assert any(row.startswith("stopped: step ") for row in screen(data))


def test_metrics_of_many_outputs_are_counted_and_those_of_few_are_listed() -> None:
    whole = {"scaled_rmse": 0.5, "rmse": 2.0}
    few = whole | {f"rmse.{at}": 1.0 for at in range(24)}
    assert of_few_outputs(few) == (list(few), [])
    many = few | {"mae.24": 1.0}
    assert of_few_outputs(many) == (["scaled_rmse", "rmse"], ["and 25 of single outputs in the report"])
