"""Writing with a model, one token a step: a plain temperature loop over the cached step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import nn


class Piece(NamedTuple):
    """One token of a text, and how probable the model found it (None: it was given)."""

    text: str
    probability: float | None


@torch.no_grad()
def complete(
    net: nn.Module, tokenizer: Tokenizer, prompt: str, *, tokens: int = 64, temperature: float = 0.8, seed: int = 0
) -> list[Piece]:
    """The prompt and `tokens` further tokens; temperature 0 takes the most probable one each time.

    Probabilities are the model's own (temperature 1), so shades compare between texts.
    """
    device = next(net.parameters()).device
    generator = torch.Generator().manual_seed(seed)  # on the CPU: the same draw on every device
    net.eval()
    ids = tokenizer.encode(prompt).ids
    state = net.state(1, limit=len(ids) + tokens)  # type: ignore[operator]
    pieces = [Piece(prompt, None)]
    new = torch.tensor([ids], device=device)
    for _ in range(tokens):
        logits = net(new, state=state).logits[0, -1].float().cpu()  # (V,)
        if temperature > 0:
            chosen = int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator))
        else:
            chosen = int(logits.argmax())
        pieces.append(Piece(tokenizer.decode([chosen]), float(logits.softmax(-1)[chosen])))
        new = torch.tensor([[chosen]], device=device)
    return pieces


def text_of(pieces: list[Piece]) -> str:
    """The words of the pieces, joined."""
    return "".join(piece.text for piece in pieces)
