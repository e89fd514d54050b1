"""docs/lab.md, its pictures and the verdicts on the lecture pages are those of the kept measurements."""

from __future__ import annotations

import dataclasses
import math
import re

from anyformer.lab.catalogue import all_claims
from anyformer.lab.claim import Verdict
from docs.lab_page import IMAGES, LECTURES, MARK, PAGE, kept_runs, render, with_verdicts

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def alike(one: str, other: str) -> bool:
    """The same words, and numbers within a hundredth: fits and their resampling round otherwise on another CPU."""
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=False)
    close = all(math.isclose(float(a), float(b), rel_tol=0.01, abs_tol=0.011) for a, b in pairs)
    return close and NUMBER.sub("#", one) == NUMBER.sub("#", other)


def test_the_page_and_its_pictures_are_those_of_the_kept_measurements() -> None:
    """After a change of a claim: anyformer lab run NAME --out benchmarks/results/lab, then python -m docs.lab_page"""
    page, drawn = render(*kept_runs())
    assert alike(PAGE.read_text(encoding="utf-8"), page)
    kept = {path.name: path.read_text(encoding="utf-8") for path in IMAGES.glob("*")}
    assert set(kept) == set(drawn) and [name for name in kept if not alike(kept[name], drawn[name])] == []


def test_every_claim_has_measurements_of_todays_code() -> None:
    runs, missing = kept_runs()
    assert not missing, "anyformer lab run --all --out benchmarks/results/lab"
    assert {run.claim.name for run in runs} == set(all_claims())


def test_the_lecture_pages_say_the_verdicts() -> None:
    runs = {run.claim.name: run for run in kept_runs()[0]}
    pages = [path.read_text(encoding="utf-8") for path in sorted(LECTURES.glob("*.md"))]
    assert sum(len(MARK.findall(page)) for page in pages) > 30
    assert all(alike(with_verdicts(page, runs), page) for page in pages)


def test_control_another_verdict_is_another_page() -> None:
    runs, missing = kept_runs()
    first = runs[0]
    other = next(verdict for verdict in Verdict if verdict is not first.finding.verdict)
    turned = dataclasses.replace(first, finding=dataclasses.replace(first.finding, verdict=other))
    page = render(runs, missing)[0]
    assert not alike(render([turned, *runs[1:]], missing)[0], page)
    assert alike(page, page) and not alike(page, page.replace("2.13", "2.93")) and not alike("1.50 x", "1.60 x")
