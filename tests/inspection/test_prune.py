"""Pruned networks answer as the whole one does with the same heads left out, also after saving and loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import anyformer
from anyformer import (
    LM,
    Alibi,
    Attention,
    Block,
    Buckets,
    Generation,
    Learned,
    Model,
    RMSNorm,
    Rope,
    Shaw,
    SomeHeads,
    Stack,
    Tokens,
    UserError,
    generate,
)
from anyformer.checkpoints.folder import save_own
from anyformer.checkpoints.prune import fewer_heads, prune
from anyformer.core.context import lay_out
from anyformer.core.head_names import every_head
from anyformer.inspection.ablate import ablate
from tests.inspection.test_ablate import built, hidden, inputs_of, plain

IDS = torch.tensor([[5, 9, 2, 7, 31, 8]])
CUTS: dict[str, list[tuple[Any, ...]]] = {
    "gpt2-tiny": [(0, 1), (1, 0), (1, 3)],
    "bert-base-tiny": [(1, 2)],
    "roberta-base-tiny": [(0, 0)],
    "distilbert-tiny": [(0, 0), (0, 1)],
    "bloom-560m-tiny": [(0, 1), (1, 2)],  # its slopes belong to heads
    "t5-small-tiny": [("encoder", 0, 1), ("decoder", 1, 0), ("decoder", 0, 3), ("cross", 0, 2), ("encoder", 1, 1)],
    "bart-base-tiny": [("encoder", 0, 1), ("decoder", 1, 0), ("cross", 0, 2)],
    "vit-b16-tiny": [(0, 0), (1, 1)],
    "ft-transformer-tiny": [(0, 3)],
}


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("family", CUTS)
def test_a_pruned_network_is_the_ablated_one(family: str, tmp_path: Path) -> None:
    model, heads = built(family), CUTS[family]
    inputs = inputs_of(model)
    whole = hidden(model, *inputs)
    smaller = prune(model, heads)
    with ablate(model, heads=heads):
        expected = hidden(model, *inputs)
    torch.testing.assert_close(hidden(smaller, *inputs), expected, rtol=0, atol=1e-6)
    assert not torch.allclose(whole, expected, atol=1e-4)  # control: those heads matter
    assert count(smaller) < count(model)
    assert torch.equal(hidden(model, *inputs), whole)  # the model itself is as it was
    save_own(tmp_path / "small", smaller.spec, smaller)
    loaded = anyformer.load(tmp_path / "small")
    assert loaded.spec == smaller.spec
    assert torch.equal(hidden(loaded.model, *inputs), hidden(smaller, *inputs))


def test_control_another_head_removed_is_another_network() -> None:
    model = built("t5-small-tiny")
    inputs = inputs_of(model)
    with ablate(model, heads=[("encoder", 0, 1)]):
        expected = hidden(model, *inputs)
    assert not torch.allclose(hidden(prune(model, [("encoder", 0, 2)]), *inputs), expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["buckets", "alibi"])
def test_control_positions_that_follow_the_number_of_heads_would_be_wrong(kind: str) -> None:
    """Without `SomeHeads` the heads that are left would take the positions of others."""
    model = built("bloom-560m-tiny") if kind == "alibi" else built("t5-small-tiny")
    head = (0, 0) if kind == "alibi" else ("encoder", 0, 0)
    inputs = inputs_of(model)
    smaller = prune(model, [head])
    right = hidden(smaller, *inputs)
    stack = smaller.stack if kind == "alibi" else smaller.encoder.stack
    relative = stack.blocks[0].mixer.relative
    others = tuple(range(relative.of - 1))  # the first heads instead of the last
    stack.blocks[0].mixer.relative = relative.replace(heads=others)
    assert not torch.allclose(hidden(smaller, *inputs), right, atol=1e-4)


def grouped(kv_heads: int | None) -> nn.Module:
    mixer = Attention(heads=6, kv_heads=kv_heads, key_size=4, value_size=3, qk_norm=RMSNorm())
    spec = Model(
        embed=Tokens(vocab=40, position=Learned(32)),
        stack=Stack(width=16, depth=2, causal=True, block=Block(mixer=mixer)),
        head=LM(tied=False),
    )
    return spec.build(seed=1).eval()


@pytest.mark.parametrize(
    "kv_heads, heads, left",
    [
        (3, [(0, 2), (0, 3)], (4, 2)),  # a whole group
        (3, [(0, 0), (0, 3), (0, 4)], (3, None)),  # one head of each
        (2, [(0, 0), (0, 5)], (4, 2)),
        (2, [(0, 0), (0, 1), (0, 2)], (3, 1)),
        (1, [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)], (1, None)),
    ],
)
def test_grouped_heads_go_by_groups_or_evenly(kv_heads: int, heads: list[Any], left: tuple[int, int | None]) -> None:
    model = grouped(kv_heads)
    smaller = prune(model, heads)
    mixer = smaller.spec.stack.block[0].mixer
    assert (mixer.heads, mixer.kv_heads) == left
    assert smaller.spec.stack.block[1].mixer == model.spec.stack.block.mixer
    with ablate(model, heads=heads):
        torch.testing.assert_close(hidden(smaller, IDS), hidden(model, IDS), rtol=0, atol=1e-6)


def test_uneven_groups_are_refused_with_the_reason() -> None:
    with pytest.raises(UserError, match=r"share keys and values by 2.*remove whole groups"):
        prune(grouped(3), [(0, 0)])


def test_a_layer_keeps_a_head() -> None:
    with pytest.raises(UserError, match="no head left; keep one, or drop the layer"):
        prune(plain(), [(1, head) for head in range(4)])


def test_layers_that_share_weights_are_refused() -> None:
    with pytest.raises(UserError, match="layers that share weights"):
        prune(built("albert-base-tiny"), [(0, 0)])


def test_pruning_again_goes_on_from_what_is_left() -> None:
    model = built("bloom-560m-tiny")
    inputs = inputs_of(model)
    twice = prune(prune(model, [(0, 1)]), [(0, 1)])  # of what is left, the second: it was the third
    torch.testing.assert_close(
        hidden(twice, *inputs), hidden(prune(model, [(0, 1), (0, 2)]), *inputs), rtol=0, atol=1e-6
    )
    assert twice.spec == prune(model, [(0, 1), (0, 2)]).spec


@pytest.mark.parametrize("relative", [Alibi(), Shaw(3)])
def test_a_pruned_decoder_writes_what_the_ablated_one_writes(relative: Any) -> None:
    model = plain(block={"relative": relative})
    smaller = prune(model, [(0, 1), (1, 0), (1, 2)])
    settings = Generation(max_new_tokens=12)
    with ablate(model, heads=[(0, 1), (1, 0), (1, 2)]):
        expected = generate(model, IDS, settings=settings)
    found, whole = generate(smaller, IDS, settings=settings), generate(model, IDS, settings=settings)
    assert torch.equal(found.ids, expected.ids)
    torch.testing.assert_close(found.logprobs, expected.logprobs, rtol=0, atol=1e-5)
    assert not torch.allclose(whole.logprobs, expected.logprobs, atol=1e-4)  # control


def test_the_notes_say_what_was_saved() -> None:
    model = built("gpt2-tiny")
    made = fewer_heads(model.spec, model, [(0, 1)])
    width, size = model.spec.stack.width, model.spec.stack.width // 4
    assert f"{4 * width * size + 3 * size:,} parameters fewer" in made.notes[0]  # q, k, v with biases, and W_O
    assert count(model) - count(made.model) == 4 * width * size + 3 * size


def test_frozen_weights_stay_frozen() -> None:
    model = plain()
    model.embed.table.weight.requires_grad_(False)
    smaller = prune(model, [every_head(model)[0].short])
    assert not smaller.embed.table.weight.requires_grad and smaller.stack.blocks[0].mixer.qkv.weight.requires_grad


def test_a_predictor_gives_a_predictor(tmp_path: Path) -> None:
    model = built("gpt2-tiny")
    save_own(tmp_path / "whole", model.spec, model)
    predictor = anyformer.load(tmp_path / "whole")
    smaller = prune(predictor, [(1, 0)])
    assert predictor.spec == model.spec and smaller.spec != model.spec
    smaller.save(tmp_path / "small")
    ids = inputs_of(model)[0]
    assert torch.equal(hidden(anyformer.load(tmp_path / "small").model, ids), hidden(smaller.model, ids))
    with pytest.raises(UserError, match="no family there has this network"):
        smaller.export(tmp_path / "hf", to="hf")


@pytest.mark.parametrize("relative", [Alibi(), Buckets(buckets=8, distance=16)])
def test_kernels_ask_for_one_pair_at_a_time_and_hear_the_same(relative: Any) -> None:
    """`bias_at` is what a kernel evaluates for single heads and positions, under vmap; `bias` is the definition."""
    some = SomeHeads(relative=relative, heads=(1, 2, 4), of=6)
    module = some.build(3, 4, 4, True)
    assert module is not None
    places = torch.arange(7)[None]
    tables = module(lay_out(1, 7, torch.device("cpu")), torch.float32)
    whole = some.bias(tables, places, places)
    assert whole is not None and whole.shape == (1, 3, 7, 7)

    def at(head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return some.bias_at(tables, head, query, key)

    by_key = torch.vmap(at, in_dims=(None, None, 0))
    by_query = torch.vmap(by_key, in_dims=(None, 0, None))
    each = torch.vmap(by_query, in_dims=(0, None, None))(torch.arange(3), places[0], places[0])
    assert torch.equal(each, whole[0])
    assert not torch.equal(each, relative.bias(tables, places, places)[0, :3])  # control: the first three are others
    slopes = some.slopes(tables)
    assert (slopes is None) == isinstance(relative, Buckets)
    assert slopes is None or torch.equal(slopes, relative.slopes(tables)[[1, 2, 4]])


@pytest.mark.parametrize("relative, heads", [(Rope(), (0,)), (Alibi(), ()), (Alibi(), (1, 0)), (Alibi(), (0, 2))])
def test_positions_of_heads_that_are_not_there_are_refused(relative: Any, heads: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="SomeHeads"):
        SomeHeads(relative=relative, heads=heads, of=2)
