"""Norms, feeds, embeddings and the loss against torch, transformers and hand-written formulas."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from anyformer import LM, MLP, LayerNorm, Patches, RMSNorm, Table, Tokens, linear_cross_entropy
from anyformer.core import loss as loss_module
from anyformer.embeds.patches import cut
from tests.reference.copying import CAST, EXACT, agree, call, context_of, deviation, seeded, shaken
from tests.reference.test_absolute_positions import Wrapped
from tests.reference.watching import largest

B, T, D = 2, 7, 12


# ---------------------------------------------------------------- norms


@pytest.mark.quick
@pytest.mark.parametrize("eps", [1e-6, 1e-3])
def test_rms_norm_equals_llamas_and_the_formula(eps: float) -> None:
    theirs, x = shaken(LlamaRMSNorm(D, eps)), seeded(B, T, D)
    ours = RMSNorm(eps=eps).build(D)
    out = call(ours, {"weight": theirs.weight}, x)
    agree(out, theirs(x), [x, theirs.weight], bound=CAST)  # it casts to float32 inside
    agree(out, x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * theirs.weight, [x, theirs.weight])
    assert deviation(call(LayerNorm(bias=False).build(D), {"weight": theirs.weight}, x), theirs(x)) > 1e-3


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_equals_the_formula(bias: bool) -> None:
    ours, x = shaken(LayerNorm(eps=1e-4, bias=bias).build(D)), seeded(B, T, D)
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-4).sqrt() * ours.weight
    agree(ours(x), expected + ours.bias if bias else expected, [x, *ours.parameters()])
    assert deviation(ours(x), centred / centred.std(-1, keepdim=True)) > 1e-3  # control: n - 1, no gain


# ---------------------------------------------------------------- feeds

ACTS = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "relu2": lambda x: x.clamp(min=0) ** 2,
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "tanh": lambda x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()),
}


@pytest.mark.quick
@pytest.mark.parametrize("act", list(ACTS))
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_each_feed_equals_its_formula(act: str, gated: bool, bias: bool) -> None:
    feed, x = shaken(MLP(width=20, act=act, gated=gated, bias=bias).build(D)), seeded(B, T, D)
    h = x @ feed.up.weight.T + (feed.up.bias if bias else 0)
    if gated:
        h = torch.stack([ACTS[act](h[..., 2 * i]) * h[..., 2 * i + 1] for i in range(20)], -1)
    else:
        h = ACTS[act](h)
    expected = h @ feed.down.weight.T + (feed.down.bias if bias else 0)
    agree(feed(x), expected, [x, *feed.parameters()])
    assert deviation(feed(x), expected * 1.001) > 1e-6


def convolved(feed: nn.Module, x: Tensor) -> Tensor:
    """The same two matrices as convolutions of kernel 1 along the tokens."""
    up, down = nn.Conv1d(D, 4 * D, 1), nn.Conv1d(4 * D, D, 1)
    weights = {"weight": feed.up.weight[..., None], "bias": feed.up.bias}
    h = F.gelu(call(up, weights, x.mT))
    return call(down, {"weight": feed.down.weight[..., None], "bias": feed.down.bias}, h).mT


@pytest.mark.quick
def test_a_feed_is_a_convolution_of_kernel_one() -> None:
    feed, x = shaken(MLP().build(D)), seeded(B, T, D)
    agree(feed(x), convolved(feed, x), [x, *feed.parameters()], bound=1e-12)
    single = feed.float()
    agree(single(x.float()), convolved(single, x.float()), bound=1e-6)
    wide = F.conv1d(x.float().mT, single.up.weight[..., None].expand(-1, -1, 3), padding=1)
    assert deviation(wide.mT, single.up(x.float())) > 1e-2  # control: kernel 3 mixes tokens


def test_a_feed_moves_with_its_tokens() -> None:
    feed, x, order = shaken(MLP().build(D)), seeded(B, T, D), torch.randperm(T)
    # To rounding: where a row stands in a product may decide the order of its sum (blocks of rows, and what is left).
    agree(feed(x[:, order]), feed(x)[:, order], [x, *feed.parameters()])
    assert deviation(feed(x[:, order]), feed(x)) > 1e-3  # control: they do move


# ---------------------------------------------------------------- embeddings


@pytest.mark.parametrize(("size", "patch", "channels"), [((8, 12), 4, 3), ((6, 6), 2, 1), ((16, 16), 16, 3)])
def test_patches_equal_a_strided_convolution(size: tuple[int, int], patch: int, channels: int) -> None:
    embed, images = shaken(Patches(size=size, patch=patch, channels=channels, cls=False, position=None).build(D)), None
    images = seeded(B, channels, *size)
    kernel = embed.patch.weight.unflatten(1, (channels, patch, patch))
    strided = F.conv2d(images, kernel, embed.patch.bias, stride=patch)
    agree(Wrapped(embed)(images), strided.flatten(2).mT, [images, *embed.parameters()])
    assert cut(images, patch).shape == (B, size[0] * size[1] // patch**2, channels * patch**2)
    if size[0] != patch:  # control: rows and columns swapped
        turned = F.conv2d(images.mT, kernel.mT, embed.patch.bias, stride=patch).flatten(2).mT
        assert deviation(Wrapped(embed)(images), turned) > 1e-3


def test_the_feature_tokenizer_equals_its_formula() -> None:
    embed = shaken(Table(numbers=3, categories=(4, 2), missing=True).build(D))
    numbers, categories = seeded(B, 3), torch.tensor([[3, 0], [0, 1]])
    rows = embed.category.weight
    tokens = [embed.lead[0].expand(B, D)]
    tokens += [numbers[:, j, None] * embed.weight[j] + embed.bias[j] for j in range(3)]
    tokens += [rows[categories[:, 0]] + embed.bias[3], rows[5 + categories[:, 1]] + embed.bias[4]]
    out = Wrapped(embed)(numbers, categories)
    assert out.shape == (B, 6, D)
    agree(out, torch.stack(tokens, 1), [numbers, *embed.parameters()])
    holes = numbers.detach().clone()
    holes[0, 1] = torch.nan
    other = Wrapped(embed)(holes, torch.tensor([[-1, 0], [0, -1]]))
    agree(other[0, 2], embed.absent[1] + embed.bias[1], [embed.absent])
    agree(other[0, 4], rows[4] + embed.bias[3])
    agree(other[1, 5], rows[7] + embed.bias[4])
    agree(other[1, 1:4], out[1, 1:4])
    assert other.isfinite().all()


@pytest.mark.quick
def test_an_embedding_is_a_one_hot_row_times_the_table_bit_for_bit() -> None:
    embed, ids = shaken(Tokens(vocab=9).build(D)), torch.tensor([[5, 0, 8], [5, 5, 2]])
    one_hot = F.one_hot(ids, 9).double()
    out = Wrapped(embed)(ids)
    assert torch.equal(out, one_hot @ embed.table.weight)
    agree(out, one_hot @ embed.table.weight, [embed.table.weight])
    out.square().sum().backward()
    unused = [1, 3, 4, 6, 7]
    assert torch.equal(embed.table.weight.grad[unused], torch.zeros(5, D, dtype=torch.float64))
    assert embed.table.weight.grad[[0, 2, 5, 8]].abs().min() > 0


# ---------------------------------------------------------------- linear layer and cross-entropy in one


@pytest.mark.quick
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignored", ["none", "some", "all"])
def test_the_fused_loss_equals_torchs(
    bias: bool, soft_cap: float | None, smoothing: float, ignored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "CHUNK", 3 * 11)  # three tokens at a time
    hidden, weight, extra = seeded(B, T, D), seeded(11, D, seed=2), seeded(11, seed=3) if bias else None
    targets = torch.randint(0, 11, (B, T), generator=torch.Generator().manual_seed(0))
    if ignored != "none":
        targets[0, : T if ignored == "some" else None] = -100
        targets[1, 0 if ignored == "all" else 3 :: 2] = -100
    if ignored == "all":
        targets[:] = -100
    logits = F.linear(hidden, weight, extra)
    logits = logits if soft_cap is None else soft_cap * torch.tanh(logits / soft_cap)
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=smoothing, reduction="sum")
    expected = expected / (targets != -100).sum().clamp(min=1)
    ours = linear_cross_entropy(hidden, weight, targets, bias=extra, soft_cap=soft_cap, smoothing=smoothing)
    agree(ours, expected, [hidden, weight] + ([] if extra is None else [extra]))
    if ignored != "all":
        assert deviation(ours, expected * 1.001) > 1e-6


def test_the_fused_loss_of_a_head_equals_its_logits_and_never_holds_them() -> None:
    head = shaken(
        LM(tied=False, transform="gelu", norm=LayerNorm(), bias=True, scale=0.7, soft_cap=3.0).build(D, (13, None))
    )
    hidden = seeded(B, T, D)
    targets = torch.randint(0, 13, (B, T))
    logits = head(hidden, context_of(hidden), None).logits
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    agree(head.loss(hidden, targets, None), expected, [hidden, *head.parameters()], bound=EXACT)

    vocab, tokens = 4096, 8192
    rows, table = torch.randn(tokens, 4, requires_grad=True), torch.randn(vocab, 4, requires_grad=True)
    wanted = torch.randint(0, vocab, (tokens,))
    assert largest(lambda: linear_cross_entropy(rows, table, wanted).backward()) < vocab * tokens / 4
    assert largest(lambda: F.cross_entropy(rows @ table.T, wanted).backward()) >= vocab * tokens
