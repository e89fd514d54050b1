"""Tables of heads: how much each counts and which are alike, against plain sums."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from anyformer import UserError, load, train
from anyformer.core.head_names import HeadName, every_head
from anyformer.inspection.ablate import ablate
from anyformer.inspection.capture import look
from anyformer.inspection.head_importance import head_importance
from anyformer.inspection.head_similarity import head_similarity, linear_cka, map_likeness
from anyformer.inspection.maps import attention_maps
from anyformer.inspection.measure import measure_on
from tests.cli import made
from tests.cli.trying import done
from tests.inspection import models
from tests.inspection.test_ablate import IDS, built, inputs_of, plain, without_columns


def next_token_loss(model: nn.Module) -> float:
    with torch.no_grad():
        logits = model(IDS).logits[0]
    return sum(-float(logits[i].log_softmax(-1)[IDS[0, i + 1]]) for i in range(5)) / 5


def test_the_change_is_that_of_a_network_with_zero_columns() -> None:
    model = plain()
    found = head_importance(model, IDS)
    assert found.whole == pytest.approx(next_token_loss(model), abs=1e-5)
    assert found.what == "loss of the next token" and list(found.change) == every_head(model)
    for name, change in found.change.items():
        expected = next_token_loss(without_columns(model, name)) - found.whole
        assert change == pytest.approx(expected, abs=1e-5)
    assert len({round(change, 6) for change in found.change.values()}) > 4  # control: heads differ
    assert torch.equal(found.grid(), torch.tensor(list(found.change.values())).view(2, 4))
    assert f"without {max(found.change, key=found.change.get)}" in str(found).splitlines()[1]


def test_the_gradient_is_that_of_a_factor_on_each_head() -> None:
    """The reference is a difference quotient: the head's columns made a little smaller and larger."""
    model = plain().double()
    found = head_importance(model, IDS, method="gradient")

    def loss_with(name: HeadName, factor: float) -> float:
        changed = copy.deepcopy(model)
        columns = slice(name.head * 4, name.head * 4 + 4)
        with torch.no_grad():
            changed.stack.blocks[name.layer].mixer.out.weight[:, columns] *= factor
            logits = changed(IDS).logits[0]
        return float(F.cross_entropy(logits[:-1], IDS[0, 1:]))

    for name, size in found.change.items():
        slope = (loss_with(name, 1 + 1e-4) - loss_with(name, 1 - 1e-4)) / 2e-4
        assert size == pytest.approx(abs(slope), abs=1e-5)
    assert not any(parameter.grad is not None for parameter in model.parameters())
    assert sum(len(module._forward_pre_hooks) for module in model.modules()) == 0


@pytest.mark.parametrize("kind", models.KINDS)
def test_every_kind_of_model_is_measured_in_one_call(kind: str) -> None:
    predictor = models.predictor(kind)
    data = models.table_file() if kind == "ft" else models.inputs(kind)
    found = head_importance(predictor, data)
    assert list(found.change) == every_head(predictor.model)
    assert all(math.isfinite(change) for change in found.change.values()) and any(found.change.values())
    if kind == "t5":
        assert found.grid("cross").shape == found.grid("encoder").shape == (2, 4)
    again = head_importance(predictor, [data] if kind != "ft" else data, method="gradient")
    assert again.whole == pytest.approx(found.whole, abs=1e-6) and min(again.change.values()) >= 0


def test_a_model_trained_here_is_judged_by_its_own_objective() -> None:
    predictor = models.ft()
    predictor = replace(predictor, preprocess=predictor.preprocess.replace(calibration=None))  # plain probabilities
    measure = measure_on(predictor, models.table_file(), max_rows=50)
    rows = [dict(zip([*models.ROW, "buys"], line.split(","), strict=True))
            for line in models.table_file().read_text().splitlines()[1:]]  # fmt: skip
    spread = [rows[round(i)] for i in torch.linspace(0, 199, 50).int().tolist()]
    shares = predictor.predict_proba([{k: v for k, v in row.items() if k != "buys"} for row in spread])
    right = [predictor.labels.index(row["buys"]) for row in spread]
    expected = -sum(math.log(float(shares[i, k])) for i, k in enumerate(right)) / 50
    assert measure() == pytest.approx(expected, abs=1e-4)


def test_a_language_model_trained_here_is_measured_on_a_file_and_on_a_text(tmp_path: Path) -> None:
    book = made.book(tmp_path)
    run = train(book, model="decoder-mini-tiny", steps=2, out=tmp_path / "run", device="cpu", quiet=True)
    predictor = load(run.path)
    judged = done("evaluate", run.path, book, "--json", "--device", "cpu").json
    for name in (book, str(book)):
        measure = measure_on(predictor, name, max_rows=10_000)
        assert measure.what == "loss" and measure() == pytest.approx(judged["loss"], abs=1e-4)
    text = "The good film was bad"
    found = measure_on(predictor, text)
    scored = predictor.score(text)
    assert found() == pytest.approx(-float(scored.total[0] / scored.counts[0]), abs=1e-4)
    assert found.what == "loss of the next token"


def test_a_capture_can_be_measured_and_modes_come_back() -> None:
    predictor = models.gpt()
    capture = look(predictor, models.TEXT)
    assert head_importance(capture.model, capture).whole == pytest.approx(
        head_importance(predictor, models.TEXT).whole, abs=1e-6
    )
    model = plain().train()
    head_importance(model, IDS)
    assert model.training and model.stack.blocks[0].training


def test_own_loss_and_wrong_words() -> None:
    model = plain()
    found = head_importance(model, IDS, loss=lambda out: out.hidden.square().sum())
    with torch.no_grad():
        assert found.whole == pytest.approx(float(model(IDS).hidden.square().sum()), rel=1e-5)
    with pytest.raises(UserError, match="did you mean 'gradient'"):
        head_importance(model, IDS, method="gradients")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="unknown part 'encoder'"):
        found.grid("encoder")


# ---------------------------------------------------------------- similarity


def naive_likeness(p: torch.Tensor, q: torch.Tensor) -> float:
    """1 - JS / ln 2, number by number."""
    total = 0.0
    for row_p, row_q in zip(p.tolist(), q.tolist(), strict=True):
        for a, b in zip(row_p, row_q, strict=True):
            middle = (a + b) / 2
            total += sum(x * math.log(x / middle) / 2 for x in (a, b) if x > 0)
    return 1 - total / len(p) / math.log(2)


@pytest.mark.parametrize("family", ["gpt2-tiny", "albert-base-tiny", "llama3-8b-tiny"])
def test_maps_are_compared_row_by_row(family: str) -> None:
    model = built(family)
    inputs = inputs_of(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(8.0 if name.endswith("qkv.weight") else 1.0)  # sharp maps
    found = head_similarity(model, *inputs)
    maps = torch.cat([one[0] for calls in attention_maps(model, *inputs).values() for one in calls])  # (N,T,S)
    assert len(found.heads) == len(maps)
    for i in range(len(maps)):
        for j in range(len(maps)):
            assert float(found.values[i, j]) == pytest.approx(naive_likeness(maps[i], maps[j]), abs=1e-5)
    assert float(found.values.min()) < 0.999  # control


def test_maps_on_different_tokens_are_nothing_alike() -> None:
    eye = torch.eye(4)
    assert float(map_likeness(eye, eye)) == 1.0
    assert float(map_likeness(eye, eye.roll(1, 1))) == pytest.approx(0.0, abs=1e-6)


def test_outputs_are_compared_by_cka() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, 4, generator=generator)
    turn, _ = torch.linalg.qr(torch.randn(4, 4, generator=generator))
    assert float(linear_cka(x, 3 * x @ turn + 5)) == pytest.approx(1.0, abs=1e-6)
    y = torch.randn(9, 3, generator=generator)
    xc, yc = (part - part.mean(0) for part in (x, y))
    gram_x, gram_y = xc @ xc.T, yc @ yc.T
    expected = (gram_x * gram_y).sum() / (gram_x.norm() * gram_y.norm())
    assert float(linear_cka(x, y)) == pytest.approx(float(expected), abs=1e-6) and float(expected) < 0.9
    model = plain()
    found = head_similarity(model, IDS, measure="outputs")
    assert torch.allclose(found.values.diagonal(), torch.ones(8), atol=1e-5)
    assert torch.equal(found.values, found.values.T)


def test_heads_of_different_tokens_are_not_compared() -> None:
    predictor = models.t5()
    found = head_similarity(predictor, models.TEXT)
    parts = [name.part for name in found.heads]
    assert set(parts) == {"encoder", "decoder", "cross"}
    first, last = parts.index("encoder"), parts.index("cross")
    assert torch.isnan(found.values[first, last])
    assert len(found.pairs()) < len(parts) * (len(parts) - 1) // 2
    values = [likeness for _, likeness, _ in found.pairs()]
    assert values == sorted(values, reverse=True)


def test_measuring_inside_ablate_is_allowed() -> None:
    model = plain()
    with ablate(model, heads=[(0, 0)]):
        inside = head_importance(model, IDS)
    assert inside.change[HeadName("", 0, 0)] == pytest.approx(0.0, abs=1e-7)
    assert inside.whole == pytest.approx(head_importance(model, IDS).whole + head_importance(model, IDS).change[
        HeadName("", 0, 0)], abs=1e-5)  # fmt: skip
