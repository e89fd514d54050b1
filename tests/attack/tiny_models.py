"""The smallest model of transformers of each family that can be opened here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as hf

TEXT = {"vocab_size": 24, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
ROPED = {**TEXT, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 20, "max_position_embeddings": 64, "head_dim": 4}  # fmt: skip
GPT2 = {**TEXT, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 40}
BLOOM = {**TEXT, "hidden_size": 16, "n_layer": 2, "n_head": 4}
DISTILBERT = {**TEXT, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 20, "max_position_embeddings": 40}
T5 = {**TEXT, "d_model": 16, "d_kv": 4, "d_ff": 20, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
ENCODER = {**TEXT, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20,
           "max_position_embeddings": 40}  # fmt: skip
PAIR = {**TEXT, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "max_position_embeddings": 40,
        "decoder_start_token_id": 0, "forced_eos_token_id": 1}  # fmt: skip
IMAGE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20, "image_size": 8,
         "patch_size": 4}  # fmt: skip
QWEN2 = {name: value for name, value in ROPED.items() if name != "head_dim"}
TOWER = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20}
RESNET = {"embedding_size": 4, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "bottleneck",
          "out_features": ["stage2"]}  # fmt: skip


def detr(**changes: Any) -> Any:
    backbone = hf.ResNetConfig(**RESNET)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4,
             "decoder_attention_heads": 4, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "num_queries": 5}  # fmt: skip
    return hf.DetrConfig(use_timm_backbone=False, backbone_config=backbone, backbone=None, **{**sizes, **changes})


def clip(**changes: Any) -> Any:
    text = {**TOWER, **TEXT, "max_position_embeddings": 20}
    return hf.CLIPConfig(text_config=text, vision_config={**TOWER, "image_size": 8, "patch_size": 4}, projection_dim=12,
                         **changes)  # fmt: skip


def of(kind: type, config: type, settings: dict[str, Any]) -> Callable[[], Any]:
    return lambda: kind(config(**settings))


TINY: dict[str, Callable[[], Any]] = {
    "gpt2": of(hf.GPT2LMHeadModel, hf.GPT2Config, GPT2),
    "llama": of(hf.LlamaForCausalLM, hf.LlamaConfig, ROPED),
    "mistral": of(hf.MistralForCausalLM, hf.MistralConfig, ROPED),
    "mixtral": of(hf.MixtralForCausalLM, hf.MixtralConfig, {**ROPED, "num_local_experts": 3}),
    "qwen2": of(hf.Qwen2ForCausalLM, hf.Qwen2Config, QWEN2),
    "qwen3": of(hf.Qwen3ForCausalLM, hf.Qwen3Config, ROPED),
    "arcee": of(hf.ArceeForCausalLM, hf.ArceeConfig, ROPED),
    "bloom": of(hf.BloomForCausalLM, hf.BloomConfig, BLOOM),
    "gpt_neox": of(hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig, ENCODER),
    "bert": of(hf.BertForMaskedLM, hf.BertConfig, ENCODER),
    "roberta": of(hf.RobertaForSequenceClassification, hf.RobertaConfig, ENCODER),
    "distilbert": of(hf.DistilBertForMaskedLM, hf.DistilBertConfig, DISTILBERT),
    "albert": of(hf.AlbertForMaskedLM, hf.AlbertConfig, {**ENCODER, "embedding_size": 8}),
    "electra": of(hf.ElectraForPreTraining, hf.ElectraConfig, {**ENCODER, "embedding_size": 8}),
    "t5": of(hf.T5ForConditionalGeneration, hf.T5Config, T5),
    "bart": of(hf.BartForConditionalGeneration, hf.BartConfig, PAIR),
    "marian": of(hf.MarianMTModel, hf.MarianConfig, PAIR),
    "vit": of(hf.ViTForImageClassification, hf.ViTConfig, IMAGE),
    "deit": of(hf.DeiTForImageClassification, hf.DeiTConfig, IMAGE),
    "clip": lambda: hf.CLIPModel(clip()),
    "detr": lambda: hf.DetrForObjectDetection(detr()),
}  # fmt: skip
