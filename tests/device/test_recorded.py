"""Steps recorded as graphs on a GPU write what plain calls write there: every part with fixed places, and an engine.

Needs a GPU; `PYTHONPATH=src:. python -m pytest tests/device`.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch

from anyformer import Mixer, compiled, preset
from anyformer.engine.engine import Engine
from anyformer.generation import Generation, generate
from anyformer.generation.cache.open_store import open_serving_store
from anyformer.generation.cache.static_store import StaticStore
from anyformer.generation.runners import on_device
from tests.generation.engines import job, told, until
from tests.generation.nets import POSITIONS
from tests.generation.schedules import run, worst
from tests.generation.test_stores import PLACED, around, fits
from tests.laws.nets import build as fill

pytestmark = [pytest.mark.device, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
GREEDY = Generation(max_new_tokens=16)
DRAWN = Generation(max_new_tokens=16, do_sample=True, seed=7, top_k=20, top_p=0.9)


@pytest.fixture(autouse=True)
def nothing_is_given_up(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        yield
    assert not [record.message for record in caplog.records if "not recorded" in record.message]


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("mixer", PLACED)
def test_every_part_in_fixed_places_is_recorded(mixer: Mixer, position: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not fits(mixer, position):
        return
    net = fill(around(mixer, position)).cuda()
    prompts = torch.randint(0, 11, (3, 5), generator=torch.Generator().manual_seed(0)).cuda()
    found = [generate(net, prompts, settings=settings).ids for settings in (GREEDY, DRAWN)]
    check = StaticStore(net, capacity=4, limit=40)
    assert check.recorded and worst(net, run(check, net, 3, moves=20)) < 1e-9
    assert check.graphs
    monkeypatch.setattr(on_device, "DEVICES", ())
    for ids, settings in zip(found, (GREEDY, DRAWN), strict=True):
        assert torch.equal(ids, generate(net, prompts, settings=settings).ids)


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama3-8b-tiny", "t5-small-tiny"])
@pytest.mark.parametrize("settings", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_presets_write_alike_recorded_compiled_and_plainly(
    name: str, settings: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = preset(name).build(seed=0, device="cuda")
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(3.0)
    settings = replace(settings, decoder_start_token_id=0)
    prompts = torch.randint(1, 500, (3, 6), generator=torch.Generator().manual_seed(2)).cuda()
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1], [1, 1, 1, 0, 0, 0]]).cuda()
    forms = {"recorded": net} | ({} if name.startswith("t5") else {"compiled": compiled(net)})
    found = {form: generate(one, prompts, mask, settings=settings) for form, one in forms.items()}
    if "compiled" in forms:
        found["one row"] = generate(forms["compiled"], prompts[:1], settings=settings)
    monkeypatch.setattr(on_device, "DEVICES", ())
    wanted = generate(net, prompts, mask, settings=settings)
    for form, one in found.items():
        assert torch.equal(one.ids, wanted.ids[: len(one.ids)]), form
        torch.testing.assert_close(one.logprobs, wanted.logprobs[: len(one.ids)], atol=1e-3, rtol=1e-3)


def test_an_engine_on_the_gpu_writes_what_each_request_writes_alone() -> None:
    net = preset("gpt2-tiny").build(seed=0, device="cuda")
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(3.0)
    rows = open_serving_store(net, capacity=8)
    assert isinstance(rows, StaticStore) and rows.recorded
    engine = Engine(rows)
    engine.start()
    try:
        jobs = []
        for number in range(24):
            prompt = [1 + (7 * number + place) % 500 for place in range(1 + number % 9)]
            settings = Generation(max_new_tokens=4 + number % 13, do_sample=number % 2 == 0, seed=number, top_k=30)
            jobs.append(job(prompt, settings))
            engine.submit(jobs[-1])
        until(lambda: all(told(one).last for one in jobs), 60)
    finally:
        engine.stop()
    assert rows.graphs
    for one in jobs:
        assert (
            told(one).tokens == generate(net, torch.tensor([one.prompt]).cuda(), settings=one.settings).new[0].tolist()
        )
