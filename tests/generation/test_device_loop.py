"""Texts written by a step over fixed tensors: the tokens of plain generation, in every form that runs without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import anyformer
from anyformer.errors import UserError
from anyformer.generation.decode import generate
from anyformer.generation.device_loop import DeviceLoop, refusal
from anyformer.generation.graphs import Glance, Texts, captured, first_largest, repeat
from anyformer.generation.settings import Generation

GREEDY = Generation(max_new_tokens=10)
DRAWN = Generation(max_new_tokens=10, do_sample=True, seed=3, top_k=40, temperature=0.9)


@pytest.fixture(scope="module", params=["gpt2-tiny", "llama3-8b-tiny"])
def model(request: pytest.FixtureRequest) -> torch.nn.Module:
    net = anyformer.preset(request.param).build(seed=0)
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(3.0)  # or every text would repeat one token
    return net


@pytest.mark.quick
@pytest.mark.parametrize("settings", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_it_writes_what_generate_writes_and_can_be_used_again(model: torch.nn.Module, settings: Generation) -> None:
    loop = DeviceLoop(model, 3, 40, form="eager")
    for seed in range(2):
        prompts = torch.randint(0, 512, (3, 7), generator=torch.Generator().manual_seed(seed))
        wanted = generate(model, prompts, settings=settings)
        found = loop.write(prompts, torch.full((3,), 7), settings)
        assert torch.equal(found.written, wanted.new)
        torch.testing.assert_close(found.logprobs, wanted.logprobs, atol=1e-4, rtol=0)


def test_prompts_of_different_length_begin_in_the_first_column(model: torch.nn.Module) -> None:
    prompts = torch.randint(0, 512, (3, 9), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([9, 1, 4])
    found = DeviceLoop(model, 3, 40, form="eager").write(prompts, lengths, GREEDY)
    for row, length in enumerate(lengths.tolist()):
        assert torch.equal(
            found.written[row : row + 1], generate(model, prompts[row : row + 1, :length], settings=GREEDY).new
        )


def test_texts_end_where_they_should_and_the_rest_is_padding(model: torch.nn.Module) -> None:
    prompts = torch.randint(0, 512, (4, 5), generator=torch.Generator().manual_seed(1))
    ends = tuple(generate(model, prompts, settings=GREEDY).new[:, 3].tolist())  # every text ends by its fourth token
    settings = Generation(max_new_tokens=10, eos_token_id=ends, pad_token_id=0)
    wanted = generate(model, prompts, settings=settings)
    found = DeviceLoop(model, 4, 40, form="eager").write(prompts, torch.full((4,), 5), settings)
    assert found.written.shape[1] <= 4 and bool(found.over.all())
    assert torch.equal(found.written, wanted.new)


def test_what_needs_the_host_between_tokens_is_refused_in_words(model: torch.nn.Module) -> None:
    assert refusal(model, GREEDY) is None and refusal(model, DRAWN) is None
    for settings in (Generation(num_beams=2), Generation(stop_strings="x"), Generation(repetition_penalty=1.2)):
        assert refusal(model, settings)
    with pytest.raises(UserError, match="do not fit"):
        DeviceLoop(model, 1, 12, form="eager").write(torch.zeros(1, 5, dtype=torch.long), torch.tensor([5]), GREEDY)


def test_the_look_at_the_end_stops_and_never_goes_past_the_most() -> None:
    count = torch.zeros((), dtype=torch.long)
    over = torch.zeros(2, dtype=torch.bool)

    def step() -> None:
        count.add_(1)
        over.logical_or_(count >= torch.tensor([3, 5]))

    assert repeat(captured(step, count), 20, over) == 5
    assert repeat(step, 2, torch.zeros(1, dtype=torch.bool)) == 2
    glance = Glance(over)
    glance.ask()
    assert bool(glance.read().all())


def test_the_largest_in_two_rounds_is_the_first_of_equals() -> None:
    scores = torch.randint(0, 50, (16, 5000), generator=torch.Generator().manual_seed(0)).double()
    scores[0] = -torch.inf
    assert torch.equal(first_largest(scores, wide=4096), scores.argmax(-1))
    assert torch.equal(
        first_largest(scores[:, :70], wide=1), scores[:, :70].argmax(-1)
    )  # control: most parts are empty


def test_a_text_that_has_ended_stays_where_it_is() -> None:
    texts = Texts.start(torch.tensor([1, 2]), torch.tensor([4, 4]), 3, padding=9)
    ends = torch.tensor([7])
    for chosen in ((7, 5), (3, 6), (2, 7)):
        texts.note(torch.tensor(chosen), torch.tensor([-1.0, -2.0]), ends, 9)
    assert texts.written.tolist() == [[7, 9, 9], [5, 6, 7]] and texts.logprobs[0].tolist() == [-1.0, 0.0, 0.0]
    assert texts.places[:, 0].tolist() == [5, 7] and texts.tokens.tolist() == [0, 7] and bool(texts.over.all())


INTERPRETED = """
import sys
try:
    import triton
except ImportError:
    sys.exit("no triton")
import torch
from anyformer.core.attend import ENGINES
from anyformer.core.row_kernel import plain, row_linear
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
    for norm, act, gated in (("layer", "gelu_tanh", False), ("rms", "silu", True), ("none", "gelu", False)):
        x, w, b = torch.randn(1, 1, 96), torch.randn(24, 96) / 10, torch.randn(24)
        a = torch.randn(1, 1, 12 if gated else 24)
        given = (x, w, b, norm, torch.randn(96), torch.randn(96) if norm == "layer" else None, 1e-5, act, gated, a)
        torch.testing.assert_close(row_linear(*given), plain(*given), atol=1e-5, rtol=1e-5)
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
