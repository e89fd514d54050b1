"""Text generation token by token: a plain temperature-sampling loop over the cached decode step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn


class Piece(NamedTuple):
    """One token of a text and its probability (None: from the prompt)."""

    text: str
    probability: float | None


@torch.no_grad()
def complete(
    net: nn.Module,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    tokens: int = 64,
    temperature: float = 0.6,
    seed: int = 0,
    before: str = "\n\n",
) -> list[Piece]:
    """The prompt and `tokens` further tokens; temperature 0 is greedy decoding.

    `before` is read ahead of the prompt and not shown: two line ends say that a line begins here. Probabilities are the
    model's own (temperature 1), so shades compare between texts.
    """
    device = next(net.parameters()).device
    generator = torch.Generator().manual_seed(seed)  # on the CPU: the same draw on every device
    net.eval()
    # Token healing: a space belongs to the next token, so a prompt tokenized as "def" and a lone space never occurs in
    # training. The last space is removed and the first new token must begin with one.
    healed = prompt.endswith(" ") and bool(prompt.strip())
    ids = tokenizer.encode(before + (prompt[:-1] if healed else prompt)).ids
    allowed = begins_with_space(tokenizer) if healed else None
    state = net.state(1, limit=len(ids) + tokens)  # type: ignore[operator]
    pieces = [Piece(prompt, None)]
    new = torch.tensor([ids], device=device)
    for _ in range(tokens):
        logits = net(new, state=state).logits[0, -1].float().cpu()  # (V,)
        own = logits.softmax(-1)
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -torch.inf)
        if temperature > 0:
            chosen = int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator))
        else:
            chosen = int(logits.argmax())
        text = tokenizer.decode([chosen])
        pieces.append(Piece(text if allowed is None else text[1:], float(own[chosen])))
        new, allowed = torch.tensor([[chosen]], device=device), None
    return pieces


def begins_with_space(tokenizer: Tokenizer) -> Tensor:
    """Boolean mask (V,) of tokens that begin with a space and have more than spaces."""
    texts = (tokenizer.decode([token]) for token in range(tokenizer.get_vocab_size()))
    return torch.tensor([text.startswith(" ") and bool(text.strip()) for text in texts])


def text_of(pieces: list[Piece]) -> str:
    """The words of the pieces, joined."""
    return "".join(piece.text for piece in pieces)
