"""Rotary positions against transformers and x-transformers, every scaling, and against the formulas themselves.

transformers and x-transformers compute frequencies, angles, cosines and sines in float32 inside, whatever the model's
type: those are compared in float32 to 1e-6. The rotation itself, given cosines and sines, is compared in float64.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPTNeoXConfig, LlamaConfig
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama
from x_transformers import x_transformers

from anyformer import Attention, DynamicScaling, LinearScaling, Llama3Scaling, NTKScaling, Rope, YarnScaling
from anyformer.core.context import lay_out
from anyformer.positions.rope import plain, yarn_gain
from tests.reference import naive
from tests.reference.copying import CAST, agree, context_of, deviation, seeded, shaken

B, H, T, C = 2, 3, 16, 16  # short: the error of a float32 angle grows with the position
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
# Name: our scaling, theirs.
SCALINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "default": (None, {"rope_type": "default"}),
    "linear": (LinearScaling(factor=4.0), {"rope_type": "linear", "factor": 4.0}),
    "dynamic": (DynamicScaling(factor=3.0, original=8), {"rope_type": "dynamic", "factor": 3.0}),
    "dynamic, short text": (
        DynamicScaling(factor=3.0, original=64),
        {"rope_type": "dynamic", "factor": 3.0, "short": True},
    ),
    "yarn": (YarnScaling(factor=8.0, original=64), YARN),
    "yarn, own gain": (YarnScaling(factor=8.0, original=64, attention=1.7), YARN | {"attention_factor": 1.7}),
    "yarn, two weights": (
        YarnScaling(factor=8.0, original=64, attention=yarn_gain(8.0, 0.7) / yarn_gain(8.0, 0.4)),
        YARN | {"mscale": 0.7, "mscale_all_dim": 0.4},
    ),
    "yarn, own ramp": (
        YarnScaling(factor=8.0, original=64, fast=8.0, slow=2.0),
        YARN | {"beta_fast": 8, "beta_slow": 2},
    ),
    "yarn, not cut": (YarnScaling(factor=8.0, original=64, truncate=False), YARN | {"truncate": False}),
    "llama3": (
        Llama3Scaling(factor=8.0, low=1.0, high=4.0, original=64),
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 64},
    ),
}  # fmt: skip


def tables(spec: Rope, length: int = T, dtype: torch.dtype = torch.float64, width: int = C,
           positions: Tensor | None = None) -> tuple[Tensor, ...]:  # fmt: skip
    """Our cosines and sines, (1, T, width/2)."""
    module = spec.build(H, width, width, False)
    return module(lay_out(1, length, torch.device("cpu"), positions=positions), dtype)


def llama(parameters: dict[str, Any], theta: float, length: int) -> Any:
    """Their module and its cosines and sines (1, T, C), in float32."""
    parameters = dict(parameters)
    trained = 64 if parameters.pop("short", False) else 8 if parameters["rope_type"] == "dynamic" else 512
    config = LlamaConfig(
        hidden_size=H * C, num_attention_heads=H, max_position_embeddings=trained,
        rope_parameters=parameters | {"rope_theta": theta},
    )  # fmt: skip
    module = modeling_llama.LlamaRotaryEmbedding(config)
    return module, module(torch.zeros(1), torch.arange(length)[None])


@pytest.mark.parametrize("theta", [10000.0, 500.0])
@pytest.mark.parametrize("name", list(SCALINGS))
def test_frequencies_cosines_and_gain_equal_transformers(name: str, theta: float) -> None:
    scaling, parameters = SCALINGS[name]
    theirs, (cos, sin) = llama(parameters, theta, T)
    ours = Rope(theta=theta, scaling=scaling)
    module = ours.build(H, C, C, False)
    mine = module.frequencies(lay_out(1, T, torch.device("cpu")), torch.float64)
    assert ((mine - theirs.inv_freq.double()) / mine).abs().max() < CAST  # float32 frequencies on their side
    for made, other in zip(tables(ours, dtype=torch.float32), (cos, sin), strict=True):
        agree(made.repeat(1, 1, 2), other, bound=CAST)  # float32 angles on both sides
    if name not in ("default", "dynamic, short text"):
        wrong = tables(Rope(theta=theta), dtype=torch.float32)[0].repeat(1, 1, 2)
        assert deviation(wrong, cos) > 1e-2


@pytest.mark.quick
@pytest.mark.parametrize("name", list(SCALINGS))
def test_rotated_queries_equal_transformers(name: str) -> None:
    q, k = seeded(B, H, T, C), seeded(B, H, T, C, seed=2)
    spec = Rope(scaling=SCALINGS[name][0])
    made = tables(spec)
    cos, sin = (table.repeat(1, 1, 2) for table in made)
    theirs = modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
    for x, expected in zip((q, k), theirs, strict=True):
        agree(spec.rotate(x, made), expected, [q, k])
    other = Rope(scaling=spec.scaling, layout="interleaved")  # control: pairing other channels is noticed
    assert deviation(other.rotate(q, made), theirs[0]) > 1e-2


@pytest.mark.quick
@pytest.mark.parametrize("width", [4, 8, 16])
def test_neighbouring_pairs_equal_gpt_j(width: int) -> None:
    x, spec = seeded(B, H, T, C), Rope(layout="interleaved", width=width)
    table = modeling_gptj.create_sinusoidal_positions(T, width)  # float32 inside
    sin, cos = table.chunk(2, -1)
    made = tables(spec, dtype=torch.float32)
    agree(made[0][0], cos, bound=CAST)
    agree(made[1][0], sin, bound=CAST)
    exact = tables(spec)
    there = x.transpose(1, 2)  # it wants (B,T,H,C)
    turned = modeling_gptj.apply_rotary_pos_emb(there[..., :width], exact[1], exact[0])
    expected = torch.cat([turned, there[..., width:]], -1).transpose(1, 2)
    agree(spec.rotate(x, exact), expected, [x])
    assert deviation(Rope(layout="half", width=width).rotate(x, exact), expected) > 1e-2


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_a_part_of_the_channels_equals_gpt_neox(share: float) -> None:
    config = GPTNeoXConfig(
        hidden_size=H * C, num_attention_heads=H, rope_parameters={
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": share},
    )  # fmt: skip
    theirs = modeling_gpt_neox.GPTNeoXRotaryEmbedding(config)
    cos, _ = theirs(torch.zeros(1), torch.arange(T)[None])
    spec = Rope(width=int(C * share))
    agree(tables(spec, dtype=torch.float32)[0].repeat(1, 1, 2), cos, bound=CAST)  # float32 angles
    q, k, made = seeded(B, H, T, C), seeded(B, H, T, C, seed=2), tables(spec)
    expected = modeling_gpt_neox.apply_rotary_pos_emb(q, k, *(table.repeat(1, 1, 2) for table in made))
    agree(spec.rotate(q, made), expected[0], [q])
    agree(spec.rotate(k, made), expected[1], [k])
    if share < 1:
        assert torch.equal(spec.rotate(q, made)[..., spec.width :], q[..., spec.width :])
        assert deviation(Rope().rotate(q, tables(Rope())), expected[0]) > 1e-2


@pytest.mark.parametrize(("width", "factor"), [(16, 1.0), (8, 1.0), (16, 4.0)])
def test_rotary_equals_x_transformers(width: int, factor: float) -> None:
    theirs = x_transformers.RotaryEmbedding(width, interpolation_factor=factor)
    angles, _ = theirs(torch.arange(T))
    x = seeded(B, H, T, C)
    expected = x_transformers.apply_rotary_pos_emb(x, angles.double())
    spec = Rope(layout="interleaved", width=width, scaling=None if factor == 1 else LinearScaling(factor=factor))
    agree(spec.rotate(x, tables(spec, dtype=torch.float32)), expected, [x], bound=CAST)  # angles in float32 there
    assert deviation(Rope(layout="half", width=width).rotate(x, tables(spec)), expected) > 1e-2


@pytest.mark.parametrize("factor", [1.0, 2.0, 8.0])
def test_a_larger_base_equals_x_transformers_and_the_formula(factor: float) -> None:
    ours = NTKScaling(factor=factor).frequencies(10000.0, C, torch.float64)
    theirs = x_transformers.RotaryEmbedding(C, base_rescale_factor=factor).inv_freq.double()
    assert ((ours - theirs) / ours).abs().max() < CAST  # a float32 buffer
    base = 10000.0 * factor ** (C / (C - 2))
    agree(ours, torch.tensor([base ** (-2 * i / C) for i in range(C // 2)], dtype=torch.float64))
    # What the larger base is chosen for: the slowest wave stretches by exactly the factor, the fastest not at all.
    bare = plain(10000.0, C, torch.float64)
    assert bare[-1] / ours[-1] == pytest.approx(factor) and ours[0] == 1


def turn(vector: Tensor, position: float, layout: str) -> Tensor:
    """One vector turned as complex numbers (L3): pair i times exp(1j * position * theta_i)."""
    half = vector.shape[0] // 2
    a, b = (vector[:half], vector[half:]) if layout == "half" else (vector[0::2], vector[1::2])
    angle = torch.tensor([position * 10000.0 ** (-i / half) for i in range(half)], dtype=torch.float64)
    z = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag]) if layout == "half" else torch.stack([z.real, z.imag], -1).flatten()


@pytest.mark.quick
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("groups", [1, 4])
def test_a_whole_attention_equals_the_complex_form(layout: str, groups: int) -> None:
    spec = Rope(layout=layout)
    module = shaken(Attention(heads=4, kv_heads=groups).build(16, causal=True, relative=spec))
    x = seeded(2, 6, 16)
    context = context_of(x)
    out = module(x, context, None, spec.build(4, 4, 4, True)(context, x.dtype))
    past = {"scale": 0.5, "sees": lambda b, h, i, j: j <= i}
    expected = naive.attend(x, module, turn=lambda vector, row, at: turn(vector, at, layout), **past)
    agree(out, expected, [x, *module.parameters()])
    reverse = naive.attend(x, module, turn=lambda vector, row, at: turn(vector, -2 * at, layout), **past)
    assert deviation(out, reverse) > 1e-3


@pytest.mark.quick
@pytest.mark.parametrize("name", ["default", "linear", "yarn", "llama3"])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_scores_depend_on_the_difference_of_positions_only(name: str, layout: str) -> None:
    spec = Rope(layout=layout, scaling=SCALINGS[name][0])
    q, k = seeded(1, 1, T, C, grad=False), seeded(1, 1, T, C, seed=2, grad=False)

    def scores(start: int, stretch: int = 1) -> Tensor:
        made = tables(spec, positions=torch.arange(T)[None] * stretch + start)
        return spec.rotate(q, made) @ spec.rotate(k, made).mT

    for shift in (1, 17, 1000):
        agree(scores(shift), scores(0))
    assert deviation(scores(0, stretch=2), scores(0)) > 1e-2


@pytest.mark.quick
def test_linear_scaling_by_four_is_rope_at_a_quarter_of_the_position() -> None:
    positions = torch.arange(0, 4 * T, 4)[None]
    quarter = tables(Rope(scaling=LinearScaling(factor=4.0)), positions=positions)
    for made, expected in zip(quarter, tables(Rope()), strict=True):
        assert torch.equal(made, expected)  # a power of two loses no bit
    x = seeded(B, H, T, C)
    assert torch.equal(Rope(scaling=LinearScaling(factor=4.0)).rotate(x, quarter), Rope().rotate(x, tables(Rope())))
    assert deviation(tables(Rope(), positions=positions)[0], tables(Rope())[0]) > 1e-2


def test_scores_gain_the_square_of_yarns_factor() -> None:
    """1 + 0.1 ln s on cosines and sines is a temperature of its square on the scores (2309.00071, 3.4)."""
    assert YarnScaling(factor=8.0, original=64).gain == pytest.approx(1 + 0.1 * math.log(8))
    spec, bare = (
        Rope(scaling=YarnScaling(factor=8.0, original=64)),
        Rope(scaling=YarnScaling(factor=8.0, original=64, attention=1.0)),
    )
    q = seeded(1, 1, T, C)
    scores = [s.rotate(q, tables(s)) @ s.rotate(q, tables(s)).mT for s in (spec, bare)]
    agree(scores[0], scores[1] * (1 + 0.1 * math.log(8)) ** 2, [q])
