"""Every section of a lecture page has its formula, code that runs and a picture; pictures of claims are in place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from anyformer.lab.catalogue import all_claims
from docs.lecture_pictures import IMAGES, PAGES, PICTURES, pages

CLAIMS = IMAGES.parent / "lab"
EVERY = [*pages(), PAGES / "README.md"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IMAGE = re.compile(r"!\[[^]]+\]\(([^)\s]+)\)")
VERDICT = re.compile(r"<!-- verdict: ([a-z0-9-]+) -->(.*?)<!-- /verdict -->", re.DOTALL)
RELATION = re.compile(r"[=≈→←~]|sees")
EXCEPTIONS: dict[tuple[str, str], set[str]] = {}  # ("4", "12. A heading"): {"picture"}, with the reason; none today


def sections(text: str) -> dict[str, str]:
    """The sections of a page by their headings; a line of code that begins with ## is none.

    >>> sections("# A\\n\\n## 1. B\\nx\\n```python\\n## no\\n```\\n## 2. C\\ny\\n")
    {'1. B': 'x\\n```python\\n## no\\n```\\n', '2. C': 'y\\n'}
    """
    found: dict[str, str] = {}
    heading, inside = "", False
    for line in text.splitlines(keepends=True):
        inside ^= line.startswith("```")
        if line.startswith("## ") and not inside:
            heading = line[3:].strip()
            found[heading] = ""
        elif heading:
            found[heading] += line
    return found


def lacking(section: str) -> set[str]:
    """Which of formula, code and picture a section does not have; a picture has to be there as a file."""
    fences = FENCE.findall(section)
    formula = any(not language and RELATION.search(body) for language, body in fences)
    code = any(language == "python" for language, _ in fences)
    picture = any((PAGES / name).resolve().is_file() for name in IMAGE.findall(section))
    return {name for name, there in (("formula", formula), ("code", code), ("picture", picture)) if not there}


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_every_section_has_formula_code_and_picture(page: Path) -> None:
    found = sections(page.read_text(encoding="utf-8"))
    assert len(found) >= 12 and [int(heading.split(".")[0]) for heading in found] == [*range(1, len(found) + 1)]
    lacks = {(page.stem[0], heading): lacking(body) for heading, body in found.items() if lacking(body)}
    assert lacks == {key: names for key, names in EXCEPTIONS.items() if key[0] == page.stem[0]}


def test_a_section_that_lacks_something_is_noticed() -> None:
    picture = next(iter(PICTURES["1"]))
    whole = f"```\ny = x\n```\n\n```python\nprint(1)\n```\n\n![x](../images/lectures/{picture})\n"
    assert lacking(whole) == set()
    assert lacking(whole.replace("y = x", "anyformer plan")) == {"formula"}
    assert lacking(whole.replace("```python", "```text")) == {"code"}
    assert lacking(whole.replace(picture, "none.svg")) == {"picture"}
    assert lacking(whole.replace("![x]", "[x]")) == {"picture"}


# ---------------------------------------------------------------- pictures of claims


def misplaced(text: str) -> list[str]:
    """Pictures of claims that are shown outside their claim's verdict, and verdicts that show no picture of theirs."""
    wrong = [name for name in IMAGE.findall(VERDICT.sub("", text)) if "images/lab/" in name]
    for claim, verdict in VERDICT.findall(text):
        shown = IMAGE.findall(verdict)
        own = re.compile(rf"\.\./images/lab/{re.escape(claim)}-\d+\.svg")
        wrong += [name for name in shown if not own.fullmatch(name) or not (PAGES / name).is_file()]
        wrong += [] if shown else [f"{claim}: no picture"]
    return wrong


@pytest.mark.parametrize("page", EVERY, ids=lambda page: page.stem)
def test_pictures_of_claims_stand_in_their_verdicts(page: Path) -> None:
    """That they are drawn from the kept measurements: tests/docs/test_lab_page.py"""
    assert misplaced(page.read_text(encoding="utf-8")) == []


def test_every_claim_is_shown_with_its_picture_and_each_is_small() -> None:
    shown = {
        (PAGES / name).resolve()
        for page in EVERY
        for name in IMAGE.findall(page.read_text(encoding="utf-8"))
        if "images/lab/" in name
    }
    assert {path.name for path in shown} == {f"{claim}-1.svg" for claim in all_claims()}
    assert all(path.parent == CLAIMS.resolve() and 500 < path.stat().st_size < 60_000 for path in shown)


def test_a_picture_of_another_claim_is_noticed() -> None:
    there = "<!-- verdict: kv-cache -->\n![x](../images/lab/kv-cache-1.svg)\n<!-- /verdict -->\n"
    assert misplaced(there) == []
    assert misplaced(there.replace("kv-cache-1", "sinusoids-1")) == ["../images/lab/sinusoids-1.svg"]
    assert misplaced(there.replace("kv-cache-1", "kv-cache-99")) == ["../images/lab/kv-cache-99.svg"]
    assert misplaced(there + "![x](../images/lab/sinusoids-1.svg)\n") == ["../images/lab/sinusoids-1.svg"]
    assert misplaced(there.replace("![x]", "[x]")) == ["kv-cache: no picture"]


# ---------------------------------------------------------------- light and dark pages


def has_white_ground(svg: str) -> bool:
    """Whether the first thing drawn is a white rectangle over all of it; dark type on a dark page cannot be read."""
    found = re.search(r"<(rect|line|path|text|image|circle)\b([^>]*)>", svg)
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    if found is None or size is None or found[1] != "rect" or 'fill="#ffffff"' not in found[2]:
        return False
    wide, high = (re.search(rf'\b{name}="([^"]+)"', found[2]) for name in ("width", "height"))
    return bool(wide and high and wide[1] in ("100%", size[1]) and high[1] in ("100%", size[2]))


@pytest.mark.parametrize("folder", [IMAGES, CLAIMS], ids=lambda folder: folder.name)
def test_pictures_can_be_read_on_dark_pages(folder: Path) -> None:
    pictures = sorted(folder.glob("*.svg"))
    assert len(pictures) > 40
    assert [path.name for path in pictures if not has_white_ground(path.read_text(encoding="utf-8"))] == []


def test_a_picture_without_ground_is_noticed() -> None:
    svg = '<svg viewBox="0 0 64 34"><rect width="64" height="34" fill="#ffffff"/><text>a</text></svg>'
    assert has_white_ground(svg) and has_white_ground(svg.replace('"64" height="34"', '"100%" height="100%"'))
    assert not has_white_ground(svg.replace('width="64"', 'width="32"'))
    assert not has_white_ground(svg.replace("#ffffff", "none"))
    assert not has_white_ground(svg.replace("<rect", "<text>a</text><rect"))
