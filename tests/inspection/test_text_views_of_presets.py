"""Lens, trace and cross-attention over named models of every family: each agrees with the model's own numbers."""

from __future__ import annotations

import pytest

from anyformer.inspection.answer import Query
from anyformer.inspection.views import cross, lens, trace
from tests.inspection.test_every_preset import captured

READ_BY_LAYER = ["bloom-560m", "ft-transformer", "gpt2", "gru-tagger", "hyena-small", "llama3-8b", "lstm-lm", "mixtral",
                 "sound-mini", "t5-small", "vit-mini"]  # fmt: skip
WRITTEN = ["bloom-560m", "gpt2", "hyena-small", "llama3-8b", "lstm-lm", "mixtral"]
LOOKED_AT = ["bahdanau-seq2seq", "captioner-mini", "t5-small", "transformer-base", "vilbert-base"]
REASONS = {"lens": ["pyramid-small", "albert-base", "clip-b32"], "trace": ["albert-base", "vit-mini", "detr-r50"]}


@pytest.mark.parametrize("name", READ_BY_LAYER)
def test_the_lens_ends_in_the_logits(name):
    found = lens.answer(captured(f"{name}-tiny"), Query())
    assert found.facts["error"] < 1e-5


@pytest.mark.parametrize("name", WRITTEN)
def test_a_text_read_again_has_the_probabilities_it_was_written_with(name):
    found = trace.answer(captured(f"{name}-tiny"), Query(options={"new": "6"}))
    assert found.facts["written"] and found.facts["error"] < 1e-4
    assert (found.arrays["milliseconds"][found.facts["given"] :] > 0).all()


@pytest.mark.parametrize("name", LOOKED_AT)
def test_rows_of_cross_attention_sum_to_one(name):
    found = cross.answer(captured(f"{name}-tiny"), Query())
    assert found.arrays["weights"].sum(-1) == pytest.approx(1, abs=1e-5)
    assert found.arrays["weights"].shape == (len(found.facts["targets"]), len(found.facts["sources"]))


@pytest.mark.parametrize(("view", "name"), [(view, name) for view, names in REASONS.items() for name in names])
def test_a_model_without_one_says_why_in_a_sentence(view, name):
    why = {"lens": lens, "trace": trace}[view].applies(captured(f"{name}-tiny"))
    assert why is not None and why[0].isupper() and why.endswith(".")
