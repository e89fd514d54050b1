"""Every error of the lectures, 1 to 28, with the slide's form and the right one: in one claim's table, and asserted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType

import pytest
import torch

from anyformer.lab.catalogue import all_claims
from anyformer.lab.claim import Measurements, Verdict
from anyformer.lab.claims import attention_errata, claim_errata, masked_errata, size_errata
from anyformer.lab.claims.claim_errata import rolled_out
from anyformer.lab.errata import Erratum, judge_errata
from anyformer.mixers import Attention

ALL = (attention_errata, claim_errata, masked_errata, size_errata)
Measured = Mapping[str, float]

# By number: the claim, and what must be so in its measurement. Bounds here are the test's own, not the claim's.
EXPECTED: dict[int, tuple[ModuleType, Callable[[Measured], bool]]] = {
    2: (claim_errata, lambda r: r["direction"] < 0.01 and r["not_equal"] > 1 and r["still_growing"] > 0.5),
    3: (claim_errata, lambda r: r["at_once"] < 1e-12 and r["price_of_a_token"] == 1 and r["end_of_positions"] == 1),
    4: (claim_errata, lambda r: max(r["hyena_error"], r["local_error"]) < 0.2 < r["local_above_chance"]),
    5: (masked_errata, lambda r: r["own_values"] < 1e-12 and r["shared_values"] > 0.5),
    6: (attention_errata, lambda r: r["turned"] < 1e-12 and min(r["not_turned"], r["over_queries"]) > 0.2),
    7: (masked_errata, lambda r: max(r["bias_after"], r["mask_inside"]) < 1e-12 and r["bias_inside"] > 0.1),
    8: (size_errata, lambda r: r["exponent_of_width"] < 1e-12 and r["exponent_of_keys"] > 1),
    9: (attention_errata, lambda r: r["two_tokens"] < 1e-12 and r["same_token"] > 0.2),
    10: (size_errata, lambda r: r["layers"] == 0 and r["six_a_side"] < 0.04 and r["twelve_a_side"] > 0.5),
    11: (size_errata, lambda r: r["bert_of_12"] == 0 and r["big_of_6"] < 0.01 and r["big_of_12"] > 0.5),
    12: (attention_errata, lambda r: r["shaw_plus"] < 1e-12 and r["shaw_minus"] > 0.1),
    13: (attention_errata, lambda r: r["softmax_weights"] < 1e-12 and r["raw_scores"] > 1),
    14: (
        masked_errata,
        lambda r: r["masked"] < 1e-12 and r["right_leak"] == 0 and r["row_sums"] > 0.5 < 10 * r["leak"],
    ),
    15: (attention_errata, lambda r: max(r["moved_along"], r["pooled"]) < 1e-12 and r["moved"] > 0.2),
    16: (claim_errata, lambda r: r["layers_shared"] == r["larger_ones"] == 0 and r["layers_apart"] > 6),
    17: (claim_errata, lambda r: r["optima"] < 0.03 and r["both_twice"] == pytest.approx(3) and r["bigger"] > 1),
    18: (size_errata, lambda r: r["side_tokens"] == r["side_values"] == 0 and r["area_tokens"] == 15),
    19: (claim_errata, lambda r: max(r["by_size"], r["oblong"]) < 1e-12 and r["oblong_refused"] == 1),
    20: (attention_errata, lambda r: r["of_width"] < 1e-12 and r["refused"] == 1),
    21: (size_errata, lambda r: r["wide_mlp"] == 0 and r["square_mlp"] > 0.3),
    22: (attention_errata, lambda r: r["one_head"] == r["projected"] == 0 and r["as_wide"] > 0.3),
    23: (claim_errata, lambda r: r["with_identity"] < 1e-6 and r["tokens_alike"] > 0.5),
    24: (size_errata, lambda r: r["from_zero"] == r["last_id"] == 0 and r["from_one"] > 0.2),
    25: (claim_errata, lambda r: r["alive_at_16"] > 0.95 and r["dead_at_512"] < 0.12 and r["peak_over_uniform"] > 5),
    26: (size_errata, lambda r: r["as_many"] == r["pooled_one"] == 0 and r["fixed_size"] > 0.4),
    27: (
        size_errata,
        lambda r: r["with_width"] == r["fused"] == 0 and r["without_width"] == 0.5 and r["whole_map"] == 1,
    ),
    28: (size_errata, lambda r: r["stride_of_patch"] < 1e-12 and r["mean_pool"] == 0 and r["stride_one"] > 100),
}


@pytest.fixture(scope="module")
def measured() -> dict[ModuleType, Measured]:
    """One seed of each claim; the networks of erratum 4 train for half their steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claim_errata, "STEPS", 150)
        return {module: dict(module.measure({"seed": 0})) for module in ALL}


def covered(modules: tuple[ModuleType, ...]) -> list[int]:
    return sorted(erratum.number for module in modules for erratum in module.ERRATA)


def test_each_of_the_28_errata_is_in_exactly_one_claim() -> None:
    assert covered(ALL) == list(range(1, 29))
    assert {module.CLAIM.name for module in ALL} <= set(all_claims())
    assert covered(ALL[1:]) != list(range(1, 29)) != covered((*ALL, masked_errata))  # control: one less, one twice


def test_every_erratum_is_asserted_below() -> None:
    assert sorted([1, *EXPECTED]) == list(range(1, 29))
    tables = {erratum.number: module for module in ALL for erratum in module.ERRATA}
    assert all(tables[number] is module for number, (module, _) in EXPECTED.items())


def test_erratum_1_is_stated_with_the_paper_that_attention_cites() -> None:
    (first,) = (erratum for erratum in claim_errata.ERRATA if erratum.number == 1)
    assert "1706.03762" in first.right and "1406.6909" in first.slide and not first.wrong
    assert Attention.about is not None and claim_errata.ATTENTION_PAPER in Attention.about.source
    assert claim_errata.SLIDES_PAPER not in Attention.about.source


@pytest.mark.parametrize("number", EXPECTED, ids="erratum-{}".format)
def test_the_right_form_is_right_and_the_slides_is_not(number: int, measured: dict[ModuleType, Measured]) -> None:
    module, expected = EXPECTED[number]
    result = measured[module]
    assert expected(result), {name: result[name] for name in named(module, number)}
    (erratum,) = (each for each in module.ERRATA if each.number == number)
    swapped = {**result, **dict.fromkeys(erratum.wrong, 0.0), **dict.fromkeys(erratum.good, 1.0)}
    assert not expected(swapped)  # control: the slide's form as true, the right one as false


def named(module: ModuleType, number: int) -> tuple[str, ...]:
    return next(each.wrong + each.good for each in module.ERRATA if each.number == number)


@pytest.mark.parametrize("module", ALL, ids=lambda module: module.CLAIM.name)
def test_measurements_hold_and_each_figure_can_break_them(
    module: ModuleType, measured: dict[ModuleType, Measured]
) -> None:
    good = {
        name: 0.0 if name in erratum.good else 10.0
        for erratum in module.ERRATA
        for name in (*erratum.wrong, *erratum.good)
    }
    assert set(good) == set(measured[module])  # every figure that is measured is judged
    assert verdict(module, good) is Verdict.HOLDS
    for name, value in good.items():
        assert verdict(module, {**good, name: 0.0 if value else 1.0}) is not Verdict.HOLDS, name
        assert verdict(module, {**good, name: float("nan")}) is not Verdict.HOLDS, name
    if module is not claim_errata:  # whose networks were trained by half
        assert verdict(module, measured[module]) is Verdict.HOLDS


def verdict(module: ModuleType, result: Measured) -> Verdict:
    return module.CLAIM.judge(Measurements([({"seed": 0}, result)])).verdict


def test_a_right_form_that_is_off_is_named() -> None:
    errata = (Erratum(90, "a", "b", ("x",), ("y",)), Erratum(91, "c", "d", ("z",), ("y",)))
    found = judge_errata(errata, Measurements([({}, {"x": 1.0, "z": 0.0, "y": 0.0})]))
    assert found.verdict is Verdict.IN_PART and "erratum 91" in found.reason
    found = judge_errata(errata, Measurements([({}, {"x": 1.0, "z": 1.0, "y": 1e-3})]))
    assert found.verdict is Verdict.NOT_HERE and "errata 90, 91" in found.reason


def test_erratum_23_rollout_of_two_layers() -> None:
    """W25: with the identity and without."""
    a = torch.tensor([[0.8, 0.2], [0.4, 0.6]], dtype=torch.float64)
    with_identity = torch.tensor([[0.83, 0.17], [0.34, 0.66]], dtype=torch.float64)
    without = torch.tensor([[0.72, 0.28], [0.56, 0.44]], dtype=torch.float64)
    assert torch.allclose(rolled_out([a, a]), with_identity, atol=1e-12)
    assert torch.allclose(rolled_out([a, a], identity=0.0), without, atol=1e-12)
    assert not torch.allclose(with_identity, without, atol=0.05)
