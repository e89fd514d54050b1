"""docs/benchmarks.md holds the figures of the newest CSV, and the script that makes such a CSV runs."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import results
from benchmarks.gpu.__main__ import STARTS, chosen
from benchmarks.gpu.bars import BARS, Bar, Table
from benchmarks.gpu.jobs import OURS, Place, list_jobs
from benchmarks.gpu.page import BEGIN, END, IMAGES, PAGE, render
from benchmarks.gpu.text import zipf_text
from benchmarks.gpu.timing import ROUNDS, Job, NotRun, Program, Step, run_job

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CSV of a real run in small sizes."""
    folder = tmp_path_factory.mktemp("bench")
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--quick", "--out", str(folder), "--nanogpt", str(folder),
         "--only", "warm-start,gpt2,losses,tables,t5,operator,length,modes"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / results.file_name(results.KIND)


def test_the_page_and_its_pictures_are_those_of_the_newest_file() -> None:
    """After a run: python -m benchmarks.gpu.page"""
    figures, pictures = render(results.newest(), results.newest_processes())
    assert PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip() == figures.strip()
    kept = {path.stem: path.read_text(encoding="utf-8") for path in IMAGES.glob("*.svg")}
    assert kept == pictures


def test_links_of_the_page_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", PAGE.read_text(encoding="utf-8"))
    assert links and [link for link in links if not (PAGE.parent / link).exists()] == []


def test_a_run_writes_a_row_for_every_program(quick: Path) -> None:
    rows = {(row["job"], row["system"], row["mode"]): row for row in results.read(quick)}
    jobs = {job.name: job for job in list_jobs(Place("cpu", quick=True))}
    ran = chosen("gpt2,tables,t5,operator,length,modes", jobs)
    wanted = {(name, p.system, p.mode) for name in ran for p in jobs[name].programs}
    assert wanted <= set(rows) and len(wanted) > 15
    assert float(rows["warm-start", OURS, "compiled before"]["first_step_s"]) > 0
    for job, system, mode in wanted:
        row = rows[job, system, mode]
        if system == "nanoGPT":
            assert row["note"].startswith("not run: no model.py in ") and not row["ms_per_step"]
        elif (system, mode) != ("torch", "attention, cuDNN"):
            assert float(row["ms_per_step"]) > 0 and float(row["per_second"]) > 0, row
            assert float(row["spread"]) >= 1


def test_losses_of_the_step_are_those_of_the_plain_loop(quick: Path) -> None:
    """Both are float32 on a CPU, so that only the order of sums may differ."""
    (row,) = [row for row in results.read(quick) if row["job"] == "losses"]
    assert float(row["loss_difference"]) < 1e-3
    with quick.with_name(results.file_name("losses")).open(newline="") as file:
        steps = list(csv.DictReader(file))
    losses = [float(step[OURS]) for step in steps]
    assert len(set(losses)) == len(losses) == 5  # they move, so that equality says something


def test_a_page_from_a_run_holds_its_figures(quick: Path) -> None:
    figures, pictures = render(quick)
    for row in results.read(quick):
        if row["job"] != "losses":
            assert f"{row['system']}: {row['mode']}" in figures
        if row["per_second"]:
            assert f"{float(row['per_second']):,.0f} {row['unit']}" in figures
    assert {"peers", "operators", "length", "losses"} <= set(pictures)
    for name, drawn in pictures.items():
        assert ElementTree.fromstring(drawn).tag.endswith("svg")
        assert f"images/benchmarks/{name}.svg" in figures


def test_control_another_figure_makes_another_page(quick: Path, tmp_path: Path) -> None:
    changed = tmp_path / quick.name
    rows = results.read(quick)
    row = next(row for row in rows if row["per_second"])
    results.append(changed, rows)
    before = render(changed)
    results.append(changed, [row | {"per_second": "123456789"}])  # measured again: the later row counts
    after = render(changed)
    assert "123,456,789" in after[0] and after != before and len(results.read(changed)) == len(rows)


def test_the_newest_file_is_one_of_this_script_from_a_gpu(tmp_path: Path) -> None:
    assert results.newest(tmp_path) is None
    row = {"job": "gpt2-124m", "system": OURS}
    for name in ("torch2.12.0-cuda13.0-h200-2026-11-14", "torch2.11.0-cuda13.0-h200-2026-11-16",
                 "torch2.13.0-cpu-2026-11-20"):  # fmt: skip
        results.append(tmp_path / f"{name}-training.csv", [row])
    (tmp_path / "torch2.11.0-cuda13.0-h200-2026-11-30-training.csv").write_text("system,ms_per_step\n")
    newest = results.newest(tmp_path)
    assert newest is not None and "2026-11-16" in newest.name


def test_a_program_that_cannot_run_is_a_row_and_the_others_are_measured() -> None:
    def missing() -> Step:
        raise NotRun("nobody is here")

    def broken() -> Step:
        raise ValueError("a wrong\nsize")

    counted: list[int] = []
    programs = Program("a", "", missing), Program("b", "", broken), Program("c", "", lambda: lambda: counted.append(1))
    job = Job("any", "any", "any", "rows", 1, 1, programs)
    absent, failed, fine = run_job(job, CPU, quick=True)
    assert absent.note == "not run: nobody is here" and absent.seconds is None
    assert failed.note == "failed: ValueError: a wrong size"
    assert fine.note == "" and len(fine.rounds) == ROUNDS and len(counted) == 1 + 4 + ROUNDS
    assert results.row_of(job, absent)["ms_per_step"] == "" and results.row_of(job, fine)["ms_per_step"]


@pytest.mark.parametrize("at_least, good, bad", [(True, "1.20", "1.00"), (False, "1.00", "1.20")])
def test_a_bar_is_met_missed_or_not_measured(at_least: bool, good: str, bad: str) -> None:
    bar = Bar("work", "1.1", 1.1, lambda table: table.figure("mfu", "job"), at_least)
    rows = [{"job": "job", "system": OURS, "mode": "compiled", "mfu": value} for value in (good, bad, "")]
    assert [bar.judge(Table([row]))[1] for row in rows] == ["met", "missed", "not measured"]


def test_every_bar_asks_for_programs_that_there_are() -> None:
    """A renamed job or mode would be "not measured" for ever: rows with a figure in every column meet every bar."""
    filled = dict.fromkeys(results.COLUMNS, "1")
    rows = [filled | {"job": job.name, "system": program.system, "mode": program.mode}
            for job in list_jobs(Place("cpu")) for program in job.programs]  # fmt: skip
    rows += [*(filled | {"job": name, "system": OURS, "mode": mode} for name, mode in STARTS.items()),
             filled | {"job": "losses", "system": OURS, "mode": "bf16 beside plain float32"}]  # fmt: skip
    table = Table(rows)
    assert [bar.wanted for bar in BARS if bar.measure(table) is None] == []


def test_tokens_are_the_same_everywhere_and_can_be_learned() -> None:
    tokens = zipf_text(64, 65, 100)
    assert torch.equal(tokens, zipf_text(64, 65, 100)) and not torch.equal(tokens, zipf_text(64, 65, 100, seed=1))
    assert int(tokens.min()) >= 0 and int(tokens.max()) < 100
    follows = ((31 * tokens[:, :-1] + 7) % 100 == tokens[:, 1:]).float().mean()
    assert 0.45 < float(follows) < 0.6
    shuffled = tokens[:, 1:].flatten()[torch.randperm(64 * 64)].view(64, 64)
    assert float(((31 * tokens[:, :-1] + 7) % 100 == shuffled).float().mean()) < 0.1  # control


def test_more_processes_are_measured_by_real_commands(tmp_path: Path) -> None:
    out = tmp_path / "torch2-cpu-2026-01-01-processes.csv"
    done = subprocess.run(
        [sys.executable, "benchmarks/processes.py", "--processes", "2", "--parallel", "ddp", "--steps", "6", "--batch",
         "2", "--csv", str(out)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with out.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["processes"], row["parallel"], row["steps"]) == ("2", "ddp", "1") and float(row["tokens_per_s"]) > 0
    peaks = [int(peak) for peak in row["peak_rss_mib"].split()]
    assert len(peaks) == (2 if sys.platform == "linux" else 0) and all(50 < peak < 10_000 for peak in peaks)
    figures, pictures = render(None, out)
    assert f"| 2 | ddp | {float(row['ms_per_step']):.0f} |" in figures and "processes" in pictures
