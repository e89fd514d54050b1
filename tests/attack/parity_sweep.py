"""Vary every field of every family's config class and compare answers with transformers.

A tiny random model is made there for each value, saved, and opened here: answers must be equal to 1e-5, or the folder
refused in one line. Anything else is a setting that is neither supported nor refused. Run it for figures:

    python -m tests.attack.parity_sweep --family llama
    python -m tests.attack.parity_sweep --pairs 200 --seed 1
"""

from __future__ import annotations

import argparse
import copy
import itertools
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as hf

from anyformer.checkpoints.folder import open_folder
from anyformer.core.model import Model, Seq2Seq
from anyformer.core.towers import Towers
from anyformer.errors import UserError
from tests.attack import tiny_models as tiny
from tests.families.parity import quietly, save, their_answer

LENGTH = 22  # tokens of a text: beyond the windows and lengths that are tried
EQUAL, REFUSED, UNBUILDABLE = "equal", "refused", "not there either"


@dataclass(frozen=True)
class Subject:
    """A class of transformers with a config small enough to build often."""

    kind: type
    config: Callable[..., Any]
    settings: dict[str, Any]


SUBJECTS: dict[str, Subject] = {
    "gpt2": Subject(hf.GPT2LMHeadModel, hf.GPT2Config, tiny.GPT2),
    "gpt2 classify": Subject(hf.GPT2ForSequenceClassification, hf.GPT2Config, tiny.GPT2),
    "llama": Subject(hf.LlamaForCausalLM, hf.LlamaConfig, tiny.ROPED),
    "mistral": Subject(hf.MistralForCausalLM, hf.MistralConfig, tiny.ROPED),
    "mixtral": Subject(hf.MixtralForCausalLM, hf.MixtralConfig, {**tiny.ROPED, "num_local_experts": 3}),
    "qwen2": Subject(hf.Qwen2ForCausalLM, hf.Qwen2Config, tiny.QWEN2),
    "qwen3": Subject(hf.Qwen3ForCausalLM, hf.Qwen3Config, tiny.ROPED),
    "arcee": Subject(hf.ArceeForCausalLM, hf.ArceeConfig, tiny.ROPED),
    "bloom": Subject(hf.BloomForCausalLM, hf.BloomConfig, tiny.BLOOM),
    "gpt_neox": Subject(hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig, tiny.ENCODER),
    "bert": Subject(hf.BertForMaskedLM, hf.BertConfig, tiny.ENCODER),
    "bert classify": Subject(hf.BertForSequenceClassification, hf.BertConfig, tiny.ENCODER),
    "roberta": Subject(hf.RobertaForMaskedLM, hf.RobertaConfig, tiny.ENCODER),
    "distilbert": Subject(hf.DistilBertForMaskedLM, hf.DistilBertConfig, tiny.DISTILBERT),
    "albert": Subject(hf.AlbertForMaskedLM, hf.AlbertConfig, {**tiny.ENCODER, "embedding_size": 8}),
    "electra": Subject(hf.ElectraForPreTraining, hf.ElectraConfig, {**tiny.ENCODER, "embedding_size": 8}),
    "electra masked": Subject(hf.ElectraForMaskedLM, hf.ElectraConfig, {**tiny.ENCODER, "embedding_size": 8}),
    "t5": Subject(hf.T5ForConditionalGeneration, hf.T5Config, tiny.T5),
    "bart": Subject(hf.BartForConditionalGeneration, hf.BartConfig, tiny.PAIR),
    "marian": Subject(hf.MarianMTModel, hf.MarianConfig, tiny.PAIR),
    "vit": Subject(hf.ViTForImageClassification, hf.ViTConfig, tiny.IMAGE),
    "vit bare": Subject(hf.ViTModel, hf.ViTConfig, tiny.IMAGE),
    "deit": Subject(hf.DeiTForImageClassification, hf.DeiTConfig, tiny.IMAGE),
    "clip text": Subject(hf.CLIPTextModelWithProjection, hf.CLIPTextConfig,
                         {**tiny.TOWER, **tiny.TEXT, "max_position_embeddings": 40, "projection_dim": 12}),
    "clip vision": Subject(hf.CLIPVisionModelWithProjection, hf.CLIPVisionConfig,
                           {**tiny.TOWER, "image_size": 8, "patch_size": 4, "projection_dim": 12}),
    "detr": Subject(hf.DetrForObjectDetection, tiny.detr, {}),
}  # fmt: skip

# What is no setting of the network: names, versions, and what the output holds.
NOT_VARIED = {
    "model_type", "architectures", "transformers_version", "id2label", "label2id", "return_dict", "torchscript",
    "dtype", "torch_dtype", "output_hidden_states", "output_attentions", "_name_or_path", "is_encoder_decoder",
    "problem_type", "chunk_size_feed_forward", "_attn_implementation", "use_cache", "attn_implementation",
    "pruned_heads", "backbone_config", "backbone", "use_timm_backbone", "use_pretrained_backbone",
    "backbone_kwargs",
}  # fmt: skip
ACTIVATIONS = sorted(hf.activations.ACT2FN)
SCALINGS = [
    {"rope_type": "default", "rope_theta": 500.0}, {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
    {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 8},
    {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "beta_fast": 16, "beta_slow": 2, "truncate": False},
    {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "mscale": 0.7, "mscale_all_dim": 1.1},
    {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "attention_factor": 1.3},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 10000.0,
     "original_max_position_embeddings": 16},
    {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0, 2.0], "long_factor": [1.5, 3.0],
     "original_max_position_embeddings": 8, "rope_theta": 10000.0},
    {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
]  # fmt: skip
SPECIAL: dict[str, list[Any]] = {
    "rope_parameters": SCALINGS, "sliding_window": [4, 9, None], "layer_types": [
        ["sliding_attention", "full_attention"], ["full_attention", "sliding_attention"], ["sliding_attention"] * 2,
    ],
    "max_window_layers": [0, 1, 2], "num_key_value_heads": [1, 4, None], "head_dim": [2, 8, 6],
    "partial_rotary_factor": [0.5, 0.25], "rotary_pct": [0.5, 1.0], "rotary_emb_base": [500],
    "position_embedding_type": ["relative_key", "relative_key_query", "rotary", "learned", "sine"],
    "feed_forward_proj": ["gated-gelu", "gated-silu", "gelu", "gated-relu", "relu"], "num_labels": [3],
    "classifier_dropout": [0.2], "num_hidden_groups": [2], "inner_group_num": [2], "num_experts_per_tok": [1, 3],
    "hidden_sizes": [], "n_inner": [20, 64], "tie_word_embeddings": [True, False], "pad_token_id": [0, 2, None],
    "max_position_embeddings": [16, 64], "summary_type": ["last", "mean", "cls_index"], "vocab_size": [31],
    "image_size": [12, (8, 12)], "patch_size": [2, 8], "pooler_act": ["relu", "gelu"], "pooler_output_size": [8, 24],
    "encoder_stride": [4], "num_decoder_layers": [1, 3], "relative_attention_num_buckets": [8, 16],
    "relative_attention_max_distance": [16, 64], "pretraining_tp": [2], "eos_token_id": [2, 23], "bos_token_id": [2],
    "is_decoder": [True], "add_cross_attention": [True], "hidden_size": [24], "d_kv": [6], "d_model": [24],
    "slow_but_exact": [True], "hidden_act": ACTIVATIONS, "activation_function": ACTIVATIONS, "activation": ACTIVATIONS,
    "summary_activation": ["tanh"], "dense_act_fn": ["gelu", "silu"], "share_encoder_decoder_embeddings": [False],
    "decoder_vocab_size": [30], "auxiliary_loss": [True], "dilation": [True], "scale_attn_weights": [False],
    "type_vocab_size": [1, 3], "attention_dropout": [0.1], "num_attention_heads": [2, 8, 3], "n_head": [2, 8],
    "router_jitter_noise": [0.1], "layer_norm_eps": [1e-3], "rms_norm_eps": [1e-2], "layer_norm_epsilon": [1e-3],
}  # fmt: skip


def values(name: str, found: Any) -> list[Any]:
    """Plausible values of a field other than the one it has."""
    if name in SPECIAL:
        return [value for value in SPECIAL[name] if value != found]
    if isinstance(found, bool):
        return [not found]
    if isinstance(found, int):
        return [value for value in (1, found + 1, found * 2) if value != found]
    if isinstance(found, float):
        return [value for value in (0.0, 0.3, found * 4) if value != found]
    return []


def fields(subject: Subject) -> dict[str, list[Any]]:
    """Every field of the config with what it is changed to."""
    base = subject.config(**subject.settings)
    described = base.to_dict()
    named = {name: described.get(name, getattr(base, name, None)) for name in (*described, *vars(base))}
    named = {name: value for name, value in named.items() if not name.startswith("_") and name not in NOT_VARIED}
    return {name: found for name, value in named.items() if (found := values(name, value))}


# ---------------------------------------------------------------- one comparison


def compare(subject: Subject, changes: dict[str, Any], folder: Path) -> str:
    """EQUAL, REFUSED, UNBUILDABLE, or what went wrong; a small difference is looked at again with twice the digits."""
    outcome = compared(subject, changes, folder / "single", torch.float32)
    if outcome.startswith("off by") and float(outcome.split()[-1]) < 1e-3:
        return compared(subject, changes, folder / "double", torch.float64)
    return outcome


def compared(subject: Subject, changes: dict[str, Any], folder: Path, dtype: torch.dtype) -> str:
    torch.manual_seed(0)
    try:
        with quietly(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = subject.config(**copy.deepcopy({**subject.settings, **changes}))  # they write into it
            theirs = subject.kind(config).eval().to(dtype)
            strengthen(theirs)
            answer = ask_them(theirs, dtype)
            save(theirs, folder)
    except Exception:
        return UNBUILDABLE
    try:
        opened = open_folder(folder)
        with torch.no_grad():
            ours = ask_us(opened.spec, opened.model, config, dtype)
    except UserError as error:
        return REFUSED if len(str(error)) <= 400 else f"a long refusal: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    if answer.shape != ours.shape:
        return f"shape {tuple(ours.shape)}, there {tuple(answer.shape)}"
    gap = (answer - ours).abs().max().item() / max(1.0, answer.abs().max().item())
    return EQUAL if gap <= 1e-5 else f"off by {gap:.2g}"


@torch.no_grad()
def strengthen(model: Any) -> None:
    """Weights large enough that every part matters."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.normal_(1.0 if parameter.dim() == 1 and name.endswith("weight") else 0.0, 0.15)
    for name, buffer in model.named_buffers():
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
    for module in model.modules():  # an untied masked-LM head there keeps a second bias, which nothing reads
        if isinstance(getattr(module, "decoder", None), torch.nn.Linear) and "bias" in module._parameters:
            module.bias.copy_(module.decoder.bias)
    model.tie_weights()


def tokens(vocab: int) -> torch.Tensor:
    return torch.randint(3, min(vocab, 24) - 2, (2, LENGTH), generator=torch.Generator().manual_seed(0))


def pixels(size: Any, channels: int) -> torch.Tensor:
    rows, columns = (size, size) if isinstance(size, int) else size
    return torch.randn(2, channels, rows, columns, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def ask_them(model: Any, dtype: torch.dtype) -> torch.Tensor:
    config = model.config
    if isinstance(model, hf.DetrForObjectDetection):
        out = model(pixel_values=pixels(32, config.num_channels).to(dtype))
        return torch.cat([out.logits, out.pred_boxes], -1)
    if model.main_input_name == "pixel_values":
        return plain(model(pixel_values=pixels(config.image_size, config.num_channels).to(dtype)))
    ids = tokens(config.vocab_size)
    if config.is_encoder_decoder:
        return plain(model(input_ids=ids, decoder_input_ids=ids[:, :9]))
    return plain(model(input_ids=ended(ids, model.config)))


def plain(out: Any) -> torch.Tensor:
    for name in ("text_embeds", "image_embeds"):
        if getattr(out, name, None) is not None:
            return getattr(out, name)
    return their_answer(out) if getattr(out, "pooler_output", None) is None else out.pooler_output


def ended(ids: torch.Tensor, config: Any) -> torch.Tensor:
    """The ids, last the one at which a text tower there takes its answer: the end, or the largest for older ones."""
    if isinstance(config, hf.CLIPTextConfig):
        ids[:, -1] = config.vocab_size - 1 if config.eos_token_id == 2 else config.eos_token_id
    return ids


def ask_us(spec: Any, model: Any, config: Any, dtype: torch.dtype) -> torch.Tensor:
    if isinstance(spec, Seq2Seq) and not hasattr(spec.encoder.embed, "vocab"):
        out = model(pixels(32, spec.encoder.embed.backbone.colours).to(dtype))
        return torch.cat([out.logits, out.boxes], -1)
    if isinstance(spec, Seq2Seq):
        ids = tokens(spec.encoder.embed.vocab)
        return answer_of(model(ids, ids[:, :9]))
    assert isinstance(spec, Model) and not isinstance(spec, Towers)
    if hasattr(spec.embed, "pixels"):
        return answer_of(model(pixels(spec.embed.pixels, spec.embed.channels).to(dtype)))
    ids = tokens(spec.embed.vocab)
    return answer_of(model(ended(ids, config)))


def answer_of(out: Any) -> torch.Tensor:
    if out.logits is not None:
        return out.logits
    return out.hidden if out.pooled is None else out.pooled


# ---------------------------------------------------------------- figures


def single(names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every subject as it is, and with each field changed alone."""
    for name in names:
        yield name, {}
        for field, found in fields(SUBJECTS[name]).items():
            for value in found:
                yield name, {field: value}


def paired(names: list[str], count: int, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Two fields changed at once."""
    draw = random.Random(seed)
    for _ in range(count):
        name = draw.choice(names)
        known = fields(SUBJECTS[name])
        yield name, {field: draw.choice(known[field]) for field in draw.sample(sorted(known), 2)}


def sweep(cases: Iterator[tuple[str, dict[str, Any]]], say: Callable[[str], None] = print) -> dict[str, dict[str, int]]:
    """How often each outcome came, for each subject; what must not come is said."""
    figures: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as root:
        for i, (name, changes) in enumerate(cases):
            outcome = compare(SUBJECTS[name], changes, Path(root) / str(i))
            kind = outcome if outcome in (EQUAL, REFUSED, UNBUILDABLE) else "BAD"
            counted = figures.setdefault(name, {})
            counted[kind] = counted.get(kind, 0) + 1
            if kind == "BAD":
                say(f"BAD {name} {changes}: {outcome}")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", default="", help="only subjects whose name begins with this")
    parser.add_argument("--pairs", type=int, default=0, help="so many random pairs of fields in place of single ones")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    names = [name for name in SUBJECTS if name.startswith(asked.family)]
    cases = paired(names, asked.pairs, asked.seed) if asked.pairs else itertools.chain(single(names))
    for name, counted in sweep(cases).items():
        print(f"{name:<16} " + "  ".join(f"{kind} {count}" for kind, count in sorted(counted.items())))


if __name__ == "__main__":
    main()
