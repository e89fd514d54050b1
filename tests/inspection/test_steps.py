"""The steps of attention: each equals plain arithmetic, and together they give what the layer itself gave."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyformer import (
    Alibi,
    Attention,
    Cross,
    LinearAttention,
    NoRelative,
    Plain,
    Relative,
    RMSNorm,
    Rope,
    Shaw,
    UserError,
)
from anyformer.core.attend import Scores, score_steps, weights_of
from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.capture import look
from anyformer.inspection.maps import noted
from anyformer.inspection.steps import HeadSteps, attention_steps, lecture_example, shown_around, steps_of
from anyformer.inspection.steps_text import columns_of
from anyformer.inspection.views import steps as view
from anyformer.mixers.attention import AttentionInputs
from anyformer.training.lora import LoRA, add_adapters
from tests.inspection.models import KINDS, inputs, predictor
from tests.laws.nets import build, language, memory, tokens
from tests.reference.copying import context_of

GIVEN = tokens(2, 7)
CLOSE = 1e-6  # float32, relative to the largest number

CASES = {
    "plain heads": (Attention(heads=4), NoRelative()),
    "grouped heads": (Attention(heads=4, kv_heads=2), NoRelative()),
    "one key head": (Attention(heads=4, kv_heads=1, bias=False), NoRelative()),
    "rope": (Attention(heads=4), Rope()),
    "rope and grouped heads": (Attention(heads=4, kv_heads=2, qk_norm=RMSNorm()), Rope()),
    "alibi": (Attention(heads=4), Alibi()),
    "shaw": (Attention(heads=4), Shaw(3)),
    "soft cap": (Attention(heads=4, soft_cap=2.0), NoRelative()),
    "window": (Attention(heads=4, window=3), NoRelative()),
    "sizes of its own": (Attention(heads=4, key_size=6, value_size=3, scale=0.7), NoRelative()),
    "cross": (Cross(heads=4, kv_heads=2), NoRelative()),
    "without q, k and v": (Plain(), NoRelative()),
    "dot": (Plain(score="dot"), NoRelative()),
}


def called(net: nn.Module, **options: Any) -> tuple[nn.Module, AttentionInputs, Tensor, Tensor]:
    """The first layer's mixer, what it computed from, what entered it and what it gave."""
    outs: list[Tensor] = []
    mixer = net.stack.blocks[0].mixer
    handle = mixer.register_forward_hook(lambda module, given, out: outs.append(out))
    with noted(net) as seen:
        net(GIVEN, **options)
    handle.remove()
    ((module, given),) = seen["stack.blocks.0.mixer"]
    return module, module.prepare(*given), given[0], outs[0]


def network(mixer: Any, relative: Relative, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, dict[str, Any]]:
    net = build(language(mixer=mixer, relative=relative, depth=1), dtype=dtype)
    return net, {"memory": memory(2, width=16).to(dtype)} if mixer.looks_at_memory else {}


@pytest.mark.quick
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_recombined_steps_are_the_layers_own_output(name: str) -> None:
    net, options = network(*CASES[name])
    module, inputs, x, out = called(net, **options)
    for row, head, query in ((0, 0, 6), (1, inputs.q.shape[1] - 1, 2), (0, 0, 0)):
        steps = attention_steps(inputs, module, head, query, row=row, x=x, output=out)
        assert torch.equal(steps.expected, out[row, query])
        assert steps.gap is not None and steps.gap < CLOSE
        assert close(steps.weighted.sum(0), steps.z)
        if steps.projection is not None:
            assert close(steps.z @ steps.projection, steps.out)
        if len(steps.keys) > 1 and int((steps.weights > 0.01).sum()) > 1:  # control: weights of other keys
            swapped = attention_steps(swap_values(inputs), module, head, query, row=row, x=x, output=out)
            assert swapped.gap is not None and swapped.gap > 1e-3


def swap_values(inputs: AttentionInputs) -> AttentionInputs:
    return inputs._replace(v=inputs.v.flip(2))


@pytest.mark.parametrize("name", [name for name in CASES if name != "shaw"])
@torch.no_grad()
def test_each_step_is_plain_arithmetic(name: str) -> None:
    """One number at a time, from the queries, keys and values in float64."""
    mixer, relative = CASES[name]
    net, options = network(mixer, relative, torch.float64)
    module, inputs, _, _ = called(net, **options)
    head, query, row = 1 if inputs.q.shape[1] > 1 else 0, 4, 1
    steps = attention_steps(inputs, module, head, query, row=row)
    group = head * inputs.k.shape[1] // inputs.q.shape[1]
    q, k, v = inputs.q[row, head, query].tolist(), inputs.k[row, group].tolist(), inputs.v[row, group].tolist()
    scores = [sum(a * b for a, b in zip(q, key, strict=True)) for key in k]
    scale = {"sizes of its own": 0.7, "dot": 1.0}.get(name, len(q) ** -0.5)
    scaled = [score * scale for score in scores]
    cap = 2.0 if name == "soft cap" else None
    capped = scaled if cap is None else [cap * math.tanh(score / cap) for score in scaled]
    slope = 2 ** (-8 * (head + 1) / 4) if name == "alibi" else 0.0
    biased = [score - slope * abs(query - j) for j, score in enumerate(capped)]
    window = 3 if name == "window" else 99
    seen = [name == "cross" or (j <= query and query - j < window) for j in range(len(k))]
    powers = [math.exp(score) if sees else 0.0 for score, sees in zip(biased, seen, strict=True)]
    weights = [power / sum(powers) for power in powers]
    z = [sum(weight * value[c] for weight, value in zip(weights, v, strict=True)) for c in range(len(v[0]))]
    found = {"scores": scores, "scaled": scaled, "capped": capped, "biased": biased, "weights": weights, "z": z}
    for step, wanted in found.items():
        assert getattr(steps, step).tolist() == pytest.approx(wanted, abs=1e-12), step
    assert steps.visible.tolist() == seen
    assert steps.masked.tolist() == pytest.approx(
        [score if sees else -math.inf for score, sees in zip(biased, seen, strict=True)]
    )
    assert steps.weights.tolist() != pytest.approx(
        [1 / sum(seen) if sees else 0.0 for sees in seen], abs=1e-3
    )  # control: not a plain mean


@torch.no_grad()
def test_shaws_terms_join_products_and_values() -> None:
    net, _ = network(Attention(heads=4), Shaw(3), torch.float64)
    module, inputs, _, _ = called(net)
    steps = attention_steps(inputs, module, 2, 5)
    keys, values = (table.tolist() for table in inputs.scores.tables)
    q, v = inputs.q[0, 2, 5].tolist(), inputs.v[0, 2].tolist()
    for j in range(6):
        at = max(-3, min(3, j - 5)) + 3
        extra = sum(a * b for a, b in zip(q, keys[at], strict=True))
        assert float(steps.related[j] - steps.scores[j]) == pytest.approx(extra, abs=1e-12)
        weight = float(steps.weights[j])
        wanted = [weight * (a + b) for a, b in zip(v[j], values[at], strict=True)]
        assert steps.weighted[j].tolist() == pytest.approx(wanted, abs=1e-12)
    assert [column.name for column in columns_of(steps)] == ["scores", "related", "scaled", "masked", "weights"]


@torch.no_grad()
def test_the_query_comes_from_what_enters_the_layer() -> None:
    net, _ = network(Attention(heads=4), NoRelative(), torch.float64)
    module, inputs, x, _ = called(net)
    steps = attention_steps(inputs, module, 1, 3, x=x)
    weight, bias = module.qkv.weight.view(4, 3, 4, 16)[1, 0], module.qkv.bias.view(4, 3, 4)[1, 0]
    assert steps.q.tolist() == pytest.approx((weight @ steps.x + bias).tolist(), abs=1e-12)


@torch.no_grad()
def test_steps_end_in_the_weights_that_kernels_must_meet() -> None:
    """Bit for bit, also for a row that sees nothing and with a term of the caller's own."""
    net, _ = network(Attention(heads=4, soft_cap=3.0, window=2), Alibi())
    scores = called(net)[1].scores
    added = torch.randn(1, 1, 7, 7)
    added[..., 3, :] = -torch.inf
    q, k = torch.randn(2, 4, 7, 8), torch.randn(2, 2, 7, 8)
    for description in (scores, replace(scores, added=added)):
        for rows in (None, slice(2, 5)):
            steps = score_steps(q, k, description, rows)
            assert torch.equal(steps.weights, weights_of(q, k, description, rows))
    assert steps.weights[:, :, 1].abs().sum() == 0.0  # query 3 sees nothing
    assert not torch.equal(steps.biased, steps.capped) and not torch.equal(steps.capped, steps.scaled)


@torch.no_grad()
def test_an_adapter_is_part_of_the_projection() -> None:
    net, _ = network(Attention(heads=4), NoRelative())
    add_adapters(net, LoRA(rank=2), seed=0)
    layer = net.stack.blocks[0].mixer.out
    layer.lora_B.normal_(generator=torch.Generator().manual_seed(1))
    module, inputs, x, out = called(net)
    steps = attention_steps(inputs, module, 1, 3, x=x, output=out)
    assert steps.gap is not None and steps.gap < CLOSE
    assert float((steps.projection - layer.weight[:, 4:8].T).abs().max()) > 1e-2  # control: not the bare weight


def test_w01_the_lectures_example_in_steps() -> None:
    """W01, EPFL: 102 and 99 with D_K = 3 give 58.9 and 57.2, then .85 and .15."""
    steps = lecture_example()
    assert steps.scores.tolist() == [102.0, 99.0] and len(steps.q) == 3 and steps.root
    assert steps.scaled.tolist() == pytest.approx([58.8897, 57.1577], abs=5e-5)
    assert steps.weights.tolist() == pytest.approx([0.84967, 0.15033], abs=5e-6)
    for number in ("102", "99", "58.9", "57.2", "0.850", "0.150"):
        assert f" {number} " in steps.text(), number


@torch.no_grad()
def test_the_five_steps_of_a_token() -> None:
    """Cornell: attention without queries, keys and values, the third token; by hand in test_plain.py."""
    x = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [5.0, 5.0]]], dtype=torch.float64)
    module = Plain(score="dot").build(2, causal=True, relative=NoRelative())
    context = context_of(x)
    steps = attention_steps(
        module.prepare(x, context, None, ()), module, 0, 2, x=x, output=module(x, context, None, ()), label="Layer 1"
    )
    assert steps.plain and steps.scores[:3].tolist() == [1.0, 2.0, 2.0]
    assert steps.weights.tolist() == pytest.approx([0.15536240, 0.42231880, 0.42231880, 0.0], abs=5e-9)
    assert steps.out.tolist() == pytest.approx([0.57768120, 1.26695639], abs=5e-9)
    text = steps.text()
    assert text == steps.text("cornell") != steps.text("epfl")
    assert "step 1  prepare inputs" in text and "step 5  sum of the weighted values" in text
    assert "a_2 = [   0.578     1.27]" in text and "q_2" not in text and "-inf" in text
    header = next(line for line in text.splitlines() if line.split()[:1] == ["step"] and "prepare" not in line)
    assert header.split() == ["step", "2", "3", "3", "4"]  # scores; mask and softmax; each vector times its weight
    with pytest.raises(UserError, match="numbering"):
        steps.text("six")


@torch.no_grad()
def test_the_table_of_a_layer_names_its_steps() -> None:
    net, _ = network(Attention(heads=4, soft_cap=2.0, window=3), Alibi())
    module, inputs, x, out = called(net)
    words = ["An", " old", " dog", " and", " a", " young", "\n"]
    steps = attention_steps(inputs, module, 1, 5, x=x, output=out, label="Layer 1", queries=words, keys=words)
    names = [column.name for column in columns_of(steps)]
    assert names == ["scores", "scaled", "capped", "biased", "masked", "weights"]
    text = steps.text()
    assert 'Layer 1 · head 1 · token 5 "·young"' in text and "/ sqrt(4)" in text and "cap 2 " in text
    assert "⏎" in text and "\n\n\n" not in text
    assert "difference" in text and "out = z W_O" in text
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_every_kind_of_model(kind: str) -> None:
    """Words, patches, columns and an encoder-decoder: at every site the steps give the layer's own output."""
    capture = look(predictor(kind), inputs(kind))
    for site in capture.sites:
        steps = steps_of(capture, site.index, site.heads - 1, 1)
        assert steps.gap is not None and steps.gap < CLOSE
        assert steps.keys == tuple(capture.axes[site.keys].texts) and steps.label == site.label
        assert close(steps.weights, capture.weights(site.index)[site.heads - 1, 1])
    assert capture.steps(layer=1, head=2, query=1).label == capture.find_site(1).label


def test_a_mixer_without_queries_and_keys_has_no_steps() -> None:
    net = build(language(mixer=LinearAttention(heads=4)))
    capture = look(net, GIVEN)
    with pytest.raises(UserError, match="does not weigh values by the softmax"):
        steps_of(capture, 0, 0, 0)


def test_attention_without_q_k_v_is_stepped_through_in_a_model() -> None:
    capture = look(build(language(mixer=Plain()), dtype=torch.float32), GIVEN)
    steps = steps_of(capture, 0, 0, 2)
    assert steps.plain and steps.gap is not None and steps.gap < CLOSE and "a_2 = " in steps.text()


def test_a_choice_that_does_not_exist_is_refused() -> None:
    net, _ = network(Attention(heads=4), NoRelative())
    module, inputs, _, _ = called(net)
    for head, query, word in ((4, 0, "head 4"), (0, 7, "query 7"), (-1, 0, "head -1")):
        with pytest.raises(UserError, match=word):
            attention_steps(inputs, module, head, query)


def test_many_keys_are_shown_around_the_largest() -> None:
    for at, wanted in ((0, (0, 64)), (100, (68, 132)), (199, (136, 200))):
        weights = torch.zeros(200)
        weights[at] = 1.0
        assert shown_around(weights) == wanted
    assert shown_around(torch.ones(5)) == (0, 5)
    many = long_steps(200)
    assert len([line for line in many.text().splitlines() if "  #" in line]) == 64
    assert "136 more keys" in many.text()


def long_steps(count: int) -> HeadSteps:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, n, 4, generator=generator) for n in (1, count, count))
    return attention_steps(AttentionInputs(q, k, v, Scores(scale=0.5)), None, 0, 0)


def close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= CLOSE * max(1.0, float(b.abs().max())))


# ---------------------------------------------------------------- what travels to the page


def test_the_answer_holds_every_step() -> None:
    capture = look(predictor("t5"), inputs("t5"))
    site = next(site for site in capture.sites if site.kind == "cross")
    found = ViewAnswer.from_bytes(view.answer(capture, Query(site.index, 2, 3)).to_bytes())
    steps = steps_of(capture, site.index, 2, 3)
    assert found.facts["crossed"] and found.facts["keys"] == list(steps.keys) and found.facts["root"]
    assert not found.facts["partial"] and not found.facts["related"] and not found.facts["biased"]
    for name in ("q", "k", "v", "scores", "weights", "z", "out", "others", "total", "expected", "x"):
        assert torch.equal(torch.from_numpy(found.arrays[name]), getattr(steps, name)), name
    weight = view.answer(capture, Query(site.index, 2, options={"part": "projection"})).arrays["projection"]
    rebuilt = found.arrays["z"] @ weight + found.arrays["others"] + found.arrays["out_bias"]
    assert close(torch.from_numpy(rebuilt), steps.expected)
    assert not close(torch.from_numpy(rebuilt - found.arrays["others"]), steps.expected)  # control


def test_of_very_many_keys_a_page_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    net = build(language(depth=1), dtype=torch.float32)
    capture = look(net, tokens(1, 100))
    monkeypatch.setattr(view, "MOST", 100)
    whole = steps_of(capture, 0, 1, 99)
    around, _ = shown_around(whole.weights)
    for first in (None, 0, 70):
        options = {} if first is None else {"from": str(first)}
        found = view.answer(capture, Query(0, 1, 99, options=options))
        start, stop = found.facts["first"], found.facts["stop"]
        assert found.facts["partial"] and stop - start <= 64 and start == (around if first is None else first)
        assert len(found.arrays["k"]) == stop - start and len(found.arrays["scores"]) == 100
        inside = torch.from_numpy(found.arrays["weights"][start:stop] @ found.arrays["v"])
        assert close(inside + torch.from_numpy(found.arrays["outside"]), whole.z)
    for options, word in (({"from": "100"}, "from"), ({"example": "none of it"}, "example"), ({"part": "x"}, "part")):
        with pytest.raises(UserError, match=word):
            view.answer(capture, Query(0, 1, 99, options=options))


def test_an_exported_page_holds_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = look(predictor("gpt"), inputs("gpt"))
    queries = list(view.exported(capture))
    assert queries[0].options == {"example": "lecture"} and len({query.text() for query in queries}) == len(queries)
    assert {(query.site, query.head, query.query) for query in queries if not query.options} == {
        (site, head, token) for site in range(2) for head in range(4) for token in range(7)
    }
    size = sum(len(view.answer(capture, query).to_bytes()) for query in queries)
    monkeypatch.setattr(view, "EXPORTED", size // 3)
    fewer = list(view.exported(capture))
    assert 1 < len(fewer) < len(queries) // 2
    assert sum(len(view.answer(capture, query).to_bytes()) for query in fewer) < size // 2


def test_the_view_applies_where_there_are_queries_and_keys() -> None:
    assert view.applies(look(predictor("gpt"), inputs("gpt"))) is None
    none = view.applies(look(build(language(mixer=LinearAttention(heads=4)), dtype=torch.float32), GIVEN))
    assert none is not None and none.endswith(".")
