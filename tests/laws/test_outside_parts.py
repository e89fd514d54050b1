"""Parts from outside the library start as their own modules say; the library's parts around them as ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyformer import MLP, Attention, Feed, Mixer, Model, Norm, Relative, UserError
from anyformer.checkpoints.folder import open_folder, save_own
from anyformer.core.own_init import Starting, constant
from tests.laws.nets import gap, language, tokens
from tests.laws.parts import WIDTH

GIVEN = tokens(2, 6)


class Scaled(Mixer):
    """Another mixer behind settings of its own."""

    inner: Mixer

    def build(self, width: int, *, causal: bool, relative: Relative, memory_width: int | None = None) -> nn.Module:
        return Scaling(width, self.inner.build(width, causal=causal, relative=relative, memory_width=memory_width))


class Scaling(Starting):
    def __init__(self, width: int, inner: nn.Module) -> None:
        super().__init__()
        self.ones = nn.Parameter(torch.ones(width))
        self.drawn = nn.Parameter(torch.rand(width))
        self.named = nn.Parameter(torch.empty(width))
        self.starts["named"] = constant(0.25)
        self.zeroed = nn.Linear(width, width)
        nn.init.zeros_(self.zeroed.weight)
        self.inner = inner  # of the library
        self.register_buffer("ramp", torch.linspace(0, 1, width))
        self.register_buffer("aside", torch.arange(3), persistent=False)
        self.plain = torch.full((width,), 2.0)
        self.number = float(self.plain.sum())  # computes with the numbers it sets

    def forward(self, x: Tensor, context: Any, state: Any, tables: Any) -> Tensor:
        y = self.inner(x, context, state, tables) * self.ones + self.zeroed(x)
        return y * self.named + self.ramp * self.drawn + self.plain * self.aside.sum() / self.number

    def state(self, batch: int, limit: int | None) -> Any:
        return self.inner.state(batch, limit)


class BatchNorm(Norm):
    """A layer of torch as it is: nothing but the spec says whose it is."""

    def build(self, width: int) -> nn.Module:
        norm = nn.LayerNorm(width)
        nn.init.constant_(norm.weight, 0.5)
        return nn.Sequential(norm, Turned(width))


class Turned(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.mT).mT


class Bare(Norm):
    def build(self, width: int) -> nn.Module:
        norm = nn.LayerNorm(width)
        nn.init.constant_(norm.weight, 0.5)
        return norm


def spec(**settings: Any) -> Model:
    return language(mixer=Scaled(inner=Attention(heads=4)), init="gpt2", **settings)


def test_what_a_module_sets_itself_is_kept() -> None:
    net = spec(norm=BatchNorm()).build(seed=0)
    for block in net.stack.blocks:
        mixer = block.mixer
        assert torch.equal(mixer.ones, torch.ones(WIDTH)) and torch.equal(mixer.named, torch.full((WIDTH,), 0.25))
        assert mixer.drawn.min() >= 0 and mixer.drawn.max() <= 1 and mixer.drawn.std() > 0.1
        assert not mixer.zeroed.weight.any() and mixer.zeroed.bias.any()  # torch's own start of a bias
        assert torch.equal(mixer.ramp, torch.linspace(0, 1, WIDTH)) and mixer.aside.tolist() == [0, 1, 2]
        assert mixer.plain.tolist() == [2.0] * WIDTH and mixer.number == 2.0 * WIDTH
        norm, turned = block.around_mixer.before
        assert torch.equal(norm.weight, torch.full((WIDTH,), 0.5))
        assert torch.equal(turned.norm.weight, torch.ones(WIDTH)) and torch.equal(
            turned.norm.running_var, torch.ones(WIDTH)
        )
        # The library's own parts follow the scheme, inside a part from outside too.
        assert 0.01 < mixer.inner.qkv.weight.std() < 0.03 and not mixer.inner.qkv.bias.any()
        assert 0.01 < block.feed.up.weight.std() < 0.03
    assert net.train()(GIVEN).logits.isfinite().all() and net.eval()(GIVEN).logits.isfinite().all()
    bare = language(norm=Bare()).build(seed=0)
    assert torch.equal(bare.stack.final.weight, torch.full((WIDTH,), 0.5))


def test_the_scheme_fills_what_is_the_librarys_to_the_same_bits() -> None:
    """The same spec without a part from outside: other numbers may be drawn between, the kinds of numbers may not."""
    inside = language(init="gpt2").build(seed=0)
    assert torch.equal(inside.embed.table.weight, spec().build(seed=0).embed.table.weight)  # the first that is drawn
    assert torch.equal(inside.stack.final.weight, spec().build(seed=0).stack.final.weight)


def test_a_seed_decides_what_a_module_draws_and_disturbs_nobody() -> None:
    torch.manual_seed(1)
    wanted = torch.get_rng_state()
    first = spec().build(seed=3).state_dict()
    assert torch.equal(torch.get_rng_state(), wanted)
    torch.manual_seed(2)
    second, other = spec().build(seed=3).state_dict(), spec().build(seed=4).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    drawn = "stack.blocks.0.mixer.drawn"
    assert not torch.equal(first[drawn], other[drawn])  # control: another seed, other numbers
    assert not torch.equal(first[drawn], first[drawn.replace("0", "1")])  # and another layer


def test_types_and_shapes_only() -> None:
    net = spec().build(seed=0, dtype=torch.float64)
    assert {p.dtype for p in net.parameters()} == {torch.float64}
    mixer = net.stack.blocks[0].mixer
    assert mixer.ramp.dtype == torch.float64 and mixer.aside.dtype == torch.int64
    meta = spec().build(device="meta")
    assert all(part.is_meta for part in (*meta.parameters(), *meta.buffers()))
    assert {n: p.shape for n, p in meta.named_parameters()} == {n: p.shape for n, p in net.named_parameters()}


def test_a_saved_model_has_its_buffers_again(tmp_path: Path) -> None:
    given = spec()
    net = given.build(seed=0).eval()
    with torch.no_grad():
        net.stack.blocks[0].mixer.ones.mul_(3.0)
    save_own(tmp_path / "model", given, net)
    again = open_folder(tmp_path / "model").model
    assert torch.equal(again(GIVEN).logits, net(GIVEN).logits)
    assert gap(again(GIVEN).logits, given.build(seed=0).eval()(GIVEN).logits) > 1e-4  # control: weights did arrive


def test_what_is_counted_in_a_buffer_cannot_be_saved(tmp_path: Path) -> None:
    given = language(norm=BatchNorm())
    net = given.build(seed=0)
    save_own(tmp_path / "fresh", given, net)
    net.train()(GIVEN)
    with pytest.raises(UserError, match="buffers are not saved"):
        save_own(tmp_path / "counted", given, net)


def test_a_feed_from_outside_that_draws_is_tried_out_without_a_trace() -> None:
    """A spec builds its parts once to see whether they fit: no numbers of the caller's are used up."""
    made: list[str] = []

    class Watched(Feed):
        def build(self, width: int) -> nn.Module:
            module = MLP().build(width)
            made.append(next(module.parameters()).device.type)
            torch.rand(3)
            return module

    before = torch.get_rng_state()
    language(feed=Watched())
    assert made and torch.equal(torch.get_rng_state(), before)


def test_a_question_by_its_old_name_is_refused() -> None:
    with pytest.raises(UserError, match="Tilted: biased is called has_bias now; rename it"):

        class Tilted(Relative):
            @property
            def biased(self) -> bool:
                return True

    class Straight(Relative):  # control: the new name, and an old one that another slot has
        adds: bool = False

        @property
        def has_bias(self) -> bool:
            return True

    assert Straight().has_bias
