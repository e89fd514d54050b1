"""Weights in 8 bits on a GPU: near the whole weights in every precision, and decoded alike by every runner.

Needs a GPU; `make test-gpu`.
"""

from __future__ import annotations

import copy

import pytest
import torch

from anyformer import compiled, preset
from anyformer.generation import Generation, generate
from anyformer.generation.runners import on_device
from anyformer.kernels.quantise import quantise

pytestmark = [pytest.mark.device, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
PRESETS = ["gpt2-tiny", "llama3-8b-tiny"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PRESETS)
def test_logits_are_near_those_of_the_whole_weights(name: str, dtype: torch.dtype) -> None:
    model = preset(name).build(seed=0, device="cuda", dtype=dtype).eval()
    ids = torch.randint(0, 500, (4, 32), generator=torch.Generator().manual_seed(0)).cuda()
    with torch.no_grad():
        wanted = model(ids).logits.float()
        found = quantise(copy.deepcopy(model))(ids).logits
    assert found.dtype == dtype and found.isfinite().all()
    assert (found.float() - wanted).abs().max() / wanted.std() < 0.2  # as on a CPU (tests/generation/test_quantise.py)


@pytest.mark.parametrize("name", PRESETS)
def test_recorded_and_compiled_steps_write_what_plain_steps_write(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = preset(name).build(seed=0, device="cuda")
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3.0)  # or every text would repeat one token
    model = quantise(model)
    prompts = torch.randint(1, 500, (3, 6), generator=torch.Generator().manual_seed(2)).cuda()
    settings = Generation(max_new_tokens=16)
    found = [generate(form, prompts, settings=settings) for form in (model, compiled(model))]
    monkeypatch.setattr(on_device, "DEVICES", ())
    wanted = generate(model, prompts, settings=settings)
    for one in found:
        assert torch.equal(one.ids, wanted.ids)
        torch.testing.assert_close(one.logprobs, wanted.logprobs, atol=1e-3, rtol=1e-3)
