"""The laws, callable on a user's own parts: each returns the number it measured, so that a test can compare it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.core.model import Model
from anyformer.errors import UserError


@dataclass(frozen=True)
class Report:
    """A measured law: true when it holds."""

    law: str
    measured: float
    bound: float
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.measured <= self.bound

    def __bool__(self) -> bool:
        return self.holds

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "BROKEN"
        return f"{self.law}: {verdict}, measured {self.measured:.3g}, bound {self.bound:.3g}" + (
            f" ({self.note})" if self.note else ""
        )


def answer_of(out: Any) -> Tensor:
    """The tensor a law compares: logits a token where there are, else hidden states, else the output itself."""
    if isinstance(out, Tensor):
        return out
    logits = out.logits
    return logits if logits is not None and logits.dim() == 3 else out.hidden


@torch.no_grad()
def causal(
    model: nn.Module, tokens: Tensor | None = None, *, bound: float | None = None, vocab: int | None = None
) -> Report:
    """Whether the future reaches the past: other random tokens after position t, largest change at or before t.

    The bound is 0, and rounding where a mixer goes through a Fourier transform (`Mixer.exact`), unless given.
    """
    tokens = random_tokens(model, vocab) if tokens is None else tokens
    bound = rounding_of(model) if bound is None else bound
    was_training = model.training
    model.eval()
    size = vocab or vocab_of(model)
    length, worst = tokens.shape[1], 0.0
    base = answer_of(model(tokens))
    for t in sorted({0, length // 3, length // 2, length - 2}):
        changed = tokens.clone()
        changed[:, t + 1 :] = (
            tokens[:, t + 1 :] + torch.randint(1, size, tokens[:, t + 1 :].shape, device=tokens.device)
        ) % size
        worst = max(worst, (answer_of(model(changed))[:, : t + 1] - base[:, : t + 1]).abs().max().item())
    model.train(was_training)
    return Report("causality", worst, bound)


@torch.no_grad()
def permutation(model: nn.Module, *inputs: Any, bound: float = 1e-6, seed: int = 0) -> Report:
    """How far f(RX) is from R f(X) for a random order R of the tokens (text), patches or columns.

    Near 0 without positions and causal order, clearly above with them. The stack is permuted below the embedding's
    table, so learned feature vectors of a table move with their column.
    """
    was_training = model.training
    model.eval()
    tokens = inputs[0]
    if isinstance(tokens, Tensor) and not tokens.is_floating_point() and len(inputs) == 1:
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(tokens.shape[1], generator=generator).to(tokens.device)
        moved = answer_of(model(tokens[:, order]))
        kept = answer_of(model(tokens))[:, order]
    else:  # any other embedding: permute what it gives to the stack
        embed, stack = part(model, "embed"), part(model, "stack")
        context = embed.layout(*inputs)
        x = embed(*inputs, context=context)
        order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(seed)).to(x.device)
        fixed = ("mask", "key_mask", "documents", "key_documents")  # belong to the tokens and move with them
        own = {name: given[:, order] for name in fixed if (given := getattr(context, name)) is not None}
        moved, kept = stack(x[:, order], replace(context, **own))[0], stack(x, context)[0][:, order]
    model.train(was_training)
    return Report("permutation equivariance", (moved - kept).abs().max().item(), bound)


@torch.no_grad()
def cache(model: nn.Module, tokens: Tensor | None = None, *, prefill: int | None = None, bound: float = 1e-4,
          vocab: int | None = None) -> Report:  # fmt: skip
    """How far prefill plus one-token steps is from one full pass."""
    tokens = random_tokens(model, vocab) if tokens is None else tokens
    was_training = model.training
    model.eval()
    full = answer_of(model(tokens))
    start = tokens.shape[1] // 2 if prefill is None else prefill
    state = model.state(tokens.shape[0])  # type: ignore[operator]
    pieces = [answer_of(model(tokens[:, :start], state=state))] if start else []
    pieces += [answer_of(model(tokens[:, t : t + 1], state=state)) for t in range(start, tokens.shape[1])]
    model.train(was_training)
    return Report("stepwise decoding = full pass", (torch.cat(pieces, 1) - full).abs().max().item(), bound)


@torch.no_grad()
def padding(model: nn.Module, tokens: Tensor | None = None, *, side: str = "left", amount: int = 3, bound: float = 1e-4,
            vocab: int | None = None) -> Report:  # fmt: skip
    """How much padding on one side changes the real tokens' answers."""
    tokens = random_tokens(model, vocab) if tokens is None else tokens
    was_training = model.training
    model.eval()
    size = vocab or vocab_of(model)
    batch, length = tokens.shape
    pads = torch.randint(0, size, (batch, amount), device=tokens.device)
    real, none = torch.ones(batch, length, dtype=torch.bool), torch.zeros(batch, amount, dtype=torch.bool)
    left = side == "left"
    mask = torch.cat([none, real] if left else [real, none], 1).to(tokens.device)
    padded = answer_of(model(torch.cat([pads, tokens] if left else [tokens, pads], 1), mask=mask))
    cut = padded[:, amount:] if left else padded[:, :length]
    model.train(was_training)
    return Report(f"padding on the {side}", (cut - answer_of(model(tokens))).abs().max().item(), bound)


def random_tokens(
    model: nn.Module, vocab: int | None = None, *, batch: int = 2, length: int = 12, seed: int = 0
) -> Tensor:
    """Ids to try a model on."""
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab or vocab_of(model), (batch, length), generator=generator).to(device)


def vocab_of(model: nn.Module) -> int:
    """How many ids the model's embedding knows."""
    spec = getattr(model, "spec", None)
    vocabulary = None if spec is None else spec.embed.vocabulary
    if vocabulary is None:
        raise UserError("the model does not say how many ids it knows", fix="pass tokens= or vocab=")
    return vocabulary[0]


def rounding_of(model: nn.Module) -> float:
    """How much of the future its mixers may let through: nothing, or what a Fourier transform rounds."""
    spec = getattr(model, "spec", None)
    exact = not isinstance(spec, Model) or all(mixer.exact for mixer in spec.stack.mixers)
    return 0.0 if exact else 1e-12 if next(model.parameters()).dtype == torch.float64 else 1e-5


def part(model: nn.Module, name: str) -> Any:
    """A named submodule, for laws that look below the whole."""
    return model.get_submodule(name)
