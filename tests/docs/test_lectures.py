"""The lecture pages: their code prints what they show, their pictures are what it draws, their links lead somewhere."""

from __future__ import annotations

import pkgutil
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from anyformer.cli import app
from anyformer.lab.catalogue import all_claims
from docs.lecture_pictures import IMAGES, PAGES, PICTURES, blocks, pages, pictures_of, run

EVERY = [*pages(), PAGES / "README.md"]
LAB, CLAIMS = PAGES.parent / "lab.md", PAGES.parent / "images" / "lab"
VERDICT = re.compile(r"<!-- verdict: ([a-z0-9-]+) -->(.*?)<!-- /verdict -->", re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^]]*\]\(([^)\s]+)\)")
IMAGE = re.compile(r"!\[[^]]+\]\(([^)\s]+)\)")  # with words for who does not see it
NUMBER = re.compile(r"#[0-9a-f]{6}|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
TRAINED = {"reversing.svg", "filters.svg", "rollout.svg"}  # drawn from weights that were learned: other machines differ
each_lecture = pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
each_page = pytest.mark.parametrize("page", EVERY, ids=lambda page: page.stem)


@cache
def ran(page: Path) -> tuple[dict[str, Any], list[str]]:
    return run(page.read_text(encoding="utf-8"))


def wrong_outputs(text: str, printed: list[str]) -> list[tuple[str, str]]:
    """What a page shows and what was printed instead."""
    return [(block.printed, said) for block, said in zip(blocks(text), printed, strict=True) if block.printed != said]


# ---------------------------------------------------------------- what the code prints and draws


@each_lecture
def test_code_prints_what_the_page_shows(page: Path) -> None:
    """After a change: python -m docs.lecture_pictures --outputs"""
    text = page.read_text(encoding="utf-8")
    assert len(blocks(text)) >= 10
    assert wrong_outputs(text, ran(page)[1]) == []


def test_an_output_that_is_not_printed_is_noticed() -> None:
    text = "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n"
    assert wrong_outputs(text, run(text)[1]) == [("3\n", "2\n")]


def test_an_error_names_the_line_of_the_page() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run("A page.\n\n```python\nx = 1\nx / 0\n```\n")
    assert caught.traceback[-1].lineno == 4  # counted from 0


@each_lecture
def test_pictures_are_those_the_page_draws(page: Path) -> None:
    """After a change: python -m docs.lecture_pictures"""
    for name, drawn in pictures_of(page, ran(page)[0]).items():
        kept = (IMAGES / name).read_text(encoding="utf-8")
        assert len(drawn) > 500 and (name in TRAINED or alike(kept, drawn)), name


def alike(kept: str, drawn: str) -> bool:
    """The same drawing up to rounding: 1.5 pixels in places, a few shades in colours; embedded pixels are left out."""
    kept, drawn = (re.sub(r"base64,[^\"]*", "", svg) for svg in (kept, drawn))
    if NUMBER.sub("~", kept) != NUMBER.sub("~", drawn):
        return False
    return all(near(a, b) for a, b in zip(NUMBER.findall(kept), NUMBER.findall(drawn), strict=True))


def near(a: str, b: str) -> bool:
    if a.startswith("#") or b.startswith("#"):
        pairs = zip(bytes.fromhex(a[1:]), bytes.fromhex(b[1:]), strict=True) if len(a) == len(b) else [(0, 255)]
        return all(abs(one - other) <= 8 for one, other in pairs)
    return abs(float(a) - float(b)) <= 1.5


def test_another_drawing_is_noticed() -> None:
    svg = '<svg><rect x="10" fill="#ff0000"/><text>a 1</text></svg>'
    assert alike(svg, svg.replace("10", "10.4")) and not alike(svg, svg.replace("10", "14"))
    assert not alike(svg, svg.replace("#ff0000", "#00ff00")) and not alike(svg, svg.replace("rect", "line"))


def test_every_picture_is_shown_and_small() -> None:
    shown = {(page.parent / name).resolve() for page in EVERY for name in IMAGE.findall(page.read_text("utf-8"))}
    shown = {path for path in shown if path.parent != CLAIMS.resolve()}  # those: test_lectures_sections.py
    there = {path.resolve() for path in IMAGES.iterdir()}
    assert shown == there == {(IMAGES / name).resolve() for made in PICTURES.values() for name in made}
    sizes = [path.stat().st_size for path in there]
    assert max(sizes) < 60_000 and sum(sizes) < 1_500_000


# ---------------------------------------------------------------- claims


@each_page
def test_verdicts_are_of_claims_there_are_and_stand_behind_their_link(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name, _ in VERDICT.findall(text):
        assert name in all_claims(), f"{page.name}: no claim is called {name}"
        assert f"The claim [{name}](../lab.md#{name}), re-run:\n\n<!-- verdict: {name} -->" in text, (
            f"{page.name}: {name}"
        )
    assert text.count("<!-- verdict:") == text.count("<!-- /verdict -->") == len(VERDICT.findall(text))
    assert set(re.findall(r"\.\./lab\.md#([a-z0-9-]+)", text)) <= set(all_claims())


def test_every_claim_has_its_place_on_a_page() -> None:
    placed = {name for page in pages() for name, _ in VERDICT.findall(page.read_text(encoding="utf-8"))}
    assert placed == set(all_claims())


# ---------------------------------------------------------------- links


def anchor_of(heading: str) -> str:
    """What a heading is called in an address, as GitHub makes it.

    >>> anchor_of("10. The limit: T² pairs"), anchor_of("6. How deep is `very` deep?")
    ('10-the-limit-t-pairs', '6-how-deep-is-very-deep')
    """
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return "".join(c for c in kept if c.isdecimal() or not c.isnumeric()).replace(" ", "-")


def anchors_of(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = {anchor_of(found) for found in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    return headings | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


def broken_links(page: Path, text: str) -> list[str]:
    """Links to files or headings that are not there; the page of verdicts is made apart and may not be there yet."""
    broken = []
    for link in (*LINK.findall(text), *IMAGE.findall(text)):
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        if link.startswith("https://") or path == LAB.resolve():
            continue
        if not path.exists() or (anchor and anchor not in anchors_of(path)):
            broken.append(link)
    return broken


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


def test_links_that_lead_nowhere_are_noticed() -> None:
    text = "[a](1-the-block.md#no-such-heading) [b](nothing.md) ![c](../images/lectures/none.svg) [d](1-the-block.md)"
    assert len(broken_links(EVERY[0], text)) == 3


# ---------------------------------------------------------------- what is named in passing


def unknown_names(text: str) -> list[str]:
    """What a page names in backticks and the library or the command line does not have."""
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    verbs, options = command_line()
    found = [
        f"anyformer {verb}" for span in spans for verb in re.findall(r"^anyformer ([a-z]+)", span) if verb not in verbs
    ]
    found += [option for span in spans for option in re.findall(r"(?<![\w-])--[a-z-]+", span) if option not in options]
    for span in spans:
        for name in (*re.findall(r"^anyformer\.([\w.]+)", span), *re.findall(r"\b([A-Z][A-Za-z]+[a-z]\w*)\(", span)):
            found += [] if is_there(name) else [name]
    return found


def is_there(name: str) -> bool:
    """Whether the package has a name, as it stands or below one of its modules."""
    try:
        pkgutil.resolve_name(f"anyformer.{name}")
    except (AttributeError, ImportError):
        return False
    return True


@cache
def command_line() -> tuple[set[str], set[str]]:
    """Every verb and every option of any verb."""
    group: Any = typer.main.get_command(app)
    commands = [group, *group.commands.values()]
    return set(group.commands), {name for verb in commands for one in verb.params for name in one.opts}


@each_page
def test_names_are_those_of_the_library_and_its_command_line(page: Path) -> None:
    assert unknown_names(page.read_text(encoding="utf-8")) == []


def test_names_that_nobody_has_are_noticed() -> None:
    good = "`anyformer train a.txt --task lm`, `Stack(causal=True)`, `anyformer.look(model)`, `convert --position`"
    assert unknown_names(good) == []
    bad = "`anyformer trane a.txt --taks lm`, `Stak(causal=True)`, `anyformer.lok(model)`"
    assert unknown_names(bad) == ["anyformer trane", "--taks", "Stak", "lok"]


# ---------------------------------------------------------------- what the pages cover


def test_every_row_example_and_erratum_of_the_lectures_is_shown() -> None:
    """`<!-- shows: ... -->` behind a section names what it shows, by the numbers that tests and claims use."""
    shown = {
        name
        for page in EVERY
        for line in re.findall(r"<!-- shows: (.+?) -->", page.read_text(encoding="utf-8"))
        for name in line.split()
    }
    rows = {f"R{n:02}" for n in (*range(1, 94), 114, 115)}
    wanted = rows | {f"W{n:02}" for n in range(1, 32)} | {f"erratum-{n}" for n in range(1, 29)}
    assert sorted(wanted - shown) == []
    assert sorted(shown - wanted - {f"R{n}" for n in range(94, 114)}) == []
