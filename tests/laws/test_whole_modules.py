"""Built networks as other tools take them: copied, pickled, exported; and what is refused before anything runs."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from anyformer import Attention, Block, Model, Pyramid, Stack, UserError, preset, preset_names
from tests.laws.nets import around, inputs
from tests.laws.nets import build as build_small
from tests.laws.parts import mixers

TINY = [name for name in preset_names() if name.endswith("-tiny")]


def outputs(net: Any) -> list[Tensor]:
    """What a model gives for made-up inputs; nothing for networks of several inputs of their own kinds."""
    if not isinstance(net.spec, Model):
        return []
    with torch.no_grad():
        out = net(*inputs(net.spec.embed, dtype=torch.float32))
    return [part for part in (out.hidden, out.logits, out.pooled) if part is not None]


def alike(net: nn.Module, other: nn.Module) -> bool:
    pairs = list(zip(net.named_parameters(), other.named_parameters(), strict=True))
    return all(a == b and torch.equal(p, q) and p is not q for (a, p), (b, q) in pairs) and all(
        torch.equal(a, b) for a, b in zip(outputs(net), outputs(other), strict=True)
    )


@pytest.mark.parametrize("name", TINY)
def test_every_preset_is_copied_and_pickled_whole(name: str) -> None:
    spec = preset(name)
    assert pickle.loads(pickle.dumps(spec)) == spec
    net = spec.build(seed=0).eval()
    outputs(net)  # what a pass keeps for the next one must not be in the way
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    assert alike(net, torch.load(file, weights_only=False))
    copied = copy.deepcopy(net)
    assert alike(net, copied)
    with torch.no_grad():
        next(copied.parameters()).add_(1.0)
    assert not torch.equal(next(net.parameters()), next(copied.parameters()))  # control: a copy of its own


@pytest.mark.parametrize("mixer", mixers(text=False))
def test_every_mixer_is_pickled_and_starts_again_as_it_did(mixer: Any) -> None:
    from anyformer.core.init import initialise

    net = build_small(around(mixer))
    again = pickle.loads(pickle.dumps(net))
    for each in (net, again):
        initialise(each, "xavier", 3)  # how its parts start is part of it
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), again.parameters(), strict=True))


IDS, OTHERS = torch.arange(14).view(2, 7), torch.arange(10).view(2, 5)
EXPORTED = {
    "decoder": ("gpt2-tiny", (IDS,), {"mask": torch.ones(2, 7, dtype=torch.bool).triu(-5)}),
    "rotary": ("llama3-8b-tiny", (IDS,), {}),
    "encoder": ("bert-base-tiny", (IDS,), {}),
    "images": ("vit-b16-tiny", (torch.linspace(-1, 1, 6144).view(2, 3, 32, 32),), {}),
    "table": ("ft-transformer-tiny", (torch.linspace(-1, 1, 16).view(2, 8), None), {}),
    "pair": ("t5-small-tiny", (IDS, OTHERS), {}),
    "towers": ("clip-b32-tiny", (IDS, torch.linspace(-1, 1, 6144).view(2, 3, 32, 32)), {}),
}


@pytest.mark.parametrize("kind", EXPORTED)
@torch.no_grad()
def test_an_exported_model_gives_what_it_gives(kind: str) -> None:
    name, given, options = EXPORTED[kind]
    net = preset(name).build(seed=0).eval()
    exported = torch.export.export(net, given, options).module()
    found, wanted = exported(*given, **options), net(*given, **options)
    assert type(found) is type(wanted)
    for a, b in zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True):
        assert a is b is None or torch.allclose(a, b, atol=1e-5)
    first = given[0].flip(0)
    other = exported(first, *given[1:], **options)
    assert not torch.allclose(other.hidden, wanted.hidden, atol=1e-3)  # control: it computes, and holds no answer
    assert torch.allclose(other.hidden, net(first, *given[1:], **options).hidden, atol=1e-5)


@torch.no_grad()
def test_an_exported_model_is_saved_with_its_kind_of_output(tmp_path: Any) -> None:
    net = preset("vit-b16-tiny").build(seed=0).eval()
    given = EXPORTED["images"][1]
    torch.export.save(torch.export.export(net, given), tmp_path / "vit.pt2")
    out = torch.export.load(tmp_path / "vit.pt2").module()(*given)
    assert torch.allclose(out.logits, net(*given).logits, atol=1e-5)
    assert out.context.grid == (8, 8)


def test_an_output_is_a_tree_and_comes_back_whole() -> None:
    out = preset("gpt2-tiny").build(seed=0)(IDS)
    doubled = pytree.tree_map_only(Tensor, lambda part: part * 2, out)
    assert torch.equal(doubled.logits, out.logits * 2) and doubled.pooled is None
    assert doubled.context.ordered is out.context.ordered and torch.equal(doubled.context.index, out.context.index * 2)


@pytest.mark.parametrize("name", ["gpt2-tiny", "bert-base-tiny", "vit-b16-tiny", "ft-transformer-tiny", "lstm-lm-tiny",
                                  "hyena-small-tiny", "switch-small-tiny"])  # fmt: skip
def test_a_batch_without_rows_is_one_sentence(name: str) -> None:
    net = preset(name).build(seed=0)
    given = [None if part is None else part[:0] for part in inputs(net.spec.embed, dtype=torch.float32)]
    with pytest.raises(UserError, match="holds no rows"):
        net(*given)


def test_a_pair_without_rows_is_one_sentence() -> None:
    with pytest.raises(UserError, match="holds no rows"):
        preset("t5-small-tiny").build(seed=0)(IDS[:0], OTHERS[:0])


def test_a_stack_by_itself_says_what_it_lacks() -> None:
    block = Block(mixer=Attention(heads=4))
    with pytest.raises(UserError, match=r"Model\(embed"):
        Stack(width=16, depth=1, block=block).build()(torch.zeros(2, 3, 16))
    pyramid = preset("pyramid-small-tiny").stack
    assert isinstance(pyramid, Pyramid)
    with pytest.raises(UserError, match=r"Model\(embed"):
        pyramid.build()(torch.zeros(2, 64, pyramid.width))
