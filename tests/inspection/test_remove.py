"""The numbers of the view Remove against networks that really lack what is removed."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch

from anyformer import Model, Pooled, UserError, preset
from anyformer.checkpoints.prune import prune
from anyformer.core.head_names import HeadName
from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.capture import Capture, look
from anyformer.inspection.removal import pruning
from anyformer.inspection.views import remove
from tests.inspection import models
from tests.inspection.test_ablate import without_columns
from tests.inspection.test_every_preset import given


def captured(kind: str) -> Capture:
    return look(models.predictor(kind), models.inputs(kind))


def log_probability(network: Any, capture: Capture, number: int, at: int = -1) -> float:
    """Of one answer, by the network alone."""
    with torch.no_grad():
        logits = network(*capture.given.args, **capture.given.options).logits[0].double()
    fitted = None if capture.predictor.preprocess is None else capture.predictor.preprocess.calibration
    logits = logits if fitted is None else logits / fitted.temperature[0]
    return float((logits[at] if logits.dim() == 2 else logits).log_softmax(-1)[number])


def entry(facts: dict[str, Any], what: str) -> dict[str, Any]:
    return next(each for each in facts["what_if"] if each["what"] == what)


@pytest.mark.parametrize("kind", models.KINDS)
def test_a_head_is_worth_what_a_network_without_it_says(kind: str) -> None:
    capture = captured(kind)
    facts = remove.answer(capture, Query(1, 2, 0, 0)).facts
    target = facts["target"]
    site = capture.site(1)
    name = HeadName("cross" if site.path.endswith("cross") else site.stack, site.layer, 2)
    whole = log_probability(capture.model, capture, target["id"])
    without = log_probability(without_columns(capture.model, name), capture, target["id"])
    assert target["value"] == pytest.approx(whole, abs=1e-4)
    assert entry(facts, "head")["change"] == pytest.approx(without - whole, abs=1e-4)
    assert entry(facts, "head")["probability"] == pytest.approx(math.exp(without), abs=1e-4)
    assert facts["weight"] == pytest.approx(float(capture.weights(1)[2, 0, 0]), abs=1e-6)
    others = [entry(facts, what)["change"] for what in ("token", "mixer", "feed")]
    assert len({round(value, 7) for value in others}) == 3  # control: they are different things


@pytest.mark.parametrize("kind", ["t5", "gpt", "albert-base-tiny"])
def test_every_head_in_turn_is_each_head_by_itself(kind: str) -> None:
    """Layers below a head are not run again for it; the numbers are those of whole passes."""
    if kind == "albert-base-tiny":  # its layers share a block, which must be run for each of them
        spec = preset(kind)
        model = Model(embed=spec.embed, stack=spec.stack, head=Pooled(classes=3)).build(seed=0)
        capture = look(model, torch.arange(3, 10)[None])
    else:
        capture = captured(kind)
    found = remove.answer(capture, Query(options={"every": "1"}))
    assert [site["label"] for site in found.facts["sites"]] == [site.label for site in capture.sites]
    for row, site in enumerate(found.facts["sites"]):
        for head in range(site["heads"]):
            one = remove.answer(capture, Query(site["site"], head, 0, 0)).facts
            assert found.arrays["change"][row, head] == pytest.approx(entry(one, "head")["change"], abs=1e-6)
            maps = capture.weights(site["site"])[head]
            assert found.arrays["weight"][row, head] == pytest.approx(float(maps.max(-1).values.mean()), abs=1e-6)
    assert len(np.unique(found.arrays["change"].round(6))) > 6
    assert "forward" not in vars(capture.model.get_submodule(capture.sites[0].path.rpartition(".")[0]))
    assert -1 <= found.facts["rank"] <= 1
    again = ViewAnswer.from_bytes(found.to_bytes())
    assert again.facts["sites"] == found.facts["sites"]


def test_edges_and_tokens_by_the_mask_that_anybody_can_give() -> None:
    capture = captured("gpt")
    length = len(capture.axes[""])
    facts = remove.answer(capture, Query(0, 1, length - 1, 2)).facts
    number = facts["target"]["id"]

    def with_mask(rule: torch.Tensor) -> float:
        with torch.no_grad():
            logits = capture.model(*capture.given.args, mask=rule, **capture.given.options).logits[0, -1]
        return float(logits.log_softmax(-1)[number])

    rule = torch.ones(1, 1, length, length, dtype=torch.bool)
    rule[..., -1, 2] = False
    assert entry(facts, "edges")["change"] == pytest.approx(with_mask(rule) - facts["target"]["value"], abs=1e-4)
    rule = torch.ones(1, 1, length, length, dtype=torch.bool)
    rule[..., 2] = False
    rule[..., 2, 2] = True
    assert entry(facts, "token")["change"] == pytest.approx(with_mask(rule) - facts["target"]["value"], abs=1e-4)
    assert abs(entry(facts, "edge")["change"]) > 0 and entry(facts, "edge")["change"] != entry(facts, "edges")["change"]


def test_a_future_token_changes_nothing() -> None:
    """Under causal order there is no edge to the future: removing it must be no change at all."""
    capture = captured("gpt")
    facts = remove.answer(capture, Query(0, 1, 1, 4, options={"of": "query"})).facts
    assert facts["weight"] == 0.0 and facts["place"] == 1
    assert entry(facts, "edge")["change"] == pytest.approx(0.0, abs=1e-6)
    assert entry(facts, "token")["change"] == pytest.approx(0.0, abs=1e-6)
    assert entry(facts, "head")["change"] != 0.0  # control


def test_several_things_are_removed_together() -> None:
    capture = captured("bert")
    options = {"heads": "0.1,1.3", "tokens": "2", "edges": "0.0.0.1"}
    facts = remove.answer(capture, Query(0, 0, 0, 1, options=options)).facts
    gone = facts["removed"]
    changed = copy.deepcopy(capture.model)
    for name in (HeadName("", 0, 1), HeadName("", 1, 3)):
        changed = without_columns(changed, name)
    heads = remove.answer(capture, Query(0, 0, 0, 1, options={"heads": "0.1,1.3"})).facts["removed"]
    expected = log_probability(changed, capture, facts["target"]["id"]) - facts["target"]["value"]
    assert heads["change"] == pytest.approx(expected, abs=1e-4)
    assert gone["change"] != heads["change"]
    assert [row["name"] for row in gone["answers"][:1]] == [capture.prediction()[0].name]
    for column in ("before", "after"):
        assert sum(row[column] for row in gone["answers"]) == pytest.approx(1.0, abs=1e-5)  # three classes in all
    assert gone["pruning"]["names"] == "0.1,1.3" and not gone["pruning"]["why"]
    smaller = prune(capture.model, [(0, 1), (1, 3)])
    counts = [sum(p.numel() for p in model.parameters()) for model in (capture.model, smaller)]
    assert gone["pruning"]["saved"] == counts[0] - counts[1] and gone["pruning"]["of"] == counts[0]


@pytest.mark.parametrize("kv_heads, heads", [(2, [(0, 0), (0, 1)]), (2, [(0, 1), (0, 2)]), (4, [(0, 3)])])
def test_what_pruning_saves_is_what_prune_saves(kv_heads: int, heads: list[Any]) -> None:
    capture = look(models.gpt(kv_heads=kv_heads), models.TEXT)
    smaller = prune(capture.model, heads)
    counts = [sum(p.numel() for p in model.parameters()) for model in (capture.model, smaller)]
    assert pruning(capture, heads)["saved"] == counts[0] - counts[1]


def test_heads_that_cannot_be_pruned_say_why() -> None:
    capture = look(models.gpt(kv_heads=2), models.TEXT)
    assert "share keys and values by 2" in pruning(capture, [(0, 0)])["why"]
    assert "no head left" in pruning(capture, [(0, head) for head in range(4)])["why"]


def test_heads_that_no_format_can_lose_say_why_too() -> None:
    for name, why in (("albert-base-tiny", "share weights"), ("clip-b32-tiny", "Towers cannot be changed")):
        spec = preset(name)
        capture = look(spec.build(seed=0), given(spec))
        head = (0, 0) if name.startswith("albert") else ("first", 0, 0)
        assert why in pruning(capture, [head])["why"]


def test_one_logit_alone_is_followed_as_a_number() -> None:
    """Of one image and one text there is one score: as a share of itself it would never change."""
    spec = preset("clip-b32-tiny")
    capture = look(spec.build(seed=0), given(spec))
    facts = remove.answer(capture, Query(0, 0, 0, 0)).facts
    assert facts["target"]["kind"] == "value" and facts["target"]["value"] == pytest.approx(
        float(capture.output.logits)
    )
    assert entry(facts, "head")["change"] != 0.0


def test_layers_outside_of_stacks_are_no_views_of_this_kind() -> None:
    spec = preset("vt-resnet-tiny")
    assert "no stack" in (remove.applies(look(spec.build(seed=0), given(spec))) or "")


def test_the_model_itself_is_never_touched() -> None:
    predictor = models.gpt()
    capture = look(predictor, models.TEXT)
    remove.answer(capture, Query(options={"heads": "0.1"}))
    remove.answer(capture, Query(options={"every": "1"}))
    for network in (predictor.model, capture.model):
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


@pytest.mark.parametrize(
    "query, said",
    [
        (Query(99), "site 99 is out of range"),
        (Query(0, 9), "head 9 is out of range"),
        (Query(0, 0, 500), "query 500 is out of range"),
        (Query(0, 0, 0, 500), "key 500 is out of range"),
        (Query(options={"heads": "1"}), "names nothing"),
        (Query(options={"heads": "0.77"}), "head 0.77 is out of range"),
        (Query(options={"tokens": "x"}), "names no token"),
        (Query(options={"tokens": "encoder.1"}), "the network has no part 'encoder'"),
        (Query(options={"edges": "0.0.1"}), "names nothing"),
        (Query(options={"heads": ",".join(["0.1"] * 65)}), "at most 64"),
        (Query(options={"of": "nothing"}), "not known"),
    ],
)
def test_what_is_not_there_is_refused(query: Query, said: str) -> None:
    with pytest.raises(UserError, match=said):
        remove.answer(captured("gpt"), query)


def test_what_an_exported_page_holds() -> None:
    capture = captured("vit")
    queries = list(remove.exported(capture))
    assert queries[0].options == {"every": "1"} and len(queries) == 1 + 8
    assert sum(len(remove.answer(capture, query).to_bytes()) for query in queries) < 40_000
