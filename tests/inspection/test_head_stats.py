"""Head statistics equal plain loops over the rows, and know a head of each kind when they see one."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from anyformer.inspection.head_stats import STATISTICS, HeadSums, head_statistics, patch_distances, statistics_of


def naive(weights, ids):
    """The definitions, one query at a time."""
    found = {name: [] for name in STATISTICS}
    for head in weights.tolist():
        rows = {name: [] for name in STATISTICS}
        for i, row in enumerate(head):
            if sum(row) < 0.5:
                continue
            rows["entropy"].append(-sum(p * math.log2(p) for p in row if p > 0))
            rows["largest"].append(max(row))
            rows["diagonal"].append(row[i])
            rows["distance"].append(sum(p * abs(i - j) for j, p in enumerate(row)))
            if i:
                rows["previous"].append(row[i - 1])
                rows["first"].append(row[0])
            after = [j + 1 for j in range(i - 1) if ids[j] == ids[i]]
            if after:
                rows["induction"].append(sum(row[j] for j in after))
        for name, values in rows.items():
            found[name].append(sum(values) / len(values) if values else None)
    return found


def random_map(heads=3, tokens=11, dead=()):
    torch.manual_seed(3)
    scores = torch.randn(heads, tokens, tokens).masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -torch.inf)
    weights = scores.softmax(-1)
    for row in dead:
        weights[:, row] = 0.0
    return weights


IDS = torch.tensor([5, 6, 7, 5, 6, 7, 7, 9, 5, 5, 1])


@pytest.mark.parametrize("dead", [(), (0, 4)])
def test_statistics_equal_loops_over_the_rows(dead):
    weights = random_map(dead=dead)
    found, wanted = statistics_of(weights, ids=IDS), naive(weights, IDS.tolist())
    for name in STATISTICS:
        assert found[name] == pytest.approx(wanted[name], abs=1e-5), name
    # Control: a map whose dead rows were counted as rows has another mean.
    if dead:
        assert weights.diagonal(dim1=1, dim2=2).mean(-1).tolist() != pytest.approx(wanted["diagonal"], abs=1e-3)


def test_blocks_of_rows_sum_to_the_whole_map():
    weights = random_map()
    sums = HeadSums(*weights.shape, ids=IDS)
    for start in range(0, 11, 4):
        sums.add(weights[:, start : start + 4], start)
    whole = statistics_of(weights, ids=IDS)
    for name in STATISTICS:
        assert sums.means()[name] == pytest.approx(whole[name], abs=1e-6)
    # Control: blocks that forget where they start give other numbers.
    wrong = HeadSums(*weights.shape, ids=IDS)
    for start in range(0, 11, 4):
        wrong.add(weights[:, start : start + 4], 0)
    assert wrong.means()["diagonal"] != pytest.approx(whole["diagonal"], abs=1e-3)


def test_each_kind_of_head_is_known_by_its_own_number():
    tokens = 8
    ids = torch.tensor([1, 2, 3, 4, 1, 2, 3, 4])
    previous, first, induction = (torch.zeros(tokens, tokens) for _ in range(3))
    for i in range(tokens):
        previous[i, max(0, i - 1)] = first[i, 0] = 1.0
        induction[i, i - 3 if i >= 4 else i] = 1.0  # four tokens repeat: the follower is three back
    found = statistics_of(torch.stack([previous, first, induction, torch.eye(tokens)]), ids=ids)
    assert found["previous"] == [1.0, pytest.approx(1 / 7), 0.0, 0.0]
    assert found["first"] == [pytest.approx(1 / 7), 1.0, 0.0, 0.0]
    assert found["induction"] == [0.0, 0.0, 1.0, 0.0]
    assert found["diagonal"][3] == 1.0 and found["distance"][3] == 0.0
    uniform = statistics_of(torch.full((1, 8, 8), 1 / 8))
    assert uniform["entropy"] == [pytest.approx(3.0)] and uniform["induction"] == [None]


def test_keys_of_a_cache_shift_the_diagonal():
    weights = torch.zeros(1, 2, 5)
    weights[0, 0, 3] = weights[0, 1, 4] = 1.0
    assert statistics_of(weights)["diagonal"] == [1.0]
    assert statistics_of(weights)["distance"] == [0.0]


def test_cross_attention_has_no_previous_token():
    found = statistics_of(torch.full((2, 3, 4), 0.25), aligned=False)
    assert found["entropy"] == [pytest.approx(2.0)] * 2
    assert all(found[name] == [None, None] for name in ("previous", "first", "distance", "induction", "diagonal"))


def test_patches_are_as_far_apart_as_on_the_image():
    axis = SimpleNamespace(tokens=(None,) * 7, grid=(2, 3), first=1)
    apart = patch_distances(axis, axis)
    assert apart[1, 6] == pytest.approx(math.hypot(1, 2)) and apart[1, 2] == 1 and apart[0].isnan().all()
    weights = torch.zeros(1, 7, 7)
    weights[0, :, 1] = 0.5  # the first patch, and the class token, which has no place
    weights[0, :, 0] = 0.5
    found = statistics_of(weights, distances=apart)["distance"]
    assert found == [pytest.approx((0 + 1 + 2 + 1 + math.hypot(1, 1) + math.hypot(1, 2)) / 6, abs=1e-5)]


def test_a_capture_gives_a_line_for_every_head():
    weights = random_map()
    token = [SimpleNamespace(id=int(one)) for one in IDS]
    axis = SimpleNamespace(tokens=tuple(token), grid=None, first=0)
    site = SimpleNamespace(heads=3, kind="self", label="Layer 1", layer=0, queries="t", keys="t")
    other = SimpleNamespace(heads=3, kind="other", label="Layer 2", layer=1, queries="t", keys="t")
    capture = SimpleNamespace(
        sites=(site, other), axes={"t": axis}, weights=lambda index, rows=slice(None): weights[:, rows]
    )
    lines = head_statistics(capture)
    assert [(line["site"], line["head"], line["label"]) for line in lines] == [(0, i, "Layer 1") for i in range(3)]
    wanted = naive(weights, IDS.tolist())
    for name in STATISTICS:
        assert [line[name] for line in lines] == pytest.approx(wanted[name], abs=1e-5)
