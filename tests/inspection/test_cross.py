"""Cross-attention as the page shows it, against products and recurrences written out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anyformer import LM, Attention, Block, Model, Seq2Seq, Stack, Tokens
from anyformer.errors import UserError
from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.capture import look
from anyformer.inspection.views import cross
from anyformer.mixers.attending_recurrent import AttendingRecurrent
from tests.inspection import models

SOURCE, TARGET = torch.tensor([[3, 4, 5, 6, 7]]), torch.tensor([[1, 8, 9]])


def entered(module: torch.nn.Module, run: Any) -> tuple[Any, ...]:
    """What a module is called with while `run()` runs."""
    found: list[tuple[Any, ...]] = []
    handle = module.register_forward_pre_hook(lambda _, given: found.append(given))
    with torch.no_grad():
        run()
    handle.remove()
    return found[0]


def by_hand(module: Any, x: Tensor, memory: Tensor) -> Tensor:
    """Weights (H,T,S) of cross-attention from its matrices, one product at a time."""
    heads, channels = module.sizes.heads, module.sizes.channels
    q = module.q(x)[0].double().view(-1, heads, channels)  # (T,H,C)
    kv = module.kv(memory)[0].double().view(memory.shape[1], heads, -1)[..., :channels]  # (S,H,C)
    rows = []
    for head in range(heads):
        for t in range(q.shape[0]):
            scores = torch.stack([(q[t, head] * kv[s, head]).sum() / channels**0.5 for s in range(kv.shape[0])])
            rows.append(scores.exp() / scores.exp().sum())
    return torch.stack(rows).view(heads, q.shape[0], -1)


@torch.no_grad()
def test_every_head_and_their_mean():
    predictor = models.t5()
    with torch.no_grad():  # fresh weights look nearly everywhere alike
        for weight in predictor.model.decoder.parameters():
            weight += 0.5 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    capture = look(predictor, models.TEXT)
    sites = cross.cross_sites(capture)
    assert [site.label for site in sites] == ["Decoder layer 0 · cross", "Decoder layer 1 · cross"]
    for site in sites:
        module = predictor.model.get_submodule(site.path)
        x, context = entered(module, lambda: predictor.model(*capture.given.args))[:2]
        right = by_hand(module, x, context.memory)  # (H,T,S)
        for head in range(site.heads):
            found = cross.answer(capture, Query(site=site.index, head=head, options={"heads": "one"}))
            assert np.allclose(found.arrays["weights"], right[head], atol=1e-5)
            assert found.arrays["best"].tolist() == right[head].argmax(-1).tolist()
            assert found.facts["head"] == head and not found.facts["mean"]
        mean = ViewAnswer.from_bytes(cross.answer(capture, Query(site=site.index)).to_bytes())
        assert np.allclose(mean.arrays["weights"], right.mean(0), atol=1e-5)
        assert not np.allclose(mean.arrays["weights"], right[0], atol=1e-3)  # control: one head is not the mean
        assert mean.arrays["by_head"].tolist() == right.argmax(-1).tolist()
        assert np.allclose(mean.arrays["weights"].sum(-1), 1, atol=1e-6) and mean.facts["sums"] == pytest.approx([1, 1])


def test_a_site_that_is_no_cross_attention_shows_the_first_that_is():
    capture = look(models.t5(), models.TEXT)
    found = cross.answer(capture, Query(site=0))
    assert found.facts["site"] == 3 and len(found.facts["targets"]) == found.arrays["weights"].shape[0]
    assert [token["text"] for token in found.facts["sources"]] == capture.axes["encoder"].texts
    queries = list(cross.exported(capture))
    assert queries[0] == Query() and len(queries) == 1 + 2 + 2 * 4


def test_a_row_is_the_token_that_its_step_writes():
    """A translator whose weights are set: while it writes "zwei" it reads "two", by construction."""
    capture = look(models.translator(), " ".join(models.PAIRS))
    found = cross.answer(capture, Query())
    sources = [token["text"].strip() for token in found.facts["sources"]]
    aligned = {token["text"].strip(): sources[best]
               for token, best in list(zip(found.facts["targets"], found.arrays["best"], strict=True))[:4]}  # fmt: skip
    assert aligned == {two: one for one, two in models.PAIRS.items()}
    read = [text.strip() for text in found.facts["after"]]  # control: by what the steps read, pairs are off by one
    assert read[:3] == ["<s>", "zwei", "drei"] and sources[found.arrays["best"][1]] == "three"
    assert [token["note"] for token in found.facts["targets"]][1:] == [
        "after zwei", "after drei", "after sechs", "after acht", "predicted after </s>"]  # fmt: skip


def test_the_last_row_is_what_the_model_would_write():
    capture = look(models.translator(), " ".join(models.PAIRS), target="zwei drei")
    ids = capture.given.args[1][0].tolist()
    written = capture.axes["decoder"].written
    assert [token.id for token in written] == [*ids[1:], int(capture.output.logits[0, -1].argmax())]
    assert not look(models.gpt(), models.TEXT).axes[""].written


def test_what_writes_nothing_keeps_its_own_names():
    facts = cross.answer(look(recurrent(), (SOURCE, TARGET)), Query()).facts
    assert [token["text"] for token in facts["targets"]] == ["8", "9", facts["targets"][2]["text"]]
    table = look(models.ft(), models.ROW)
    assert all(not axis.written for axis in table.axes.values())


def recurrent(**changes: Any) -> Any:
    words, reading = Tokens(vocab=23), Stack(width=16, depth=1, block=Block(mixer=Attention(heads=4)))
    writing = Stack(width=16, depth=1, causal=True, block=Block(mixer=AttendingRecurrent(**changes)))
    spec = Seq2Seq(encoder=Model(embed=words, stack=reading), decoder=Model(embed=words, stack=writing), head=LM())
    network = spec.build(seed=0).eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.4 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(2))
    return network


@torch.no_grad()
def test_the_alignment_of_a_recurrent_decoder():
    """Bahdanau: each step's weights come from the state before it, and what they read enters the next state."""
    network = recurrent()
    capture = look(network, (SOURCE, TARGET))
    found = cross.answer(capture, Query())
    module = network.decoder.stack.blocks[0].mixer
    x, context = entered(module, lambda: network(SOURCE, TARGET))[:2]
    memory = context.memory  # (1,S,D)
    held = tuple(torch.tanh(module.begin(torch.cat([memory[:, 0], memory[:, -1]], -1))).chunk(module.cell.parts, -1))
    rows = []
    for t in range(x.shape[1]):
        state, v = module.align.state(held[0])[0], module.align.score.weight[0]
        fits = [v @ torch.tanh(state + module.align.memory(memory[0, s])) for s in range(memory.shape[1])]
        weights = torch.stack(fits).exp() / torch.stack(fits).exp().sum()
        rows.append(weights)
        held = module.cell.step(torch.cat([x[:, t], weights[None] @ memory[0]], -1), held)
    assert found.facts["mixer"] == "AttendingRecurrent" and found.facts["heads"] == 1
    assert np.allclose(found.arrays["weights"], torch.stack(rows), atol=1e-5)
    assert np.allclose(found.arrays["weights"].sum(-1), 1, atol=1e-6)
    assert (torch.stack(rows)[0] - torch.stack(rows)[-1]).abs().max() > 1e-3  # control: the state moves the weights
    assert found.arrays["best"].tolist() == torch.stack(rows).argmax(-1).tolist()


def test_where_there_is_nothing_to_weigh():
    assert "one stack" in (cross.applies(look(models.gpt(), models.TEXT)) or "")
    told_once = look(recurrent(context="first"), (SOURCE, TARGET))
    assert "no layer" in (cross.applies(told_once) or "").lower()


def test_long_targets_come_in_windows(monkeypatch: pytest.MonkeyPatch):
    capture = look(models.t5(), models.TEXT)
    whole = cross.answer(capture, Query()).arrays["weights"]
    monkeypatch.setattr(cross, "WINDOW", 3)
    part = cross.answer(capture, Query(options={"start": "2"}))
    assert np.allclose(part.arrays["weights"], whole[2:5], atol=1e-6) and part.arrays["weights"].shape == (3, 7)
    assert part.facts["after"] == capture.axes["decoder"].texts[2:5]
    assert [token["text"] for token in part.facts["targets"]] == capture.axes["decoder"].texts[3:6]
    with pytest.raises(UserError, match="start"):
        cross.answer(capture, Query(options={"start": "99"}))


@torch.no_grad()
def test_a_beam_is_shown_with_its_own_target():
    predictor = models.t5()
    capture = look(predictor, models.TEXT)
    settings = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 8}
    made = predictor.run_generation(models.TEXT, settings)
    texts = []
    for number in range(4):
        found = cross.answer(capture, Query(site=3, options={"beam": str(number + 1)}))
        ids = made.ids[number : number + 1, : 1 + int(made.lengths[number])]
        right = look(predictor.model, (capture.given.args[0], ids)).weights(3).mean(0)
        assert np.allclose(found.arrays["weights"], right, atol=1e-6)
        assert [token["id"] for token in found.facts["targets"]][:-1] == ids[0, 1:].tolist()
        assert found.facts["beams"][number]["score"] == pytest.approx(float(made.scores[number]), abs=1e-5)
        texts.append(found.facts["beams"][number]["text"])
    assert len(set(texts)) > 1  # control: beams differ
    assert not cross.answer(look(models.t5(), models.TEXT), Query()).facts["beams"]
    with pytest.raises(UserError, match="beam"):
        cross.answer(capture, Query(options={"beam": "5"}))
