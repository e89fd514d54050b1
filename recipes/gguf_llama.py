"""Open a Llama-type GGUF file: weights become float32 in a Hugging Face folder, the tokenizer comes along.

    pip install gguf
    python recipes/gguf_llama.py model.gguf FOLDER
    anyformer generate FOLDER "Once upon a time"

cost: SmolLM2-135M in about 10 seconds, 540 MB on disk. expect: the logits of transformers' own GGUF reader.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def their_name(name: str) -> str:
    """`blk.3.attn_q.weight` as `model.layers.3.self_attn.q_proj.weight`."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{NAMES[parts[2]]}.{parts[3]}"
    return f"{NAMES[parts[0]]}.{parts[1]}"


def halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head from neighbouring pairs, as GGUF turns them, to two halves, as Hugging Face does."""
    rows = weight.reshape(heads, -1, 2, *weight.shape[1:])
    return rows.swapaxes(1, 2).reshape(weight.shape)


def config_of(said: dict[str, Any]) -> dict[str, Any]:
    """config.json from the file's own fields."""
    if said["general.architecture"] != "llama":
        raise SystemExit(f"error: architecture {said['general.architecture']!r} is not llama")
    heads, width = said["llama.attention.head_count"], said["llama.embedding_length"]
    return {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": width,
        "intermediate_size": said["llama.feed_forward_length"], "num_hidden_layers": said["llama.block_count"],
        "num_attention_heads": heads, "num_key_value_heads": said.get("llama.attention.head_count_kv", heads),
        "head_dim": said.get("llama.rope.dimension_count", width // heads),
        "vocab_size": len(said["tokenizer.ggml.tokens"]),
        "rms_norm_eps": said["llama.attention.layer_norm_rms_epsilon"], "hidden_act": "silu",
        "max_position_embeddings": said["llama.context_length"],
        "rope_parameters": {"rope_type": "default", "rope_theta": said.get("llama.rope.freq_base", 10000.0)},
        "bos_token_id": said.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": said.get("tokenizer.ggml.eos_token_id"),
    }  # fmt: skip


def tokenizer_of(said: dict[str, Any]) -> Tokenizer:
    """A byte-level BPE from the file's tokens and merges; digits stand alone, as SmolLM was trained."""
    if said["tokenizer.ggml.model"] != "gpt2":
        raise SystemExit(f"error: tokenizer {said['tokenizer.ggml.model']!r} is not a byte-level BPE")
    tokens, kinds = said["tokenizer.ggml.tokens"], said["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in said["tokenizer.ggml.merges"]]
    made = Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    digits = [pre_tokenizers.Split(Regex(r"\d"), "isolated")] if said.get("tokenizer.ggml.pre") == "smollm" else []
    made.pre_tokenizer = pre_tokenizers.Sequence([*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = decoders.ByteLevel()
    special = 3  # GGUF's mark of a control token
    made.add_special_tokens(
        [AddedToken(t, special=True) for t, kind in zip(tokens, kinds, strict=True) if kind == special]
    )
    return made


def convert(path: Path, folder: Path) -> Path:
    """Write the folder."""
    import gguf

    reader = gguf.GGUFReader(path)
    said = {name: field.contents() for name, field in reader.fields.items()}
    config = config_of(said)
    weights = {}
    for tensor in reader.tensors:
        if tensor.name.startswith("rope_"):
            continue
        whole = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        part = tensor.name.split(".")[-2]
        if part in ("attn_q", "attn_k"):
            whole = halves(whole, config["num_attention_heads" if part == "attn_q" else "num_key_value_heads"])
        weights[their_name(tensor.name)] = torch.from_numpy(np.ascontiguousarray(whole))
    config["tie_word_embeddings"] = "lm_head.weight" not in weights
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(weights, str(folder / "model.safetensors"), {"format": "pt"})
    tokenizer_of(said).save(str(folder / "tokenizer.json"))
    if "tokenizer.chat_template" in said:
        (folder / "chat_template.jinja").write_text(said["tokenizer.chat_template"], encoding="utf-8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    print(convert(options.file, options.folder))


if __name__ == "__main__":
    main()
