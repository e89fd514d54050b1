"""The live block: progress, metrics, loss curve and text samples of a training, fitted to the terminal.

It is rendered from a snapshot; no line is wider and the block is no higher than the given size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from rich.console import Console
from rich.text import Text

from anyformer.amounts import steady_bytes
from anyformer.terminal import CurveSeries
from anyformer.training.display.curve import plot
from anyformer.training.display.format import bare, duration, figure, percent, whole
from anyformer.training.display.progress import Snapshot
from anyformer.training.setup.memory import Memory

WIDEST = 110  # wider lines are harder to read
SHORT = 72  # below this, names are shortened
CURVE = (6, 14)  # rows of the plot, at least and at most
SAMPLE = 6  # lines of text, at most
TRAINING, EVALUATED, BASELINE = "cyan", "bold yellow", "magenta"


def block(now: Snapshot, width: int, height: int, *, ascii_only: bool = False) -> list[Text]:
    """The lines of the block: at most `height`, none wider than `width` cells."""
    width = max(8, min(width, WIDEST))
    top = [bar(now, width, ascii_only)]
    top += pack_lines(figures(now, short=width < SHORT), width, ascii_only)
    top += pack_lines(evaluation_lines(now), width, ascii_only)
    news = [line for line in (now.doing and f"now: {now.doing}", now.note) if line]
    top += [Text(line, "dim") for line in news[:1]]
    room = height - len(top)
    sample: list[Text] = []
    if now.sample is not None and room >= CURVE[0] + 4:
        lines = wrap_text(now.sample[1], width, min(SAMPLE, (room - CURVE[0]) // 2))
        sample = [Text(f"it writes, at step {now.sample[0]:,}:", "dim"), *lines]
        room -= len(sample)
    drawn: list[Text] = []
    if now.training and room >= CURVE[0] + 1:
        drawn = [legend(now, width, ascii_only), *curves(now, width, min(CURVE[1], room - 1), ascii_only)]
    out = [*top, *drawn, *sample][: max(1, height)]
    for line in out:
        line.no_wrap = True
        line.truncate(width, overflow="crop")
    return out


# ---------------------------------------------------------------------------------------------------- its parts


def bar(now: Snapshot, width: int, ascii_only: bool) -> Text:
    """Progress and remaining time."""
    if now.total is None:
        return Text(f"step {now.step:,} · {duration(now.elapsed)} so far".replace("·", dot(ascii_only)), "bold")
    share = min(1.0, now.step / max(1, now.total))
    head = f"step {now.step:,} of {now.total:,} "
    if now.done:
        tail = f" done in {duration(now.elapsed)}"
    else:
        tail = f" {percent(round(share, 2))}, " + ("first steps" if now.left is None else f"{duration(now.left)} left")
    cells = min(40, width - len(head) - len(tail))
    full, empty = ("#", "-") if ascii_only else ("█", "░")
    text = Text().append(head, "bold")
    if cells >= 5:
        filled = round(share * cells)
        text.append(full * filled, "green").append(empty * (cells - filled), "dim")
    return text.append(tail, "bold")


def figures(now: Snapshot, short: bool = False) -> list[Text]:
    """The metrics that are compared between runs."""
    if now.loss is None:
        return [named_value("so far", duration(now.elapsed))]
    loss = now.loss if now.smooth is None else now.smooth
    out = [named_value("loss" if short else "training loss", figure(loss), TRAINING)]
    if now.lr is not None:
        out.append(named_value("lr" if short else "learning rate", f"{now.lr:.1e}"))
    if now.grad_norm is not None:
        out.append(named_value("grad norm" if short else "gradient norm", f"{now.grad_norm:.3g}"))
    if now.per_second is not None:
        out.append(Text(whole(now.per_second)).append(f" {now.unit}/s", "dim"))
    if now.step_seconds is not None:
        out.append(Text(step_time(now.step_seconds)).append(" a step", "dim"))
    if now.mfu is not None:
        out.append(named_value("MFU", percent(now.mfu)).append("" if short else " of the chip's peak", "dim"))
    if now.wait is not None:
        out.append(named_value("data wait" if short else "waiting for data", percent(now.wait)))
    if now.memory is not None and now.memory.peak is not None:
        out.append(memory_text(now.memory, short))
    return out


def memory_text(memory: Memory, short: bool = False) -> Text:
    """Memory used, its peak and the limit; unknown values are left out."""
    text = Text().append(("memory" if short else memory.kind) + " ", "dim")
    if memory.used is not None:
        text.append(steady_bytes(memory.used)).append(", ", "dim")
    text.append("peak ", "dim").append(steady_bytes(memory.peak or 0))
    return text if memory.limit is None else text.append(f" of {steady_bytes(memory.limit)}", "dim")


def evaluation_lines(now: Snapshot) -> list[Text]:
    """The last evaluation; the main metric first, with the baseline."""
    if now.evaluated_step is None:
        return []
    names = sorted(now.metrics, key=lambda name: name != now.metric)
    out = []
    for i, name in enumerate(names):
        lead = f"{now.split} at step {now.evaluated_step:,}: " if i == 0 else ""
        text = Text().append(lead, "dim").append_text(named_value(words(name), figure(now.metrics[name]), EVALUATED))
        if name == now.metric:
            beside = []
            if now.best is not None and now.best[1] != now.metrics.get(now.metric):
                beside.append((f"best {figure(now.best[1])} at step {now.best[0]:,}", EVALUATED.removeprefix("bold ")))
            if now.baseline is not None:
                beside.append((f"baseline {figure(now.baseline)}", BASELINE))
            for j, (words_, style) in enumerate(beside):
                text.append(" (" if j == 0 else ", ", "dim").append(words_, style)
            text.append(")" if beside else "", "dim")
        out.append(text)
    return out


def legend(now: Snapshot, width: int, ascii_only: bool) -> Text:
    """Legend of the plot, whose only scale is the loss."""
    line, point, level = (".", "o", "-") if ascii_only else ("▀▀", "●", "──")
    text = Text().append("loss   ", "dim").append(f"{line} training", TRAINING)
    if now.evaluated:
        text.append("   ").append(f"{point} {now.split}", EVALUATED)
    if baseline_level(now):
        text.append("   ").append(f"{level} baseline", BASELINE)
    return text


def curves(now: Snapshot, width: int, height: int, ascii_only: bool) -> list[Text]:
    """Training and validation loss over the steps."""
    start = min(points[0][0] for points in (now.training, now.evaluated) if points)
    end = float(now.total if now.total is not None else now.step)
    evaluated = CurveSeries(now.evaluated, EVALUATED, joined=False, mark="o" if ascii_only else "●")
    return plot(
        [CurveSeries(now.training, TRAINING, mark="."), evaluated],
        width,
        height,
        x_range=(start, max(end, start + 1)),
        x_words=(f"step {start:,.0f}", f"step {end:,.0f}"),
        levels=baseline_level(now),
        ascii_only=ascii_only,
    )


def baseline_level(now: Snapshot) -> list[tuple[float, str]]:
    """The baseline's level in the plot, only if it is a loss."""
    return [(now.baseline, BASELINE)] if now.baseline is not None and now.metric == "loss" else []


# ---------------------------------------------------------------------------------------------------- small things


def named_value(name: str, value: str, style: str = "") -> Text:
    # Not Text(name, "dim"): that would be the base style of everything appended.
    return Text().append(name + " ", "dim").append(value, style)


def words(name: str) -> str:
    return name.replace("_", " ")


def dot(ascii_only: bool) -> str:
    return "|" if ascii_only else "·"


def step_time(seconds: float) -> str:
    """Milliseconds, or seconds from one second up.

    >>> step_time(0.0831), step_time(2.5), step_time(0.0004)
    ('83 ms', '2.5 s', '0.4 ms')
    """
    return f"{seconds:.1f} s" if seconds >= 1 else f"{whole(1000 * seconds)} ms"


def pack_lines(parts: Sequence[Text], width: int, ascii_only: bool) -> list[Text]:
    """The parts side by side, as many on a line as fit."""
    lines: list[Text] = []
    between = f" {dot(ascii_only)} "
    for part in parts:
        if lines and lines[-1].cell_len + len(between) + part.cell_len <= width:
            lines[-1].append(between, "dim").append_text(part)
        else:
            lines.append(part.copy())
    return lines


def wrap_text(text: str, width: int, most: int) -> list[Text]:
    """The first lines of a text, folded at the width; each is one line on the screen, indented by two."""
    out: list[Text] = []
    for line in bare(text).strip("\n").split("\n")[:most]:
        # A model may write very long lines; measure no more than could be visible.
        out += Text(line[: width * most]).wrap(measure(), max(4, width - 2), no_wrap=False) or [Text()]
    lines = out[:most]
    for piece in lines:
        piece.rstrip()
        piece.pad_left(2)
    return lines


@cache
def measure() -> Console:
    """rich needs a console to wrap text; this one writes nothing."""
    return Console(quiet=True, force_terminal=False)
