"""Open a RoBERTa of fairseq (checkpoint .pt and dict.txt) by giving it Hugging Face's names.

    python recipes/fairseq_roberta.py checkpoint.pt dict.txt FOLDER

The checkpoint is a pickle: run this on files you trust. cost: seconds.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

BODY, LAYER = r"decoder\.sentence_encoder\.", r"decoder\.sentence_encoder\.layers\.(\d+)\."
THERE = r"roberta.encoder.layer.\1."
RENAMED = (
    (BODY + r"embed_tokens\.", "roberta.embeddings.word_embeddings."),
    (BODY + r"embed_positions\.", "roberta.embeddings.position_embeddings."),
    (BODY + r"(emb_layer_norm|layernorm_embedding)\.", "roberta.embeddings.LayerNorm."),
    (LAYER + r"self_attn\.q_proj\.", THERE + "attention.self.query."),
    (LAYER + r"self_attn\.k_proj\.", THERE + "attention.self.key."),
    (LAYER + r"self_attn\.v_proj\.", THERE + "attention.self.value."),
    (LAYER + r"self_attn\.out_proj\.", THERE + "attention.output.dense."),
    (LAYER + r"self_attn_layer_norm\.", THERE + "attention.output.LayerNorm."),
    (LAYER + r"fc1\.", THERE + "intermediate.dense."),
    (LAYER + r"fc2\.", THERE + "output.dense."),
    (LAYER + r"final_layer_norm\.", THERE + "output.LayerNorm."),
    (r"decoder\.lm_head\.dense\.", "lm_head.dense."),
    (r"decoder\.lm_head\.layer_norm\.", "lm_head.layer_norm."),
    (r"decoder\.lm_head\.bias", "lm_head.bias"),
    (r"decoder\.lm_head\.weight", "lm_head.decoder.weight"),
)


def load(path: Path) -> tuple[dict[str, torch.Tensor], Any]:
    """Weights and settings; the settings are an argparse.Namespace, the one class admitted beside tensors."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        data = torch.load(path, map_location="cpu", weights_only=True)
    return data["model"], data["args"]


def symbols(path: Path) -> list[str]:
    """fairseq's vocabulary: four special symbols, the dictionary, the mask."""
    words = [line.split(" ")[0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return ["<s>", "<pad>", "</s>", "<unk>", *words, "<mask>"]


def renamed(name: str) -> str | None:
    for pattern, theirs in RENAMED:
        match = re.match(pattern, name)
        if match:
            return match.expand(theirs) + name[match.end() :]
    return None


def convert(checkpoint: Path, dictionary: Path, folder: Path) -> Path:
    """Write a Hugging Face folder of the masked language model."""
    weights, args = load(checkpoint)
    vocab = symbols(dictionary)
    named = {theirs: tensor.clone() for name, tensor in weights.items() if (theirs := renamed(name)) is not None}
    left = [name for name in weights if renamed(name) is None and "version" not in name]
    if left:
        raise SystemExit(f"error: {len(left)} tensors have no place, first {left[0]}")
    positions = named["roberta.embeddings.position_embeddings.weight"].shape[0]
    # fairseq's RoBERTa has no segments: one row of zeros adds nothing.
    named["roberta.embeddings.token_type_embeddings.weight"] = torch.zeros(1, args.encoder_embed_dim)
    named.pop("lm_head.decoder.weight", None)  # tied
    config = {
        "model_type": "roberta", "architectures": ["RobertaForMaskedLM"], "vocab_size": len(vocab),
        "hidden_size": args.encoder_embed_dim, "num_hidden_layers": args.encoder_layers,
        "num_attention_heads": args.encoder_attention_heads, "intermediate_size": args.encoder_ffn_embed_dim,
        "hidden_act": args.activation_fn, "max_position_embeddings": positions, "type_vocab_size": 1,
        "layer_norm_eps": 1e-5, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(named, str(folder / "model.safetensors"), {"format": "pt"})
    (folder / "symbols.json").write_text(json.dumps(vocab) + "\n", encoding="utf-8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("checkpoint", "dictionary", "folder"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args()
    print(convert(options.checkpoint, options.dictionary, options.folder))


if __name__ == "__main__":
    main()
