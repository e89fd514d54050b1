"""`anyformer lab`: claims are listed, run once and kept, gone on with after a stop, and put on one page."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from anyformer.lab import catalogue, runner
from anyformer.lab.catalogue import all_claims
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict
from anyformer.lab.runner import run_claim
from tests.cli.trying import done, run

MEASURED: list[Case] = []
REAL = sorted(all_claims())


def measure(case: Case) -> Result:
    MEASURED.append(case)
    return {"value": 2 * case["seed"]}


def judge(found: Measurements) -> Finding:
    verdict = Verdict.HOLDS if found.mean("value") >= 1 else Verdict.NOT_HERE
    line = [(float(n), float(value)) for n, value in enumerate(found.values("value"))]
    return Finding(found.spread("value"), verdict, "a mean of 1 or more", ResultTable(("seed", "value"), [("0", "0")]),
                   [Plot("values", "seed", "value", {"ours": line})])  # fmt: skip


def measure_in_process(case: Case) -> Result:
    return measure(case) | {"process": os.getpid(), "threads": torch.get_num_threads()}


def toy(name: str, seeds: int) -> Claim:
    return Claim(
        name=name, claim=f"what {name} <says>", lecture="L1", source="a book", quoted="1 & more", method="by counting",
        cost="0 s", cases=lambda full: [{"seed": seed} for seed in range(2 * seeds if full else seeds)],
        measure=measure, judge=judge, measures_time=lambda case: True,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two claims in the place of all."""
    claims = {name: toy(name, seeds) for name, seeds in (("twice", 3), ("never", 1))}
    monkeypatch.setattr(catalogue, "all_claims", lambda: claims)
    MEASURED.clear()
    yield


def test_claims_are_listed_with_lecture_quote_and_cost() -> None:
    said = done("lab", "list")
    assert all(word in said.out for word in ("twice", "never", "L1", "1 & more", "0 s", "what twice <says>"))
    listed = done("lab", "list", "--json").json
    assert [claim["name"] for claim in listed] == ["twice", "never"] and listed[0]["method"] == "by counting"


def test_a_run_prints_what_was_quoted_measured_and_the_verdict(tmp_path: Path) -> None:
    said = done("lab", "run", "twice", "--out", tmp_path)
    for word in ("1 & more", "2 (0 to 4)", "holds", "a mean of 1 or more"):
        assert word in said.out
    assert (tmp_path / "twice-1.svg").read_text(encoding="utf-8").startswith("<svg")
    assert "twice  3 of 3  seed 2" in said.err
    assert "not at this scale" in done("lab", "run", "never", "--out", tmp_path).out  # control: it can fail


def test_what_was_measured_is_kept_and_a_stopped_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = catalogue.all_claims()
    done("lab", "run", "twice", "--out", tmp_path, "--quiet")
    assert [case["seed"] for case in MEASURED] == [0, 1, 2]
    done("lab", "run", "twice", "--out", tmp_path, "--quiet")
    assert len(MEASURED) == 3  # nothing is measured twice
    path = tmp_path / "twice.json"
    held = json.loads(path.read_text())
    path.write_text(json.dumps(held | {"results": held["results"][:1]}))  # as if it had been stopped after the first
    found = done("lab", "run", "twice", "--out", tmp_path, "--json").json["claims"][0]
    assert [case["seed"] for case in MEASURED] == [0, 1, 2, 1, 2]
    assert found["verdict"] == "holds" and [one["result"]["value"] for one in found["cases"]] == [0, 2, 4]
    held["results"] += [dict(held["results"][0], case={"seed": 99})]
    path.write_text(json.dumps(held | {"results": held["results"][1:]}))  # one is missing, one is of earlier cases
    done("lab", "run", "twice", "--out", tmp_path, "--quiet")
    assert len(MEASURED) == 6
    assert sorted(one["case"]["seed"] for one in json.loads(path.read_text())["results"]) == [0, 1, 2]
    monkeypatch.setattr(runner, "fingerprint", lambda claim: "another version of the file")
    done("lab", "run", "twice", "--out", tmp_path, "--quiet")
    assert len(MEASURED) == 9
    done("lab", "run", "--all", "--full", "--out", tmp_path, "--quiet")
    assert len(MEASURED) == 9 + 6 + 2 and (tmp_path / "never-full.json").is_file()
    assert catalogue.all_claims() is claims


def test_cases_run_in_parallel_and_those_that_measure_time_alone(tmp_path: Path) -> None:
    claim = replace(toy("twice", 4), measure=measure_in_process, measures_time=lambda case: case["seed"] == 1)
    told: list[str] = []
    found = run_claim(claim, tmp_path, workers=2, log=told.append)
    entries = {case["seed"]: result for case, result in found.measurements.entries}
    assert [entries[seed]["value"] for seed in range(4)] == [0, 2, 4, 6]  # in the order of the cases, however they came
    assert entries[1]["process"] == os.getpid() and [case["seed"] for case in MEASURED] == [1]
    others = {entries[seed]["process"] for seed in (0, 2, 3)}
    assert os.getpid() not in others and {entries[seed]["threads"] for seed in (0, 2, 3)} == {1}
    assert len(told) == 4 and told[-1].startswith("twice  4 of 4")
    run_claim(claim, tmp_path, workers=2, log=told.append)
    assert len(told) == 4  # all of it was kept


def fails(case: Case) -> Result:
    raise ValueError(f"seed {case['seed']} went wrong")


def test_a_case_that_fails_ends_the_run_and_its_workers(tmp_path: Path) -> None:
    claim = replace(toy("twice", 4), measure=fails, measures_time=lambda case: False)
    with pytest.raises(ValueError, match="went wrong"):
        run_claim(claim, tmp_path, workers=2)
    assert not multiprocessing.active_children()


def test_the_report_is_one_page_that_names_what_was_not_run(tmp_path: Path) -> None:
    assert "no claim was run" in run("lab", "report", "--out", tmp_path).err
    done("lab", "run", "twice", "--out", tmp_path, "--quiet")
    said = done("lab", "report", "--out", tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "1 claims, 1 not run yet" in said.err and len(MEASURED) == 3
    for word in ("what twice &lt;says&gt;", "1 &amp; more", "2 (0 to 4)", "holds", "never", "<svg"):
        assert word in page, word
    assert "<says>" not in page and "http://" not in page.replace("http://www.w3.org", "")


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    for words, said in (
        (("lab", "run", "twise"), "twice"),
        (("lab", "run"), "name claims, or give --all"),
        (("lab", "run", "twice", "--all"), "name claims, or give --all"),
    ):
        wrong = run(*words)
        assert wrong.code == 2 and len(wrong.err.splitlines()) == 1 and said in wrong.err


@pytest.mark.parametrize("name", REAL)
def test_every_claim_says_what_it_is_and_has_cases_of_both_forms(name: str) -> None:
    claim: Any = all_claims()[name]
    assert claim.name == name
    for fact in ("claim", "source", "quoted", "method", "cost"):
        assert getattr(claim, fact).strip(), fact
    assert all(word in ("L0", "L1", "L2", "L3", "L4") for word in claim.lecture.split(", "))
    small, full = ([json.dumps(dict(case), sort_keys=True) for case in claim.cases(form)] for form in (False, True))
    assert small and len(set(small)) == len(small) and len(full) >= len(small) and len(set(full)) == len(full)


def test_a_claim_may_have_another_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert catalogue.find_claim("svm") is catalogue.find_claim("max-margin")
    assert set(catalogue.ALSO.values()) <= set(all_claims()) and not set(catalogue.ALSO) & set(all_claims())


def test_seconds_of_the_processor_count_where_they_are_kept() -> None:
    claim = toy("twice", 2)
    kept = {json.dumps(case, sort_keys=True): {"case": dict(case), "result": {"value": 2.0}, "seconds": 9.0}
            for case in claim.cases(False)}  # fmt: skip
    assert runner.judge_kept(claim, kept, full=False, measured_by="").seconds == 18.0
    next(iter(kept.values()))["processor"] = 1.0
    assert runner.judge_kept(claim, kept, full=False, measured_by="").seconds == 10.0
