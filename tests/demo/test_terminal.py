"""The character canvas: dots land where they should, plots keep their size, nothing unsafe reaches the terminal."""

from __future__ import annotations

import io
from itertools import pairwise

import pytest
from rich.console import Console

from anyformer.terminal import Canvas, CurveSeries, clean, curve, heat_map, ink, shade, shaded, visible

pytestmark = pytest.mark.quick


def dots(canvas):
    """Dots that can be read back from the characters, as (column, row)."""
    return {
        (2 * column + x, 2 * row + y)
        for row, line in enumerate(canvas.rows())
        for column, letter in enumerate(line.plain)
        for x in range(2)
        for y in range(2)
        if " ▘▝▀▖▌▞▛▗▚▐▜▄▙▟█".index(letter) >> (x + 2 * y) & 1
    }


def test_each_dot_is_its_own():
    for x in range(6):
        for y in range(4):
            canvas = Canvas(3, 2)
            canvas.dot(x, y)
            assert dots(canvas) == {(x, y)}


def test_a_dot_outside_is_left_out():
    canvas = Canvas(3, 2)
    for x, y in ((-1, 0), (0, -1), (6, 0), (0, 4)):
        canvas.dot(x, y)
        canvas.put(x, y, "o")
    assert dots(canvas) == set() and all(line.plain == "   " for line in canvas.rows())


def test_a_line_has_both_ends_and_no_gap():
    canvas = Canvas(10, 5)
    canvas.line((0, 0), (19, 9))
    drawn = sorted(dots(canvas))
    assert drawn[0] == (0, 0) and drawn[-1] == (19, 9)
    assert [x for x, _ in drawn] == list(range(20))
    assert all(0 <= b[1] - a[1] <= 1 for a, b in pairwise(drawn))


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("width, height", [(20, 5), (80, 12), (110, 13), (12, 4)])
def test_a_plot_has_the_size_asked_for(width, height, ascii_only):
    points = [(x, 4 - x / 10) for x in range(30)]
    plot = curve(
        [CurveSeries(points)], width, height, x_range=(0, 29), x_words=("step 0", "step 29"), ascii_only=ascii_only
    )
    lines = plot.plain.split("\n")
    assert len(lines) == height and {len(line) for line in lines} == {width}
    assert not ascii_only or plot.plain.isascii()


def test_a_falling_curve_falls():
    plot = curve([CurveSeries([(0, 4.0), (9, 1.0)])], 26, 8, x_range=(0, 9), y_range=(1.0, 4.0), ascii_only=True)
    rows = [line.partition("|")[2] for line in plot.plain.split("\n")[:-2]]
    first = [line.index("*") for line in rows]
    assert first == sorted(first) and first[0] == 0 and rows[-1].rstrip()[-1] == "*"
    # Control: a rising one does not.
    plot = curve([CurveSeries([(0, 1.0), (9, 4.0)])], 26, 8, x_range=(0, 9), y_range=(1.0, 4.0), ascii_only=True)
    first = [line.partition("|")[2].index("*") for line in plot.plain.split("\n")[:-2]]
    assert first != sorted(first)


def test_a_level_is_drawn_behind_the_line():
    plot = curve(
        [CurveSeries([(0, 2.0), (1, 2.0)])], 30, 6, x_range=(0, 2), y_range=(1, 3), levels=[(2.0, ""), (3.0, "")]
    )
    top, middle = plot.plain.split("\n")[0], next(line for line in plot.plain.split("\n") if "▀" in line or "▄" in line)
    assert top.count("─") == 25 and 8 <= middle.count("─") <= 14


@pytest.mark.parametrize("points", [[], [(0, float("nan"))], [(3, 2.0)], [(0, 2.0), (1, 2.0)]])
def test_a_plot_of_little_is_still_a_plot(points):
    assert len(curve([CurveSeries(points)], 30, 6, x_range=(0, 0)).plain.split("\n")) == 6


def test_shades_grow_lighter_and_their_ink_can_be_read():
    light = [0.299 * r + 0.587 * g + 0.114 * b for r, g, b in map(shade, (i / 20 for i in range(21)))]
    assert light == sorted(light) and shade(-1) == shade(0) and shade(2) == shade(1)
    assert {ink(shade(0)), ink(shade(1))} == {"black", "bright_white"}


def test_a_heat_map_has_a_row_a_token_and_words_along_both_sides():
    words = ["f", "(", " x", ")", "\n"]
    matrix = [[float(i == j) for j in range(5)] for i in range(5)]
    lines = heat_map(matrix, words, words, colour=False, marked=[(3, 1)]).plain.split("\n")
    assert lines[:2] == ["       ·", "   f ( x ) ⏎"]
    assert lines[2] == " f ██" and lines[3] == " (   ██" and lines[5] == " )   []  ██"
    assert [line[:2].strip() for line in lines[2:]] == ["f", "(", "·x", ")", "⏎"]


def test_half_blocks_put_two_rows_on_a_line():
    drawn = heat_map([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]])
    assert drawn.plain == "▀▀\n▀▀"
    assert heat_map([[0.0, 1.0]], colour=False).plain == "  ██"


@pytest.mark.parametrize("evil", ["\x1b[2J", "\r", "\x07", "\x9b31m", "\u202e", "\x00", "\u0301", "你"])
def test_nothing_that_moves_the_cursor_passes(evil):
    assert clean(f"a{evil}b\n").startswith("a·") and "\x1b" not in clean(evil)
    assert visible(evil).isprintable()


def test_shaded_text_keeps_its_letters_and_shows_probabilities():
    words = [("def ", None), ("f", 0.95), ("(x)", 0.5), (":\n    ", 0.25), ("return", 0.0)]
    assert shaded(words).plain == "def f(x):\n    return"
    lines = shaded(words, colour=False).plain.split("\n")
    assert lines == ["def f(x):", "    95  2", "    return", "    0"]


def test_without_a_terminal_no_escape_is_written():
    out = io.StringIO()
    console = Console(file=out, force_terminal=False, width=60)
    console.print(shaded([("a", 0.5)]), curve([CurveSeries([(0, 1), (1, 0)], "red")], 30, 6, x_range=(0, 1)))
    assert "\x1b" not in out.getvalue()
    coloured = io.StringIO()
    Console(file=coloured, force_terminal=True, color_system="truecolor").print(shaded([("a", 0.5)]))
    assert "\x1b" in coloured.getvalue()  # control
