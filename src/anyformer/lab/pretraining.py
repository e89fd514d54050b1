"""Shared code of claims about pretraining: a training loop over blocks of text, and a linear probe."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.lab.fit import fit
from anyformer.lab.library_text import TextBlocks
from anyformer.objectives.batch import Batch
from anyformer.objectives.draw import EVALUATION, Draw
from anyformer.objectives.objective import Objective

ROWS = 32  # blocks per step
RIDGE = 1e-2  # ridge penalty of the probe, relative to the mean square of a feature
Loss = Callable[[nn.Module, Batch], Tensor]  # the sum over the targets that count


def pretrain(
    net: nn.Module, objective: Objective, blocks: TextBlocks, *, steps: int, seed: int, lr: float = 3e-3,
    loss: Loss | None = None,
) -> list[float]:  # fmt: skip
    """Train `net` with an objective, each epoch in a new order; returns the loss of every step.

    `loss` takes the place of the objective's own, for one that leaves a part of it out.
    """
    device = next(net.parameters()).device
    taken = 0

    def loss_of(generator: torch.Generator) -> Tensor:
        nonlocal taken
        places = np.arange(taken, taken + ROWS)
        taken += ROWS
        batches = [
            blocks.batch(order(len(blocks), seed, int(epoch))[places[places // len(blocks) == epoch] % len(blocks)])
            for epoch in np.unique(places // len(blocks))
        ]
        batch = joined(batches)
        asked = objective.corrupt(batch, Draw(seed, int(places[0] // len(blocks))), blocks)
        total = (loss or objective.loss)(net, asked.to(device))
        return total / objective.weight(asked)

    return fit(net, loss_of, steps=steps, seed=seed, lr=lr, warmup=steps // 10)


def order(count: int, seed: int, epoch: int) -> np.ndarray:
    """The order of the blocks in an epoch."""
    return np.random.default_rng((seed, epoch)).permutation(count)


def joined(batches: list[Batch]) -> Batch:
    """Concatenate batches: the end of an epoch and the start of the next."""
    inputs, targets, rows = zip(*((batch.inputs[0], batch.targets, batch.rows) for batch in batches), strict=True)
    return Batch((torch.cat(inputs),), torch.cat(targets), torch.cat(rows))


@torch.no_grad()
def held_out_loss(net: nn.Module, objective: Objective, blocks: TextBlocks) -> float:
    """The mean loss over all blocks, with the same corruption every time."""
    device = next(net.parameters()).device
    total, weight = 0.0, 0
    for rows in np.array_split(np.arange(len(blocks)), -(-len(blocks) // 128)):
        batch = objective.corrupt(blocks.batch(rows), EVALUATION, blocks)
        total += objective.loss(net, batch.to(device)).item()
        weight += objective.weight(batch)
    return total / weight


def probe(features: Callable[[Tensor], Tensor], learned: TextBlocks, held_out: TextBlocks) -> float:
    """Accuracy of a linear probe on frozen features: whether a token is inside a string or a comment.

    `features` gives (B,T,D) for tokens (B,T). The reading is a ridge regression on the first blocks, scored on others.
    """
    x, y = gather(features, learned)
    mean, scale = x.mean(0), x.std(0).clamp(min=1e-6)
    x = with_one((x - mean) / scale)
    gram = x.T @ x
    gram += RIDGE * len(x) * torch.eye(len(gram), dtype=gram.dtype)
    weights = torch.linalg.solve(gram, x.T @ (2 * y - 1))
    x, y = gather(features, held_out)
    return ((with_one((x - mean) / scale) @ weights > 0) == (y > 0)).double().mean().item()


def fine_tuned(
    net: nn.Module,
    features: Callable[[Tensor], Tensor],
    learned: TextBlocks,
    held_out: TextBlocks,
    *,
    steps: int,
    seed: int,
) -> float:
    """The same after fine-tuning encoder and linear head together on the labels of the first blocks."""
    width = features(learned.tokens[:1]).shape[-1]
    generator = torch.Generator().manual_seed(seed)
    reading = nn.Linear(width, 1).to(next(net.parameters()).device)
    with torch.no_grad():
        reading.weight.copy_(torch.randn(1, width, generator=generator) * width**-0.5)
        reading.bias.zero_()

    def loss_of(generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(learned), (ROWS,), generator=generator)
        scores = reading(features(learned.tokens[rows]))[..., 0]
        return F.binary_cross_entropy_with_logits(scores, learned.quoted[rows].to(scores))

    fit(nn.ModuleList([net, reading]), loss_of, steps=steps, seed=seed, lr=1e-3, warmup=steps // 10)
    with torch.no_grad():
        told = torch.cat([reading(features(tokens))[..., 0].cpu() > 0 for tokens in held_out.tokens.split(128)])
    return (told == (held_out.quoted > 0)).double().mean().item()


@torch.no_grad()
def gather(features: Callable[[Tensor], Tensor], blocks: TextBlocks) -> tuple[Tensor, Tensor]:
    """The features (N*T,D) and labels of all tokens, in float64 on the CPU."""
    found = [features(tokens).double().cpu() for tokens in blocks.tokens.split(128)]
    return torch.cat(found).flatten(0, 1), blocks.quoted.flatten().double()


def with_one(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
