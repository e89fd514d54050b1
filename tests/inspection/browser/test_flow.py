"""The block flow: norms, diagram, parameters and FLOPs as the capture has them."""

from __future__ import annotations

import pytest

from anyformer import LM, Block, Model, Recurrent, Stack, Tokens
from anyformer.inspection.capture import look
from anyformer.inspection.flow import measure, stream_norms
from anyformer.inspection.server import serve_look
from tests.inspection import models
from tests.inspection.browser.test_table import rows_of


@pytest.mark.parametrize("kind", models.KINDS)
def test_norms_are_those_of_the_capture(kind, page_of, capture_of):
    page, capture = page_of(kind, "flow"), capture_of(kind)
    norms = stream_norms(capture, capture.stacks[-1])
    shown = rows_of(page)
    assert [float(row["stream after"].replace(",", "")) for row in shown] == pytest.approx(
        norms.stream.mean(1).tolist(), rel=1e-3
    )
    assert [float(row["attention adds"]) for row in shown[1:]] == pytest.approx(norms.mixer.mean(1).tolist(), rel=1e-3)
    assert [float(row["feed-forward share"]) for row in shown[1:]] == pytest.approx(
        norms.shares()["feed"].tolist(), rel=1e-3
    )


def test_a_part_is_chosen_by_its_button_and_shows_what_it_costs(page_of, capture_of, settled):
    page, capture = page_of("gpt", "flow"), capture_of("gpt")
    parts = {part.role: part for part in measure(capture.model, capture.given.args, capture.given.options).blocks()}
    assert f"{parts['mixer'].parameters:,} parameters" in page.inner_text(".part")
    page.locator(".bars button", has_text="Feed-forward").first.click()
    settled(page)
    assert "Feed-forward (MLP)" in page.inner_text(".part")
    assert f"{parts['feed'].parameters:,} parameters" in page.inner_text(".part")
    assert "in 1 \u00d7 7 \u00d7 32 \u2192 out 1 \u00d7 7 \u00d7 32" in page.inner_text(".part")
    assert "part=feed" in page.url


@pytest.mark.parametrize(("kind", "words"), [("gpt", "pre-norm block, 2 times"), ("bert", "post-norm block")])
def test_the_diagram_says_where_the_norms_stand(kind, words, page_of):
    page = page_of(kind, "flow")
    drawn = page.locator("svg[role=img][aria-label*='block']").last
    assert words in drawn.get_attribute("aria-label")
    texts = drawn.locator("text").all_text_contents()
    assert "Attention" in texts and "MLP" in texts and texts.count("LayerNorm") == 2 and "+" in texts
    assert "\u00d7 2" in texts


def test_an_encoder_decoder_has_both_stacks(page_of, settled):
    page = page_of("t5", "flow")
    assert "cross-attention adds" in rows_of(page)[1]
    page.get_by_label("Stack").select_option("0")
    settled(page)
    assert "cross-attention adds" not in rows_of(page)[1]


def test_a_derivative_shows_that_the_feed_mixes_no_tokens(page_of, settled):
    page = page_of("gpt", "flow")
    page.get_by_label("Which tokens a branch mixes").check()
    settled(page)
    assert page.get_by_role("grid").count() == 2
    grid = page.get_by_role("grid", name="Layer 0: feed-forward")
    grid.click(position={"x": 3, "y": 60})
    settled(page)
    assert (
        page.get_by_role("grid", name="Layer 0: feed-forward").locator("[role=gridcell]").inner_text().endswith(": 0")
    )


def test_gates_of_a_recurrent_layer(pages, settled):
    stack = Stack(width=16, depth=2, causal=True, block=Block(mixer=Recurrent("gru")))
    model = Model(embed=Tokens(vocab=320), stack=stack, head=LM()).build(seed=0)
    import torch

    server = serve_look(look(model, torch.arange(6)[None] + 3, name="gru"))
    page = pages.open(f"{server.url}#view=flow&gates=1")
    settled(page)
    names = page.get_by_role("grid").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
    assert names[:3] == ["reset, units by tokens", "update, units by tokens", "new, units by tokens"]
    server.close()
