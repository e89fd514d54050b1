"""Frames: log-mel against transformers' numpy code and a loop; AST's whole network on shared random weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anyformer import UserError
from anyformer.embeds.frames import Frames
from anyformer.embeds.mel import by_product, by_transform, log_mel, triangles
from anyformer.presets.signals import PRESETS, ast
from tests.reference.copying import (
    CAST,
    EXACT,
    Weights,
    agree,
    call,
    from_linear,
    from_norm,
    fuse,
    seeded,
    shaken,
    under,
)  # fmt: skip

SOUND = Frames(sample_rate=16000, frames=40, mels=32, patch=8, stride=5, distill=True)


# ---------------------------------------------------------------- log-mel


def slow_log_mel(wave: Tensor, rate: int, mels: int, window: int, hop: int) -> Tensor:
    """The formula read aloud: one spectrum, one frequency and one band at a time."""
    size = 2 ** math.ceil(math.log2(window))
    edges = np.linspace(1127 * math.log(1 + 20 / 700), 1127 * math.log(1 + rate / 2 / 700), mels + 2)
    columns = []
    for start in range(0, len(wave) - window + 1, hop):
        piece = wave[start : start + window]
        piece = piece - piece.mean()
        sharp = [piece[0] - 0.97 * piece[0]] + [piece[t] - 0.97 * piece[t - 1] for t in range(1, window)]
        faded = torch.stack([x * (0.5 - 0.5 * math.cos(2 * math.pi * t / (window - 1))) for t, x in enumerate(sharp)])
        bands = [torch.tensor(0.0, dtype=torch.float64) for _ in range(mels)]
        for k in range(size // 2 + 1):
            angle = 2 * math.pi * k / size * torch.arange(window, dtype=torch.float64)
            power = (faded * angle.cos()).sum() ** 2 + (faded * angle.sin()).sum() ** 2
            at = 1127 * math.log(1 + k * rate / size / 700)
            for m in range(mels):
                left, middle, right = edges[m : m + 3]
                share = min((at - left) / (middle - left), (right - at) / (right - middle))
                bands[m] = bands[m] + max(0.0, share) * power
        columns.append(torch.stack(bands).clamp(min=2.0**-23).log())
    return torch.stack(columns, 1)


@pytest.mark.quick
def test_log_mel_equals_the_formula_read_aloud() -> None:
    wave = seeded(140)
    ours = log_mel(wave[None], sample_rate=1000, mels=6, window=40, hop=25)[0]
    agree(ours, slow_log_mel(wave, 1000, 6, 40, 25), [wave])


def test_log_mel_equals_the_extractor_of_transformers() -> None:
    from transformers import ASTFeatureExtractor

    extractor = ASTFeatureExtractor(max_length=SOUND.frames, num_mel_bins=32)
    wave = 0.1 * seeded(SOUND.samples, grad=False)
    theirs = torch.from_numpy(
        extractor(wave.numpy().astype(np.float32), sampling_rate=16000)["input_values"][0]
    ).double()
    net = SOUND.build(8)
    ours = net.spectra(wave.float()[None].double(), None)[0].mT
    assert (ours - theirs).abs().max() < 1e-5  # the extractor answers in float32
    filters = torch.from_numpy(extractor.mel_filters)
    agree(triangles(16000, 32, 512, torch.device("cpu"), torch.float64), filters)
    assert (
        triangles(16000, 33, 512, torch.device("cpu"), torch.float64)[:, :32] - filters
    ).abs().max() > 0.1  # control


def test_both_ways_to_the_powers_agree() -> None:
    pieces = seeded(2, 3, 40)
    agree(by_product(pieces, 64), by_transform(pieces, 64), [pieces])


def test_silence_and_half_precision_have_finite_spectra_and_slopes() -> None:
    wave = torch.zeros(1, 800, requires_grad=True)
    spectra = log_mel(wave, sample_rate=16000, mels=16, window=400, hop=160)
    spectra.sum().backward()
    assert spectra.isfinite().all() and wave.grad is not None and wave.grad.isfinite().all()
    assert log_mel(wave.detach().bfloat16(), sample_rate=16000, mels=16, window=400, hop=160).dtype == torch.float32


# ---------------------------------------------------------------- AST


def from_ast(theirs: Any) -> Weights:
    """Their whole classifier as our model; differentiable in their weights."""
    body, names = theirs.audio_spectrogram_transformer, ("q_proj", "k_proj", "v_proj")
    own = body.embeddings
    weights: Weights = {
        "embed.patch.weight": own.patch_embeddings.projection.weight.flatten(1),
        "embed.patch.bias": own.patch_embeddings.projection.bias,
        "embed.lead": torch.cat([own.cls_token, own.distillation_token], 1)[0],
        "embed.position.table.weight": own.position_embeddings[0],
    }
    for i, layer in enumerate(body.layers):
        at, attention = f"stack.blocks.{i}", layer.attention
        for kind in ("weight", "bias"):
            parts = [getattr(getattr(attention, name), kind) for name in names]
            weights[f"{at}.mixer.qkv.{kind}"] = fuse(*parts, attention.num_attention_heads)
        weights |= under(f"{at}.mixer.out", from_linear(attention.o_proj))
        weights |= under(f"{at}.feed.up", from_linear(layer.mlp.fc1)) | under(
            f"{at}.feed.down", from_linear(layer.mlp.fc2)
        )
        weights |= under(f"{at}.around_mixer.before", from_norm(layer.layernorm_before))
        weights |= under(f"{at}.around_feed.before", from_norm(layer.layernorm_after))
    weights |= under("stack.final", from_norm(body.layernorm)) | under(
        "head.norm", from_norm(theirs.classifier.layernorm)
    )
    return weights | under("head.out", from_linear(theirs.classifier.dense))


def theirs_of(width: int, depth: int, heads: int, sound: Frames, classes: int) -> Any:
    from transformers import ASTConfig, ASTForAudioClassification

    config = ASTConfig(
        hidden_size=width, num_hidden_layers=depth, num_attention_heads=heads, intermediate_size=4 * width,
        num_mel_bins=sound.mels, max_length=sound.frames, patch_size=sound.cell[0], frequency_stride=sound.apart[0],
        time_stride=sound.apart[1], num_labels=classes,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    return ASTForAudioClassification(config)


def test_the_whole_network_equals_transformers() -> None:
    theirs = shaken(theirs_of(24, 2, 4, SOUND, 5)).eval()
    ours = ast(24, 2, 4, sound=SOUND, classes=5).build(dtype=torch.float64).eval()
    spectra = seeded(2, SOUND.mels, SOUND.frames)
    weights = from_ast(theirs)
    leaves = [spectra, *theirs.parameters()]
    agree(call(ours, weights, spectra).logits, theirs(spectra.mT).logits, leaves, bound=EXACT)
    other = {**weights, "embed.patch.weight": weights["embed.patch.weight"].flip(1)}  # control: patches turned round
    assert (call(ours, other, spectra).logits - theirs(spectra.mT).logits).abs().max() > 1e-3


def test_from_a_waveform_to_logits_as_transformers_does() -> None:
    from transformers import ASTFeatureExtractor

    theirs = shaken(theirs_of(24, 2, 4, SOUND, 5)).eval()
    ours = ast(24, 2, 4, sound=SOUND, classes=5).build(dtype=torch.float64).eval()
    wave = (0.1 * seeded(SOUND.samples, grad=False)).float()
    read = ASTFeatureExtractor(max_length=SOUND.frames, num_mel_bins=32)(wave.numpy(), sampling_rate=16000)
    heard = torch.from_numpy(np.asarray(read["input_values"])).double()
    agree(call(ours, from_ast(theirs), wave[None].double()).logits, theirs(heard).logits, bound=10 * CAST)


@pytest.mark.quick
def test_the_preset_has_the_parameters_of_the_original() -> None:
    with torch.device("meta"):
        theirs = theirs_of(384, 12, 6, Frames(sample_rate=16000), 527)
    ours = PRESETS["ast-small"]().build(device="meta")
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    assert ours.spec.embed.grid == (12, 101)


# ---------------------------------------------------------------- clips of different lengths


@torch.no_grad()
def test_a_shorter_clip_is_the_same_alone_and_beside_longer_ones() -> None:
    net = shaken(ast(24, 2, 4, sound=SOUND, classes=5).build(dtype=torch.float64)).eval()
    waves = seeded(3, SOUND.samples, grad=False)
    lengths = torch.tensor([SOUND.samples, 3000, 1])
    together = net(waves, lengths).logits
    for row, length in enumerate(lengths.tolist()):
        assert (together[row] - net(waves[row : row + 1, :length]).logits[0]).abs().max() < EXACT
    assert (together[1] - net(waves).logits[1]).abs().max() > 1e-3  # control: the rest was there
    context = net.embed.layout(waves, lengths)
    hidden = ~context.mask[1, 2:].unflatten(0, SOUND.grid)
    first = math.ceil(3000 / (SOUND.step * SOUND.apart[1]))
    assert hidden[:, first:].all() and not hidden[:, :first].any()  # whole columns of time, from where the clip ends


@torch.no_grad()
def test_lengths_of_ready_spectra_count_spectra() -> None:
    net = shaken(ast(24, 1, 4, sound=SOUND, classes=5).build(dtype=torch.float64)).eval()
    spectra = seeded(2, SOUND.mels, SOUND.frames, grad=False)
    short = net(spectra, torch.tensor([40, 17])).logits[1]
    assert (short - net(spectra[1:, :, :17]).logits[0]).abs().max() < EXACT


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((torch.zeros(2, SOUND.samples + 1),), "expected (B, samples)"),
        ((torch.zeros(2, 0),), "sound has shape (2, 0)"),
        ((torch.zeros(2, 31, 40),), "expected (B, 32, frames)"),
        ((torch.zeros(2, 100, dtype=torch.int16),), "in floating point"),
        ((torch.zeros(2, 100), torch.tensor([1])), "lengths have shape (1,)"),
        (("clip.wav",), "sound is str"),
    ],
    ids=["too-long", "nothing", "other-bands", "whole-numbers", "one-length", "a-name"],
)
def test_what_is_no_sound_is_refused(given: Any, said: str) -> None:
    with pytest.raises(UserError, match=r"\S") as refused:
        SOUND.build(8).layout(*given)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sample_rate": 0}, "below 1"), ({"patch": 64}, "less than a patch"), ({"stride": 0}, "below 1"),
        ({"std": 0.0}, "std"), ({"cls": False}, "comes with a class token"), ({"dropout": 1.0}, "outside"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        SOUND.replace(**settings)
    assert said in str(refused.value)
