"""Lens and trace of models beyond the five kinds: numbers, tags, masked words, long texts."""

from __future__ import annotations

import pytest
import torch

from anyformer import LM, Attention, Block, Model, Stack, Tokens
from anyformer.heads import Regress, TokenHead
from anyformer.inspection.capture import look
from anyformer.inspection.server import serve_look
from anyformer.inspection.trace import trace_of
from anyformer.inspection.views import cross
from tests.inspection import models
from tests.inspection.browser.reading import as_number, exact_rows
from tests.inspection.test_every_preset import captured
from tests.inspection.test_trace import masked_bert


@pytest.fixture
def opened(pages, settled):
    """Opens the page of any capture at a view."""
    running = []

    def page(capture, view, **selection):
        running.append(serve_look(capture))
        words = "&".join(f"{name}={value}" for name, value in ({"view": view} | selection).items())
        found = pages.open(f"{running[-1].url}#{words}")
        settled(found)
        return found

    yield page
    for server in running:
        server.close()


def network(head, *, causal=False):
    stack = Stack(width=16, depth=2, causal=causal, block=Block(mixer=Attention(heads=4)))
    return Model(embed=Tokens(vocab=31), stack=stack, head=head).build(seed=0).eval()


def test_a_head_of_numbers_shows_its_values_by_layer(opened):
    capture = look(network(Regress(outputs=2)), torch.tensor([[1, 2, 3, 4]]))
    right = capture.lens().values
    rows = exact_rows(opened(capture, "lens"))
    assert [row[0] for row in rows] == ["Embedding", "Layer 0", "Layer 1"]
    for row, values in zip(rows, right[:, 0].tolist(), strict=True):
        assert [as_number(text) for text in row[1:]] == pytest.approx(values, rel=2e-5)


def test_tags_have_a_cell_for_every_token(opened):
    capture = look(network(TokenHead(classes=3)), torch.tensor([[1, 2, 3, 4]]))
    page = opened(capture, "lens", query=2)
    assert page.locator("[role=grid] tbody button").count() == 3 * 4
    right = capture.lens(top=3)
    shown = [as_number(text) for text in page.locator(".bars .figure").all_inner_texts()]
    assert shown == pytest.approx(right.logprobs[-1, 2].exp().tolist(), rel=6e-3)


def test_masked_words_have_alternatives_and_no_branch(opened):
    capture = look(masked_bert(), models.TEXT)
    found = trace_of(capture)
    page = opened(capture, "trace")
    rows = exact_rows(page)
    for t, row in enumerate(rows):
        assert row[3] == "masked"
        if found.scored[t]:
            assert as_number(row[5]) == pytest.approx(float(found.logprobs[t]), rel=2e-5)
    assert page.locator("td [data-value]").count() == 10
    assert page.locator("text=Branch here").count() == 0
    assert "masked" in page.inner_text(".drawing")


def test_a_long_text_comes_in_windows(opened, settled):
    ids = torch.arange(100)[None] % 31
    capture = look(network(LM(), causal=True), ids)
    right = capture.lens()
    page = opened(capture, "lens")
    assert page.locator("[role=grid] thead th").count() == 1 + 64
    page.locator("input[data-focus=option-start]").evaluate(
        "input => { input.value = 48; input.dispatchEvent(new Event('change')); }"
    )
    settled(page)
    assert page.locator("[role=grid] thead th").count() == 1 + 52
    row = exact_rows(page)[-1]
    assert as_number(row[1]) == 99 and as_number(row[4]) == pytest.approx(
        float(right.logprobs[-1, 99, 0].exp()), rel=2e-5
    )


def test_the_alignment_of_a_recurrent_decoder_is_drawn(opened, settled):
    """Bahdanau's weights of one state over the source: no heads, rows that sum to 1."""
    capture = captured("bahdanau-seq2seq-tiny")
    page = opened(capture, "cross")
    right = capture.weights(cross.cross_sites(capture)[0].index)[0]  # (T,S)
    rows = exact_rows(page)
    shown = [as_number(row[4]) for row in rows]
    assert shown == pytest.approx(right.flatten().tolist(), rel=2e-5)
    targets, sources = right.shape
    for t in range(targets):
        assert sum(shown[t * sources : (t + 1) * sources]) == pytest.approx(1, abs=1e-5)
    assert page.locator("[role=grid][aria-label='Target by source']").count() == 1
    assert page.locator("[aria-label=Alignment] tbody tr").count() == targets
    assert page.locator("[aria-label=Heads]").count() == 0


def test_an_exported_page_holds_every_head_of_cross_attention_and_the_lens_without_its_norm(
    pages, file_of, capture_of, settled
):
    address = file_of("t5").as_uri()
    page = pages.open(f"{address}#view=cross")
    settled(page)
    page.locator("button[data-focus=option-heads-one]").click()
    settled(page)
    page.locator("select[data-focus=cross-head]").select_option("3")
    settled(page)
    right = capture_of("t5").weights(3)[3]
    assert [as_number(row[4]) for row in exact_rows(page)] == pytest.approx(right.flatten().tolist(), rel=2e-5)
    assert page.locator("select[data-focus=option-beam]").count() == 0  # beams need the model
    page = pages.open(f"{address}#view=lens")
    settled(page)
    page.locator("input[data-focus=option-norm]").uncheck()
    settled(page)
    assert "is not the model's answer" in page.inner_text("#panel")
