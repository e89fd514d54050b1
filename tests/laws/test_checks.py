"""The callable laws: each holds where it should and goes red on a model that breaks it; misuse is one sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from anyformer import Attention, Experts, Hyena, Learned, Patches, Recurrent, Rope, Seq2Seq, UserError, checks, preset
from tests.laws.broken import Forgetful, Peeking
from tests.laws.nets import build, language, model, pair, tokens
from tests.laws.parts import WIDTH

ONE = tokens(2, 1)
FORGETFUL = Forgetful(inner=Attention(heads=4))
PEEKING = Peeking(inner=Attention(heads=4))


class CountingPadding(nn.Module):
    """A model that ignores its mask."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net, self.spec = net, net.spec

    def forward(self, given: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        return self.net(given)


def test_every_law_holds_and_goes_red() -> None:
    net = build(language(relative=Rope()))
    assert checks.causal(net) and checks.cache(net) and checks.padding(net) and checks.padding(net, side="right")
    assert checks.permutation(build(model(causal=False)), tokens(2, 8))
    assert not checks.causal(build(language(mixer=PEEKING)))
    assert not checks.cache(build(language(mixer=FORGETFUL)))
    assert not checks.padding(CountingPadding(build(language(causal=False))))
    assert not checks.permutation(net, tokens(2, 8))


def test_an_encoder_decoder_is_asked_about_its_decoder() -> None:
    net = build(pair(relative=Rope()))
    assert checks.causal(net) and checks.cache(net) and checks.padding(net) and checks.padding(net, side="right")
    assert not checks.causal(build(pair(mixer=PEEKING)))
    assert not checks.cache(build(pair(mixer=FORGETFUL)))
    assert checks.permutation(build(model(causal=False)), tokens(2, 8))
    with pytest.raises(UserError, match=r"model\.encoder"):
        checks.permutation(net, tokens(2, 8))


def test_evaluation_is_meant_and_training_comes_back() -> None:
    """With dropout on, nothing would hold."""
    net = build(language(dropout=0.3, mixer=Attention(heads=4, dropout=0.3))).train()
    for law in (checks.causal, checks.cache, checks.padding):
        assert law(net) and net.training


@pytest.mark.parametrize("length", [12, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_what_rounds_is_held_to_a_millionth_of_the_answers(dtype: torch.dtype, length: int) -> None:
    bound = 1e-6 if dtype == torch.float32 else 1e-12
    for spec in (language(mixer=Hyena(longest=256)), language(feed=Experts(count=3))):
        net = build(spec, dtype)
        report = checks.causal(net, tokens(2, length))
        assert report and report.bound == bound
        with torch.no_grad():  # relative: answers a thousand times as large may round a thousand times as much
            net.stack.final.weight.mul_(1e3)
            net.stack.final.bias.mul_(1e3)
        assert checks.causal(net, tokens(2, length))
    assert checks.causal(build(language(mixer=Recurrent("gru")), dtype)).bound == 0.0
    small = Peeking(inner=Hyena(longest=256))
    assert not checks.causal(build(language(mixer=small), dtype), bound=bound)  # control


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: checks.causal(build(language()), ONE), "two tokens"),
        (lambda: checks.permutation(build(model(causal=False)), ONE), "two tokens"),
        (lambda: checks.permutation(build(model(causal=False))), "nothing to permute"),
        (lambda: checks.permutation(one_patch(), torch.zeros(1, 2, 8, 8, dtype=torch.float64)), "two tokens"),
        (lambda: checks.padding(build(language()), side="lft"), "did you mean 'left'"),
        (lambda: checks.padding(build(language()), amount=0), "change nothing"),
        (lambda: checks.cache(build(language()), prefill=40), "not between 0 and 12"),
        (lambda: checks.cache(build(language(causal=False))), "only a causal stack"),
        (lambda: checks.causal(nn.Linear(2, 2)), "how many ids"),
        (lambda: checks.cache(nn.Linear(2, 2), tokens(2, 4)), "no decoding state"),
        (lambda: checks.permutation(nn.Linear(2, 2), torch.zeros(2, 2)), "has no embed"),
        (lambda: checks.causal(preset("clip-b32-tiny").build(seed=0)), "how many ids"),
        (lambda: checks.causal(of_images(), tokens(2, 8)), "cannot be made up"),
    ],
    ids=range(13),
)
def test_misuse_is_one_sentence(ask: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        ask()


def one_patch() -> Any:
    return build(model(embed=Patches(size=8, patch=8, channels=2), causal=False))


def of_images() -> Any:
    both = pair(position=Learned(24), share="none")
    encoder = model(embed=Patches(size=8, patch=4, channels=2), causal=False, width=WIDTH)
    return build(Seq2Seq(encoder=encoder, decoder=both.decoder, head=both.head))


def test_one_token_can_be_decoded_and_padded() -> None:
    assert checks.cache(build(language()), ONE) and checks.padding(build(language()), ONE)
