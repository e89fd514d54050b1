"""docs/lab.md, its pictures and the verdicts on the lecture pages are those of the kept measurements."""

from __future__ import annotations

import dataclasses

from anyformer.lab.catalogue import all_claims
from anyformer.lab.claim import Verdict
from docs.lab_page import IMAGES, LECTURES, MARK, PAGE, kept_runs, render, with_verdicts


def test_the_page_and_its_pictures_are_those_of_the_kept_measurements() -> None:
    """After a change of a claim: anyformer lab run NAME --out benchmarks/results/lab, then python -m docs.lab_page"""
    page, drawn = render(*kept_runs())
    assert PAGE.read_text(encoding="utf-8") == page
    assert {path.name: path.read_text(encoding="utf-8") for path in IMAGES.glob("*")} == drawn


def test_every_claim_has_measurements_of_todays_code() -> None:
    runs, missing = kept_runs()
    assert not missing, "anyformer lab run --all --out benchmarks/results/lab"
    assert {run.claim.name for run in runs} == set(all_claims())


def test_the_lecture_pages_say_the_verdicts() -> None:
    runs = {run.claim.name: run for run in kept_runs()[0]}
    pages = [path.read_text(encoding="utf-8") for path in sorted(LECTURES.glob("*.md"))]
    assert sum(len(MARK.findall(page)) for page in pages) > 30
    assert [with_verdicts(page, runs) for page in pages] == pages


def test_control_another_verdict_is_another_page() -> None:
    runs, missing = kept_runs()
    first = runs[0]
    other = next(verdict for verdict in Verdict if verdict is not first.finding.verdict)
    turned = dataclasses.replace(first, finding=dataclasses.replace(first.finding, verdict=other))
    assert render([turned, *runs[1:]], missing)[0] != render(runs, missing)[0]
