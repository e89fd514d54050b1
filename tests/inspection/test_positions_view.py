"""Positions as arrays and pictures, against plain loops; shuffled tokens; the view's answer."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import anyformer
from anyformer import (
    LM,
    Alibi,
    Attention,
    Block,
    Buckets,
    Grid,
    Learned,
    LinearScaling,
    Model,
    NoRelative,
    NTKScaling,
    Patches,
    Recurrent,
    Rope,
    Shaw,
    Sinusoid,
    Stack,
    Tokens,
    UserError,
    YarnScaling,
)
from anyformer.checkpoints.changes import stretched
from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.capture import look
from anyformer.inspection.position_pictures import coloured, position_pictures
from anyformer.inspection.positions import (
    PositionSizes,
    binary_counter,
    by_distance,
    cosines,
    find_positions,
    position_arrays,
    position_kinds,
)
from anyformer.inspection.shuffling import reads_order, shuffle_tokens
from anyformer.inspection.views import positions


def network(position=None, relative=None, *, causal=False):
    block = Block(mixer=Attention(heads=4), relative=relative or NoRelative())
    embed = Tokens(vocab=50, position=position)
    return (
        Model(embed=embed, stack=Stack(width=32, depth=2, block=block, causal=causal), head=LM()).build(seed=0).eval()
    )


# ---------------------------------------------------------------- numbers


def test_sinusoids_are_those_of_the_paper():
    made = position_arrays("sinusoid", sizes=PositionSizes(length=60, width=16))
    naive = np.array([[math.sin(p / 10000 ** (i / 16)) if i % 2 == 0 else math.cos(p / 10000 ** ((i - 1) / 16))
                       for i in range(16)] for p in range(60)])  # fmt: skip
    assert np.abs(made.arrays["table"] - naive).max() < 1e-6
    assert np.abs(made.arrays["products"] - naive @ naive.T).max() < 1e-5


def test_products_of_sinusoids_depend_on_the_distance_alone_and_those_of_a_learned_table_do_not():
    made = position_arrays("sinusoid", sizes=PositionSizes(length=40, width=32))
    assert made.arrays["spread"].max() < 1e-5
    assert abs(made.arrays["distance"][0] - 16) < 1e-5  # sin^2 + cos^2 of 16 pairs
    learned = position_arrays("learned", network(Learned(40)), PositionSizes(length=40))
    assert learned.arrays["spread"].max() > 1e-2


def test_the_counter_is_binary_and_its_waves_have_the_sign_of_its_bits():
    counter = binary_counter()
    assert counter.shape == (16, 4)
    assert ["".join(map(str, row)) for row in counter] == [format(n, "04b") for n in range(16)]
    waves = position_arrays("sinusoid").arrays["waves"]
    assert ((waves > 0) == (counter == 1)).all()
    assert ((waves[:, ::-1] > 0) != (counter == 1)).any()  # control: bits in the other order do not fit


def test_cosines_and_means_by_distance_are_those_of_loops():
    table = torch.randn(7, 5, dtype=torch.float64)
    found = cosines(table)
    mean, spread = by_distance(found)
    for d in range(7):
        pairs = [float(table[i] @ table[i + d] / table[i].norm() / table[i + d].norm()) for i in range(7 - d)]
        assert mean[d].item() == pytest.approx(np.mean(pairs))
        assert spread[d].item() == pytest.approx(np.std(pairs))
    assert cosines(torch.zeros(2, 3)).abs().max() == 0


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotary_scores_are_those_of_complex_numbers_and_depend_on_the_difference(layout):
    made = position_arrays("rope", network(relative=Rope(layout=layout)), PositionSizes(length=30))
    frequencies = 10000.0 ** (-np.arange(0, 8, 2) / 8)
    assert made.facts["width"] == 8 and np.allclose(made.arrays["frequencies"], frequencies)
    naive = [[np.mean([(np.exp(1j * f * (m - n))).real for f in frequencies]) for n in range(30)] for m in range(30)]
    assert np.abs(made.arrays["scores"] - naive).max() < 1e-5
    assert np.abs(made.arrays["distance"] - np.array(naive)[0]).max() < 1e-5
    assert np.ptp([made.arrays["scores"][i, i + 3] for i in range(27)]) < 1e-5
    assert np.ptp(made.arrays["scores"][0]) > 0.1  # control: it does depend on the distance


def test_scalings_stretch_the_frequencies_as_their_papers_say():
    made = position_arrays("rope", sizes=PositionSizes(length=64, width=32))
    plain, linear, ntk, yarn = made.arrays["scaled_frequencies"]
    assert made.facts["scalings"] == ["plain", "linear", "ntk", "yarn"]
    assert np.allclose(linear, plain / 4)
    assert ntk[0] == plain[0] and ntk[-1] == pytest.approx(plain[-1] / 4)
    assert yarn[0] == plain[0] and yarn[-1] == pytest.approx(plain[-1] / 4)
    scaled = made.arrays["scaled_distance"]
    assert np.abs(scaled[1, ::4] - scaled[0, :64]).max() < 1e-5  # interpolated position 4m acts as m
    assert np.abs(scaled[2, ::4] - scaled[0, :64]).max() > 1e-2  # control: the others do more than that
    for row, kind in enumerate(
        (LinearScaling(factor=4.0), NTKScaling(factor=4.0), YarnScaling(factor=4.0, original=64))
    ):
        assert np.allclose(made.arrays["scaled_frequencies"][row + 1], kind.frequencies(10000.0, 32, torch.float64))


def test_alibi_and_buckets_are_what_attention_is_given():
    made = position_arrays("alibi", network(relative=Alibi()), PositionSizes(length=9))
    assert np.allclose(made.arrays["slopes"], [2 ** (-2 * (i + 1)) for i in range(4)])
    for h, i, j in [(0, 3, 5), (3, 8, 0), (2, 4, 4)]:
        assert made.arrays["bias"][h, i, j] == pytest.approx(-(2.0 ** (-2 * (h + 1))) * abs(i - j))
    model = network(relative=Buckets(buckets=8, distance=20))
    made = position_arrays("buckets", model, PositionSizes(length=30))
    assert made.facts["reach"] == 20 and made.facts["both_ways"]
    weight = model.stack.relatives[0].table.weight
    spec, at = Buckets(buckets=8, distance=20), torch.arange(30)[None]
    bias = spec.bias((weight, torch.empty(1)), at, at)[0]  # what the kernel adds
    for h, i, j in [(0, 0, 29), (1, 29, 0), (3, 12, 14)]:
        offset = j - i + 29
        assert made.arrays["bias"][h, offset] == pytest.approx(bias[h, i, j].item())
        assert made.arrays["matrix"][i, j] == made.arrays["buckets"][offset]


def test_shaw_shows_its_vectors_by_clipped_distance():
    model = network(relative=Shaw(3))
    made = position_arrays("shaw", model, PositionSizes(length=10))
    assert made.arrays["keys"].shape == (7, 8) and made.arrays["values"].shape == (7, 8)
    assert made.arrays["matrix"][0].tolist() == [0, 1, 2, 3, 3, 3, 3, 3, 3, 3]
    assert np.allclose(made.arrays["norms"], np.linalg.norm(made.arrays["keys"], axis=1))


def test_a_model_shows_its_own_kind_first_and_learned_tables_need_a_model():
    kinds = [(found.kind, found.own) for found in position_kinds(network(Learned(20), Rope()))]
    assert kinds[:2] == [("learned", True), ("rope", True)] and ("alibi", False) in kinds
    assert "learned" not in [found.kind for found in position_kinds(None)]
    assert find_positions(network()) == []
    with pytest.raises(UserError, match="has none"):
        position_arrays("learned", network())
    with pytest.raises(UserError, match="did you mean 'rope'"):
        position_arrays("rop")


def test_a_grid_of_patches_is_compared_without_its_class_token():
    embed = Patches(size=16, patch=4, channels=1, position=Grid())
    model = Model(embed=embed, stack=Stack(width=32, depth=1, block=Block(mixer=Attention(heads=4)))).build(seed=0)
    made = position_arrays("learned", model)
    assert made.facts["grid"] == [4, 4] and made.facts["extra"] == 1
    assert np.allclose(made.arrays["table"], model.embed.position.table.weight.detach().numpy()[1:])


def test_of_a_large_grid_every_few_patches_are_compared():
    embed = Patches(size=(48, 50), patch=2, channels=1, position=Grid())
    model = Model(embed=embed, stack=Stack(width=8, depth=1, block=Block(mixer=Attention(heads=2)))).build(seed=0)
    made = position_arrays("learned", model)
    assert made.facts["grid"] == [12, 13] and made.facts["every"] == 2
    table = model.embed.position.table.weight.detach().numpy()[1:].reshape(24, 25, 8)
    assert np.allclose(made.arrays["table"].reshape(12, 13, 8)[3, 5], table[6, 10])


# ---------------------------------------------------------------- shuffled tokens

IDS = torch.tensor([[3, 14, 15, 9, 26, 5, 35, 8]])


@pytest.mark.parametrize(
    ("position", "relative"),
    [(Learned(20), None), (Sinusoid(), None), (None, Rope()), (None, Alibi()), (None, Buckets())],
)
def test_answers_move_with_the_tokens_only_without_positions(position, relative):
    found = shuffle_tokens(network(position, relative), (IDS,))
    assert found.without_positions < 1e-5
    assert found.as_is > 1e-4  # control: with positions the same measurement sees a change
    assert found.without_mask is None and found.by_token.shape == (2, 8)


def test_causal_order_alone_breaks_the_symmetry():
    found = shuffle_tokens(network(Learned(20), causal=True), (IDS,))
    assert found.without_positions > 1e-3 and found.without_mask is not None and found.without_mask < 1e-5


def test_patches_are_shuffled_behind_the_class_token():
    embed = Patches(size=16, patch=4, channels=1, position=Grid())
    block = Block(mixer=Attention(heads=4))
    model = Model(embed=embed, stack=Stack(width=32, depth=2, block=block)).build(seed=0).eval()
    found = shuffle_tokens(model, (torch.rand(1, 1, 16, 16),))
    assert found.order[0] == 0 and sorted(found.order.tolist()) == list(range(17))
    assert found.as_is > 1e-4 and found.without_positions < 1e-5


def test_a_recurrence_knows_the_order_without_positions():
    model = Model(embed=Tokens(vocab=50, position=Learned(20)), stack=Stack(width=32, depth=1, causal=True,
                  block=Block(mixer=Recurrent("gru"))), head=LM()).build(seed=0).eval()  # fmt: skip
    found = shuffle_tokens(model, (IDS,))
    assert found.without_positions > 1e-3 and reads_order(model) == ["Recurrent"]
    assert reads_order(network()) == []


def test_a_pyramid_gives_other_tokens_than_it_is_given():
    with pytest.raises(UserError, match="gives other tokens"):
        shuffle_tokens(anyformer.preset("pyramid-small-tiny").build(seed=0), (torch.rand(1, 3, 32, 32),))


def test_the_view_answers_every_kind_and_refuses_others():
    capture = look(network(Learned(20), Rope(), causal=True), IDS)
    for query in positions.exported(capture):
        found = ViewAnswer.from_bytes(positions.answer(capture, query).to_bytes())
        assert found.facts["kinds"][0]["kind"] == "learned" and found.arrays
    found = positions.answer(capture, Query(options={"shuffle": "1", "seed": "3"}))
    assert found.facts["shuffled"]["without_mask"] < 1e-5 < found.facts["shuffled"]["as_is"]
    assert found.arrays["change"].shape == (3, 8)
    for options in ({"scheme": "shaw"}, {"length": "4"}, {"shuffle": "2"}):
        with pytest.raises(UserError):
            positions.answer(capture, Query(options=options))


def test_the_model_itself_is_not_touched_by_shuffling():
    model = network(Learned(20), causal=True)
    before = model(IDS).logits
    shuffle_tokens(model, (IDS,))
    assert torch.equal(before, model(IDS).logits) and not any(m._forward_hooks for m in model.modules())


# ---------------------------------------------------------------- pictures


def test_pictures_are_written_without_a_display_and_hold_what_is_returned(tmp_path: Path, monkeypatch):
    from PIL import Image

    monkeypatch.delenv("DISPLAY", raising=False)
    drawn = position_pictures(tmp_path, network(Learned(40), Shaw(4)), length=60, width=16)
    assert {path.stem for path in tmp_path.glob("*.png")} == set(drawn)
    assert {"sinusoid-map", "sinusoid-positions", "sinusoid-distance", "binary-counter", "learned-similarity",
            "shaw-keys", "rope-distance", "alibi-bias"} <= set(drawn)  # fmt: skip
    table = position_arrays("sinusoid", sizes=PositionSizes(length=60, width=16)).arrays["table"]
    assert np.array_equal(drawn["sinusoid-map"], table)
    assert np.array_equal(drawn["sinusoid-positions"], table[[2, 50]])
    picture = np.asarray(Image.open(tmp_path / "sinusoid-map.png").convert("RGB")).astype(int)
    cell = 480 // 60
    for p, c in [(0, 0), (0, 1), (3, 4), (50, 15)]:
        red, _, blue = picture[56 + p * cell + cell // 2, 56 + c * cell + cell // 2]
        value = table[p, c]
        assert (red > blue) == (value > 0) if abs(value) > 0.02 else abs(red - blue) < 12


def test_the_colour_of_a_cell_grows_with_its_number():
    cells = coloured(np.array([[-1.0, -0.5, 0.0, 0.5, 1.0]]))[0].astype(int)
    warmth = cells[:, 0] - cells[:, 2]
    assert (np.diff(warmth) > 0).all() and warmth[2] == 0


def test_pictures_go_into_a_folder(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="give a folder"):
        position_pictures(tmp_path / "file")


# ---------------------------------------------------------------- interpolation


def test_learned_positions_are_interpolated_as_convert_does_it():
    model = network(Learned(20))
    made = position_arrays("learned", model, PositionSizes(length=10))
    table = model.embed.position.table.weight.detach().numpy()
    channels = made.facts["channels"]
    assert channels == np.argsort(-table[:10].var(0, ddof=1))[: len(channels)].tolist() and len(channels) == 8
    apart = made.facts["apart"]
    assert made.facts["longer"] == 40 and apart == pytest.approx(39 / 19)
    for row in range(20):
        place = row / apart
        low = int(place)
        wanted = table[low] + (place - low) * (table[min(low + 1, 19)] - table[low])
        np.testing.assert_allclose(made.arrays["resized"][row], wanted[channels], atol=1e-5)
    np.testing.assert_allclose(made.arrays["trained"], table[:10, channels], atol=1e-6)
    longer = stretched(torch.tensor(table), 40)
    np.testing.assert_allclose(made.arrays["resized"], longer[:20][:, channels].numpy(), atol=1e-5)


def test_positions_of_patches_are_those_that_a_larger_image_gets():
    model = (
        Model(embed=Patches(size=16, patch=4), stack=Stack(width=32, depth=1, block=Block(mixer=Attention(heads=4))))
        .build(seed=0)
        .eval()
    )
    made = position_arrays("learned", model)
    assert made.facts["trained"] == [4, 4] and made.facts["resized"] == [8, 8]
    position = model.embed.position
    context = model.embed.layout(torch.zeros(1, 3, 32, 32))
    with torch.no_grad():
        wanted = position(context, torch.float32)[0, position.extra :]
    np.testing.assert_allclose(made.arrays["resized"], wanted[:, made.facts["channels"]].numpy(), atol=1e-5)
    assert made.arrays["trained"].shape == (16, 8)
    assert np.abs(made.arrays["resized"][::2][:16] - made.arrays["trained"]).max() > 1e-3  # control: not copies
