"""Maps are right for every family: by the formula in float64, after every kernel, and as transformers makes them."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import anyformer
from anyformer import Alibi, Attention, Relative, Rope
from anyformer.core import attend as seam
from anyformer.core.attend import Scores
from anyformer.inspection.capture import Capture, look
from anyformer.mixers.attention import AttentionInputs
from tests.families.parity import quietly
from tests.inspection.test_every_preset import TINY, captured
from tests.laws.nets import build, language, tokens

CLOSE = 1e-5
HALF = {torch.bfloat16: 0.02, torch.float16: 0.0025}  # largest difference of a weight: five steps of their precision


# ---------------------------------------------------------------- the formula in float64


def visible(scores: Scores, queries: int, keys: int) -> Tensor:
    """Which keys each query may see (H or 1, T, S), rule by rule."""
    seen = torch.ones(1, queries, keys, dtype=torch.bool)
    if scores.causal or scores.window is not None:
        behind = scores.query_index[0][:, None] - scores.key_index[0][None, :]  # how far a key lies back
        seen = seen & (behind >= 0) if scores.causal else seen
        near = scores.window is None or (behind.abs() < scores.window)
        seen = seen & near
    if scores.key_mask is not None:
        seen = seen & scores.key_mask[0]
    if scores.key_documents is not None:
        seen = seen & (scores.query_documents[0][:, None] == scores.key_documents[0][None, :])
    return seen if scores.allowed is None else seen & scores.allowed[0]


@torch.no_grad()
def naive(p: AttentionInputs) -> Tensor:
    """The map (H,T,S) of one row, head by head; what relative positions add is proved where they are."""
    q, k, scores = p.q[0].double(), p.k[0].double(), p.scores
    seen = visible(scores, q.shape[1], k.shape[1])
    relative = scores.relative
    places = (scores.tables, scores.query_positions, scores.key_positions)
    found = []
    for h in range(len(q)):
        score = torch.einsum("tc,sc->ts", q[h], k[h * len(k) // len(q)])
        if relative is not None and relative.needs_weights:
            extra = relative.scores(q[None], *places)
            score = score if extra is None else score + extra[0, h]
        score = score * scores.scale
        if scores.soft_cap is not None:
            score = scores.soft_cap * torch.tanh(score / scores.soft_cap)
        if relative is not None and relative.has_bias:
            bias = relative.bias(*places)[0].double()
            score = score + bias[h if len(bias) > 1 else 0]
        power = torch.exp(score - score.amax(1, keepdim=True)) * seen[h if len(seen) > 1 else 0]
        total = power.sum(1, keepdim=True)
        found.append(torch.where(total > 0, power / total, 0.0))
    return torch.stack(found)


@pytest.mark.parametrize("name", TINY)
def test_maps_of_every_preset_equal_the_formula(name: str) -> None:
    capture = captured(name)
    for site in capture.sites:
        given = capture.inputs_of(site.index)
        if given is None:
            continue
        got = capture.weights(site.index).double()
        assert float((got - naive(given)).abs().max()) < CLOSE, site.label
        if got.shape[-1] > 1:  # control: of one key the weight is 1 whatever its score
            sharper = replace(given.scores, scale=1e4 * given.scores.scale)
            assert float((naive(given._replace(scores=sharper)) - got).abs().max()) > CLOSE


def test_the_presets_cover_the_kinds_of_attention() -> None:
    """So that the law above cannot become empty: most small models have queries and keys."""
    kinds = [site.mixer for name in TINY[::2] for site in captured(name).sites]
    assert kinds.count("Attention") > 30 and kinds.count("Cross") > 3


@pytest.mark.parametrize("name", TINY)
def test_every_preset_is_trusted(name: str) -> None:
    trust = captured(name).trust
    assert trust.ok, trust.text()


# ---------------------------------------------------------------- kernels and precisions


WINDOWED = Attention(heads=4, kv_heads=2, window=5)


def through(engine: str, monkeypatch: pytest.MonkeyPatch, model: torch.nn.Module, ids: Tensor) -> tuple[Capture, int]:
    """A look at a pass in which one engine does all attention, and how often it ran."""
    ran: list[int] = []
    own = seam.ENGINES[engine]

    def counted(*given: Any, **named: Any) -> Tensor:
        ran.append(1)
        return own(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(seam, "choose", lambda *given: seam.Choice(engine, "the test says so"))
        patch.setitem(seam.ENGINES, engine, counted)
        if engine == "bands":  # it attends within its chunks by the engine of its own choice
            patch.setattr(
                seam, "choose", lambda q, k, *given: seam.Choice(engine if q.shape[2] == ids.shape[1] else "sdpa", "")
            )
        return look(model, ids), len(ran)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALF])
@pytest.mark.parametrize("engine", ["reference", "sdpa", "blocks", "bands"])
@pytest.mark.parametrize("relative", [Rope(), Alibi()], ids=lambda one: type(one).__name__)
def test_maps_are_the_same_whichever_kernel_ran(
    engine: str, relative: Relative, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maps of the first layer do not depend on the kernel at all, those of the second by what it rounds."""
    if engine == "blocks" and relative.has_bias:
        relative = Rope(theta=500.0)  # that kernel has no bias: another rotation instead
    ids = tokens(1, 64)
    model = build(language(mixer=WINDOWED, relative=relative), dtype=dtype)
    capture, ran = through(engine, monkeypatch, model, ids)
    assert ran >= 2
    assert capture.trust.ok, capture.trust.text()
    wanted = look(copy.deepcopy(model).double(), ids)  # the same weights, computed with in float64
    for layer in (0, 1):
        gap = float((capture.weights(layer) - wanted.weights(layer)).abs().max())
        assert gap < HALF.get(dtype, CLOSE)
    assert float((wanted.weights(0) - wanted.weights(1)).abs().max()) > 0.03  # control: layers differ by more


# ---------------------------------------------------------------- transformers


COMMON = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48}
IDS = torch.randint(3, 90, (1, 11), generator=torch.Generator().manual_seed(0))
TARGET = torch.randint(3, 90, (1, 6), generator=torch.Generator().manual_seed(1))
PIXELS = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(2))


def gpt2() -> Any:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=97, n_positions=32, n_embd=32, n_layer=2, n_head=4)
    )


def bert() -> Any:
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=97, max_position_embeddings=32, **COMMON))


def llama() -> Any:
    config = transformers.LlamaConfig(vocab_size=97, max_position_embeddings=32, num_key_value_heads=2, **COMMON)
    return transformers.LlamaForCausalLM(config)


def vit() -> Any:
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(image_size=16, patch_size=4, num_labels=3, **COMMON)
    )


def t5() -> Any:
    config = transformers.T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    return transformers.T5ForConditionalGeneration(config)


THEIRS = {
    "gpt2": (gpt2, {"input_ids": IDS}, IDS),
    "bert": (bert, {"input_ids": IDS}, IDS),
    "llama": (llama, {"input_ids": IDS}, IDS),
    "vit": (vit, {"pixel_values": PIXELS}, (PIXELS,)),
    "t5": (t5, {"input_ids": IDS, "decoder_input_ids": TARGET}, (IDS, TARGET)),
}


@torch.no_grad()
def eager_maps(model: Any, given: dict[str, Tensor]) -> list[tuple[str, str, Tensor]]:
    """Stack, kind and weights (layers, H, T, S) as transformers gives them."""
    out = model(**given, output_attentions=True)
    if "decoder_attentions" not in out:
        return [("", "self", torch.cat(out.attentions))]
    return [
        ("encoder", "self", torch.cat(out.encoder_attentions)),
        ("decoder", "self", torch.cat(out.decoder_attentions)),
        ("decoder", "cross", torch.cat(out.cross_attentions)),
    ]


@pytest.mark.parametrize("family", THEIRS)
def test_maps_equal_the_eager_attention_of_transformers(family: str, tmp_path: Path) -> None:
    make, theirs, ours = THEIRS[family]
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.25)  # large enough that weights are far from even
    model.set_attn_implementation("eager")
    with quietly():
        model.save_pretrained(tmp_path)
    capture = look(anyformer.load(tmp_path, device="cpu"), ours)
    compared = 0
    for stack, kind, wanted in eager_maps(model, theirs):
        sites = [site for site in capture.sites if (site.stack, site.kind) == (stack, kind)]
        assert len(sites) == len(wanted) == 2
        for site in sites:
            got = capture.weights(site.index)
            assert float((got - wanted[site.layer]).abs().max()) < CLOSE
            assert float((got - wanted[1 - site.layer]).abs().max()) > 1e-2  # control: another layer
            compared += 1
    assert compared == len(capture.sites)
    torch.testing.assert_close(capture.output.logits, model(**theirs).logits, atol=2e-5, rtol=1e-4)
