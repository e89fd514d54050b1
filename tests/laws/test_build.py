"""Building: the same numbers under a seed, right on meta and in bf16, and parameters where they have always been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from anyformer import (
    Alibi,
    Attention,
    Buckets,
    Embed,
    Feed,
    Head,
    Joint,
    Mixer,
    Model,
    Norm,
    Patches,
    Relative,
    RMSNorm,
    Rope,
    Shaw,
    Sinusoid,
    Spec,
    Tokens,
    preset,
    preset_names,
)  # fmt: skip
from anyformer.core.context import lay_out
from anyformer.positions.sinusoid import sinusoid
from tests.laws import nets
from tests.laws.nets import gap, inputs, language, looking, model, pair, tokens
from tests.laws.parts import every, named

PATHS = Path(__file__).with_name("paths.txt")
TINY = ["gpt2-tiny", "bert-base-tiny", "t5-small-tiny", "bart-base-tiny", "vit-b16-tiny", "ft-transformer-tiny",
        "llama3-8b-tiny", "albert-base-tiny", "bloom-560m-tiny", "clip-b32-tiny", "vilbert-base-tiny", "detr-r50-tiny",
        "hyena-small-tiny", "lstm-lm-tiny", "bahdanau-seq2seq-tiny", "cnn-classifier-tiny", "switch-small-tiny",
        "pyramid-small-tiny", "lr-net-50-tiny", "vt-resnet-tiny", "sagan-32-tiny", "ast-small-tiny",
        "patchtst-tiny"]  # fmt: skip


def around(part: Spec, **settings: Any) -> Model:
    """A model with this part in its slot."""
    if isinstance(part, Mixer):
        return nets.around(part, **({} if part.needs_grid else {"head": None}), **settings)
    slot = next(slot for slot in (Norm, Relative, Mixer, Feed, Embed, Head) if isinstance(part, slot))
    return model(**{slot.__name__.lower(): part}, **settings)


PARTS = every(Norm, Relative, Mixer, Feed, Embed, Head)


def run(net: Any, spec: Model, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return net(*inputs(spec.embed, dtype=dtype), **looking(spec.stack.mixers[0], dtype=dtype)).hidden


@pytest.mark.quick
@pytest.mark.parametrize("part", PARTS)
def test_a_seed_gives_the_same_model_twice(part: Spec) -> None:
    spec = around(part)
    torch.manual_seed(1)
    first = spec.build(seed=3).state_dict()
    torch.manual_seed(2)  # the global numbers have no say
    second = spec.build(seed=3).state_dict()
    other = spec.build(seed=4).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)  # control: another seed, other numbers
    assert all(value.isfinite().all() for value in first.values())  # nothing is left unfilled


def test_dropout_repeats_under_a_seed_and_is_off_in_evaluation() -> None:
    net = model(dropout=0.4, drop_path=0.4, mixer=Attention(heads=4, dropout=0.4)).build(seed=0).train()
    given, seen = tokens(2, 8), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        seen.append(net(given).hidden)
    assert torch.equal(seen[0], seen[1])
    assert gap(seen[0], seen[2]) > 1e-2  # control
    net.eval()
    assert torch.equal(net(given).hidden, net(given).hidden)


@pytest.mark.parametrize("init", ["gpt2", "bert", "xavier", "t5", "table"])
def test_every_scheme_fills_every_parameter(init: str) -> None:
    """Filled with nan beforehand, none is left."""
    from anyformer.core.init import initialise

    for spec in (model(init=init, layer_scale=0.1, relative=Shaw(2)), pair(relative=Buckets(buckets=8, distance=16))):
        net = spec.build(seed=0)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.fill_(torch.nan)
        assert any(p.isnan().any() for p in net.parameters())
        initialise(net, init, 0)
        assert not any(p.isnan().any() for p in net.parameters())


@pytest.mark.quick
@pytest.mark.parametrize("part", PARTS)
def test_a_model_built_on_meta_has_the_shapes_and_takes_the_weights(part: Spec) -> None:
    """No computed buffer exists, so nothing is lost between meta and the real device."""
    spec = around(part)
    real, meta = spec.build(seed=0).eval(), spec.build(device="meta")
    assert list(real.buffers()) == []
    assert all(p.is_meta for p in meta.parameters())
    assert {k: v.shape for k, v in meta.state_dict().items()} == {k: v.shape for k, v in real.state_dict().items()}
    filled = meta.to_empty(device="cpu").eval()
    filled.load_state_dict(real.state_dict())
    assert torch.equal(run(filled, spec), run(real, spec))
    with torch.no_grad():  # control: a number that did not arrive shows
        next(filled.parameters()).add_(0.5)
    assert not torch.equal(run(filled, spec), run(real, spec))


def test_a_computed_buffer_would_be_noticed() -> None:
    net = language().build(seed=0)
    net.register_buffer("angles", torch.arange(3.0), persistent=False)
    assert list(net.buffers()) != []


@pytest.mark.parametrize("part", PARTS)
def test_a_bf16_model_is_near_the_float32_one(part: Spec) -> None:
    spec = around(part)
    exact, rough = spec.build(seed=0).eval(), spec.build(seed=0, dtype=torch.bfloat16).eval()
    assert all(p.dtype == torch.bfloat16 for p in rough.parameters())
    exact.load_state_dict({k: v.float() for k, v in rough.state_dict().items()})  # the same rounded weights
    with torch.no_grad():
        wanted, got = run(exact, spec), run(rough, spec, torch.bfloat16)
    assert got.dtype == torch.bfloat16
    scale = wanted.abs().max().item()
    assert gap(got.float(), wanted) < 0.06 * scale
    assert gap(got.float().roll(1, 1), wanted) > 0.1 * scale  # control: another token's answer is far


def far(*positions: int) -> Any:
    given = torch.tensor([positions])
    from dataclasses import replace

    context = lay_out(1, len(positions), torch.device("cpu"))
    return replace(context, positions=given, key_positions=given)


def test_position_tables_are_exact_in_bf16_beyond_256() -> None:
    """bf16 has 8 bits: an angle computed in it is wrong from position 257 on."""
    context = far(3, 257, 1001, 8191)
    for spec in (Rope(), Rope(layout="interleaved")):
        module = spec.build(4, 8, 8, True).to(torch.bfloat16)
        wanted = spec.build(4, 8, 8, True)(context, torch.float32)
        for got, exact in zip(module(context, torch.bfloat16), wanted, strict=True):
            assert torch.equal(got.float(), exact)
    got = Sinusoid().build(16).to(torch.bfloat16)(context, torch.bfloat16)
    assert torch.equal(got, sinusoid(context.positions, 16, torch.float32).to(torch.bfloat16))  # rounded once
    (slopes,) = Alibi().build(12, 8, 8, True).to(torch.bfloat16)(context, torch.bfloat16)
    assert slopes.dtype == torch.float32
    rounded = sinusoid(context.positions.to(torch.bfloat16), 16, torch.bfloat16)  # control: the same made in bf16
    assert gap(rounded.float(), got.float()) > 0.1


def frozen_models() -> dict[str, Any]:
    block = {"layer_scale": 0.1, "relative": Shaw(2), "mixer": Attention(heads=4, kv_heads=2, qk_norm=RMSNorm())}
    joint = Joint(parts=(Patches(size=8, patch=4, registers=1, distill=True), Tokens(vocab=17, segments=2)))
    specs: dict[str, Any] = {name: preset(name) for name in TINY}
    specs["joint"] = model(embed=joint, head=named(Head)["lm-bert"])
    for place in ("sandwich", "branch"):
        specs[place] = model(place=place, **block)
    specs["parallel"] = model(order="parallel", relative=Buckets())
    specs["shared-attention"] = model(depth=2, stack={"groups": 1, "share": "attention"})
    specs["table-missing"] = model(embed=named(Embed)["table-numbers"], head=named(Head)["tags-dense"])
    return specs


def listed() -> str:
    lines = []
    for name, spec in frozen_models().items():
        shapes = {k: tuple(v.shape) for k, v in spec.build(device="meta").state_dict().items()}
        lines += [f"{name} {key} {'x'.join(map(str, shape))}" for key, shape in shapes.items()]
    return "\n".join(lines) + "\n"


@pytest.mark.quick
def test_parameters_are_where_they_have_always_been() -> None:
    """They are the format on disk. After a change that is meant, and that can still read old files, write them anew:

    python -c "from tests.laws.test_build import PATHS, listed; PATHS.write_text(listed())"
    """
    assert listed() == PATHS.read_text()
    assert listed().replace("mixer.qkv", "mixer.attn") != PATHS.read_text()  # control: one new name is noticed


def test_tiny_presets_have_at_most_a_million_parameters_and_twins() -> None:
    for name in preset_names():
        if name.endswith("-tiny"):
            assert sum(p.numel() for p in preset(name).build(device="meta").parameters()) <= 1_000_000
        else:
            assert f"{name}-tiny" in preset_names()
