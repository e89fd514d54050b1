"""The lens against the head run by hand on every layer, and against the model's own logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer import LM, Attention, Block, Cross, Model, Pooled, Seq2Seq, Stack, Tokens
from anyformer.core.ensemble import Ensemble
from anyformer.errors import UserError
from anyformer.heads import Regress, TokenHead
from anyformer.inspection import lens
from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.capture import look
from anyformer.inspection.lens import read_layers, readout_of, why_no_lens
from anyformer.inspection.views import lens as view
from tests.inspection import models

VOCAB = 23


def text_model(head: Any, **changes: Any) -> Any:
    block = Block(mixer=Attention(heads=4), place=changes.pop("place", "pre"))
    stack = Stack(width=16, depth=3, causal=changes.pop("causal", True), block=block)
    network = Model(embed=Tokens(vocab=VOCAB), stack=stack, head=head).build(seed=0).eval()
    return roughened(network)


def translator() -> Any:
    block = Block(mixer=Attention(heads=4), cross=Cross(heads=4))
    encoder = Model(embed=Tokens(vocab=VOCAB), stack=Stack(width=16, depth=2, block=Block(mixer=Attention(heads=4))))
    decoder = Model(embed=Tokens(vocab=VOCAB), stack=Stack(width=16, depth=2, causal=True, block=block))
    spec = Seq2Seq(encoder=encoder, decoder=decoder, head=LM(scale=0.25), share="table")
    return roughened(spec.build(seed=0).eval())


def roughened(network: Any) -> Any:
    """Weights as after training: fresh norms are the identity but for the scale, and fresh logits are nearly alike."""
    torch.manual_seed(5)
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.3 * torch.randn_like(weight)
    return network


def streams_of(model: Any, ids: Tensor, **options: Any) -> list[Tensor]:
    """Embedding, then the stream after each block."""
    found: list[Tensor] = []
    handles = [model.stack.blocks[0].register_forward_pre_hook(lambda _, given: found.append(given[0]))]
    handles += [block.register_forward_hook(lambda _, __, out: found.append(out[0])) for block in model.stack.blocks]
    with torch.no_grad():
        model(ids, **options)
    for handle in handles:
        handle.remove()
    return found


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(0, VOCAB, (1, 7), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("head", [LM(), LM(tied=False, bias=True, soft_cap=2.0), LM(transform="gelu")])
@pytest.mark.parametrize("place", ["pre", "post", "sandwich"])
@torch.no_grad()
def test_the_last_layer_is_the_model_and_the_others_are_the_head_run_by_hand(head: Any, place: str, ids: Tensor):
    model = text_model(head, place=place)
    out = model(ids)
    found = read_layers(readout_of(model, out.context), streams_of(model, ids), out.logits, top=VOCAB)
    assert found.error == 0.0
    assert found.layers == ("Embedding", "Layer 0", "Layer 1", "Layer 2")

    by_hand = [model.embed(ids, context=model.embed.layout(ids)), *streams_of(model, ids)[1:]]
    for layer, stream in enumerate(by_hand):
        normal = stream if model.stack.final is None else model.stack.final(stream)
        logs = model.head(normal, out.context, model.table()).logits[0].double().log_softmax(-1)  # (T,V)
        ours = torch.zeros_like(logs).scatter(1, found.ids[layer], found.logprobs[layer].double())
        assert torch.allclose(ours, logs, atol=1e-5)
        final = out.logits[0].double().log_softmax(-1)
        for t in range(ids.shape[1]):
            chosen = int(final[t].argmax())
            order = logs[t].argsort(descending=True).tolist()
            assert int(found.chosen[t]) == chosen
            assert int(found.ranks[layer, t]) == order.index(chosen) + 1
            kl = sum(float(p.exp() * (p - q)) for p, q in zip(final[t], logs[t], strict=True))
            assert float(found.divergence[layer, t]) == pytest.approx(kl, abs=1e-5)
            assert float(found.entropy[layer, t]) == pytest.approx(-sum(float(q.exp() * q) for q in logs[t]), abs=1e-5)
            assert float(found.chosen_logprobs[layer, t]) == pytest.approx(float(logs[t, chosen]), abs=1e-5)
    assert (found.ranks[-1] == 1).all() and float(found.divergence[-1].abs().max()) < 1e-6


@torch.no_grad()
def test_without_the_norm_the_last_layer_is_not_the_model(ids: Tensor):
    model = text_model(LM())
    out, streams = model(ids), streams_of(model, ids)
    bare = read_layers(readout_of(model, out.context), streams, out.logits, norm=False)
    assert bare.error > 0.1 and not bare.normed and bare.has_norm


@torch.no_grad()
def test_one_layers_statistics_for_all_layers_would_be_another_lens(ids: Tensor):
    """The mistake made elsewhere: the last layer's scale on every layer."""
    model = text_model(LM())
    out, streams = model(ids), streams_of(model, ids)
    right = read_layers(readout_of(model, out.context), streams, out.logits, top=VOCAB)
    last, norm = streams[-1], model.stack.final
    centre, spread = last.mean(-1, keepdim=True), (last.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
    frozen = (streams[1] - centre) / spread * norm.weight + norm.bias
    wrong = model.head(frozen, None, model.table()).logits[0].log_softmax(-1)
    ours = torch.zeros_like(wrong).scatter(1, right.ids[1], right.logprobs[1])
    assert (ours - wrong).abs().max() > 0.05


@torch.no_grad()
def test_pieces_of_positions_give_the_same_and_hold_no_more(ids: Tensor, monkeypatch: pytest.MonkeyPatch):
    model = text_model(LM())
    out, streams = model(ids), streams_of(model, ids)
    readout = readout_of(model, out.context)
    whole = read_layers(readout, streams, out.logits)
    largest: list[int] = []
    handle = model.head.register_forward_hook(lambda _, __, given: largest.append(given.logits.numel()))
    monkeypatch.setattr(lens, "PIECE", 2 * VOCAB + 1)
    cut = read_layers(readout, streams, out.logits)
    handle.remove()
    assert max(largest) == 2 * VOCAB and len(largest) == 4 * 4  # four layers, seven positions by twos
    assert torch.equal(cut.ids, whole.ids) and torch.equal(cut.ranks, whole.ranks)
    assert torch.allclose(cut.divergence, whole.divergence, atol=1e-6) and cut.error < 1e-5


@torch.no_grad()
def test_a_decoder_that_looks_at_an_encoder():
    model = translator()
    source, target = torch.tensor([[3, 4, 5, 6]]), torch.tensor([[1, 7, 8]])
    out = model(source, target)
    found: list[Tensor] = []
    blocks = model.decoder.stack.blocks
    handles = [blocks[0].register_forward_pre_hook(lambda _, given: found.append(given[0]))]
    handles += [block.register_forward_hook(lambda _, __, given: found.append(given[0])) for block in blocks]
    model(source, target)
    for handle in handles:
        handle.remove()
    readout = readout_of(model, out.context)
    assert readout.stack == "decoder"
    right = read_layers(readout, found, out.logits)
    assert right.error == 0.0 and right.ids.shape == (3, 3, 10)
    assert torch.equal(right.chosen, out.logits[0].argmax(-1))


@pytest.mark.parametrize("head", [Pooled(classes=3), Pooled(classes=3, pool="mean"), TokenHead(classes=3)])
@torch.no_grad()
def test_classes_by_layer(head: Any, ids: Tensor):
    model = text_model(head, causal=False)
    mask = torch.tensor([[True] * 5 + [False] * 2])
    out = model(ids, mask=mask)
    streams = streams_of(model, ids, mask=mask)
    found = read_layers(readout_of(model, out.context), streams, out.logits)
    assert found.kind == "classes" and found.error == 0.0
    assert found.ids.shape == (4, 7 if isinstance(head, TokenHead) else 1, 3)  # no more than there are classes
    by_hand = model.head(model.stack.final(streams[2]), out.context, None).logits.reshape(-1, 3).log_softmax(-1)
    assert torch.allclose(found.logprobs[2], by_hand.sort(descending=True).values, atol=1e-6)


@torch.no_grad()
def test_numbers_by_layer(ids: Tensor):
    model = text_model(Regress(outputs=2), causal=False)
    out, streams = model(ids), streams_of(model, ids)
    found = read_layers(readout_of(model, out.context), streams, out.logits)
    assert found.kind == "numbers" and found.values is not None and found.values.shape == (4, 1, 2)
    assert torch.equal(found.values[-1], out.logits)
    assert not torch.allclose(found.values[0], out.logits, atol=1e-3)


def test_what_has_no_lens_says_why(ids: Tensor):
    model = text_model(None)
    assert "no head" in (why_no_lens(model) or "")
    with pytest.raises(UserError, match="no head"):
        readout_of(model, None)
    assert "Linear" in (why_no_lens(torch.nn.Linear(2, 2)) or "")


# ---------------------------------------------------------------- captures and the view


@pytest.mark.parametrize("kind", models.KINDS)
def test_every_kind_of_capture_ends_in_its_own_prediction(kind: str):
    capture = look(models.predictor(kind), models.inputs(kind))
    assert view.applies(capture) is None
    found, best = capture.lens(top=3), capture.prediction(top=3)
    assert found.error == 0.0
    assert found.ids[-1, -1].tolist()[: len(best)] == [choice.id for choice in best]
    shares = found.logprobs[-1, -1].exp().tolist()[: len(best)]
    assert shares == pytest.approx([choice.probability for choice in best], abs=1e-6)


def test_the_page_gets_the_numbers_of_the_capture():
    capture = look(models.gpt(), models.TEXT)
    right = capture.lens(top=10)
    answer = ViewAnswer.from_bytes(view.answer(capture, Query()).to_bytes())
    assert answer.arrays["ids"].tolist() == right.ids.tolist()
    assert answer.arrays["ranks"].tolist() == right.ranks.tolist()
    for name in ("logprobs", "chosen_logprobs", "divergence", "entropy"):
        assert torch.equal(torch.from_numpy(answer.arrays[name]), getattr(right, name))
    first = str(int(right.ids[0, 0, 0]))
    assert answer.facts["names"][first] == models.words().decode([int(first)])
    assert [token["text"] for token in answer.facts["tokens"]] == capture.axes[""].texts
    bare = view.answer(capture, Query(options={"norm": "0"}))
    assert bare.facts["error"] > 1e-3 and not bare.facts["normed"]


def test_the_view_takes_long_texts_in_windows(monkeypatch: pytest.MonkeyPatch):
    capture = look(models.gpt(), models.TEXT)
    whole = view.answer(capture, Query()).arrays["logprobs"]
    monkeypatch.setattr(view, "WINDOW", 3)
    part = view.answer(capture, Query(options={"start": "2"}))
    assert part.arrays["logprobs"].shape == (3, 3, 10)
    assert torch.allclose(torch.from_numpy(part.arrays["logprobs"]), torch.from_numpy(whole[:, 2:5]), atol=1e-6)
    assert part.facts["start"] == 2 and part.facts["count"] == len(capture.axes[""])


def test_half_precision_and_averaged_members_end_in_the_logits_too(ids: Tensor):
    half = text_model(LM()).to(torch.bfloat16)
    assert look(half, ids).lens().error == 0.0
    stack = Stack(width=16, depth=2, block=Block(mixer=Attention(heads=4)))
    spec = Model(embed=Tokens(vocab=VOCAB), stack=stack, head=Pooled(classes=3), ensemble=Ensemble(members=3))
    several = roughened(spec.build(seed=0).eval())
    capture = look(several, ids)
    found = capture.lens(top=3)
    assert found.error == 0.0
    alone = several(ids, each_member=True).logits.softmax(-1).mean(0)  # each member's answer, averaged by hand
    assert torch.allclose(found.logprobs[-1, 0].exp(), alone.sort(descending=True).values, atol=1e-6)


def test_labels_that_may_come_together_have_probabilities_of_their_own():
    predictor = models.ft()
    kept = predictor.preprocess
    several = replace(predictor, preprocess=kept.replace(target=kept.target.replace(form="list")))
    capture = look(several, models.ROW)
    found, right = capture.lens(), several.predict_proba([models.ROW])[0]
    shares = torch.zeros(2).scatter(0, found.ids[-1, 0], found.logprobs[-1, 0].exp())
    assert torch.allclose(shares, right.float(), atol=1e-5)
    assert abs(float(shares.sum()) - 1) > 1e-3  # control: they are not shares of one answer
    assert {choice.id: choice.probability for choice in capture.prediction()} == pytest.approx(
        dict(enumerate(right.tolist()))
    )
    first = torch.zeros(2).scatter(0, found.ids[0, 0], found.logprobs[0, 0].exp())
    kl = sum(
        float(p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log())
        for p, q in zip(shares.double(), first.double(), strict=True)
    )
    assert float(found.divergence[0, 0]) == pytest.approx(kl, abs=1e-5)
