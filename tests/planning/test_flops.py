"""FLOPs by shapes against torch's counter: every tiny preset and mixer for real, every full preset on `meta`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from anyformer import Mixer, preset, preset_names
from anyformer.core.model import Seq2Seq
from anyformer.kernels.bands import attend_in_bands
from anyformer.mixers import local
from anyformer.planning.costs import count_costs, decodes
from anyformer.planning.inputs import blank_inputs
from anyformer.planning.parameters import count_parameters
from anyformer.planning.trace import trace, trace_training
from tests.laws.nets import around, looking
from tests.laws.parts import VOCAB, mixers
from tests.planning.counting import TINY, counted, plain_kernels, real_inputs

NEAR = 0.01
# Of experts, the few rows of a decode step are filled up to 16 each on a real machine.
WRITERS = [name for name in TINY if decodes(preset(name)) and not name.startswith(("mixtral", "switch"))]
EXPERTS = ("mixtral", "switch-small")
FULL = [name for name in preset_names() if not name.endswith("-tiny") and name not in EXPERTS]


def gap(ours: float, theirs: float) -> float:
    return abs(ours / theirs - 1) if theirs else float(ours != 0)


@pytest.mark.parametrize("name", TINY)
def test_flops_of_every_tiny_preset_are_those_that_torch_counts(name: str) -> None:
    spec = preset(name)
    length = 96 if "mixtral" in name or "switch" in name else 12  # few rows of an expert are filled up to 16
    found = count_costs(spec, 2, length, torch.float32)
    forward, backward = counted(spec.build(seed=0).train(), *real_inputs(spec, 2, length))
    assert gap(found.training.flops, forward) < NEAR
    assert gap(found.step.flops, forward + backward) < NEAR
    if blank_inputs(spec, 2, length).args[0].shape != blank_inputs(spec, 3, length).args[0].shape:
        assert gap(count_costs(spec, 3, length, torch.float32).step.flops, forward + backward) > NEAR  # control


@pytest.mark.parametrize("mixer", mixers(text=False))
def test_flops_of_every_mixer_are_those_that_torch_counts(mixer: Mixer, monkeypatch: pytest.MonkeyPatch) -> None:
    # A plan counts the chunks of a window that a GPU runs; at this length a CPU would compare all pairs.
    monkeypatch.setattr(local, "attend", lambda q, k, v, scores, dropout: attend_in_bands(q, k, v, scores, dropout))
    spec = around(mixer)
    length = 20
    args, named = real_inputs(spec, 2, length)
    if not mixer.needs_grid:
        args = (args[0] % VOCAB,)
    named = named | looking(mixer, 2, torch.float32)
    net = spec.build(device="meta").train()
    on_meta = tuple(x.to("meta") for x in args), {key: x.to("meta") for key, x in named.items()}
    forward, backward = trace_training(net, *on_meta)
    theirs = counted(spec.build(seed=0).train(), args, named)
    assert gap(forward.flops, theirs[0]) < NEAR
    assert gap(forward.flops + backward.flops, sum(theirs)) < NEAR
    deeper = around(mixer, depth=3).build(device="meta")
    assert gap(trace(deeper, *on_meta).flops, theirs[0]) > NEAR  # control


@pytest.mark.parametrize("name", WRITERS)
def test_flops_of_a_decode_step_are_those_that_torch_counts(name: str) -> None:
    """One token behind seven others, in a real state."""
    spec, batch, length = preset(name), 16, 8
    net: Any = spec.build(seed=0).eval()
    args, _ = real_inputs(spec, batch, length)
    state, words = net.state(batch, length), args[-1]
    first, given = (args[:-1], {}) if not isinstance(spec, Seq2Seq) else ((None,), {"memory": net.encode(args[0])})
    with torch.no_grad(), plain_kernels():
        net(*first, words[:, :-1], **given, state=state)
        with FlopCounterMode(display=False) as counter:
            net(*first, words[:, -1:], **given, state=state)
    found = count_costs(spec, batch, length, torch.float32).decode.flops
    assert gap(found, counter.get_total_flops()) < NEAR
    assert gap(count_costs(spec, 2 * batch, length, torch.float32).decode.flops, counter.get_total_flops()) > NEAR


@pytest.mark.parametrize("name", FULL)
def test_flops_of_full_presets_are_those_that_torch_counts(name: str) -> None:
    """By torch's counter on tensors without content."""
    spec = preset(name)
    given = blank_inputs(spec, 2, 12)
    forward, backward = counted(spec.build(device="meta").train(), given.args, given.named)
    found = count_costs(spec, 2, 12, torch.float32)
    assert gap(found.training.flops, forward) < NEAR
    assert gap(found.step.flops, forward + backward) < NEAR
    assert gap(found.training.flops, backward) > NEAR  # control


@pytest.mark.parametrize("name", EXPERTS[:1])  # an encoder-decoder has no one number of tokens
def test_flops_of_full_experts_are_those_of_what_is_active(name: str) -> None:
    """Torch's counter does not know the product of all experts' rows; each active weight is a multiply-add a token."""
    spec, tokens = preset(name), 256
    count = count_parameters(spec.build(device="meta"))
    found = count_costs(spec, 1, tokens, torch.float32).forward
    attention = sum(n * op.flops for op, n in found.ops.items() if op.kind == "attention")
    looked_up = count.by_part["embedding"]
    assert gap(found.flops - attention, 2 * tokens * (count.active - looked_up)) < NEAR


def test_flops_of_gpt2_are_those_of_the_formula() -> None:
    """24 D^2 a layer and token for the products, 4 T D for attention, 2 V D for the head."""
    length, width, depth, vocab = 1024, 768, 12, 50257
    expected = depth * (24 * width**2 + 4 * length * width) + 2 * vocab * width
    found = count_costs(preset("gpt2"), 1, length, torch.bfloat16)
    assert found.forward.flops == expected * length
    assert found.step.flops == 3 * expected * length
    assert found.decode.flops == expected


def test_hidden_pairs_are_counted_and_known() -> None:
    """A causal kernel leaves out the pairs above the diagonal: T (T + 1) / 2 of T^2 are seen."""
    found = count_costs(preset("gpt2-tiny"), 1, 64, torch.float32).forward
    flops, seen = (sum(count * getattr(op, name) for op, count in found.ops.items() if op.kind == "attention")
                   for name in ("flops", "visible"))  # fmt: skip
    assert seen / flops == pytest.approx(65 / 128)


def test_fourier_transforms_stand_beside_the_products() -> None:
    found: Any = count_costs(preset("hyena-small-tiny"), 1, 64, torch.float32).forward
    assert found.fourier > 0
    assert count_costs(preset("gpt2-tiny"), 1, 64, torch.float32).forward.fourier == 0
