"""Weights in 8 bits: how far off they may be, what they take, and that every form of the product is the same."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import anyformer
from anyformer import LM, MLP, Attention, Block, Experts, Model, Stack, Tokens, UserError
from anyformer.checkpoints.folder import save_foreign, save_own
from anyformer.generation import Generation, generate
from anyformer.kernels import cpu, int8
from anyformer.kernels.cpu import few_rows
from anyformer.kernels.int8 import Int8, Int8Linear, by_reading, by_widening
from anyformer.kernels.quantise import quantise

quick = pytest.mark.quick


def small(tied: bool = True, feed: object = None) -> torch.nn.Module:
    block = Block(mixer=Attention(heads=4), feed=MLP() if feed is None else feed)  # type: ignore[arg-type]
    stack = Stack(width=64, depth=2, causal=True, block=block)
    return Model(embed=Tokens(vocab=97), stack=stack, head=LM(tied=tied)).build(seed=0).eval()


def size(model: torch.nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))


@quick
def test_no_weight_is_off_by_more_than_half_a_scale() -> None:
    weight = torch.randn(50, 30, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 50)[:, None]
    weight[7] = 0.0
    rounded = Int8.of(weight)
    assert rounded.values.dtype == torch.int8 and rounded.values.abs().max() == 127
    off = (rounded.wide(torch.float32) - weight).abs()
    assert (off <= 0.5001 * rounded.scales[:, None]).all() and (off[7] == 0).all()
    one_scale = Int8((weight / weight.abs().max() * 127).round().to(torch.int8), weight.abs().max().expand(50) / 127)
    assert ((one_scale.wide(torch.float32) - weight).abs() > 0.5001 * rounded.scales[:, None]).any()  # the control


@quick
def test_every_form_of_the_product_is_the_same() -> None:
    draw = torch.Generator().manual_seed(0)
    rounded = Int8.of(torch.randn(70, 33, generator=draw))
    for rows in (1, 3, 9):
        x = torch.randn(rows, 33, generator=draw)
        want = x.double() @ rounded.wide(torch.float64).T
        for form in (by_reading, by_widening, lambda *given: few_rows(*given, None)):
            assert torch.allclose(form(x, *rounded[:2]).double(), want, atol=1e-4)
    x = torch.randn(2, 5, 33, generator=draw)
    assert torch.allclose(rounded.product(x, torch.ones(70)), x @ rounded.wide(torch.float32).T + 1, atol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_stay_near_and_memory_falls(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is a fifth of the logits' deviation; a sixteenth of the levels breaks it."""
    model, ids = small(tied), torch.randint(0, 97, (4, 32), generator=torch.Generator().manual_seed(0))
    want = model(ids).logits.detach()
    if not tied:  # a fresh head of its own is all zeros
        torch.nn.init.normal_(model.head.weight, std=0.02)
        want = model(ids).logits.detach()
    rounded = quantise(copy.deepcopy(model))
    off = (rounded(ids).logits - want).abs().max() / want.std()
    assert off < 0.2
    assert size(model) / size(rounded) > 3.5
    monkeypatch.setattr(int8, "LARGEST", 7)
    assert (quantise(copy.deepcopy(model))(ids).logits - want).abs().max() / want.std() > 0.2


def test_experts_and_training_losses_can_read_rounded_weights() -> None:
    model = small(feed=Experts(count=4))
    ids = torch.randint(0, 97, (2, 8), generator=torch.Generator().manual_seed(0))
    want = model(ids).logits.detach()
    rounded = quantise(model)
    assert isinstance(rounded.stack.blocks[0].mixer.qkv, Int8Linear)
    assert (rounded(ids).logits - want).abs().max() < 0.3 * want.std()
    hidden = torch.randn(2, 8, 64)
    assert torch.isfinite(rounded.head.loss(hidden, ids, rounded.table()))


def test_writing_with_rounded_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """With our own products and without them, and nothing is left to round a second time."""
    model = quantise(small())
    made = generate(model, torch.tensor([[1, 2, 3]]), settings=Generation(max_new_tokens=6))
    ours = model(made.ids[:, :-1]).logits.detach()
    monkeypatch.setattr(int8, "is_available", lambda: False)
    monkeypatch.setattr(cpu, "few_rows", None)  # nobody asks for it any more
    whole = model(made.ids[:, :-1]).logits
    assert torch.equal(made.new, whole[:, 2:].argmax(-1)) and torch.allclose(ours, whole, atol=1e-5)
    with pytest.raises(UserError, match="no weights to round"):
        quantise(model)
    with pytest.raises(UserError, match="int4"):
        quantise(small(), "int4")


def test_gradients_go_through_rounded_weights() -> None:
    """Of inputs, which attributions ask for: our own products would lose them."""
    layer = Int8Linear(torch.nn.Linear(6, 5))
    x = torch.randn(2, 6, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None and torch.allclose(x.grad, layer.weight.sum(0).expand(2, 6), atol=1e-5)


def test_a_rounded_model_is_not_saved(tmp_path: Path) -> None:
    model = quantise(small())
    for write in (lambda: save_own(tmp_path / "own", model.spec, model),
                  lambda: save_foreign(tmp_path / "hf", model.spec, model)):  # fmt: skip
        with pytest.raises(UserError, match="in 8 bits cannot be saved.*save it before quantise"):
            write()
    assert not list(tmp_path.iterdir())
    assert (save_own(tmp_path / "own", model.spec, small()) / "anyformer.json").exists()  # the control


def test_what_8_bits_cost_a_trained_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few steps on texts with a rule: the loss moves by less than a hundredth of a nat, by more with a few levels."""
    torch.manual_seed(0)
    model = small().train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    starts = torch.randint(0, 97, (64, 1))
    ids = (starts + torch.arange(17) * (1 + starts % 3)) % 97  # each text counts on in steps of 1, 2 or 3
    for _ in range(80):
        loss = F.cross_entropy(model(ids[:, :-1]).logits.flatten(0, 1), ids[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    @torch.no_grad()
    def lost(net: torch.nn.Module) -> float:
        return float(F.cross_entropy(net.eval()(ids[:, :-1]).logits.flatten(0, 1), ids[:, 1:].flatten()))

    trained = lost(model)
    assert trained < 1.0
    assert abs(lost(quantise(copy.deepcopy(model))) - trained) < 0.01
    monkeypatch.setattr(int8, "LARGEST", 3)
    assert abs(lost(quantise(copy.deepcopy(model))) - trained) > 0.01


def test_the_public_name() -> None:
    assert anyformer.quantise is quantise


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_models_of_every_precision_can_be_rounded(dtype: torch.dtype) -> None:
    net = anyformer.preset("gpt2-tiny").build(seed=0, dtype=dtype)
    ids = torch.arange(12).reshape(2, 6)
    wanted = net(ids).logits
    found = quantise(net)(ids).logits
    assert found.dtype == wanted.dtype == dtype
    assert (found - wanted).abs().max() < 0.1 * wanted.std()
    assert generate(net, ids, settings=Generation(max_new_tokens=3)).ids.shape == (2, 9)
    assert net.float()(ids).logits.dtype == torch.float32  # moved afterwards
