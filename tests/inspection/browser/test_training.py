"""The view of a training: the slider moves through real checkpoints, and a run that grows is followed."""

from __future__ import annotations

import json
import os
import shutil

import pytest

import anyformer
from anyformer.inspection.capture import look
from anyformer.inspection.server import serve_look
from tests.inspection.browser.conftest import without_faults
from tests.inspection.runs import text_run

INPUT = "a b c a b c a b c"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return text_run(tmp_path_factory.mktemp("runs") / "words")


@pytest.fixture(scope="module")
def served():
    """`served(folder)`: the capture of a run's model and its server, made once."""
    made = {}

    def serve(folder):
        if folder not in made:
            capture = look(anyformer.load(folder), INPUT)
            made[folder] = capture, serve_look(capture)
        return made[folder]

    yield serve
    for _, server in made.values():
        server.close()


@pytest.fixture
def opened(served, pages, settled):
    """`opened(folder)`: the page of a run's model."""

    def open_page(folder, address="view=training", **options):
        capture, server = served(folder)
        page = pages.open(f"{server.url}#{address}", **options)
        settled(page)
        return page, capture

    return open_page


def test_the_slider_moves_through_the_checkpoints(run, opened, settled):
    page, capture = opened(run)
    slider = page.get_by_role("slider", name="Checkpoint")
    assert page.get_by_role("grid", name="Attention at step 30").count() == 1
    slider.focus()
    page.keyboard.press("ArrowLeft")
    settled(page)
    assert page.get_by_role("grid", name="Attention at step 20").count() == 1 and "step=20" in page.url
    page.locator("details.exact summary").click()
    page.locator("details.exact tbody tr").first.wait_for()
    rows = [row.locator("td, th").all_inner_texts() for row in page.locator("details.exact tbody tr").all()]
    wanted = [(found.step, line) for found in capture.checkpoints.read() for line in found.heads if line["site"] == 0]
    assert [row[:2] for row in rows] == [[str(step), f"head {line['head']}"] for step, line in wanted]
    assert [float(row[2]) for row in rows] == pytest.approx([line["entropy"] for _, line in wanted], rel=0.01)


def test_play_goes_from_the_first_to_the_last(run, opened):
    page, _ = opened(run)
    page.get_by_role("button", name="Play").click()
    page.get_by_role("grid", name="Attention at step 10").wait_for()
    page.get_by_role("grid", name="Attention at step 20").wait_for()
    page.get_by_role("grid", name="Attention at step 30").wait_for()
    page.get_by_role("button", name="Play").wait_for()


def test_statistics_and_loss_stand_under_their_headings(run, opened, settled):
    page, _ = opened(run, "view=training&statistic=induction")
    headings = page.locator(".drawing h3").all_inner_texts()
    assert headings == ["Layer 0 · head 0 at each checkpoint", "Heads of layer 0 over the steps", "Loss"]
    charts = page.locator(".drawing svg.chart")
    assert charts.count() == 2
    panel = page.locator(".drawing").bounding_box()["width"]
    assert all(chart.bounding_box()["width"] > panel * 0.95 for chart in charts.all())
    assert "Induction" in charts.first.get_attribute("aria-label")


def test_a_run_that_grows_is_followed(run, opened, settled, tmp_path):
    growing = tmp_path / "growing"
    shutil.copytree(run, growing, ignore=shutil.ignore_patterns("step-000030"))
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    early = [line for line in lines if json.loads(line)["step"] <= 20]
    (growing / "metrics.jsonl").write_text("".join(early))
    facts = json.loads((run / "run.json").read_text())
    facts |= {"status": "running", "step": 20, "total": 30, "pid": os.getpid(), "best_step": 20}
    facts.pop("host", None)
    (growing / "run.json").write_text(json.dumps(facts))
    requests = []
    page, _ = opened(growing)
    page.on("request", lambda request: requests.append(request.url) if "/api/run" in request.url else None)
    fact = lambda name: page.locator(f'[data-fact="{name}"]')  # noqa: E731
    assert fact("Status").inner_text() == "running" and fact("Step").inner_text() == "20 of 30"
    assert page.get_by_role("slider", name="Checkpoint").get_attribute("max") == "1"
    with (growing / "metrics.jsonl").open("a") as file:
        file.write("".join(line for line in lines if json.loads(line)["step"] == 25))
    page.locator('[data-fact="Step"]', has_text="25 of 30").wait_for(timeout=8000)
    late = json.loads(next(line for line in lines if json.loads(line)["step"] == 25))
    assert float(fact("Loss").inner_text()) == pytest.approx(late["loss"], rel=0.01)
    shutil.copytree(run / "checkpoints" / "step-000030", growing / "checkpoints" / "step-000030")
    page.get_by_role("grid", name="Attention at step 30").wait_for(timeout=8000)
    settled(page)
    assert page.get_by_role("slider", name="Checkpoint").get_attribute("max") == "2"
    # Only what is new is read: every later request begins where the file ended before.
    size = len("".join(early).encode())
    offsets = [int(url.partition("since=")[2].partition("&")[0]) for url in requests]
    assert offsets and min(offsets) >= size
    (growing / "run.json").write_text(json.dumps(facts | {"status": "done", "step": 30}))
    page.locator('[data-fact="Status"]', has_text="done").wait_for(timeout=8000)
    count = len(requests)
    page.wait_for_timeout(2500)
    assert len(requests) == count  # a run that has ended is not asked again
    page.get_by_role("button", name="Look at the newest checkpoint, step 30").click()
    page.locator("h1.brand", has_text="growing · step 30").wait_for()
    settled(page)
    page.locator('[data-fact="Status"]').wait_for()
    assert page.get_by_role("button", name="Look at the newest checkpoint").count() == 0  # it is what is shown


def test_a_run_can_be_opened_from_its_exported_page(run, pages, settled, tmp_path):
    capture = look(anyformer.load(run), INPUT)
    capture.html(tmp_path / "page.html")
    page = pages.open(f"file://{tmp_path}/page.html#view=training")
    settled(page)
    assert page.get_by_role("grid", name="Attention at step 30").count() == 1
    assert page.locator(".drawing svg.chart").count() == 2


def test_it_is_without_faults_in_both_themes_and_fits(run, opened):
    without_faults(opened(run)[0])
