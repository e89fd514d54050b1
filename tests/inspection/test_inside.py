"""The report of a run shows one map: that of the model it came out with, on a row of the validation data."""

from __future__ import annotations

import json
import re
import xml.dom.minidom

import numpy as np
import pytest

import anyformer
from anyformer.data.reopen import reopen
from anyformer.evaluation.figures import heat_map
from anyformer.evaluation.sections import inside
from anyformer.evaluation.style import SHADES, shade_rules
from anyformer.inspection.capture import look
from anyformer.inspection.inside_facts import inside_facts
from anyformer.inspection.palette import FOR_THE_PAGE
from anyformer.objectives import Batch
from tests.inspection import models
from tests.inspection.runs import text_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return text_run(tmp_path_factory.mktemp("runs") / "words")


def test_the_map_is_that_of_the_model_that_came_out(run):
    facts = json.loads((run / "evaluation.json").read_text())["inside"]
    predictor = anyformer.load(run)
    ids = reopen(run / "data").valid.batch([0]).inputs[0]
    capture = look(predictor, ids)
    exact = capture.weights(1).mean(0).numpy()[:24, :24]
    assert np.allclose(np.array(facts["weights"]), exact, atol=1e-4) and facts["layer"] == "Layer 1"
    assert facts["keys"] == capture.axes[""].texts[:24]
    assert not np.allclose(exact, capture.weights(0).mean(0).numpy()[:24, :24], atol=1e-3)  # control: the first layer


def test_the_report_draws_it(run):
    page = (run / "report.html").read_text()
    part = page[page.index('<section id="inside"') :].partition("</section>")[0]
    drawn = part[part.index("<svg") : part.index("</svg>") + 6]
    cells = xml.dom.minidom.parseString(drawn).getElementsByTagName("rect")
    facts = json.loads((run / "evaluation.json").read_text())["inside"]
    assert len(cells) == len(facts["queries"]) * len(facts["keys"]) + SHADES + 1  # and the strip of the legend
    assert "anyformer look" in part


def test_tokens_cannot_become_markup():
    drawn = heat_map([[0.5, 0.5]], ["<script>"], ['"&', "\x1b"], "A map")
    assert "<script>" not in drawn
    texts = [node.firstChild.data for node in xml.dom.minidom.parseString(drawn).getElementsByTagName("text")]
    assert texts[:3] == ["<script>", '"&', "\\x1b"]


def test_shades_follow_the_weights():
    drawn = xml.dom.minidom.parseString(heat_map([[0.8, 0.2, 0.0]], None, None, "A map"))
    cells = drawn.getElementsByTagName("rect")
    assert [cell.getAttribute("class") for cell in cells[:3]] == [f"shade{SHADES}", f"shade{SHADES // 2}", "shade0"]
    assert drawn.getElementsByTagName("text")[-1].firstChild.data == "0.8 · square-root scale, middle 0.2"


@pytest.mark.parametrize("theme, at", [("light", 0), ("dark", 1)])
def test_colours_of_a_report_are_those_of_the_page(theme, at):
    """Every step of the ramp that pages are drawn with; the two themes have two ramps."""
    rules = shade_rules().partition("@media screen and (prefers-color-scheme: dark)")[2 * at]
    found = dict(re.findall(r"\.shade(\d+)\{fill:(#[0-9a-f]{6})\}", rules))
    assert len(found) == SHADES + 1
    stops = FOR_THE_PAGE["ramps"][theme]["one"]
    assert (found["0"], found[str(SHADES)]) == (stops[0], stops[-1])
    assert len(set(found.values())) == SHADES + 1


def test_an_image_gives_a_grid_and_an_encoder_decoder_its_alignment():
    vit, t5 = models.vit(), models.t5()
    capture, data = look(vit, models.image()), SimplePrepared()
    facts = inside_facts(vit.model, vit.spec, data, Batch(capture.given.args, None, None))
    exact = capture.weights(1)[:, 0, 1:].mean(0).reshape(3, 4).numpy()
    assert np.allclose(facts["grid"], exact, atol=1e-4) and "image" in inside(facts)
    both = look(t5, models.TEXT)
    facts = inside_facts(t5.model, t5.spec, data, Batch(both.given.args, None, None, named=both.given.options))
    site = [site for site in both.sites if site.kind == "cross"][-1]
    assert facts["kind"] == "cross" and "What was read" in inside(facts)
    assert np.allclose(facts["weights"], both.weights(site.index).mean(0).numpy(), atol=1e-4)


def test_the_alignment_of_a_report_names_what_is_written():
    predictor = models.translator()
    capture, data = look(predictor, " ".join(models.PAIRS)), SimplePrepared()
    data.tokenizer = predictor.tokenizer
    facts = inside_facts(predictor.model, predictor.spec, data, Batch(capture.given.args, None, None))
    pairs = {query.strip(): facts["keys"][int(np.argmax(row))].strip()
             for query, row in zip(facts["queries"], facts["weights"], strict=True)}  # fmt: skip
    assert {pairs[two]: two for two in models.PAIRS.values()} == models.PAIRS
    assert "read (columns) to write each token (rows)" in inside(facts)


class SimplePrepared:
    """Data without a tokenizer and without columns."""

    tokenizer = preprocess = None


def test_a_report_comes_without_a_map_where_none_can_be_drawn(tmp_path, monkeypatch):
    def broken(model, spec, data, batch):
        raise RuntimeError("nothing to see")

    monkeypatch.setattr("anyformer.inspection.inside_facts.inside_facts", broken)
    made = text_run(tmp_path / "words", steps=10)
    assert 'id="inside"' not in (made / "report.html").read_text()
    events = [json.loads(line) for line in (made / "events.jsonl").read_text().splitlines()]
    assert [event["error"] for event in events if event["event"] == "look failed"] == ["RuntimeError: nothing to see"]
