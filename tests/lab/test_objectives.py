"""The claims about what models are trained for: their judges can go red, and cheap cases are really measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from anyformer.lab import library_text
from anyformer.lab.claim import Case, Claim, Measurements, Result, Verdict
from anyformer.lab.claims import (
    attention_is_no_explanation,
    distillation,
    dynamic_masking,
    every_token_loss,
    few_shot,
    span_length,
    t5_objectives,
)
from anyformer.lab.library_text import MASK, VOCAB, TextBlocks, inside_quotes, library_blocks
from anyformer.lab.pretraining import probe
from anyformer.objectives import Spans
from anyformer.objectives.draw import Draw

Change = Callable[[Case], Mapping[str, Any]]


def good_explanation(case: Case) -> Result:
    return {
        "accuracy": 1.0, "top_edge": 0.1, "edges": 72, "edge_correlation": 0.2, "luck": 0.01, "top_head": 0.2,
        "head_correlation": 0.1, "effect_by_weight": [0.1] * 10,
    }  # fmt: skip


def good_masks(case: Case) -> Result:
    loss = 4.0 if case["mode"] == "dynamic" else 4.1 if case["epochs"] == dynamic_masking.FEW else 6.0
    return {"loss": loss, "learned": 1.0, "probe": 0.8, "blocks": 100, "curve": [2.0, 1.0]}


def good_spans(case: Case) -> Result:
    read, written = Spans(mean_length=case["span"] or 1).longest(500)
    return {"probe": {0: 0.7, 1: 0.80, 3: 0.81, 10: 0.78}[case["span"]], "read": read, "written": written}


def good_objectives(case: Case) -> Result:
    probes = {"untrained": 0.7, "drop tokens": 0.82, "replace tokens": 0.81, "MASS-style": 0.80, "prefix LM": 0.78,
              "deshuffling": 0.75}  # fmt: skip
    return {"probe": probes[case["objective"]]}


def good_teacher(case: Case) -> Result:
    loss = {"alone": 4.0, "distilled": 3.9, "untrained teacher": 4.2}[case["kind"]]
    return {"loss": loss, "teacher": 3.0, "teacher_moved": 0.0, "smaller": 12.0}


def good_shots(case: Case) -> Result:
    accuracy = [0.1, 0.39, 0.4, 0.41, 0.42] if case["width"] == 8 else [0.1, 0.4, 0.6, 0.8, 0.95]
    return {"accuracy": accuracy, "parameters": case["width"] * 100}


def good_tokens(case: Case) -> Result:
    tuned = {"masked words": 0.80, "every token": 0.85, "15 % of the tokens": 0.81}[case["kind"]]
    return {"tuned": tuned, "untrained": 0.7, "frozen": 0.8, "steps": 100, "flops": 1e9}


CLAIMS: dict[str, tuple[Claim, Callable[[Case], Result]]] = {
    "attention-is-no-explanation": (attention_is_no_explanation.CLAIM, good_explanation),
    "dynamic-masking": (dynamic_masking.CLAIM, good_masks),
    "span-length": (span_length.CLAIM, good_spans),
    "distillation": (distillation.CLAIM, good_teacher),
    "few-shot": (few_shot.CLAIM, good_shots),
    "every-token-loss": (every_token_loss.CLAIM, good_tokens),
    "t5-objectives": (t5_objectives.CLAIM, good_objectives),
}

# What breaks a claim: a change of the good results, by the claim's name.
BROKEN: list[tuple[str, Change]] = [
    ("attention-is-no-explanation", lambda case: {"top_edge": 0.9, "edge_correlation": 0.9}),
    ("attention-is-no-explanation", lambda case: {"accuracy": 0.5}),  # of a network that learned nothing
    ("attention-is-no-explanation", lambda case: {"luck": 0.4}),
    ("attention-is-no-explanation", lambda case: high(case["task"] == "recall")),
    ("dynamic-masking", lambda case: {"loss": 4.0}),
    ("dynamic-masking", lambda case: {"loss": 5.0} if case["mode"] == "dynamic" and case["epochs"] == 5 else {}),
    ("dynamic-masking", lambda case: {"loss": 4.2} if case["mode"] == "dynamic" and case["seed"] == 1 else {}),
    ("span-length", lambda case: {"probe": 0.75} if case["span"] == 3 else {}),
    ("span-length", lambda case: {"probe": 0.81} if case["span"] == 10 else {}),
    ("span-length", lambda case: {"written": 500} if case["span"] == 3 else {}),
    ("span-length", lambda case: {"probe": 0.9} if case["span"] == 0 else {}),
    ("distillation", lambda case: {"loss": 4.1} if case["kind"] == "distilled" and case["seed"] < 2 else {}),
    ("distillation", lambda case: {"loss": 3.8} if case["kind"] == "untrained teacher" else {}),
    ("distillation", lambda case: {"teacher_moved": 1.0} if case["kind"] == "distilled" else {}),
    ("few-shot", lambda case: {"accuracy": [0.1, 0.1, 0.1, 0.1, 0.1]}),
    ("few-shot", lambda case: {"accuracy": [0.1, 0.4, 0.6, 0.8, 0.95]}),  # size decides nothing
    ("few-shot", lambda case: {"accuracy": [0.4, 0.5, 0.6, 0.8, 0.95]} if case["width"] > 8 else {}),
    ("few-shot", lambda case: {"accuracy": [0.1, 0.4, 0.3, 0.8, 0.95]} if case["width"] > 8 else {}),
    ("every-token-loss", lambda case: {"tuned": 0.80} if case["kind"] == "every token" else {}),
    ("every-token-loss", lambda case: {"tuned": 0.85}),
    ("every-token-loss", lambda case: {"tuned": 0.85} if case["kind"] == "15 % of the tokens" else {}),
    ("every-token-loss", lambda case: {"untrained": 0.9}),
    ("t5-objectives", lambda case: {"probe": 0.9} if case["objective"] == "untrained" else {}),
    ("t5-objectives", lambda case: {"probe": 0.85} if case["objective"] == "prefix LM" else {}),
    ("t5-objectives", lambda case: {"probe": 0.80} if case["objective"] == "deshuffling" else {}),
    ("t5-objectives", lambda case: {"probe": 0.8}),
]


def high(yes: bool) -> Mapping[str, float]:
    return {"top_edge": 0.9, "edge_correlation": 0.9} if yes else {}


def judged(claim: Claim, result: Callable[[Case], Result], *, full: bool) -> Verdict:
    return claim.judge(Measurements([(case, result(case)) for case in claim.cases(full)])).verdict


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", CLAIMS)
def test_good_measurements_hold(name: str, full: bool) -> None:
    claim, good = CLAIMS[name]
    assert claim.name == name
    assert judged(claim, good, full=full) is Verdict.HOLDS


@pytest.mark.parametrize(("name", "change"), BROKEN)
def test_bad_measurements_do_not_hold(name: str, change: Change) -> None:
    claim, good = CLAIMS[name]
    assert judged(claim, lambda case: {**good(case), **change(case)}, full=True) is not Verdict.HOLDS


# ---------------------------------------------------------------- really measured


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The text of three small files of the library, for this test alone."""
    monkeypatch.setattr(library_text, "LEARNED", ["bisect.py", "heapq.py"])
    monkeypatch.setattr(library_text, "HELD_OUT", ["queue.py"])
    library_blocks.cache_clear()
    yield
    library_blocks.cache_clear()


def test_an_edge_left_out_moves_an_answer_and_weights_are_its_own() -> None:
    claim = attention_is_no_explanation
    texts, answers = claim.draw("recall", 6, torch.Generator().manual_seed(0))
    asked = texts[:, -1] - claim.KEYS * claim.VALUES
    for text, key, answer in zip(texts[:, :-1].tolist(), asked.tolist(), answers.tolist(), strict=True):
        assert text.count(key * claim.VALUES + answer) == 1 and len({token // claim.VALUES for token in text}) == 8
    stack_weights = claim.answer_weights(net := small_net(), texts)
    assert torch.allclose(stack_weights.sum(-1), torch.ones(6, claim.DEPTH, claim.HEADS), atol=1e-5)
    with torch.no_grad():
        whole = net(texts).logits.softmax(-1)
    effects = claim.head_effects(net, texts, whole)
    assert effects.shape == (6, claim.DEPTH, claim.HEADS) and (effects > 0).all()
    assert claim.moved(net, texts, whole, nullcontext()).abs().max() == 0  # control: nothing left out
    assert claim.correlation(effects, effects) == pytest.approx(1) and claim.top_agrees(effects, effects) == 1
    assert claim.correlation(effects, -effects) == pytest.approx(-1) and claim.top_agrees(effects, -effects) < 1


def small_net() -> Any:
    """An untrained network of the claim's shape, with weights large enough for answers to differ."""
    claim = attention_is_no_explanation
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claim, "STEPS", 1)
        net = claim.trained("recall", 0, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    for parameter in net.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return net


def test_static_masks_stay_and_dynamic_ones_move() -> None:
    blocks = TextBlocks(
        torch.randint(36, VOCAB, (4, 40), generator=torch.Generator().manual_seed(0)), torch.zeros(4, 40)
    )
    hidden = {
        mode: [objective.corrupt(blocks.batch(range(4)), Draw(0, epoch), blocks).inputs[0] == MASK for epoch in (0, 1)]
        for mode, objective in dynamic_masking.MODES.items()
    }
    assert torch.equal(*hidden["static"]) and not torch.equal(*hidden["dynamic"])
    assert hidden["dynamic"][0].any()


@pytest.mark.parametrize(("span", "read", "written"), [(1, 500, 150), (3, 450, 100), (10, 433, 83)])
def test_longer_spans_are_fewer_tokens(span: int, read: int, written: int) -> None:
    assert Spans(mean_length=span).longest(span_length.TEXT) == (read, written)


@pytest.mark.usefixtures("few_files")
@pytest.mark.parametrize("name", t5_objectives.OBJECTIVES)
def test_each_of_t5s_objectives_moves_the_encoder(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(t5_objectives, "STEPS", 8)
    case = {"objective": t5_objectives.UNTRAINED, "seed": 0, "full": False}
    before = t5_objectives.measure(case)
    assert before == t5_objectives.measure(case)
    assert before != t5_objectives.measure({**case, "objective": name})


@pytest.mark.usefixtures("few_files")
def test_a_student_changes_and_its_teacher_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, small in (("TEACHER_STEPS", 2), ("STEPS", 2), ("BLOCKS", 8)):
        monkeypatch.setattr(distillation, name, small)
    alone, beside = (
        distillation.measure({"kind": kind, "seed": 0, "full": False}) for kind in ("alone", "untrained teacher")
    )
    assert alone["loss"] != beside["loss"] and beside["teacher_moved"] == 0 and beside["smaller"] > 3


def test_only_what_a_line_has_shown_can_be_known() -> None:
    generator = torch.Generator().manual_seed(0)
    lines = few_shot.draw(4000, 3, generator)
    keys, values = lines[:, ::2], lines[:, 1::2]
    assert (keys >= few_shot.VALUES).all() and (values < few_shot.VALUES).all()
    again = keys[:, 0] == keys[:, 1]
    assert (values[again, 0] == values[again, 1]).all()
    assert (values[~again, 0] == values[~again, 1]).float().mean() < 0.15
    seen = ((keys[:, :2] == keys[:, 2:]).any(1)).double().mean().item()
    assert few_shot.possible(2) == pytest.approx(seen + (1 - seen) / few_shot.VALUES, abs=0.03)
    assert few_shot.possible(0) == pytest.approx(0.1)


def test_an_untrained_model_guesses_with_any_number_of_shots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_shot, "STEPS", 1)
    found = few_shot.measure({"width": 8, "layers": 1, "seed": 0, "full": False})
    assert len(found["accuracy"]) == len(few_shot.SHOTS) and max(found["accuracy"]) < 0.25


@pytest.mark.usefixtures("few_files")
def test_losses_are_compared_at_equal_flops() -> None:
    flops = {}
    for kind in every_token_loss.KINDS:
        net, _ = every_token_loss.networks(kind, 0, False)
        flops[kind] = every_token_loss.step_flops(net, kind)
    words, every, some = flops.values()
    assert every == some > words  # a step of ELECTRA costs more: it gets fewer


@pytest.mark.usefixtures("few_files")
def test_a_loss_on_some_tokens_leaves_the_rest_out() -> None:
    net, _ = every_token_loss.networks("every token", 0, False)
    blocks = library_blocks(every_token_loss.LENGTH)[1]
    counted = {}
    for kind in every_token_loss.KINDS[1:]:
        objective, loss = every_token_loss.question(kind, 0)
        assert loss is not None
        batch = objective.corrupt(blocks.batch(range(4)), Draw(0, 0), blocks)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(objective), "sum_losses", lambda self, net, batch, made: made.targets)
            counted[kind] = (loss(net, batch) != -100).sum(1)
    every, some = counted.values()
    assert (every == every_token_loss.LENGTH).all() and (some <= 0.15 * every_token_loss.LENGTH + 1).all()


def test_tokens_in_strings_and_comments_are_told_from_code() -> None:
    text = 'x = "a b"  # why\ny = x\n'
    inside = "".join(char if quoted else "." for char, quoted in zip(text, inside_quotes(text), strict=False))
    assert inside == '...."a b"..# why.......'


def test_the_probe_finds_a_label_that_is_in_the_features_and_no_other() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(36, VOCAB, (60, 20), generator=generator)
    blocks = TextBlocks(tokens, tokens % 2)
    table = torch.randn(VOCAB, 8, generator=generator)
    shown = table + 2 * (torch.arange(VOCAB) % 2)[:, None]
    first, last = (TextBlocks(blocks.tokens[part], blocks.quoted[part]) for part in (slice(0, 40), slice(40, 60)))
    assert probe(lambda x: shown[x], first, last) > 0.95
    hidden = np.random.default_rng(0).permutation(VOCAB)
    assert probe(lambda x: table[torch.from_numpy(hidden)[x]], first, last) < 0.7  # control: the label is not in them
