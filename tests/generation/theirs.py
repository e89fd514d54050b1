"""Tiny random models made by transformers and opened here."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    MistralConfig,
    MistralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from anyformer.checkpoints.folder import open_folder
from tests.families.parity import quietly

VOCAB, PAD, EOS, START = 30, 2, 5, 3
WORDS = {"vocab_size": VOCAB, "pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": START}
LLAMA = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 6}
SIDES = {"encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 2,
         "encoder_ffn_dim": 40, "decoder_ffn_dim": 24, "d_model": 24, "decoder_start_token_id": START}  # fmt: skip

DECODERS: dict[str, tuple[type, Any]] = {
    "gpt2": (GPT2LMHeadModel, GPT2Config(n_embd=24, n_layer=3, n_head=4, n_positions=64, **WORDS)),
    "llama-gqa": (LlamaForCausalLM, LlamaConfig(num_key_value_heads=2, **LLAMA, **WORDS)),
    "mistral-window": (MistralForCausalLM, MistralConfig(num_key_value_heads=3, sliding_window=6, **LLAMA, **WORDS)),
    "bloom": (BloomForCausalLM, BloomConfig(hidden_size=24, n_layer=2, n_head=3, **WORDS)),
    "gpt-neox": (GPTNeoXForCausalLM, GPTNeoXConfig(hidden_size=24, intermediate_size=40, num_hidden_layers=2,
                                                   num_attention_heads=2, rotary_pct=0.5, **WORDS)),
}  # fmt: skip
PAIRS: dict[str, tuple[type, Any]] = {
    "t5": (T5ForConditionalGeneration, T5Config(d_model=24, d_kv=5, d_ff=40, num_layers=3, num_decoder_layers=2,
                                                num_heads=3, decoder_start_token_id=START, **WORDS)),
    "t5-v1.1": (T5ForConditionalGeneration, T5Config(d_model=24, d_kv=8, d_ff=40, num_layers=2, num_heads=2,
                                                     feed_forward_proj="gated-gelu", tie_word_embeddings=False,
                                                     decoder_start_token_id=START, **WORDS)),
    "bart": (BartForConditionalGeneration, BartConfig(max_position_embeddings=48, forced_bos_token_id=7,
                                                      forced_eos_token_id=EOS, **SIDES, **WORDS)),
    "marian": (MarianMTModel, MarianConfig(max_position_embeddings=48, forced_eos_token_id=None, **SIDES, **WORDS)),
}  # fmt: skip


@lru_cache(maxsize=32)
def both(name: str) -> tuple[Any, Any]:
    """Their model and ours with the same weights; the text neither stands still nor ends at once."""
    kind, config = (DECODERS | PAIRS)[name]
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if name == "marian" and "embed_positions" in key:
                continue  # computed, not learned
            # Layers louder than the words: a tied table would else only ever repeat the last word.
            quiet = ("emb", "shared", "wte", "encoder_attn", "EncDecAttention")
            parameter.normal_(0, 0.3 if parameter.dim() < 2 or any(word in key for word in quiet) else 0.7)
            if "norm" in key or "ln_" in key:
                parameter += 1.0 if key.endswith("weight") else 0.0
    model.tie_weights()
    model.generation_config.forced_bos_token_id = getattr(config, "forced_bos_token_id", None)
    with tempfile.TemporaryDirectory() as folder, quietly():
        model.save_pretrained(folder)
        return model, open_folder(Path(folder)).model


def prompts(seed: int = 0, *, side: str = "left", batch: int = 3, length: int = 9) -> tuple[Tensor, Tensor]:
    """A padded batch of ids; no word of it ends a text."""
    tokens = torch.randint(8, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones(batch, length, dtype=torch.bool)
    for row in range(1, batch):
        mask[row, slice(0, 2 * row) if side == "left" else slice(length - 2 * row, length)] = False
    return tokens.masked_fill(~mask, PAD), mask
