"""Two streams against plain loops: forward, gradients, padding of either side, maps of both directions."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer import (
    Attention,
    Block,
    CoAttention,
    LayerNorm,
    Learned,
    Model,
    Pair,
    Patches,
    Pooled,
    Rope,
    Stack,
    Streams,
    Table,
    TokenHead,
    Tokens,
    UserError,
    attention_maps,
)
from anyformer.checkpoints.folder import open_folder, save_own
from anyformer.core.attend import weights_of
from anyformer.core.context import lay_out
from tests.laws.nets import EXACT, build, gap, numbers, tokens

CO = CoAttention(heads=2, key_size=5)


def stream(embed: Any, width: int, order: str, *, place: str = "post", heads: int = 4, **settings: Any) -> Model:
    """Layers by letter: a looks at its own tokens, C at the other stream."""
    kinds = {
        "a": Block(mixer=Attention(heads=heads), place=place),  # type: ignore[arg-type]
        "C": Block(mixer=CO, place=place),  # type: ignore[arg-type]
    }
    stack = Stack(width=width, depth=len(order), block=tuple(kinds[letter] for letter in order))
    return Model(embed=embed, stack=stack, **settings)


TEXT, IMAGE = Tokens(vocab=17, position=Learned(24), norm=LayerNorm()), Patches(size=8, patch=4, channels=2)


def vilbert(first: str = "aaCaCa", second: str = "CaCa", place: str = "post", **settings: Any) -> Streams:
    joint: dict[str, Any] = {"head": Pair(classes=3, features=("product",)), "init": "xavier"} | settings
    return Streams(
        first=stream(TEXT, 16, first, place=place, head=Pooled(dense=10, act="relu")),
        second=stream(IMAGE, 12, second, place=place, head=Pooled(dense=10, act="relu")),
        **joint,
    )


WORDS, PIXELS = tokens(3, 7), numbers(3, 2, 8, 8)
MASK = torch.ones(3, 7, dtype=torch.bool)
MASK[1, 4:] = MASK[2, :3] = False
SEEN = torch.ones(3, 5, dtype=torch.bool)
SEEN[0, 2:4] = False


# ---------------------------------------------------------------- the same in plain loops


def looped(block: Any, x: Tensor, z: Tensor, seen: Tensor | None) -> Tensor:
    """One post-norm block, a query and a head at a time; queries from x, keys and values from z."""
    mixer, sizes = block.mixer, block.mixer.sizes
    channels = sizes.channels
    if isinstance(block.spec.mixer, CoAttention):
        q = mixer.q(x).unflatten(-1, (sizes.heads, channels))
        k, v = mixer.kv(z).unflatten(-1, (sizes.heads, 2 * channels)).split(channels, -1)
    else:
        q, k, v = mixer.qkv(x).unflatten(-1, (sizes.heads, 3 * channels)).split(channels, -1)
    rows = []
    for b in range(x.shape[0]):
        for i in range(x.shape[1]):
            heads = []
            for h in range(sizes.heads):
                keys = [j for j in range(z.shape[1]) if seen is None or seen[b, j]]
                scores = torch.stack([q[b, i, h] @ k[b, j, h] / channels**0.5 for j in keys])
                shares = scores.exp() / scores.exp().sum()
                heads.append(sum(share * v[b, j, h] for share, j in zip(shares, keys, strict=True)))
            rows.append(torch.cat(heads))
    mixed = mixer.out(torch.stack(rows).view(x.shape[0], x.shape[1], -1))
    x = block.around_mixer.after(x + mixed)
    return block.around_feed.after(x + block.feed.down(F.gelu(block.feed.up(x))))


def naive(net: Any) -> Tensor:
    """ViLBERT by hand: two text layers, then twice a meeting of both and a layer of each."""
    x = net.first.embed(WORDS, context=net.first.embed.layout(WORDS, mask=MASK))
    z = net.second.embed(PIXELS, context=net.second.embed.layout(PIXELS, mask=SEEN))
    text, image = net.first.stack.blocks, net.second.stack.blocks
    x = looped(text[0], x, x, MASK)
    x = looped(text[1], x, x, MASK)
    for i in (0, 1):
        x, z = looped(text[2 + 2 * i], x, z, SEEN), looped(image[2 * i], z, x, MASK)  # both from what stood before
        x, z = looped(text[3 + 2 * i], x, x, MASK), looped(image[1 + 2 * i], z, z, SEEN)
    u = F.relu(net.first.head.dense(torch.stack([x[0, 0], x[1, 0], x[2, 3]])))  # the first real token
    v = F.relu(net.second.head.dense(z[:, 0]))
    return net.head.out(u * v)


def test_forward_and_gradients_equal_plain_loops() -> None:
    net = build(vilbert())
    other = copy.deepcopy(net)
    got, wanted = net(WORDS, PIXELS, first_mask=MASK, second_mask=SEEN).logits, naive(other)
    assert gap(got, wanted) < EXACT
    for out in (got, wanted):
        (out * numbers(3, 3, seed=4)).sum().backward()
    for (name, p), q in zip(net.named_parameters(), other.parameters(), strict=True):
        assert p.grad is not None and p.grad.any(), name
        assert q.grad is not None and gap(p.grad, q.grad) < EXACT, name
    with torch.no_grad():  # control: one direction cut off is noticed
        net.second.stack.blocks[0].mixer.kv.weight.mul_(0.5)
        assert gap(net(WORDS, PIXELS, first_mask=MASK, second_mask=SEEN).logits, wanted) > 1e-6


@pytest.mark.quick
def test_one_direction_equals_transformers_attention_over_another_width() -> None:
    from transformers.models.lxmert.modeling_lxmert import LxmertAttention, LxmertConfig

    config = LxmertConfig(hidden_size=16, num_attention_heads=4, attention_probs_dropout_prob=0.0)
    theirs = LxmertAttention(config, ctx_dim=12).double()
    spec = Block(mixer=CoAttention(heads=4), feed=None, place="post")
    ours = spec.build(16, causal=False, memory_width=12).double().mixer
    with torch.no_grad():
        parts = [(p.weight.unflatten(0, (4, 4)), p.bias.unflatten(0, (4, 4))) for p in (theirs.key, theirs.value)]
        ours.kv.weight.copy_(torch.cat([w for w, _ in parts], 1).flatten(0, 1))  # head by head: key, value
        ours.kv.bias.copy_(torch.cat([b for _, b in parts], 1).flatten())
        ours.q.load_state_dict(theirs.query.state_dict())
        ours.out.weight.copy_(torch.eye(16))
        ours.out.bias.zero_()
    x, z = numbers(3, 7, 16).requires_grad_(), numbers(3, 5, 12, seed=1).requires_grad_()
    hidden = torch.zeros(3, 1, 1, 5, dtype=torch.float64).masked_fill(~SEEN[:, None, None], -torch.inf)
    wanted, weights = theirs(x, z, hidden, output_attentions=True)
    context = replace(lay_out(3, 7, torch.device("cpu")), memory=z, memory_mask=SEEN)
    got = ours(x, context, None, ())
    assert gap(got, wanted) < EXACT
    prepared = ours.prepare(x, context, None, ())
    assert gap(weights_of(prepared.q, prepared.k, prepared.scores), weights) < EXACT
    for mine, yours in zip(*(torch.autograd.grad(out.square().sum(), (x, z)) for out in (got, wanted)), strict=True):
        assert gap(mine, yours) < EXACT
    assert gap(ours(x, replace(context, memory_mask=None), None, ()), wanted) > 1e-3  # control


# ---------------------------------------------------------------- laws


@pytest.mark.quick
@pytest.mark.parametrize("place", ["pre", "post"])
@torch.no_grad()
def test_padding_of_either_side_changes_nothing_and_a_batch_is_its_rows(place: str) -> None:
    net = build(vilbert(place=place))
    out = net(WORDS, PIXELS, first_mask=MASK)
    for row in range(3):
        alone = net(WORDS[row : row + 1, MASK[row]], PIXELS[row : row + 1])
        assert gap(out.first.hidden[row][MASK[row]], alone.first.hidden[0]) < EXACT
        assert gap(out.second.hidden[row], alone.second.hidden[0]) < EXACT
        assert gap(out.logits[row], alone.logits[0]) < EXACT
    assert gap(net(WORDS, PIXELS).second.hidden, out.second.hidden) > 1e-3  # control: padding that is seen
    two = build(Streams(first=vilbert().second, second=vilbert().first, init="xavier"))  # the text as the second
    padded = two(PIXELS, WORDS, second_mask=MASK)
    alone = two(PIXELS[2:], WORDS[2:, 3:])
    assert gap(padded.second.hidden[2, 3:], alone.second.hidden[0]) < EXACT
    assert gap(padded.hidden[2], alone.hidden[0]) < EXACT


@torch.no_grad()
def test_a_stream_hidden_from_a_row_has_no_say_there() -> None:
    for features in (("product",), ("first", "second", "difference", "product")):
        net = build(vilbert(head=Pair(classes=3, features=features)))
        seen = torch.tensor([True, False, True])
        out = net(WORDS, PIXELS, mask=(MASK, seen)).logits
        other = net(WORDS, PIXELS.flip(0), mask=(MASK, seen)).logits
        assert gap(out[1], other[1]) < EXACT and gap(out[0], other[0]) > 1e-3
        assert gap(out[0], net(WORDS, PIXELS, first_mask=MASK).logits[0]) < EXACT
        words = net(WORDS.roll(1, 0), PIXELS, mask=(None, seen)).logits
        assert gap(words[1], out[1]) > 1e-3  # what is there still counts


@torch.no_grad()
def test_maps_of_both_directions_come_back() -> None:
    net = build(vilbert())
    before = net(WORDS, PIXELS, first_mask=MASK).logits
    maps = attention_maps(net, WORDS, PIXELS, first_mask=MASK)
    shapes = {path: weights[0].shape for path, weights in maps.items()}
    assert len(maps) == 6 + 4
    assert shapes["first.stack.blocks.2.mixer"] == (3, 2, 7, 5)  # words look at patches
    assert shapes["second.stack.blocks.0.mixer"] == (3, 2, 5, 7)  # patches look at words
    assert shapes["first.stack.blocks.0.mixer"] == (3, 4, 7, 7)
    looking = maps["second.stack.blocks.2.mixer"][0]
    assert gap(looking.sum(-1), torch.ones(3, 2, 5, dtype=torch.float64)) < EXACT
    assert (looking[1, :, :, 4:] == 0).all() and (looking[0] > 0).all()  # padding of the other side is not seen
    assert torch.equal(net(WORDS, PIXELS, first_mask=MASK).logits, before)


def test_layers_that_meet_do_so_at_once() -> None:
    """Without layers of their own in between, swapping the streams swaps the answers: neither is ahead."""
    one = stream(Tokens(vocab=17), 16, "CC")
    net = build(Streams(first=one, second=one))
    twin = copy.deepcopy(net)
    twin.first, twin.second = net.second, net.first
    a, b = net(WORDS, WORDS.flip(0)), twin(WORDS.flip(0), WORDS)
    assert torch.equal(a.hidden, b.second.hidden) and torch.equal(a.second.hidden, b.hidden)


@torch.no_grad()
def test_recomputing_relative_positions_and_tables_work_too() -> None:
    rotary = Block(mixer=Attention(heads=2), relative=Rope())
    first = Model(embed=Tokens(vocab=17), stack=Stack(width=16, depth=2, block=(rotary, Block(mixer=CO))))
    second = stream(Table(numbers=2, categories=(3,)), 8, "Ca", heads=2)
    spec = Streams(first=first, second=second, init="xavier")
    columns = numbers(3, 2), tokens(3, 1, vocab=3)
    net = build(spec)
    wanted = net(WORDS, columns).hidden
    again = build(spec.replace(first=first.replace(stack=first.stack.replace(recompute=True)))).train()
    with torch.enable_grad():
        got = again(WORDS, columns).hidden
        got.sum().backward()
    assert gap(got.detach(), wanted) < EXACT
    assert gap(net(WORDS.roll(1, 1), columns).hidden.roll(-1, 1), wanted) > 1e-3  # positions count


@pytest.mark.quick
def test_it_is_saved_and_built_like_every_model(tmp_path: Any) -> None:
    spec = vilbert()
    assert Streams.from_json(spec.to_json()) == spec
    net = spec.build(seed=3)
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), spec.build(seed=3).parameters(), strict=True))
    meta = spec.build(device="meta")
    assert {k: v.shape for k, v in meta.state_dict().items()} == {k: v.shape for k, v in net.state_dict().items()}
    starts = {name.split(".")[0] for name in net.state_dict()}
    assert starts == {"first", "second", "head"} and list(net.buffers()) == []
    save_own(tmp_path / "x", spec, net)
    opened = open_folder(tmp_path / "x")
    assert opened.spec == spec
    given = (WORDS, PIXELS.float())
    assert torch.equal(opened.model(*given).logits, net.eval()(*given).logits)


def test_each_stream_may_have_a_head_of_its_own() -> None:
    spec = Streams(first=stream(TEXT, 16, "C", head=TokenHead(classes=5)), second=stream(IMAGE, 12, "C"))
    out = build(spec)(WORDS, PIXELS)
    assert out.logits.shape == (3, 7, 5) and torch.equal(out.logits, out.first.logits)
    assert out.second.logits is None and out.second.hidden.shape == (3, 5, 12)


REFUSED = {
    "not as many": (lambda: vilbert("aCa", "CaCa"), "1 layers of the first look at the second, 2 the other way"),
    "none": (lambda: vilbert("aa", "aa"), "0 layers of the first"),
    "causal": (
        lambda: vilbert().replace(
            first=vilbert().first.replace(stack=vilbert().first.stack.replace(causal=True))  # type: ignore[arg-type]
        ),
        "their own future through the other",
    ),
    "no vector": (lambda: vilbert().replace(second=stream(IMAGE, 12, "CC")), "has no pooled vector"),
    "widths": (
        lambda: vilbert().replace(second=stream(IMAGE, 12, "CC", head=Pooled(dense=9))),
        "the vectors are 10 and 9 wide",
    ),
    "rows": (lambda: build(vilbert())(WORDS, PIXELS[:2]), "3 rows meet 2"),
    "masks": (lambda: build(vilbert())(WORDS, PIXELS, mask=MASK), "a pair of masks"),
    "rules": (
        lambda: build(vilbert())(WORDS, PIXELS, first_mask=torch.ones(3, 1, 7, 7, dtype=torch.bool)),
        "CoAttention knows padding and documents",
    ),
    "input": (lambda: build(vilbert())(WORDS, None), "pixels are NoneType"),
}


@pytest.mark.parametrize(("make", "said"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(make: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        make()
    assert caught.value.fix and len(str(caught.value)) <= 300
