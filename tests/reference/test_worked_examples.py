"""The worked examples of the lectures that concern the network; `python -m tests.mission` says where the others are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer as Core
from tokenizers import decoders, normalizers
from tokenizers.models import Unigram
from torch import Tensor, nn

from anyformer import (
    LM,
    Alibi,
    Attention,
    Block,
    LinearScaling,
    Model,
    NoRelative,
    Patches,
    Rope,
    Sinusoid,
    Stack,
    Table,
    Tokens,
    checks,
    preset,
)
from anyformer.core.attend import Scores, attend, weights_of
from anyformer.core.context import lay_out
from anyformer.data.tokenizers.tokenizer import Tokenizer, open_tokenizer
from anyformer.positions.alibi import slopes
from tests.reference.copying import agree, deviation, seeded, shaken
from tests.reference.test_absolute_positions import rows_of

CPU = torch.device("cpu")


def model_of(**settings: Any) -> Any:
    """A small language model in float64."""
    block = Block(mixer=Attention(heads=2), **{k: settings.pop(k) for k in ("feed",) if k in settings})
    stack = Stack(width=16, depth=settings.pop("depth", 2), block=block, causal=settings.pop("causal", True))
    spec = Model(embed=Tokens(vocab=11, **settings), stack=stack, head=LM())
    return shaken(spec.build(dtype=torch.float64, seed=0))


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.quick
def test_w01_scores_102_and_99() -> None:
    q, k = numbers(1, 1, 1)[None, None, None], torch.stack([numbers(100, 1, 1), numbers(97, 1, 1)])[None, None]
    scaled = weights_of(q, k, Scores(scale=3**-0.5)).flatten()
    assert numbers(102, 99).mul(3**-0.5).tolist() == pytest.approx([58.8897, 57.1577], abs=5e-5)
    assert scaled.tolist() == pytest.approx([0.84967, 0.15033], abs=5e-6)
    module = Attention(heads=1, key_size=3, value_size=2, scale="sqrt").build(3, causal=False, relative=NoRelative())
    assert module.scale == 3**-0.5
    bare = weights_of(q, k, Scores(scale=1.0)).flatten()
    assert bare.tolist() == pytest.approx([0.95257, 0.04743], abs=5e-6)


@pytest.mark.quick
def test_w02_causal_mask() -> None:
    k = torch.zeros(1, 1, 3, 4, dtype=torch.float64)
    context = lay_out(1, 3, CPU)
    scores = Scores.among(
        context, 3, scale=1.0, causal=True, window=None, soft_cap=None, relative=NoRelative(), tables=()
    )
    expected = torch.stack([numbers(1, 0, 0), numbers(0.5, 0.5, 0), numbers(1 / 3, 1 / 3, 1 / 3)])
    agree(weights_of(k, k, scores)[0, 0], expected)
    values = torch.eye(3, dtype=torch.float64)[None, None]
    agree(attend(k, k, values, scores)[0, 0], expected)  # the fused kernel too


@pytest.mark.quick
def test_w03_sinusoids_at_2_and_50() -> None:
    two = [0.909297, -0.416147, 0.198669, 0.980067, 0.019999, 0.999800, 0.002000, 0.999998]
    fifty = [-0.262375, 0.964966, -0.958924, 0.283662, 0.479426, 0.877583, 0.049979, 0.998750]
    for dtype in (torch.float64, torch.float32):
        rows = rows_of(Sinusoid(), 8, [2, 50], dtype)
        assert (rows - torch.tensor([two, fifty])).abs().max() <= 1e-6
    wide = rows_of(Sinusoid(), 512, [2, 50])
    assert wide[:, 2:4].flatten().tolist() == pytest.approx([0.936415, -0.350895, -0.895339, -0.445386], abs=1e-6)
    assert wide[:, -2:].flatten().tolist() == pytest.approx([0.000207, 1.0, 0.005183, 0.999987], abs=1e-6)


def test_w04_permutation() -> None:
    """f(RX) = R f(X) without positions: "She prefers cats to dogs" against "She prefers dogs to cats"."""
    set_like, ordered = model_of(causal=False), model_of(causal=False, position=Sinusoid())
    cats, dogs = torch.tensor([[0, 1, 2, 3, 4]]), torch.tensor([[0, 1, 4, 3, 2]])
    order = [0, 1, 4, 3, 2]
    agree(set_like(dogs).logits, set_like(cats).logits[:, order])
    assert deviation(ordered(dogs).logits, ordered(cats).logits[:, order]) > 1e-2
    assert checks.permutation(set_like, cats) and not checks.permutation(ordered, cats, bound=1e-2)
    # "An old dog and a young boy": swapping old and young leaves boy's output unchanged.
    one = model_of(causal=False, depth=1)
    swapped = torch.tensor([[0, 5, 2, 3, 4, 1, 6]])
    agree(one(swapped).hidden[:, -1], one(torch.arange(7)[None]).hidden[:, -1])
    placed = model_of(causal=False, depth=1, position=Sinusoid())
    assert deviation(placed(swapped).hidden[:, -1], placed(torch.arange(7)[None]).hidden[:, -1]) > 1e-3


def score(spec: Rope, q: Tensor, k: Tensor, m: float, n: float) -> float:
    """q at position m against k at position n."""
    module = spec.build(1, q.shape[0], q.shape[0], True)
    made = [module(lay_out(1, 1, CPU, positions=torch.tensor([[at]])), torch.float64) for at in (m, n)]
    return (spec.rotate(q[None, None, None], made[0]) * spec.rotate(k[None, None, None], made[1])).sum().item()


@pytest.mark.quick
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_w05_rope_score_of_two_channels(layout: str) -> None:
    spec, one, other = Rope(layout=layout), numbers(1, 0), numbers(0, 1)
    assert score(spec, one, one, 5, 4) == pytest.approx(0.540302, abs=1e-6) == math.cos(1)
    assert score(spec, one, other, 5, 4) == pytest.approx(0.841471, abs=1e-6)
    assert score(spec, one, other, 9, 4) == pytest.approx(math.sin(5))
    assert score(spec, one, other, 4, 5) == pytest.approx(-0.841471, abs=1e-6)


@pytest.mark.quick
def test_w06_superhot_position_8192_acts_as_2048() -> None:
    q, k = seeded(8, grad=False), seeded(8, seed=2, grad=False)
    stretched, plain = Rope(scaling=LinearScaling(factor=4.0)), Rope()
    assert score(stretched, q, k, 8192, 0) == score(plain, q, k, 2048, 0)
    assert score(plain, q, k, 8192, 0) != pytest.approx(score(plain, q, k, 2048, 0), abs=1e-2)


def test_w07_dino_resize_gives_197_and_785_tokens() -> None:
    model = preset("vit-s16").build(device="meta")
    for size, tokens in ((224, 197), (448, 785)):
        assert model.embed.layout(torch.empty(1, 3, size, size, device="meta")).index.shape[1] == tokens
    small = Model(
        embed=Patches(size=224, patch=16), stack=Stack(width=8, depth=1, block=Block(mixer=Attention(heads=2)))
    )
    out = small.build(seed=0)(torch.randn(1, 3, 448, 448)).hidden
    assert out.shape == (1, 785, 8) and out.isfinite().all()


@pytest.mark.quick
def test_w08_patches() -> None:
    embed = Patches(size=224, patch=16)
    assert embed.build(4).patch.in_features == 16 * 16 * 3 == 768
    assert embed.grid[0] * embed.grid[1] == 196 and 224 * 224 == 50_176


# Both slides in one vocabulary; what ends in _ was followed by a blank. Single letters cost most, so pieces win.
PIECES = {
    3: "The_", 721: "detective_", 68: "invest", 1337: "igat", 42: "ed_",
    5124: "Trans", 1029: "form", 645: "ers_", 3001: "are_", 6931: "awe", 7330: "some", 10: "!",
}  # fmt: skip
USER = "<User:>"


def slide_tokenizer(folder: Path) -> Tokenizer:
    """A tokenizer whose vocabulary has the pieces of the slides under their ids."""
    letters = sorted({letter for piece in PIECES.values() for letter in piece} - set(PIECES.values()))
    free = iter(letters)
    vocabulary = [(PIECES[i], -1.0) if i in PIECES else (next(free, f"<unused {i}>"), -20.0) for i in range(1, 7331)]
    core = Core(Unigram([(USER, 0.0), *vocabulary], unk_id=0))
    core.normalizer, core.decoder = normalizers.Replace(" ", "_"), decoders.Replace("_", " ")
    core.add_special_tokens([USER])
    core.save(str(folder / "tokenizer.json"))
    opened = open_tokenizer(folder)
    assert opened is not None
    return opened


@pytest.mark.quick
def test_w18_tokenisation_there_and_back(tmp_path: Path) -> None:
    tokenizer = slide_tokenizer(tmp_path)
    for text, ids, pieces in (
        ("The detective investigated ", [3, 721, 68, 1337, 42], ["The_", "detective_", "invest", "igat", "ed_"]),
        (f"{USER}Transformers are awesome!", [0, 5124, 1029, 645, 3001, 6931, 7330, 10],
         [USER, "Trans", "form", "ers_", "are_", "awe", "some", "!"]),
    ):  # fmt: skip
        assert tokenizer.encode(text, safe=False) == ids
        assert [tokenizer.token(i) for i in ids] == pieces
        assert tokenizer.decode(ids, skip_special=False) == text
    # The ids are the rows of the input matrix X (T,D), in that order.
    embed = Tokens(vocab=tokenizer.size).build(4)
    given = torch.tensor([ids])
    assert torch.equal(embed(given, context=embed.layout(given))[0], embed.table.weight[ids])
    assert tokenizer.encode("The detective ", safe=False) == [3, 721] != tokenizer.encode("The detectives ", safe=False)


@pytest.mark.quick
def test_w21_a_one_hot_row_returns_its_row_of_the_table() -> None:
    net = Model(embed=Tokens(vocab=9), stack=Stack(width=8, depth=1, block=Block(mixer=Attention(heads=2)))).build(
        seed=0
    )
    table = net.embed.table.weight
    ids = torch.tensor([[5]])
    out = net.embed(ids, context=net.embed.layout(ids))[0, 0]
    assert torch.equal(out, table[5]) and torch.equal(out, F.one_hot(torch.tensor(5), 9).float() @ table)
    assert not torch.equal(out, table[4])


@pytest.mark.parametrize("position", [None, Sinusoid()])
def test_w22_the_chain_rule_in_one_masked_pass(position: Any) -> None:
    """log p(z) = sum of log p(z_i given z_<i): one pass equals a pass a prefix, gradients too (R79)."""
    net, z = model_of(position=position), torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])

    def log_p(logits: Tensor, target: Tensor) -> Tensor:
        return logits.log_softmax(-1).gather(-1, target[..., None]).sum()

    together = log_p(net(z[:, :-1]).logits, z[:, 1:])
    apart = sum(log_p(net(z[:, :i]).logits[:, -1], z[:, i]) for i in range(1, 8))
    agree(together, apart, list(net.parameters()))
    peeking = model_of(position=position, causal=False)
    peeking.load_state_dict(net.state_dict())
    assert deviation(log_p(peeking(z[:, :-1]).logits, z[:, 1:]), together) > 1e-4


@pytest.mark.quick
def test_w23_feature_tokenizer_three_numbers_and_two_categories_are_six_tokens() -> None:
    embed = Table(numbers=3, categories=(4, 2)).build(8)
    rows, codes = torch.randn(2, 3), torch.tensor([[0, 1], [3, 0]])
    context = embed.layout(rows, codes)
    assert context.index.shape[1] == 6 and embed(rows, codes, context=context).shape == (2, 6, 8)


@pytest.mark.quick
def test_w24_shapes_of_multi_head_attention() -> None:
    width, heads, key, value = 64, 4, 8, 24
    mixer = Attention(heads=heads, key_size=key, value_size=value).build(width, causal=False, relative=NoRelative())
    q, k, v = mixer.split(mixer.qkv(torch.randn(2, 5, width)))
    assert q.shape == k.shape == (2, heads, 5, key) and v.shape == (2, heads, 5, value)
    assert mixer.qkv.weight.shape == (heads * (key + key + value), width)
    assert mixer.out.weight.shape == (width, heads * value)


@pytest.mark.quick
def test_w26_alibi_slopes_of_eight_heads() -> None:
    assert slopes(8) == [2.0**-i for i in range(1, 9)]
    (table,) = Alibi().build(8, 4, 4, True)(lay_out(1, 3, CPU), torch.float64)
    assert table.tolist() == [2.0**-i for i in range(1, 9)]


def test_w28_class_token_patches_and_positions_make_197_rows() -> None:
    """z0 = [class; patches E] + E_pos."""
    embed = preset("vit-b16").embed.build(12).double()
    images = seeded(1, 3, 224, 224, grad=False)
    with torch.no_grad():
        nn.init.normal_(embed.lead)
    patches = F.unfold(images, 16, stride=16).mT @ embed.patch.weight.T + embed.patch.bias
    expected = torch.cat([embed.lead[None], patches], 1) + embed.position.table.weight
    assert expected.shape == (1, 197, 12)
    agree(embed(images, context=embed.layout(images)), expected, list(embed.parameters()))
