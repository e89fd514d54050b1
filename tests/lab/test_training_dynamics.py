"""Claims on what lets networks train: their judges can go red, and cheap cases are really measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from anyformer.lab.claim import Case, Claim, Measurements, Result, Verdict
from anyformer.lab.claims import (
    experts_or_dense,
    feed_activations,
    frozen_embeddings,
    head_count,
    max_margin,
    norm_placement,
    residual_and_norm,
    svm_hierarchy,
)
from anyformer.planning.model_plan import plan

Change = Callable[[Case], Mapping[str, Any]]
GUESSING = residual_and_norm.CHANCE


def good_norms(case: Case) -> Result:
    fails = case["place"] == "post" and case["depth"] > 2 and not case["warmup"]
    return {"right": 0.07 if fails else 0.95, "curve": [2.8, 2.8 if fails else 0.2]}


def good_residuals(case: Case) -> Result:
    residual, _ = residual_and_norm.KINDS[case["kind"]]
    if case["what"] == "rank":
        return {"rank": [26.0] + 24 * [30.0 if residual else 1.0], "apart": [0.5**n for n in range(25)]}
    trains = case["kind"] == "default" or case["depth"] == residual_and_norm.SHALLOW
    return {"loss": 1.5 if trains else GUESSING, "curve": [2.8, 1.5 if trains else GUESSING]}


def good_margin(case: Case) -> Result:
    how = max_margin.DESCENTS[case["trained"]]
    right, wrong = ([low] * 2 + [last] * (len(how.shown) - 2) for low, last in ((0.9, 0.995), (0.8, 0.85)))
    frobenius, nuclear = (right, wrong) if how.norm == "frobenius" else (wrong, right)
    return {"frobenius": frobenius, "nuclear": nuclear, "other_tokens": 0.0, "between": 0.85, "gap": 1e-6,
            "best_chosen": 1.0, "longer": [5.0, 50.0], "probability": [0.5, 1.0]}  # fmt: skip


def good_layers(case: Case) -> Result:
    turned = [0.8, 0.9, 0.98, 0.995]
    return {"first_read": turned, "first_all": turned, "second": turned, "gap": [1e-6] * 4}


def good_embeddings(case: Case) -> Result:
    loss = 3.0 if case["embedding"] == "frozen" else 2.0
    return {"loss": loss, "curve": [4.0, loss], "moved": 0.0 if loss == 3.0 else 0.1, "trained": 1000}


def good_experts(case: Case) -> Result:
    if case["feed"] == "dense":
        return {"loss": 2.0, "right": 0.4, "curve": [4.0, 2.0], "unevenness": None, "flops": 39e3, "parameters": 20000}
    return {"loss": 0.5, "right": 0.9, "curve": [4.0, 0.5], "unevenness": 1.1, "flops": 39e3, "parameters": 80000}


def good_heads(case: Case) -> Result:
    return {"loss": {1: 2.2, 16: 2.15}.get(case["heads"], 2.0), "curve": [2.7, 2.1], "parameters": 52000}


def good_feeds(case: Case) -> Result:
    loss = {"ReLU": 0.80, "GELU": 0.78}.get(case["feed"], 0.7)
    return {"loss": loss, "curve": [2.7, loss], "parameters": 22000}


CLAIMS: dict[str, tuple[Claim, Callable[[Case], Result]]] = {
    "norm-placement": (norm_placement.CLAIM, good_norms),
    "residual-and-norm": (residual_and_norm.CLAIM, good_residuals),
    "max-margin": (max_margin.CLAIM, good_margin),
    "svm-hierarchy": (svm_hierarchy.CLAIM, good_layers),
    "frozen-embeddings": (frozen_embeddings.CLAIM, good_embeddings),
    "experts-or-dense": (experts_or_dense.CLAIM, good_experts),
    "head-count": (head_count.CLAIM, good_heads),
    "feed-activations": (feed_activations.CLAIM, good_feeds),
}


def when(change: Mapping[str, Any], **wanted: Any) -> Change:
    """The change for the cases with these values, nothing for the others."""
    return lambda case: change if all(case.get(key) == value for key, value in wanted.items()) else {}


# What breaks a claim, and what is left of it.
BROKEN: list[tuple[str, Change, Verdict]] = [
    ("norm-placement", when({"right": 0.9}, place="post"), Verdict.NOT_HERE),  # post-norm needs no warm-up
    ("norm-placement", when({"right": 0.07}, place="pre"), Verdict.NOT_HERE),  # nothing trains
    ("norm-placement", when({"right": 0.07}, place="post"), Verdict.IN_PART),  # nor with warm-up, nor shallow
    ("norm-placement", when({"right": 0.4}, place="post", warmup=True), Verdict.IN_PART),  # warm-up mends it in part
    ("residual-and-norm", when({"loss": 1.5}, what="train"), Verdict.IN_PART),  # residuals are not needed
    ("residual-and-norm", when({"loss": GUESSING}, kind="default"), Verdict.NOT_HERE),  # nor are they enough
    ("residual-and-norm", when({"loss": 1.4}, kind="no norm"), Verdict.IN_PART),
    ("residual-and-norm", when({"rank": 25 * [26.0]}, what="rank"), Verdict.IN_PART),  # nothing collapses
    ("residual-and-norm", when({"rank": [26.0] + 24 * [1.0]}, what="rank"), Verdict.IN_PART),  # everything does
    ("max-margin", when({"frobenius": 8 * [0.95]}, trained="W"), Verdict.NOT_HERE),
    ("max-margin", when({"nuclear": 8 * [0.999]}, trained="W"), Verdict.NOT_HERE),  # the norm does not matter
    ("max-margin", when({"other_tokens": 0.995}), Verdict.NOT_HERE),  # nor do the tokens
    ("max-margin", when({"gap": 0.1}), Verdict.NOT_HERE),  # the SVM is not solved
    ("max-margin", when({"nuclear": 7 * [0.5]}, trained="K, Q"), Verdict.IN_PART),
    ("max-margin", when({"nuclear": 6 * [0.985] + [0.995]}, trained="K, Q"), Verdict.IN_PART),  # not yet after 1,000
    ("max-margin", when({"frobenius": 8 * [0.985]}, trained="W, any scores"), Verdict.IN_PART),
    ("max-margin", when({"probability": 8 * [0.6]}, trained="K, Q"), Verdict.NOT_HERE),  # nothing is chosen
    ("svm-hierarchy", when({"first_all": 4 * [0.7]}), Verdict.IN_PART),  # only for the queries that are read
    ("svm-hierarchy", when({"first_read": 4 * [0.9]}), Verdict.NOT_HERE),
    ("svm-hierarchy", when({"second": 4 * [0.9]}), Verdict.NOT_HERE),
    ("svm-hierarchy", when({"gap": 4 * [0.1]}), Verdict.NOT_HERE),  # the SVM is not solved
    ("frozen-embeddings", when({"loss": 2.0}), Verdict.NOT_HERE),  # frozen ones are as good
    ("frozen-embeddings", when({"loss": 2.0}, task="classifier"), Verdict.IN_PART),
    ("frozen-embeddings", when({"loss": 2.5}, embedding="tied"), Verdict.IN_PART),
    ("frozen-embeddings", when({"moved": 0.1}), Verdict.NOT_HERE),  # the frozen rows were not frozen
    ("experts-or-dense", when({"loss": 2.0}), Verdict.NOT_HERE),
    ("experts-or-dense", when({"loss": 1.9}, feed="2 of 16 experts"), Verdict.IN_PART),
    ("experts-or-dense", when({"flops": 50000.0}, feed="2 of 16 experts"), Verdict.NOT_HERE),  # more FLOPs
    ("head-count", when({"loss": 2.0}), Verdict.NOT_HERE),  # one head is as good
    ("head-count", when({"loss": 1.9}, heads=16), Verdict.IN_PART),  # there are never too many
    ("head-count", when({"parameters": 60000}, heads=4), Verdict.NOT_HERE),
    ("feed-activations", when({"loss": 0.8}), Verdict.NOT_HERE),
    ("feed-activations", when({"loss": 0.8}, feed="SwiGLU"), Verdict.IN_PART),
    ("feed-activations", when({"loss": 0.9}, feed="GELU"), Verdict.IN_PART),
    ("feed-activations", when({"parameters": 30000}, feed="GEGLU"), Verdict.NOT_HERE),
]


def judged(claim: Claim, result: Callable[[Case], Result], *, full: bool) -> Verdict:
    return claim.judge(Measurements([(case, result(case)) for case in claim.cases(full)])).verdict


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", CLAIMS)
def test_good_measurements_hold(name: str, full: bool) -> None:
    claim, good = CLAIMS[name]
    assert claim.name == name
    assert judged(claim, good, full=full) is Verdict.HOLDS


@pytest.mark.parametrize(("name", "change", "left"), BROKEN)
def test_bad_measurements_do_not_hold(name: str, change: Change, left: Verdict) -> None:
    claim, good = CLAIMS[name]
    assert judged(claim, lambda case: {**good(case), **change(case)}, full=True) is left


def test_tokens_without_residuals_become_one() -> None:
    bare = residual_and_norm.measure({"what": "rank", "kind": "no residual", "seed": 0})
    default = residual_and_norm.measure({"what": "rank", "kind": "default", "seed": 0})
    assert bare["rank"][0] == default["rank"][0] > 20
    assert bare["rank"][12] < 1.5 and bare["apart"][-1] < 1e-5
    assert default["rank"][12] > 20 and default["apart"][-1] > 0.3


def test_a_translator_is_trained_and_asked_for_its_words() -> None:
    result = norm_placement.measure({"depth": 1, "place": "post", "warmup": True, "seed": 0, "steps": 20})
    assert 0 <= result["right"] <= 0.5 and len(result["curve"]) == 1


def test_attention_turns_to_the_svm_of_the_right_norm() -> None:
    result = max_margin.measure({"trained": "W", "seed": 0})
    assert result["frobenius"][-1] > 0.99 > 0.97 > result["nuclear"][-1]
    assert result["frobenius"][0] < 0.95 and result["other_tokens"] < 0.5
    assert result["best_chosen"] == 1.0
    at = max_margin.DESCENTS["W"].shown.index(max_margin.QUOTED_AT)
    assert result["frobenius"][at] > 0.99 and result["probability"][at] > 0.99 > 0.9 > result["probability"][0]


@pytest.mark.parametrize("factored", [False, True])
def test_the_direction_of_descent_is_that_of_the_layers_own_gradient(factored: bool) -> None:
    given = max_margin.problem(4, equal=False)
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.randn(10, 10, generator=generator, dtype=torch.float64).requires_grad_()
                  for _ in range(1 + factored)]  # fmt: skip
    plain = torch.cat([g.flatten() for g in torch.autograd.grad(max_margin.loss_of(given, parameters), parameters)])
    ours = torch.cat([g.flatten() for g in max_margin.slopes_of(given, parameters)])
    assert torch.allclose(ours / ours.norm(), plain / plain.norm(), atol=1e-12)
    # Far along the way to the SVM the loss itself no longer changes, its direction still does.
    chosen, _ = max_margin.least_frobenius(max_margin.margins_of(given, given.scores.argmax(1)))
    far = [1e4 * chosen, torch.eye(10, dtype=torch.float64)][: len(parameters)]
    far = [p.requires_grad_() for p in far]
    assert all(g.norm() == 0 for g in torch.autograd.grad(max_margin.loss_of(given, far), far))
    assert all(g.isfinite().all() and g.norm() > 1e-3 for g in max_margin.slopes_of(given, far))


def test_both_layers_turn_to_the_svms_of_their_own_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svm_hierarchy, "STEPS", 500)
    result = svm_hierarchy.measure({"length": "of each layer", "seed": 0})
    assert result["first_read"][-1] > 0.98 and result["second"][-1] > 0.98 and max(result["gap"]) < 1e-4
    assert result["first_read"][0] < 0.97 and result["first_all"][-1] < 0.8  # the control: queries that nobody reads


def test_what_the_two_layers_read_is_attention() -> None:
    """The form with differences, which stays exact when weights become 1, against the plain one."""
    given = max_margin.problem(3, equal=False)
    generator = torch.Generator().manual_seed(0)
    layers = [torch.randn(10, 10, generator=generator, dtype=torch.float64) for _ in range(2)]
    value = svm_hierarchy.value_of(given)
    assert torch.allclose(torch.einsum("ntd,nd->nt", given.tokens, value), given.scores)
    x = given.tokens
    hidden = x + (x @ (x @ layers[0]).mT).softmax(-1) @ x
    read = ((hidden @ layers[1] @ given.queries[:, :, None])[..., 0].softmax(-1)[:, None] @ hidden)[:, 0]
    plain = torch.nn.functional.softplus(-(read * value).sum(-1)).mean()
    assert torch.allclose(svm_hierarchy.first_layer(given, layers[0])[0], hidden)
    assert svm_hierarchy.loss_of(given, value, layers).item() == pytest.approx(plain.item(), rel=1e-12)


def test_both_svms_are_those_of_scipy() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    given = max_margin.problem(0, equal=True)
    margins = max_margin.margins_of(given, given.scores.argmax(1))
    ours, gap = max_margin.least_frobenius(margins)
    rows = margins.numpy()
    limits = {"type": "ineq", "fun": lambda w: rows @ w - 1, "jac": lambda w: rows}
    theirs = optimize.minimize(lambda w: w @ w / 2, 0 * rows[0], jac=lambda w: w, constraints=limits, method="SLSQP")
    assert abs(gap) < 1e-9 and ours.square().sum().item() / 2 == pytest.approx(theirs.fun, rel=1e-6)
    nuclear, gap = max_margin.least_nuclear(margins)
    assert gap < max_margin.SOLVED  # the dual value bounds every other solution from below
    sizes = [torch.linalg.matrix_norm(w / (margins @ w.flatten()).min(), "nuc").item() for w in (nuclear, ours)]
    assert sizes[0] < 0.99 * sizes[1]


def test_frozen_rows_stay_as_they_were() -> None:
    case = {"task": "classifier", "seed": 0, "steps": 25}
    moved = {kind: frozen_embeddings.measure({**case, "embedding": kind})["moved"] for kind in ("frozen", "tied")}
    assert moved["frozen"] == 0.0 < moved["tied"]


def test_experts_have_the_flops_of_the_dense_network() -> None:
    plans = {kind: plan(experts_or_dense.network(kind), batch=8, length=2) for kind in experts_or_dense.FEEDS}
    dense = plans["dense"]
    for kind in experts_or_dense.MIXTURES:
        share = plans[kind].flops["prefill"] / dense.flops["prefill"]
        assert 1 - experts_or_dense.EQUAL <= share <= 1  # no FLOP more than the dense network
        assert plans[kind].parameters.total > 3 * dense.parameters.total
    assert plans["dense, 4 x FLOPs"].flops["prefill"] > 3 * dense.flops["prefill"]  # control


def test_a_mixture_learns_facts_and_tells_how_even_it_is() -> None:
    result = experts_or_dense.measure({"feed": "2 of 16 experts", "facts": 64, "seed": 0, "steps": 20})
    assert result["loss"] < 4.0 and result["unevenness"] >= 0.99


def test_heads_and_feeds_have_equal_parameters() -> None:
    heads = {head_count.network(heads).build(device="meta") for heads in head_count.HEADS}
    feeds = {feed_activations.network(kind).build(device="meta") for kind in feed_activations.FEEDS}
    for nets in (heads, feeds):
        assert len({sum(p.numel() for p in net.parameters()) for net in nets}) == 1
