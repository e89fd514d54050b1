"""Texts written by a step over fixed tensors: the tokens of plain generation, in every form that runs without a GPU."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer
from anyformer.generation.config import Generation
from anyformer.generation.decode import generate, stream
from anyformer.generation.noise import row_seeds
from anyformer.generation.runners import device_loop, on_device
from anyformer.generation.runners.compiled import compiled
from anyformer.generation.runners.cuda_graphs import AsyncCopy, DeviceOutputs, argmax_in_parts, capture_step, run_steps
from anyformer.generation.runners.device_loop import DeviceLoop

GREEDY = Generation(max_new_tokens=10)
DRAWN = Generation(max_new_tokens=10, do_sample=True, seed=3, top_k=40, temperature=0.9)


def lively(name: str) -> torch.nn.Module:
    net = anyformer.preset(name).build(seed=0)
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(3.0)  # or every text would repeat one token
    return net


@pytest.fixture(scope="module", params=["gpt2-tiny", "llama3-8b-tiny"])
def model(request: pytest.FixtureRequest) -> torch.nn.Module:
    return lively(request.param)


def written(loop: DeviceLoop, prompts: torch.Tensor, lengths: torch.Tensor, settings: Generation) -> DeviceOutputs:
    loop.start(prompts, lengths, settings.padding)
    seeds = row_seeds(settings.seed, len(prompts), 1, loop.device) if settings.sampled else None
    return loop.generate(settings, settings.max_new_tokens or 0, seeds)


@pytest.mark.quick
@pytest.mark.parametrize("settings", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_it_writes_what_generate_writes_and_can_be_used_again(model: torch.nn.Module, settings: Generation) -> None:
    loop = DeviceLoop(model, 3, 40, form="plain")
    for seed in range(2):
        prompts = torch.randint(0, 512, (3, 7), generator=torch.Generator().manual_seed(seed))
        wanted = generate(model, prompts, settings=settings)
        found = written(loop, prompts, torch.full((3,), 7), settings)
        assert torch.equal(found.generated, wanted.new)
        torch.testing.assert_close(found.logprobs, wanted.logprobs, atol=1e-4, rtol=0)


def test_prompts_of_different_length_begin_in_the_first_column(model: torch.nn.Module) -> None:
    prompts = torch.randint(0, 512, (3, 9), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([9, 1, 4])
    found = written(DeviceLoop(model, 3, 40, form="plain"), prompts, lengths, GREEDY)
    for row, length in enumerate(lengths.tolist()):
        assert torch.equal(
            found.generated[row : row + 1], generate(model, prompts[row : row + 1, :length], settings=GREEDY).new
        )


def test_texts_end_where_they_should_and_the_rest_is_padding(model: torch.nn.Module) -> None:
    prompts = torch.randint(0, 512, (4, 5), generator=torch.Generator().manual_seed(1))
    ends = tuple(generate(model, prompts, settings=GREEDY).new[:, 3].tolist())  # every text ends by its fourth token
    settings = Generation(max_new_tokens=10, eos_token_id=ends, pad_token_id=0)
    wanted = generate(model, prompts, settings=settings)
    found = written(DeviceLoop(model, 4, 40, form="plain"), prompts, torch.full((4,), 5), settings)
    assert found.generated.shape[1] <= 4 and bool(found.finished.all())
    assert torch.equal(found.generated, wanted.new)


SETTINGS = {
    "greedy": Generation(max_new_tokens=12),
    "drawn": Generation(max_new_tokens=12, do_sample=True, seed=3, top_k=40, top_p=0.9, temperature=0.9),
    "several": Generation(max_new_tokens=12, do_sample=True, seed=3, num_return_sequences=3),
    "a seed each": Generation(max_new_tokens=12, do_sample=True, seed=[3, 4, 5]),
    "in pieces": Generation(max_new_tokens=12, prefill_chunk_size=2),
    "rules": Generation(max_new_tokens=12, repetition_penalty=1.3, no_repeat_ngram_size=2, logprobs=3),
    "beams": Generation(max_new_tokens=12, num_beams=3, num_return_sequences=2),
}


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama3-8b-tiny", "t5-small-tiny", "transformer-base-tiny"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_generation_over_a_loop_is_generation(name: str, settings: Generation, monkeypatch: pytest.MonkeyPatch) -> None:
    net = lively(name)
    prompts = torch.randint(1, 500, (3, 6), generator=torch.Generator().manual_seed(2))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1], [1, 1, 1, 0, 0, 0]])
    settings = replace(settings, decoder_start_token_id=0, eos_token_id=(5, 6, 7, 8), pad_token_id=0)
    wanted = generate(net, prompts, mask, settings=settings)
    monkeypatch.setattr(on_device, "DEVICES", ("cpu",))
    made = counted(monkeypatch)
    found = generate(net, prompts, mask, settings=settings)
    assert made, "no loop was made"
    assert torch.equal(found.ids, wanted.ids) and torch.equal(found.lengths, wanted.lengths)
    assert found.reasons == wanted.reasons and found.prompt == wanted.prompt
    for ours, theirs in ((found.logprobs, wanted.logprobs), (found.scores, wanted.scores)):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    if wanted.top_logprobs is not None:
        assert torch.equal(found.top_tokens, wanted.top_tokens)
    steps = [] if settings.num_beams > 1 else list(stream(net, prompts, mask, settings=settings))
    assert all(torch.equal(step.tokens, wanted.new[:, number]) for number, step in enumerate(steps))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[DeviceLoop]:
    """Every loop that is made from now on."""
    made: list[DeviceLoop] = []

    class Counted(DeviceLoop):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            made.append(self)

    monkeypatch.setattr(on_device, "DeviceLoop", Counted)
    return made


def test_a_compiled_model_keeps_its_loops_for_the_next_call_but_two_texts_never_share_one(
    model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_device, "DEVICES", ("cpu",))
    made = counted(monkeypatch)
    fast = compiled(model)
    prompts = torch.randint(0, 512, (2, 5), generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(
        device_loop, "compile_decode_step", lambda *form: device_loop.decode_step
    )  # the loop is what is meant
    wanted = [generate(model, prompts[row : row + 1], settings=GREEDY).new[0].tolist() for row in range(2)]
    made.clear()
    both = [stream(fast, prompts[row : row + 1], settings=GREEDY) for row in range(2)]
    found: list[list[int]] = [[], []]
    for steps in zip(*both, strict=True):
        for row, step in enumerate(steps):
            found[row] += step.tokens.tolist()
    assert found == wanted and len(made) == 2
    del both, steps, step
    gc.collect()
    assert len(fast.idle) == 2, "given back"
    again = generate(fast, prompts[:1], settings=Generation(max_new_tokens=30)).new[0].tolist()
    assert again[:10] == wanted[0] and len(made) == 2, "used again"
    with torch.no_grad():  # weights elsewhere: what was recorded would read the old ones
        for weight in model.parameters():
            weight.data = weight.data.clone()
    generate(fast, prompts[:1], settings=GREEDY)
    assert len(made) == 3 and len(fast.idle) == 1


@pytest.mark.parametrize("length", [1, 2, 17, 40, 70])
def test_recorded_pieces_of_a_prompt_are_the_prompt(
    model: torch.nn.Module, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_loop, "compile_decode_step", lambda *form: device_loop.decode_step)
    monkeypatch.setattr(device_loop, "PIECE", 32)
    prompts = torch.randint(0, 512, (2, length), generator=torch.Generator().manual_seed(length))
    loop = DeviceLoop(model, 2, 128, form="compiled")
    for turn in range(2):  # the second time over what the first has left
        prompts = prompts.flip(0)
        lengths = torch.tensor([length, max(1, length // 2)])
        found = written(loop, prompts, lengths, GREEDY).generated
        assert turn or bool(loop.pieces) == (length > 1)
        for row, one in enumerate(lengths.tolist()):
            alone = generate(model, prompts[row : row + 1, :one], settings=GREEDY).new
            assert torch.equal(found[row : row + 1], alone)


def test_what_cannot_be_recorded_or_compiled_is_called_with_one_line_each(
    model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*given: object) -> None:
        raise RuntimeError("operation not permitted\nwhile recording")

    monkeypatch.setattr(device_loop, "capture_step", fails)
    monkeypatch.setattr(device_loop, "compile_decode_step", lambda *form: device_loop.decode_step)
    prompts = torch.randint(0, 512, (2, 5), generator=torch.Generator().manual_seed(0))
    with caplog.at_level("WARNING"):
        loop = DeviceLoop(model, 2, 40, form="fused")
        found = written(loop, prompts, torch.tensor([5, 5]), GREEDY).generated
    assert torch.equal(found, generate(model, prompts, settings=GREEDY).new) and loop.form == "plain"
    assert [record.message for record in caplog.records] == [
        "decoding steps are not compiled: operation not permitted while recording",
        "decoding steps are not recorded: operation not permitted while recording",
    ]


def test_the_look_at_the_end_stops_and_never_goes_past_the_most() -> None:
    count = torch.zeros((), dtype=torch.long)
    over = torch.zeros(2, dtype=torch.bool)

    def step() -> None:
        count.add_(1)
        over.logical_or_(count >= torch.tensor([3, 5]))

    assert run_steps(capture_step(step, count), 20, over) == 5
    assert run_steps(step, 2, torch.zeros(1, dtype=torch.bool)) == 2
    seen = AsyncCopy(over)
    seen.request()
    assert bool(seen.read().all())


def test_the_largest_in_two_rounds_is_the_first_of_equals() -> None:
    scores = torch.randint(0, 50, (16, 5000), generator=torch.Generator().manual_seed(0)).double()
    scores[0] = -torch.inf
    assert torch.equal(argmax_in_parts(scores, wide=4096), scores.argmax(-1))
    assert torch.equal(
        argmax_in_parts(scores[:, :70], wide=1), scores[:, :70].argmax(-1)
    )  # control: most parts are empty


def test_a_text_that_has_ended_stays_where_it_is() -> None:
    outputs = DeviceOutputs.start(torch.tensor([1, 2]), torch.tensor([4, 4]), 3, padding=9)
    ends = torch.tensor([7])
    for chosen in ((7, 5), (3, 6), (2, 7)):
        outputs.append(torch.tensor(chosen), torch.tensor([-1.0, -2.0]), ends, 9)
    assert outputs.generated.tolist() == [[7, 9, 9], [5, 6, 7]] and outputs.logprobs[0].tolist() == [-1.0, 0.0, 0.0]
    assert outputs.positions[:, 0].tolist() == [5, 7] and outputs.tokens.tolist() == [0, 7]
    assert bool(outputs.finished.all())


INTERPRETED = """
import sys
try:
    import triton
except ImportError:
    sys.exit("no triton")
import torch
from anyformer.core.attend import ENGINES
from anyformer.kernels.row import plain, row_linear
from tests.device import test_decode_kernel as kernel
try:
    for number, (heads, groups, queries, columns, case) in enumerate((
        (2, 2, 1, 100, "all"), (4, 2, 2, 100, "window"), (2, 1, 1, 600, "plain"), (1, 1, 1, 600, "alibi"),
        (2, 2, 3, 600, "cap"),
    )):
        reach = (columns - 1, queries, 64)
        q, k, v, index = kernel.inputs(heads, groups, queries, 24, 16, columns, torch.float32, reach, number)
        scores = kernel.described(case, index, columns, 24, heads)
        ours, wanted = ENGINES["rows"](q, k, v, scores).double(), kernel.right(q, k, v, scores)
        assert ((ours - wanted).abs().max() / wanted.abs().max()).item() < 2e-5, case
    kernel.test_control_a_row_that_reaches_too_far_is_seen()
    kernel.check_put(((2, 2), (4, 2)), (100, 600), ("plain", "all"), (torch.float32,))
    for norm, act, gated in (("layer", "gelu_tanh", False), ("rms", "silu", True), ("none", "gelu", False)):
        wide = 1100 if norm == "none" else 96  # more than one turn
        x, w, b = torch.randn(1, 1, wide), torch.randn(24, wide) / 10, torch.randn(24)
        a = torch.randn(1, 1, 12 if gated else 24)
        given = (x, w, b, norm, torch.randn(wide), torch.randn(wide) if norm == "layer" else None, 1e-5, act, gated, a)
        torch.testing.assert_close(row_linear(*given), plain(*given), atol=1e-4, rtol=1e-4)
except Exception as error:
    if "only 0-dimensional arrays can be converted" in str(error):
        sys.exit("this triton's interpreter does not know this numpy")
    raise
"""


def test_both_kernels_interpreted_on_a_cpu() -> None:
    root = Path(__file__).resolve().parents[2]
    paths = [str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run([sys.executable, "-c", INTERPRETED], capture_output=True, text=True, timeout=120, cwd=root,
                          env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)})  # fmt: skip
    if done.returncode and done.stderr.strip() in ("no triton", "this triton's interpreter does not know this numpy"):
        pytest.skip(f"the kernels were not run: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr[-2000:]
