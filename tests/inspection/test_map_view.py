"""The map's and the heads' answers against maps made naively from queries and keys."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from anyformer.inspection.answer import Query
from anyformer.inspection.capture import look
from anyformer.inspection.views import heads, map
from tests.inspection import models


def naive(capture, site):
    """Scores and weights (H,T,S) by loops over heads and tokens, from q, k and the rule that the future is hidden."""
    p = capture.inputs_of(site)
    q, k, v = (x[0].double() for x in (p.q, p.k, p.v))
    shared = q.shape[0] // k.shape[0]
    scores = torch.full((q.shape[0], q.shape[1], k.shape[1]), torch.nan, dtype=torch.float64)
    for h in range(q.shape[0]):
        for i in range(q.shape[1]):
            for j in range(i + 1 if capture.sites[site].causal else k.shape[1]):
                scores[h, i, j] = torch.dot(q[h, i], k[h // shared, j]) / math.sqrt(q.shape[-1])
    powers = scores.exp().nan_to_num(0.0)
    weights = (powers / powers.sum(-1, keepdim=True)).where(~scores.isnan(), torch.nan)
    lengths = torch.stack([v[h // shared].norm(dim=-1) for h in range(q.shape[0])])
    return {"scores": scores, "weights": weights, "values": weights * lengths[:, None]}


@pytest.mark.parametrize("show", ["weights", "scores", "values"])
@pytest.mark.parametrize("kv_heads", [None, 2])
def test_a_map_equals_the_naive_one(show, kv_heads):
    capture = look(models.gpt(kv_heads=kv_heads), models.TEXT)
    want = naive(capture, 1)[show]
    for head in range(4):
        found = map.answer(capture, Query(1, head, options={"show": show})).arrays["map"]
        np.testing.assert_allclose(found, want[head], rtol=2e-5, atol=1e-6)
    mean = map.answer(capture, Query(1, 0, options={"show": show, "over": "mean"})).arrays["map"]
    np.testing.assert_allclose(mean, want.mean(0), rtol=2e-5, atol=1e-6)
    assert not np.allclose(found, want[0], equal_nan=True)  # control: another head is another map


def test_masked_is_not_zero():
    capture = look(models.gpt(), models.TEXT)
    found = map.answer(capture, Query()).arrays["map"]
    assert (
        np.isnan(found[np.triu_indices(len(found), 1)]).all()
        and np.isfinite(np.tril(np.nan_to_num(found, nan=0))).all()
    )
    whole = map.answer(look(models.bert(), models.TEXT), Query()).arrays["map"]
    assert np.isfinite(whole).all()


@pytest.fixture(scope="module")
def long():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, models.words().size, (1, 700), generator=generator)
    return look(models.gpt().model, (ids,), name="long")


def test_a_long_map_is_a_window_and_an_overview(long):
    exact = long.weights(0)[1]
    answer = map.answer(long, Query(0, 1, query=500, key=400))
    row, column = answer.facts["row"], answer.facts["column"]
    window = answer.arrays["map"]
    assert window.shape == (256, 256) and row <= 500 < row + 256 and column <= 400 < column + 256
    np.testing.assert_array_equal(np.nan_to_num(window), exact[row : row + 256, column : column + 256].numpy())
    rows, columns = answer.facts["step"]
    coded = answer.arrays["overview"]
    for i, j in ((0, 0), (100, 50), (233, 200), (233, 233)):
        largest = exact[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns].max()
        assert abs((coded[i, j] / 255) ** 2 * answer.facts["top"] - float(largest)) <= 2 / 255 * answer.facts["top"]


@pytest.mark.parametrize("head", [2, None])
def test_the_strongest_keys_are_of_the_whole_row(long, head):
    options = {"over": "mean"} if head is None else {}
    facts = map.answer(long, Query(1, head or 0, query=650, key=3, options=options)).facts
    weights = long.weights(1)[:, 650]
    row = (weights.mean(0) if head is None else weights[head]).tolist()
    order = sorted(range(700), key=lambda j: -row[j])
    assert [weight for _, weight in facts["strongest"]] == [row[j] for j in order[:16]]
    assert all(row[j] == weight for j, weight in facts["strongest"])
    assert facts["rest"] == pytest.approx(sum(row[j] for j in order[16:]), rel=1e-5)
    assert max(j for j, _ in facts["strongest"]) > 300  # control: not of the window about key 3 alone


@pytest.mark.parametrize("place", [0, 1, 255, 256, 443, 444, 699])
def test_every_cell_is_inside_its_window(long, place):
    facts = map.answer(long, Query(1, 0, query=place, key=place)).facts
    assert facts["row"] <= place < facts["row"] + 256 and 0 <= facts["row"] <= 700 - 256


def test_thumbnails_are_the_maps_in_one_range():
    capture = look(models.t5(), models.TEXT)
    answer = heads.answer(capture, Query())
    data, top = answer.arrays["thumbnails"], answer.facts["top"]
    assert [entry["site"] for entry in answer.facts["sites"]] == [site.index for site in capture.sites]
    assert top == max(float(capture.weights(site.index).max()) for site in capture.sites)
    for entry in answer.facts["sites"]:
        exact = capture.weights(entry["site"])
        count = entry["heads"] * entry["rows"] * entry["columns"]
        coded = data[entry["start"] : entry["start"] + count].reshape(exact.shape)
        np.testing.assert_allclose(coded / 255, np.sqrt(exact.numpy() / top), atol=0.51 / 255)
    assert len(data) == sum(entry["heads"] * entry["rows"] * entry["columns"] for entry in answer.facts["sites"])


def test_the_statistics_beside_them_are_one_row_a_head():
    capture = look(models.gpt(), models.TEXT)
    rows = heads.answer(capture, Query()).facts["statistics"]
    assert [(row["site"], row["head"]) for row in rows] == [(s, h) for s in range(2) for h in range(4)]
    weights = naive(capture, 0)["weights"][3].nan_to_num(0.0)
    entropy = sum(-float(w) * math.log2(w) for row in weights for w in row if w > 0) / len(weights)
    assert rows[3]["entropy"] == pytest.approx(entropy, rel=1e-5)


def test_many_thumbnails_become_smaller(long, monkeypatch):
    monkeypatch.setattr(heads, "MOST", 20_000)
    long.kept.clear()
    answer = heads.answer(long, Query())
    assert len(answer.arrays["thumbnails"]) <= 20_000
    long.kept.clear()


def test_an_exported_page_holds_every_head_of_a_short_text_and_some_of_a_long_one(long):
    capture = look(models.t5(), models.TEXT)
    wanted = {(site.index, head) for site in capture.sites for head in range(site.heads)}
    assert {(query.site, query.head) for query in map.exported(capture)} == wanted
    some = list(map.exported(long))
    assert [(query.site, query.head) for query in some] == [(0, 0), (1, 0), (0, 1)]  # 256 by 256 floats each
