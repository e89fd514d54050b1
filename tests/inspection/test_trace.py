"""The trace against a loop without a cache, and its renormalisation against the sampler's own rules."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer import LM, Attention, Block, Cross, Model, Seq2Seq, Stack, Tokens
from anyformer.errors import UserError
from anyformer.generation import Generation
from anyformer.generation.logits import apply_temperature, apply_top_k, apply_top_p
from anyformer.inspection import distributions, trace
from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.capture import look
from anyformer.inspection.distributions import TEMPERATURES, renormalise, summarise
from anyformer.inspection.trace import trace_masked, trace_of, trace_text
from anyformer.inspection.views import trace as view
from tests.inspection import models

VOCAB = 29


def text_model(causal: Any = True) -> Any:
    stack = Stack(width=16, depth=2, causal=causal, block=Block(mixer=Attention(heads=4)))
    return roughened(Model(embed=Tokens(vocab=VOCAB), stack=stack, head=LM()).build(seed=0).eval())


def translator() -> Any:
    reading = Stack(width=16, depth=2, block=Block(mixer=Attention(heads=4)))
    writing = Stack(width=16, depth=2, causal=True, block=Block(mixer=Attention(heads=4), cross=Cross(heads=4)))
    words = Tokens(vocab=VOCAB)
    spec = Seq2Seq(encoder=Model(embed=words, stack=reading), decoder=Model(embed=words, stack=writing), head=LM())
    return roughened(spec.build(seed=0).eval())


def roughened(network: Any) -> Any:
    torch.manual_seed(11)
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.3 * torch.randn_like(weight)
    return network


@torch.no_grad()
def by_hand(logits_of: Any, prompt: list[int], new: int) -> tuple[list[int], list[list[float]]]:
    """Greedy decoding without a cache, and each token's log-probabilities (V,) in plain Python."""
    ids, logs = list(prompt), [[math.nan] * VOCAB]
    while len(ids) < len(prompt) + new:
        ids.append(int(logits_of(torch.tensor([ids]))[0, -1].argmax()))
    for t in range(1, len(ids)):
        row = logits_of(torch.tensor([ids[:t]]))[0, -1].double().tolist()
        total = math.log(sum(math.exp(value) for value in row))
        logs.append([value - total for value in row])
    return ids, logs


def check(found: Any, ids: list[int], logs: list[list[float]]) -> None:
    assert found.ids.tolist() == ids and not found.scored[0] and found.scored[1:].all()
    assert found.logprobs[0].isnan() and found.ranks[0] == 0
    for t in range(1, len(ids)):
        own = logs[t][ids[t]]
        assert float(found.logprobs[t]) == pytest.approx(own, abs=1e-5)
        assert int(found.ranks[t]) == 1 + sum(other > own + 1e-9 for other in logs[t])
        assert float(found.entropy[t]) == pytest.approx(-sum(math.exp(p) * p for p in logs[t]), abs=1e-5)
        order = sorted(range(VOCAB), key=lambda v: -logs[t][v])
        assert found.top_ids[t].tolist() == order[: found.top_ids.shape[1]]
        assert found.top_logprobs[t].tolist() == pytest.approx([logs[t][v] for v in order[:6]], abs=1e-5)
        for heat, kept in zip(TEMPERATURES, found.partition[t].tolist(), strict=True):
            assert kept == pytest.approx(math.log(sum(math.exp(p / heat) for p in logs[t])), abs=2e-4)


def test_a_decoder():
    model, prompt = text_model(), [3, 14, 15, 9]
    found = trace_text(model, prompt, new=5, top=6)
    check(found, *by_hand(lambda ids: model(ids).logits, prompt, 5))
    assert found.given == 4 and found.reason == "length" and found.error < 1e-5
    assert found.milliseconds[:4].isnan().all() and (found.milliseconds[4:] > 0).all()


def test_an_encoder_decoder():
    model, source = translator(), torch.tensor([[5, 6, 7, 8, 9]])
    found = trace_text(model, [1], new=4, top=6, source=source)
    check(found, *by_hand(lambda ids: model(source, ids).logits, [1], 4))
    assert found.error < 1e-5
    other = trace_text(model, [1], new=4, top=6, source=torch.tensor([[9, 2, 2, 3, 4]]))
    assert (other.logprobs[1] - found.logprobs[1]).abs() > 1e-3  # control: the source is read


def test_another_branch_goes_on_from_the_other_token():
    model, prompt = text_model(), [3, 14, 15]
    first = trace_text(model, prompt, new=4, top=6)
    other = int(first.top_ids[4, 1])
    branch = [*prompt, int(first.ids[3]), other]
    found = trace_text(model, branch, new=3, top=6)
    check(found, *by_hand(lambda ids: model(ids).logits, branch, 3))
    assert int(found.ranks[4]) == 2 and found.ids[4] != first.ids[4]


def test_a_replay_that_differs_is_seen(monkeypatch: pytest.MonkeyPatch):
    """Control: the error is not zero by construction."""
    model, honest = text_model(), trace.replay

    def other(network: Any, ids: Tensor, given: int, source: Any, mask: Any) -> Tensor:
        return honest(network, ids.roll(1), given, source, mask)

    monkeypatch.setattr(trace, "replay", other)
    assert trace_text(model, [3, 14, 15, 9], new=5).error > 0.01


def test_pieces_of_positions_give_the_same(monkeypatch: pytest.MonkeyPatch):
    model = text_model()
    whole = trace_text(model, [3, 14, 15, 9], new=5)
    monkeypatch.setattr(distributions, "PIECE", 3 * VOCAB)
    cut = trace_text(model, [3, 14, 15, 9], new=5)
    assert torch.equal(cut.top_ids, whole.top_ids)
    assert torch.allclose(cut.logprobs, whole.logprobs, atol=1e-6, equal_nan=True)


def test_what_ends_is_not_continued():
    model = text_model()
    word = int(trace_text(model, [3, 14], new=1).ids[2])
    ended = trace_text(model, [3, 14], new=5, settings=Generation(eos_token_id=word))
    assert ended.ids.tolist() == [3, 14, word] and ended.reason == "eos"
    again = trace_text(model, [3, 14, word], new=5, settings=Generation(eos_token_id=word))
    assert again.ids.tolist() == [3, 14, word] and again.reason is None and math.isnan(again.error)
    alone = trace_text(model, [3], new=0)
    assert alone.ids.tolist() == [3] and not alone.scored.any() and alone.top_ids.shape == (1, VOCAB)


def test_sampling_and_beams_of_a_folder_do_not_reach_the_trace():
    model = text_model()
    plain = trace_text(model, [3, 14], new=5)
    hot = trace_text(model, [3, 14], new=5, settings=Generation(do_sample=True, temperature=5.0, seed=1))
    wide = trace_text(model, [3, 14], new=5, settings=Generation(num_beams=3))
    assert torch.equal(hot.ids, plain.ids) and torch.equal(wide.ids, plain.ids)


def test_tokens_of_a_prefix_have_seen_what_follows_and_have_no_probability():
    model = text_model(causal="prefix_lm")
    found = trace_text(model, [3, 14, 15, 9], new=4)
    assert found.scored.tolist() == [False] * 4 + [True] * 4 and found.error < 1e-5


@torch.no_grad()
def test_words_masked_in_turn():
    model, ids = text_model(causal=False), torch.tensor([1, 5, 6, 7, 2])
    found = trace_masked(model, ids, 4, top=6, special=(1, 2))
    assert found.scored.tolist() == [False, True, True, True, False] and found.kind == "masked"
    for t in (1, 2, 3):
        hidden = ids.clone()
        hidden[t] = 4
        logs = model(hidden[None]).logits[0, t].double().log_softmax(-1)
        assert float(found.logprobs[t]) == pytest.approx(float(logs[ids[t]]), abs=1e-5)
        assert found.top_ids[t].tolist() == logs.argsort(descending=True)[:6].tolist()
        seen = model(ids[None]).logits[0, t].double().log_softmax(-1)
        assert abs(float(seen[ids[t]] - logs[ids[t]])) > 1e-3  # control: unmasked, the word is there to be copied
    with pytest.raises(UserError, match="masked"):
        trace_masked(model, torch.tensor([1, 2]), 4, special=(1, 2))


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0, 1.35, 2.0])
@pytest.mark.parametrize("top_k", [0, 1, 5])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3])
def test_other_settings_without_running_equal_the_samplers_rules(temperature: float, top_k: int, top_p: float):
    logits = 3 * torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(2))
    kept = summarise(logits, torch.tensor([0]), top=12)
    partition = float(kept["partition"][0, TEMPERATURES.index(temperature)])
    found = renormalise(kept["top_logprobs"][0], partition, temperature=temperature, top_k=top_k, top_p=top_p)
    right = apply_temperature(logits.double(), temperature)
    right = apply_top_k(right, top_k) if top_k else right
    right = apply_top_p(right, top_p) if top_p < 1 else right
    wanted = right.softmax(-1)[0, kept["top_ids"][0]]
    assert found.exact == bool(top_k or top_p == 1.0 or (right[0] > -torch.inf).sum() <= 12)
    assert torch.allclose(found.probabilities, wanted, atol=1e-5 if found.exact else 0.03)


def test_a_flat_distribution_says_that_more_tokens_may_come():
    kept = summarise(torch.zeros(1, VOCAB), torch.tensor([0]), top=5)
    partition = float(kept["partition"][0, TEMPERATURES.index(1.0)])
    found = renormalise(kept["top_logprobs"][0], partition, temperature=1.0, top_p=0.9)
    assert not found.exact and torch.allclose(found.probabilities, torch.full((5,), 1 / VOCAB / 0.9).double())
    with pytest.raises(UserError, match="top_k 9"):
        renormalise(kept["top_logprobs"][0], partition, temperature=1.0, top_k=9)


# ---------------------------------------------------------------- captures and the view


def test_a_text_model_goes_on_as_generate_does():
    predictor = models.gpt()
    capture = look(predictor, models.TEXT)
    found = trace_of(capture, new=8)
    ids = predictor.generate(torch.tensor([capture.token_ids()]), max_new_tokens=8)
    assert found.ids.tolist() == ids[0].tolist() and found.given == len(capture.token_ids() or [])
    scored = predictor.score(found.ids[None])
    assert torch.allclose(found.logprobs[1:], scored.logprobs[0, 1:], atol=1e-5)


def test_an_encoder_decoder_shows_what_it_wrote_or_what_it_was_given():
    predictor = models.t5()
    own = trace_of(look(predictor, models.TEXT))
    assert own.given == 1 and own.error < 1e-5
    given = look(predictor, models.TEXT, target="Ein alter Hund")
    found = trace_of(given)
    assert found.ids.tolist() == given.token_ids("decoder") and found.given == len(found.ids)
    with torch.no_grad():
        logits = predictor.model(*given.given.args).logits[0].log_softmax(-1)
    assert torch.allclose(found.logprobs[1:], logits[:-1].gather(1, found.ids[1:, None])[:, 0], atol=1e-5)


@pytest.mark.parametrize("kind", ["gpt", "t5"])
def test_the_page_branches(kind: str):
    capture = look(models.predictor(kind), models.inputs(kind))
    first = view.answer(capture, Query())
    start = first.facts["first"]
    kept = [token["id"] for token in first.facts["tokens"][start : start + 2]]
    other = int(first.arrays["top_ids"][start + 2, 3])
    options = {"prefix": ",".join(map(str, kept)), "branch": str(other), "new": "4"}
    branch = ViewAnswer.from_bytes(view.answer(capture, Query(options=options)).to_bytes())
    ids = [token["id"] for token in branch.facts["tokens"]]
    assert ids[start : start + 3] == [*kept, other] and len(ids) == start + 3 + 4
    assert branch.arrays["ranks"][start + 2] == 4 and branch.facts["branched"] and branch.facts["trusted"]
    assert branch.arrays["logprobs"][start + 2] == pytest.approx(first.arrays["top_logprobs"][start + 2, 3], abs=1e-5)


@pytest.mark.parametrize("bad", ["1,x", "-3", "1,,2", "9" * 12, ",".join(["1"] * 300)])
def test_a_prefix_that_is_no_list_of_ids_is_refused(bad: str):
    capture = look(models.gpt(), models.TEXT)
    with pytest.raises(UserError):
        view.answer(capture, Query(options={"prefix": bad}))


def test_ids_beyond_the_vocabulary_and_numbers_beyond_bounds_are_refused():
    capture = look(models.gpt(), models.TEXT)
    with pytest.raises(UserError, match="99999"):
        view.answer(capture, Query(options={"branch": "99999"}))
    with pytest.raises(UserError, match="new"):
        view.answer(capture, Query(options={"new": "1000000"}))


def test_models_without_words_say_why():
    why = view.applies(look(models.bert(), models.TEXT))
    assert why is not None and "Pooled" in why
    assert "writes no text" in (view.applies(look(models.vit(), models.image())) or "")


def masked_bert() -> Any:
    from anyformer.checkpoints.folder import Opened
    from anyformer.data.tokenizers.tokenizer import train_tokenizer
    from anyformer.inference.predictor import Predictor

    words = train_tokenizer(models.TEXTS * 4, "wordpiece", 120)
    stack = Stack(width=16, depth=2, block=Block(mixer=Attention(heads=4)))
    spec = Model(embed=Tokens(vocab=words.size), stack=stack, head=LM(transform="gelu"))
    return Predictor(Opened(spec, spec.build(seed=0)), tokenizer=words)


def test_a_model_that_fills_in_shows_each_word_masked():
    predictor = masked_bert()
    capture = look(predictor, models.TEXT)
    assert predictor.tokenizer.mask is not None and view.applies(capture) is None
    found = view.answer(capture, Query())
    assert found.facts["kind"] == "masked" and not found.facts["branches"]
    ids = torch.tensor(capture.token_ids())
    at = next(t for t in range(len(ids)) if found.facts["scored"][t])
    hidden = ids.clone()
    hidden[at] = predictor.tokenizer.mask
    with torch.no_grad():
        right = predictor.model(hidden[None]).logits[0, at].log_softmax(-1)[ids[at]]
    assert found.arrays["logprobs"][at] == pytest.approx(float(right), abs=1e-5)


def test_half_precision_is_told_by_its_own_tolerance():
    capture = look(text_model().to(torch.bfloat16), torch.tensor([[3, 14, 15, 9]]))
    found = view.answer(capture, Query())
    assert found.facts["tolerance"] == 0.1 and 0 < found.facts["error"] < 0.1 and found.facts["trusted"]
