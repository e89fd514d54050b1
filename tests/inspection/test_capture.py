"""A capture: the right sites, exact maps, and a model that is not touched."""

from __future__ import annotations

import pytest
import torch

import anyformer
from anyformer.errors import UserError
from anyformer.inspection.axis import text_of, word_tokens
from anyformer.inspection.capture import look
from anyformer.inspection.shadow import shadow
from tests.inspection import models


@pytest.mark.parametrize("kind", models.KINDS)
def test_maps_are_those_of_the_plain_path(kind):
    """By another path: hooks on the model itself, as `attention_maps` makes them."""
    predictor = models.predictor(kind)
    capture = look(predictor, models.inputs(kind))
    plain = anyformer.attention_maps(predictor.model.eval(), *capture.given.args, **capture.given.options)
    wanted = [(path, weights) for path, calls in plain.items() for weights in calls]
    assert len(wanted) == len(capture.sites)
    for site in capture.sites:
        (weights,) = [weights for path, weights in wanted if path == site.path]
        found = capture.weights(site.index)
        torch.testing.assert_close(found, weights[0].float(), atol=1e-6, rtol=1e-6)
        assert found.shape == (site.heads, len(capture.axes[site.queries]), len(capture.axes[site.keys]))


@pytest.mark.parametrize("kind", models.KINDS)
def test_the_capture_answers_as_the_model_does(kind):
    predictor = models.predictor(kind)
    capture = look(predictor, models.inputs(kind))
    expected = predictor.model.eval()(*capture.given.args, **capture.given.options).logits
    assert torch.equal(capture.output.logits, expected)
    assert torch.equal(capture.rerun().logits, expected)


def test_a_classifier_is_shown_with_the_probabilities_it_predicts():
    predictor = models.predictor("ft")
    capture = look(predictor, models.ROW)
    shares = predictor.predict_proba([models.ROW])[0]
    for choice in capture.prediction():
        assert predictor.labels is not None
        assert choice.probability == pytest.approx(float(shares[predictor.labels.index(choice.name)]), abs=1e-6)


def test_a_shadow_shares_every_tensor_and_no_hook():
    model = models.gpt().model
    handle = model.stack.blocks[0].register_forward_hook(lambda *given: None)
    copied = shadow(model)
    for (name, one), (other_name, other) in zip(model.named_parameters(), copied.named_parameters(), strict=True):
        assert name == other_name and one.data_ptr() == other.data_ptr()
    assert copied is not model and copied.stack.blocks[0] is not model.stack.blocks[0]
    assert not copied.stack.blocks[0]._forward_hooks
    handle.remove()


def test_tied_weights_stay_tied():
    model = models.t5().model
    copied = shadow(model)
    assert len({id(p) for p in copied.parameters()}) == len({id(p) for p in model.parameters()})


def test_the_model_keeps_no_trace_of_a_look():
    predictor = models.gpt()
    before = {path: dict(vars(module)) for path, module in predictor.model.named_modules()}
    look(predictor, models.TEXT).weights(0)
    for path, module in predictor.model.named_modules():
        assert not module._forward_hooks and not module._forward_pre_hooks, path
        assert vars(module).keys() == before[path].keys()


def test_layers_and_heads_by_number():
    capture = look(models.gpt(), models.TEXT)
    assert torch.equal(capture.attention(1, 2), capture.weights(1)[2])
    assert torch.equal(capture.attention(0, rows=slice(2, 4)), capture.weights(0)[:, 2:4])
    with pytest.raises(UserError, match="head 9 is out of range"):
        capture.attention(0, 9)
    with pytest.raises(UserError, match="layer 5"):
        capture.attention(5)


def test_an_encoder_decoder_has_three_kinds_of_map():
    capture = look(models.t5(), models.TEXT)
    assert capture.attention(0, kind="cross").shape[1:] == (9, 7)
    assert capture.attention(0, stack="encoder").shape[1:] == (7, 7)
    assert capture.attention(0).shape[1:] == (9, 9)


def test_a_target_may_be_given():
    capture = look(models.t5(), models.TEXT, target="a boy")
    assert "".join(capture.axes["decoder"].texts[1:]).strip() == "a boy"


def test_some_layers_alone():
    capture = look(models.gpt(depth=3), models.TEXT, layers=[1])
    assert [site.layer for site in capture.sites] == [1]
    assert len(capture.residuals()) == 4


def test_tokens_are_shown_as_people_read_them():
    axis = look(models.gpt(), "a <script> & é 日").axes[""]
    assert all(token.text for token in axis.tokens)
    assert any("<" in token.text for token in axis.tokens)
    assert text_of(axis.tokens) == "a <script> & é 日"  # no letter is lost, and none comes twice


def test_a_character_in_pieces_is_named_on_the_first():
    tokens = look(models.gpt(), "日x é").axes[""].tokens  # neither letter is one token
    assert [token.text for token in tokens] == ["日", "·2/3", "·3/3", "x", " ", "é", "·2/2"]
    assert [token.kind for token in tokens] == ["word", "piece", "piece", "word", "word", "word", "piece"]
    assert tokens[1].note == "piece 2 of 3 of 日: <97>" and "日".encode() == b"\xe6\x97\xa5"
    words = models.words()
    lone = word_tokens(words, [token.id for token in tokens[:2]])  # a text cut within the character
    assert [token.text for token in lone] == ["<e6>", "<97>"] and lone[0].note == "a part of a character"


def test_rows_of_a_batch_are_looked_at_one_by_one():
    capture = look(models.ft(), [models.ROW, models.ROW | {"age": 70.0, "city": "Rome"}])
    first, second = capture.weights(0), capture.weights(0, row=1)
    assert not torch.equal(first, second)
    alone = look(models.ft(), models.ROW | {"age": 70.0, "city": "Rome"})
    torch.testing.assert_close(second, alone.weights(0), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("source", "inputs", "message"), [
    ("no model", "text", "cannot be looked into"),
    (models.gpt().model, "text", "reads tensors"),
    (models.gpt(), "", "empty"),
    (models.gpt().model, None, "nothing to look at"),
])  # fmt: skip
def test_what_cannot_be_looked_at_is_said(source, inputs, message):
    with pytest.raises(UserError, match=message):
        look(source, inputs)


def test_ids_are_looked_at_as_the_text_they_stand_for():
    predictor = models.t5()
    ids = torch.tensor([predictor.encode(models.TEXT)])
    by_text, by_ids = look(predictor, models.TEXT), look(predictor, ids)
    assert torch.equal(by_text.attention(0, kind="cross"), by_ids.attention(0, kind="cross"))
    with pytest.raises(UserError, match="hold the id 99999"):
        look(predictor, torch.tensor([[1, 99999]]))
