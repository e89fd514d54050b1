"""The trace in a browser: its numbers are Python's, its sliders compute what the sampler would, and it branches."""

from __future__ import annotations

import json

import pytest
import torch

from anyformer.inspection.answer import Query
from anyformer.inspection.distributions import TEMPERATURES, renormalise
from anyformer.inspection.trace import trace_of
from anyformer.inspection.views import trace as view
from tests.inspection.browser.reading import as_number, exact_rows


@pytest.mark.parametrize("kind", ["gpt", "t5"])
def test_the_values_are_those_of_the_capture(kind, page_of, capture_of):
    found = trace_of(capture_of(kind), new=16)
    rows = exact_rows(page_of(kind, "trace"))
    assert len(rows) == len(found.ids)
    for t, row in enumerate(rows):
        assert int(as_number(row[2])) == int(found.ids[t])
        if found.scored[t]:
            assert as_number(row[4]) == pytest.approx(float(found.logprobs[t].exp()), rel=2e-5)
            assert as_number(row[5]) == pytest.approx(float(found.logprobs[t]), rel=2e-5)
            assert as_number(row[6]) == int(found.ranks[t])
            assert as_number(row[7]) == pytest.approx(float(found.entropy[t]), rel=2e-5)
        else:
            assert row[4:8] == ["", "", "", ""]


SETTINGS = [(1.0, 0, 1.0), (0.1, 0, 1.0), (2.0, 0, 1.0), (0.5, 5, 1.0), (1.0, 0, 0.05), (0.1, 3, 0.6), (0.15, 0, 0.3)]


def test_the_sliders_renormalise_as_python_does_without_asking_the_server(page_of, capture_of):
    capture, step = capture_of("gpt"), 9
    found = trace_of(capture, new=16)
    page = page_of("gpt", "trace", step=step)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    for temperature, top_k, top_p in SETTINGS:
        for name, value in (("temperature", temperature), ("top_k", top_k), ("top_p", top_p)):
            page.locator(f"input[data-focus=option-{name}]").evaluate(
                "(input, value) => { input.value = value; input.dispatchEvent(new Event('input')); }", str(value)
            )
        cells = page.locator("td [data-value]")
        shown = [float(cell.get_attribute("data-value")) for cell in cells.all()]
        ids = [int(cell.get_attribute("data-id")) for cell in cells.all()]
        partition = float(found.partition[step, TEMPERATURES.index(temperature)])
        right = renormalise(
            found.top_logprobs[step], partition, temperature=temperature, top_k=top_k, top_p=top_p
        ).probabilities[:10]
        assert ids == found.top_ids[step, :10].tolist()
        assert shown == pytest.approx(right.tolist(), rel=1e-4, abs=1e-9)
        if (temperature, top_k, top_p) != (1.0, 0, 1.0):  # control: the settings do something
            assert abs(shown[0] - float(found.top_logprobs[step, 0].exp())) > 1e-4
    assert not asked


CORNERS = "path => path.getAttribute('d').match(/[ML][^ML]+/g).map(each => Number(each.slice(1).split(' ')[1]))"


def test_the_time_of_each_written_token_is_drawn(page_of):
    page = page_of("gpt", "trace")
    chart = page.get_by_role("img", name="Time that each written token took")
    heights = chart.locator("path.curve").evaluate(CORNERS)
    times = [float(row[8].replace("\u2212", "-")) for row in exact_rows(page) if row[8]]
    assert len(heights) == len(times) == 16
    top, bottom = min(heights), chart.locator("line.axis").evaluate("line => Number(line.getAttribute('y1'))")
    shares = [(bottom - height) / (bottom - top) for height in heights]
    assert shares == pytest.approx([time / max(times) for time in times], abs=0.01)


def test_a_text_that_was_only_read_has_no_times(page_of):
    page = page_of("gpt", "trace", new=0)
    assert page.locator(".chart").count() == 1 and page.locator("h3", has_text="Milliseconds").count() == 0


def test_another_temperature_stays_in_the_address(page_of, settled):
    page = page_of("gpt", "trace")
    page.locator("input[data-focus=option-temperature]").focus()
    page.keyboard.press("ArrowRight")
    settled(page)
    assert "temperature=1.05" in page.url
    assert page.evaluate("document.activeElement.dataset.focus") == "option-temperature"


@pytest.mark.parametrize("kind", ["gpt", "t5"])
def test_branch_here_goes_on_from_the_other_token(kind, page_of, capture_of, settled):
    capture = capture_of(kind)
    first = view.answer(capture, Query())
    step = first.facts["first"] + 2
    page = page_of(kind, "trace", step=step)
    chosen = int(first.arrays["top_ids"][step, 2])
    page.locator(f"button[data-focus=button-branch-{chosen}]").click()
    settled(page)
    kept = [token["id"] for token in first.facts["tokens"][first.facts["first"] : step]]
    found = trace_of(capture, new=16, prefix=kept, branch=chosen)
    rows = exact_rows(page)
    assert [int(as_number(row[2])) for row in rows] == found.ids.tolist()
    assert rows[step][3] == "branch" and int(as_number(rows[step][6])) == int(found.ranks[step])
    page.locator("button[data-focus=button-unbranch]").click()
    settled(page)
    assert "branch" not in page.url


def test_playing_walks_through_the_tokens_and_pauses(page_of, settled):
    page = page_of("gpt", "trace", step=7)
    play = page.locator("button[data-focus=button-play]")
    play.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".tokens button[aria-pressed=true][data-focus=trace-7-8]", timeout=5000)
    assert play.inner_text() == "Pause" and play.get_attribute("aria-pressed") == "true"
    page.keyboard.press("Enter")  # the focus has stayed on the button
    settled(page)
    assert play.inner_text() == "Play"
    before = page.url
    page.wait_for_timeout(1000)
    assert page.url == before
    page.locator("button[data-focus=button-next]").click()
    settled(page)
    assert page.url != before


def test_nothing_moves_by_itself_where_motion_is_not_wanted(pages, server_of, settled):
    page = pages.open(f"{server_of('gpt').url}#view=trace", reduced_motion="reduce")
    settled(page)
    assert page.locator("button[data-focus=button-play]").count() == 0
    page.locator("button[data-focus=button-next]").click()
    settled(page)
    assert "step=8" in page.url


def test_arrow_keys_move_between_tokens(page_of, settled):
    page = page_of("gpt", "trace", step=9)
    page.locator(".tokens button[aria-pressed=true]").focus()
    page.keyboard.press("ArrowRight")
    settled(page)
    assert "step=10" in page.url
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"


def test_an_exported_page_shows_the_trace_and_offers_no_branch(pages, file_of):
    page = pages.open(file_of("gpt").as_uri() + "#view=trace")
    page.wait_for_selector("h2:has-text('Generation trace')")
    page.wait_for_selector("td [data-value]")
    assert page.locator("text=Branch here").count() == 0
    assert "run anyformer look" in page.inner_text("#panel")


def test_the_module_of_sampling_alone(page_of):
    """The arithmetic of the page against numbers of another origin: a distribution of four tokens, by hand."""
    page = page_of("gpt", "trace")
    logs = torch.tensor([0.5, 0.25, 0.15, 0.1]).double().log()
    script = "async (given) => (await import('look/sampling')).renormalise(...given)"
    given = [logs.tolist(), 0.0, {"temperature": 1, "topK": 0, "topP": 0.7, "whole": True}]
    found = page.evaluate(script, json.loads(json.dumps(given)))
    assert found["exact"] and found["probabilities"] == pytest.approx([0.5 / 0.75, 0.25 / 0.75, 0, 0])
    given = [logs.tolist(), 0.0, {"temperature": 1, "topK": 3, "topP": 1}]
    assert page.evaluate(script, given)["probabilities"] == pytest.approx([0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0])
    given = [logs[:2].tolist(), 0.0, {"temperature": 1, "topK": 0, "topP": 0.8}]
    assert not page.evaluate(script, given)["exact"]
