"""On a GPU: the same noise to the last bit, the same tokens, the same refusals."""

from __future__ import annotations

import pytest
import torch

from anyformer import UserError
from anyformer.generation import Generation, generate, score
from anyformer.generation.noise import gumbel, uniform
from tests.generation.nets import POSITIONS, PROMPTS, build, decoder, doubt, ids, padded, pair, rows, same

pytestmark = [pytest.mark.device, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def test_the_noise_is_the_same() -> None:
    seeds = torch.tensor([0, 1, -5, 2**62])
    assert torch.equal(uniform(seeds.cuda(), 7, 50_000).cpu(), uniform(seeds, 7, 50_000))
    assert (gumbel(seeds.cuda(), 7, 50_000).cpu() - gumbel(seeds, 7, 50_000)).abs().max() < 1e-12


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("name", POSITIONS)
def test_the_tokens_are_the_same(name: str, window: int | None) -> None:
    net = build(decoder(*POSITIONS[name], window=window))
    tokens, mask = padded(PROMPTS, "left")
    for settings in (Generation(max_new_tokens=12), Generation(max_new_tokens=12, do_sample=True, top_p=0.9, seed=3)):
        here = rows(generate(net, tokens, mask, settings=settings))
        there = rows(generate(net.cuda(), tokens, mask, settings=settings))  # ids are moved to the model
        net.cpu()
        if settings.top_p is None:
            assert all(same(a, b, doubt(net, p, settings)) for a, b, p in zip(here, there, PROMPTS, strict=True))
        else:
            assert here == there
    beams = Generation(max_new_tokens=12, num_beams=4)
    here, there = generate(net, tokens, mask, settings=beams), generate(net.cuda(), tokens, mask, settings=beams)
    assert (here.scores - there.scores.cpu()).abs().max() < 1e-4


def test_encoder_decoders_and_scores() -> None:
    net = build(pair(*POSITIONS["rope"]))
    settings = Generation(max_new_tokens=8, decoder_start_token_id=1)
    source = ids(3, 6)
    here = generate(net, source, settings=settings)
    there = generate(net.cuda(), source, settings=settings)
    assert torch.equal(here.ids, there.ids.cpu())
    assert (score(net, there.ids, source=source).logprobs[:, 1:] - there.logprobs).abs().max() < 1e-3


def test_wrong_ids_are_refused_and_the_device_lives_on() -> None:
    net = build(decoder()).cuda()
    for wrong in (torch.tensor([[1, 23]]), torch.tensor([[-1, 2]])):
        for tokens in (wrong, wrong.cuda()):
            with pytest.raises(UserError, match="ids go from 0 to 22"):
                generate(net, tokens)
    assert generate(net, ids(1, 3)).ids.is_cuda  # an assertion inside a kernel would have ended all of this
