"""Open a model of llama2.c (https://github.com/karpathy/llama2.c): weights .bin (version 0) and tokenizer .bin.

    python recipes/llama2c.py stories260K.bin tok512.bin FOLDER
    anyformer generate FOLDER "Once upon a time"

cost: under a second. expect: the 260K model tells the story of llama2.c's own documentation, token for token.
"""

from __future__ import annotations

import argparse
import struct
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE

from anyformer.checkpoints.folder import save_own
from anyformer.checkpoints.operations import GATE, QKV
from anyformer.core.model import Model
from anyformer.presets.decoders import llama
from anyformer.spec import replace_in


def read_weights(path: Path) -> tuple[Model, dict[str, torch.Tensor]]:
    """The spec and our tensors; matrices lie one after the other as (layers, out, in)."""
    data = path.read_bytes()
    width, hidden, layers, heads, kv_heads, vocab, _ = struct.unpack("<7i", data[:28])
    tied, vocab = vocab > 0, abs(vocab)
    numbers, at = np.frombuffer(data, "<f4", offset=28), 0

    def take(*shape: int) -> torch.Tensor:
        nonlocal at
        count = int(np.prod(shape))
        at += count
        return torch.from_numpy(numbers[at - count : at].copy()).reshape(shape)

    channels = width // heads
    table, mixer_norm = take(vocab, width), take(layers, width)
    q, k, v = (take(layers, n * channels, width) for n in (heads, kv_heads, kv_heads))
    out, feed_norm = take(layers, width, width), take(layers, width)
    gate, down, up = take(layers, hidden, width), take(layers, width, hidden), take(layers, hidden, width)
    final = take(width)
    spec = llama(width, layers, heads, kv_heads, hidden, vocab=vocab)
    spec = replace_in(spec, {"head.tied": tied})
    network = spec.build(device="meta")
    weights = {"embed.table.weight": table, "stack.final.weight": final}
    for i in range(layers):
        block = f"stack.blocks.{i}."
        owner = network.get_submodule(block + "mixer")
        weights |= {
            block + "around_mixer.before.weight": mixer_norm[i],
            block + "mixer.qkv.weight": QKV.pull([halves(q[i], heads), halves(k[i], kv_heads), v[i]], owner),
            block + "mixer.out.weight": out[i],
            block + "around_feed.before.weight": feed_norm[i],
            block + "feed.up.weight": GATE.pull([gate[i], up[i]], owner),
            block + "feed.down.weight": down[i],
        }
    if not tied:
        at += 2 * (channels // 2) * struct.unpack("<7i", data[:28])[6]  # two tables of angles
        weights["head.weight"] = take(vocab, width)
    return spec, weights


def halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of each head from neighbouring pairs, as llama2.c turns them, to two halves, as everyone else does."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def read_tokenizer(path: Path, vocab: int) -> Tokenizer:
    """Scored pieces as byte-pair merges: the better a piece's score, the earlier its two halves join."""
    data, at, pieces, scores = path.read_bytes(), 4, [], []
    for _ in range(vocab):
        score, length = struct.unpack_from("<fi", data, at)
        pieces.append(data[at + 8 : at + 8 + length].decode("utf-8"))
        scores.append(score)
        at += 8 + length
    pieces[0], pieces[1], pieces[2] = "<unk>", "<s>", "</s>"
    names = [piece.replace(" ", "\u2581") for piece in pieces]
    ids = {name: i for i, name in enumerate(names)}
    ranked = sorted((i for i in range(3, vocab) if len(names[i]) > 1), key=lambda i: (-scores[i], i))
    merges = [
        (n[:c], n[c:]) for n in (names[i] for i in ranked) for c in range(1, len(n)) if n[:c] in ids and n[c:] in ids
    ]
    tokenizer = Tokenizer(BPE(vocab=ids, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0),
    ])  # fmt: skip
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names[:3]])
    return tokenizer


def convert(weights_path: Path, tokenizer_path: Path, folder: Path) -> Path:
    """Write an anyformer folder."""
    spec, weights = read_weights(weights_path)
    network = spec.build(device="cpu")
    network.load_state_dict(weights, strict=True)
    save_own(folder, spec, network)
    read_tokenizer(tokenizer_path, spec.embed.vocab).save(str(folder / "tokenizer.json"))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("weights", "tokenizer", "folder"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args()
    print(convert(options.weights, options.tokenizer, options.folder))


if __name__ == "__main__":
    main()
