"""The sum around a sublayer: places as their formulas, layer scale, drop path, parallel branches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer import MLP, Attention, Block, Norm
from anyformer.core.context import lay_out
from anyformer.core.residual import Residual
from tests.laws.nets import EXACT, block, build, filled, gap, model, numbers, tokens
from tests.laws.parts import every

X = numbers(2, 5, 16)
CONTEXT = lay_out(2, 5, X.device)


def made(**settings: Any) -> Any:
    return filled(block(**settings).build(16, causal=True).double().eval())


def run(module: Any) -> Tensor:
    return module(X, CONTEXT, None, ())[0]


def sub(module: Any, x: Tensor) -> Tensor:
    return module.mixer(x, CONTEXT, None, ())


@pytest.mark.quick
@pytest.mark.parametrize("norm", every(Norm))
def test_places_are_their_formulas(norm: Norm) -> None:
    """pre x + f(n(x)), post n(x + f(x)), branch x + n(f(x)), sandwich x + n'(f(n(x))): written out, both sublayers."""
    results = []
    for place in ("pre", "post", "branch", "sandwich"):
        m = made(norm=norm, place=place)
        a, b = m.around_mixer, m.around_feed
        if place == "pre":
            h = X + sub(m, a.before(X))
            wanted = h + m.feed(b.before(h))
        elif place == "post":
            h = a.after(X + sub(m, X))
            wanted = b.after(h + m.feed(h))
        elif place == "branch":
            h = X + a.inside(sub(m, X))
            wanted = h + b.inside(m.feed(h))
        else:
            h = X + a.inside(sub(m, a.before(X)))
            wanted = h + b.inside(m.feed(b.before(h)))
        assert gap(run(m), wanted) < EXACT
        results.append(run(m))
    if type(norm).__name__ != "NoNorm":  # control: the places are not the same
        assert min(gap(p, q) for i, p in enumerate(results) for q in results[:i]) > 1e-3


def test_parallel_branches_share_one_input() -> None:
    m = made(order="parallel")
    both = X + sub(m, m.around_mixer.before(X)) + m.feed(m.around_feed.before(X))
    assert gap(run(m), both) < EXACT
    serial = X + sub(m, m.around_mixer.before(X))
    serial = serial + m.feed(m.around_feed.before(serial))
    assert gap(run(m), serial) > 1e-3  # control
    post = made(order="parallel", place="post")
    assert gap(run(post), post.around_mixer.after(X + sub(post, X) + post.feed(X))) < EXACT


def test_without_a_residual_the_branch_is_all() -> None:
    m = made(residual=False)
    h = sub(m, m.around_mixer.before(X))
    assert gap(run(m), m.feed(m.around_feed.before(h))) < EXACT


def test_layer_scale_multiplies_the_branch_and_starts_where_it_is_set() -> None:
    net = model(layer_scale=1e-4).build(seed=0)
    scales = [p for name, p in net.named_parameters() if name.endswith(".scale")]
    assert len(scales) == 4 and all((p == torch.tensor(1e-4)).all() for p in scales)
    m = made(layer_scale=0.3)
    h = X + sub(m, m.around_mixer.before(X)) * m.around_mixer.scale
    assert gap(run(m), h + m.feed(m.around_feed.before(h)) * m.around_feed.scale) < EXACT
    assert gap(run(m), run(made())) > 1e-3  # control


def residual(**settings: Any) -> Residual:
    from anyformer import NoNorm

    plain = {"place": "pre", "residual": True, "dropout": 0.0, "layer_scale": None, "drop_path": 0.0}
    return Residual(NoNorm(), 16, **(plain | settings))


@pytest.mark.quick
def test_drop_path_leaves_out_whole_rows_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    around, y = residual(drop_path=0.25).train(), torch.ones(20_000, 1, 16)
    out = around.leave(y)
    assert set(out.unique().tolist()) == {0.0, (1 / torch.tensor(0.75)).item()}
    assert ((out == 0).all((1, 2)) | (out != 0).all((1, 2))).all()  # a row goes as a whole
    assert abs(out.mean().item() - 1) < 0.02  # the expectation stays
    assert torch.equal(around.eval().leave(y), y)  # and evaluation leaves nothing out
    scattered = F.dropout(y, 0.25)  # control: plain dropout takes single channels
    assert not ((scattered == 0).all((1, 2)) | (scattered != 0).all((1, 2))).all()


def test_drop_path_grows_with_depth() -> None:
    net = model(depth=5, drop_path=0.4).build(seed=0)
    rates = [layer.around_mixer.drop_path for layer in net.stack.blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])


def test_dropout_acts_in_training_only_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    around, y = residual(dropout=0.5).train(), torch.ones(2000, 4, 16)
    assert abs(around.leave(y).mean().item() - 1) < 0.02 and gap(around.leave(y), y) == 1.0
    assert torch.equal(around.eval().leave(y), y)
    for where in ({"mixer": Attention(heads=4, dropout=0.5)}, {"feed": MLP(dropout=0.5)}, {"dropout": 0.5}):
        net = build(model(**where))
        given = tokens(2, 6)
        assert gap(net.train()(given).hidden, net.eval()(given).hidden) > 1e-3


@pytest.mark.parametrize("final", [None, "own"])
def test_a_final_norm_closes_every_place_but_post(final: str | None) -> None:
    from anyformer import RMSNorm, Stack

    for place in ("pre", "post", "branch", "sandwich"):
        spec = Stack(width=16, depth=1, block=block(place=place), final=None if final is None else RMSNorm())
        wanted = RMSNorm if final else (type(None) if place == "post" else Block(mixer=block().mixer).norm.__class__)
        assert isinstance(spec.final_norm, wanted)
