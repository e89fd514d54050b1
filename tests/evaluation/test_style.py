"""Reports and the page of `anyformer look` have one set of colours, which can be read in both themes."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from anyformer.evaluation.page import document
from anyformer.evaluation.style import DARK, style_sheet
from anyformer.inspection.palette import FOR_THE_PAGE, TOKENS
from anyformer.inspection.web_files import web_files

THEMES = ("light", "dark")


def variables(theme: str) -> dict[str, str]:
    """The colours of a report by name."""
    first, dark, _ = style_sheet().partition(DARK)[0], *style_sheet().partition(DARK)[1:]
    rules = first if theme == "light" else style_sheet().split(dark, 1)[1].split("\n", 1)[0]
    return dict(re.findall(r"--([a-z-]+):(#[0-9a-f]{6});", rules))


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", THEMES)
def test_lines_of_a_report_have_the_colours_of_the_page(theme: str) -> None:
    found = variables(theme)
    assert [found[name] for name in ("first", "second", "third")] == list(FOR_THE_PAGE["categories"][theme][:3])


@pytest.mark.parametrize("theme", THEMES)
def test_surfaces_of_a_report_are_those_of_the_page(theme: str) -> None:
    sheet = web_files()["look.css"].text
    page = {name: pair[THEMES.index(theme)] for name, *pair in
            re.findall(r"--([a-z-]+):light-dark\((#[0-9a-f]{6}),(#[0-9a-f]{6})\);", sheet)}  # fmt: skip
    found = variables(theme)
    assert set(page) == set(TOKENS)
    for name in ("paper", "wash", "ink", "soft", "hair", "line", "accent"):
        assert found[name] == page[name]


@pytest.mark.parametrize("theme", THEMES)
def test_everything_in_a_report_can_be_read(theme: str) -> None:
    found = variables(theme)
    for surface in ("paper", "wash"):
        assert all(
            contrast(found[name], found[surface]) >= 4.5 for name in ("ink", "soft", "accent", "first", "second")
        )
        assert contrast(found["third"], found[surface]) >= 3
    assert contrast(found["line"], found["paper"]) >= 3
    assert contrast(found["on-accent"], found["accent"]) >= 4.5
    assert contrast(found["hair"], found["paper"]) < 3  # control: lines that only part what they stand between


def test_no_other_sheet_has_colours_of_its_own() -> None:
    """But for print, where ink is black, and the page's drawings on white."""
    report = (files("anyformer.evaluation") / "web" / "report.css").read_text()
    own = report.partition("@media print")[0]
    assert not re.findall(r"#[0-9a-f]{3,8}\b", own) and "var(--ink)" in own
    for name in re.findall(r"var\(--([a-z-]+)\)", report):
        assert name in variables("light") or name == "heat"


def test_a_second_line_is_told_from_the_first_without_colours() -> None:
    assert f"stroke-dasharray:{FOR_THE_PAGE['dashes'][1]}" in style_sheet()


def test_a_page_without_script_is_small() -> None:
    text = document("Title", "<h1>Title</h1>", [("part", "Part")], "<p>body</p>", "foot")
    assert style_sheet() in text and "<script" not in text
    assert len(text) < 20_000
