"""The attention head that best attends from closing brackets to their opening ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import nn

from anyformer.inspection.maps import attention_maps

PAIRS = {")": "(", "]": "[", "}": "{"}
LINE = "        self.data[key] = value.get(name)\n"


@dataclass(frozen=True)
class HeadWeights:
    """One head's weights over a line of code."""

    layer: int  # from 1
    head: int  # from 1
    heads: int
    words: list[str]
    weights: list[list[float]]  # row: query token; column: key token
    pairs: list[tuple[int, int]]  # closing token, opening token
    score: float  # mean weight from a closing bracket to its opening one
    even: float  # the same for uniform attention over the visible tokens


def bracket_pairs(text: str) -> list[tuple[int, int]]:
    """Character positions of each closing bracket and its opening one.

    >>> bracket_pairs("f(x[1])")
    [(5, 3), (6, 1)]
    """
    open_at: list[int] = []
    pairs = []
    for at, letter in enumerate(text):
        if letter in PAIRS.values():
            open_at.append(at)
        elif letter in PAIRS and open_at and text[open_at[-1]] == PAIRS[letter]:
            pairs.append((at, open_at.pop()))
    return pairs


def bracket_head(net: nn.Module, tokenizer: Tokenizer, line: str = LINE) -> HeadWeights:
    """The head of `net` with the largest mean weight from a closing bracket to its opening one in `line`."""
    encoded = tokenizer.encode(line)
    holder = {at: i for i, (start, end) in enumerate(encoded.offsets) for at in range(start, end)}
    # A token may contain several brackets, `()` or `))`; pairs inside one token are skipped.
    pairs = sorted({(holder[a], holder[b]) for a, b in bracket_pairs(line) if holder[a] != holder[b]})
    device = next(net.parameters()).device
    net.eval()
    maps = attention_maps(net, torch.tensor([encoded.ids], device=device))
    layers = [weights[0].float().cpu() for calls in maps.values() for weights in calls]  # (H,T,S) each
    closing, opening = [a for a, _ in pairs], [b for _, b in pairs]
    scores = torch.stack([weights[:, closing, opening].mean(-1) for weights in layers])  # (layers, H)
    layer, head = divmod(int(scores.argmax()), scores.shape[1])
    return HeadWeights(
        layer=layer + 1,
        head=head + 1,
        heads=scores.shape[1],
        words=[line[start:end] for start, end in encoded.offsets],
        weights=layers[layer][head].tolist(),
        pairs=pairs,
        score=float(scores[layer, head]),
        even=sum(1 / (a + 1) for a in closing) / len(closing),
    )
