"""Attention mixes tokens and feeds do not: Jacobians by token pair, against difference quotients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from anyformer import MLP, Alibi, Attention, Block, Experts, Rope, UserError
from anyformer.inspection.jacobian import branch_losses, token_jacobian
from tests.inspection import models
from tests.inspection.test_ablate import IDS, built, inputs_of, plain

LENGTH = IDS.shape[1]


def quotients(module: torch.nn.Module, entered: tuple, step: float = 1e-5) -> Tensor:
    """|dy_i / dx_j| by moving every number of x a little, both ways."""
    x, *rest = entered
    out = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
    for j in range(x.shape[1]):
        for channel in range(x.shape[2]):
            moved = [x.clone(), x.clone()]
            moved[0][0, j, channel] += step
            moved[1][0, j, channel] -= step
            with torch.no_grad():
                high, low = (module(one, *rest) for one in moved)
            out[:, j] += ((high - low)[0] / (2 * step)).square().sum(-1)
    return out.sqrt()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("part", ["mixer", "feed"])
@pytest.mark.parametrize("relative", [Rope(), Alibi()])
def test_norms_are_those_of_difference_quotients(part: str, causal: bool, relative: object) -> None:
    model = plain(block={"relative": relative}, causal=causal).double()
    seen: list[tuple] = []
    module = model.stack.blocks[1].mixer if part == "mixer" else model.stack.blocks[1].feed
    handle = module.register_forward_pre_hook(lambda _, given: seen.append(given))
    model(IDS)
    handle.remove()
    found = token_jacobian(model, IDS, 1, part)  # type: ignore[arg-type]
    torch.testing.assert_close(found.double(), quotients(module, seen[0]), rtol=1e-4, atol=1e-6)


def test_attention_is_lower_triangular_or_dense_and_feeds_are_diagonal() -> None:
    above = torch.ones(LENGTH, LENGTH).triu(1).bool()
    off = ~torch.eye(LENGTH).bool()
    for causal in (True, False):
        model = plain(causal=causal)
        mixed, fed = token_jacobian(model, IDS, 0), token_jacobian(model, IDS, 0, "feed")
        assert (fed[off] == 0).all() and (fed.diagonal() > 0).all()
        assert (mixed[off & ~above] > 0).all()
        assert (mixed[above] == 0).all() if causal else (mixed[above] > 0).all()


def test_other_feeds_and_layers_that_share_weights() -> None:
    off = ~torch.eye(LENGTH).bool()
    feeds = (MLP(gated=True), Experts(count=3, top=2, width=8))
    blocks = tuple(Block(mixer=Attention(heads=2), feed=feed) for feed in feeds)
    gated = plain(block_of=blocks)
    for layer in (0, 1):
        found = token_jacobian(gated, IDS, layer, "feed")
        assert (found[off] == 0).all() and (found.diagonal() > 0).all()
    shared = built("albert-base-tiny")
    (ids,) = inputs_of(shared)
    first, second = (token_jacobian(shared, ids, layer) for layer in (0, 1))
    assert not torch.allclose(first, second, rtol=1e-3)  # the same weights meet another stream


def test_parts_of_an_encoder_decoder() -> None:
    predictor = models.t5()
    encoder = token_jacobian(predictor, models.TEXT, ("encoder", 1))
    decoder = token_jacobian(predictor, models.TEXT, ("decoder", 1))
    assert (encoder > 0).all()
    assert (decoder.triu(1) == 0).all() and (decoder.tril() > 0).sum() > len(decoder)
    cross = token_jacobian(predictor, models.TEXT, ("cross", 0))
    assert (cross - cross.diagonal().diag() == 0).all()  # a decoder's token asks the encoder for itself alone


def test_what_cannot_be_asked_is_refused() -> None:
    model = plain()
    with pytest.raises(UserError, match="layer 7 is out of range"):
        token_jacobian(model, IDS, 7)
    with pytest.raises(UserError, match="did you mean 'feed'"):
        token_jacobian(model, IDS, 0, "feeds")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="2 rows are given"):
        token_jacobian(model, IDS.repeat(2, 1), 0)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_losses_without_all_feeds_and_without_all_mixers() -> None:
    model = plain()

    def loss_without(*names: str) -> float:
        changed = copy.deepcopy(model)
        with torch.no_grad():
            for block in changed.stack.blocks:
                for name in names:
                    last = block.feed.down if name == "feed" else block.mixer.out
                    last.weight.zero_()
                    last.bias.zero_()
            logits = changed(IDS).logits[0]
        return float(torch.nn.functional.cross_entropy(logits[:-1], IDS[0, 1:]))

    found = branch_losses(model, IDS)
    assert found.whole == pytest.approx(loss_without(), abs=1e-5)
    assert found.without_feeds == pytest.approx(loss_without("feed"), abs=1e-5)
    assert found.without_mixers == pytest.approx(loss_without("mixer"), abs=1e-5)
    assert len({round(x, 5) for x in (found.whole, found.without_feeds, found.without_mixers)}) == 3
    printed = str(found).splitlines()
    assert printed[1].startswith("without feeds") and f"{found.without_feeds - found.whole:+.4f}" in printed[1]
    assert branch_losses(models.t5(), models.TEXT).without_mixers > 0
