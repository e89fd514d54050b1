"""Weights of a head's n-grams, fitted by regression on the training rows before the first step.

A linear model of rare features has one optimum, which gradient steps tuned for networks miss: they overfit rare n-grams
that a penalty would shrink. So it is solved like any regularised regression, and training starts from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core.context import lay_out
from anyformer.core.model import Model
from anyformer.data.examples import Examples
from anyformer.data.prepared import Prepared
from anyformer.embeds import Joint, Tokens
from anyformer.heads import WideAndDeep
from anyformer.log import Log
from anyformer.slots import Network

AT_ONCE = 512  # rows whose n-grams are computed together
MOST_ENTRIES = 8_000_000  # limit of n-grams of all rows together; beyond it rows are left out at random
STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0)  # 1 / penalty, as usual for logistic regression
USUAL = 5.0  # without validation rows to choose by
ROUNDS = 60
MANY_WEIGHTS = 2**22
Losses = Callable[[Tensor, Tensor], Tensor]  # logits (N,outputs) and targets to the loss of each row (N,)


@dataclass(frozen=True)
class NGramRows:
    """The n-grams of some rows, concatenated: buckets, their weights, the offset of each row; and the targets."""

    buckets: Tensor
    shares: Tensor
    begins: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.begins)

    def logits(self, weight: Tensor, bias: Tensor) -> Tensor:
        """Logits (N,outputs) of a linear model on them."""
        summed = F.embedding_bag(self.buckets, weight, self.begins, mode="sum", per_sample_weights=self.shares)
        return summed + bias


def fit_n_grams(
    spec: Network, data: Prepared, losses: Losses, counted: Callable[[Tensor], Tensor], log: Log
) -> dict[str, Tensor]:
    """Weights of the n-grams, and zeros for the output layer beside them; empty if the n-grams are trained by gradient
    steps. `losses` are convex in the logits; `counted` masks the known targets."""
    if not isinstance(spec, Model) or not isinstance(spec.head, WideAndDeep) or not spec.head.fitted:
        return {}
    head = spec.head
    parts = spec.embed.parts if isinstance(spec.embed, Joint) else (spec.embed,)
    place = next(at for at, part in enumerate(parts) if isinstance(part, Tokens))  # index of the text among the inputs
    train = gather_rows(head, data.train, counted, place)
    if not len(train) or head.outputs is None:
        return {}
    valid = gather_rows(head, data.valid, counted, place) if data.valid is not None else None
    kept = torch.unique(train.buckets)  # most buckets are empty: only the others are fitted
    train, valid = narrow(train, kept), None if valid is None else narrow(valid, kept)
    rarity = inverse_frequency(train, len(kept))
    found = search(
        weigh(train, rarity), None if valid is None else weigh(valid, rarity), len(kept), head.outputs, losses
    )
    weight, counted_as = torch.zeros(head.buckets, head.outputs), torch.zeros(head.buckets)
    weight[kept], counted_as[kept] = found.weight[:-1] / head.scale, rarity[:-1]
    how = "the usual one" if valid is None else "the best on the validation rows"
    log(f"n-grams  {len(kept):,} of up to {head.order} tokens, weighed by a regression with penalty "
        f"1/{found.strength:g}, {how}; the Transformer learns beside them")  # fmt: skip
    out = "head.deep.out"
    beside = dict(spec.build(device="meta").named_parameters())[f"{out}.weight"]
    return {"head.wide.weight": weight, "head.wide.rarity": counted_as,
            f"{out}.weight": torch.zeros(beside.shape), f"{out}.bias": found.bias}  # fmt: skip


def gather_rows(
    head: WideAndDeep, examples: Examples, counted: Callable[[Tensor], Tensor], place: int = 0
) -> NGramRows:
    """The n-grams of rows with a known target, as the head computes them; of all rows, up to a limit. `place` is the
    position of the text among the inputs."""
    numbers = np.random.default_rng(0).permutation(len(examples))  # a file may be sorted by class
    buckets, shares, counts, targets, entries = [], [], [], [], 0
    for start in range(0, len(numbers), AT_ONCE):
        if entries > MOST_ENTRIES:
            break
        batch = examples.batch(numbers[start : start + AT_ONCE])
        tokens, mask = batch.inputs[place], batch.named.get("mask")
        rows, length = tokens.shape
        context = lay_out(rows, length, tokens.device, mask=mask[place] if isinstance(mask, tuple) else mask,
                          segments=batch.named.get("segments"))  # fmt: skip
        codes, share = head.different_n_grams(replace(context, tokens=tokens))
        known = counted(batch.targets).reshape(len(batch), -1).any(1)
        there = (share > 0) & known[:, None]
        buckets.append((codes % head.buckets)[there])
        shares.append(share[there])
        counts.append(there.sum(1)[known])
        targets.append(batch.targets[known])
        entries += int(there.sum())
    if not buckets:
        empty = torch.zeros(0, dtype=torch.long)
        return NGramRows(empty, torch.zeros(0), empty, empty)
    lengths = torch.cat(counts)
    return NGramRows(torch.cat(buckets), torch.cat(shares), lengths.cumsum(0) - lengths, torch.cat(targets))


def narrow(rows: NGramRows, kept: Tensor) -> NGramRows:
    """The rows with buckets renumbered by their index in `kept`; all others become the last."""
    place = torch.searchsorted(kept, rows.buckets).clamp(max=len(kept) - 1)
    return replace(rows, buckets=torch.where(kept[place] == rows.buckets, place, len(kept)))


def inverse_frequency(rows: NGramRows, buckets: int) -> Tensor:
    """The inverse document frequency of each bucket, as in TF-IDF (buckets + 1,); 0 for the last, of unknown
    n-grams."""
    among = torch.bincount(rows.buckets, minlength=buckets + 1)
    rarity = torch.log((1 + len(rows)) / (1 + among)) + 1
    rarity[-1] = 0.0
    return rarity


def weigh(rows: NGramRows, factors: Tensor) -> NGramRows:
    """The rows with each bucket scaled by its factor, and each row normalised again."""
    shares = rows.shares * factors[rows.buckets]
    ends = torch.cat([rows.begins[1:], torch.tensor([len(shares)])])
    row = torch.repeat_interleave(torch.arange(len(rows)), ends - rows.begins)
    lengths = torch.zeros(len(rows)).index_add_(0, row, shares.square()).sqrt().clamp(min=1e-12)
    return replace(rows, shares=shares / lengths[row])


@dataclass(frozen=True)
class Fitted:
    """A linear model: weights of the buckets (the last one 0), biases, and 1 / penalty."""

    weight: Tensor
    bias: Tensor
    strength: float


def search(train: NGramRows, valid: NGramRows | None, buckets: int, outputs: int, losses: Losses) -> Fitted:
    """The model with the best penalty on the validation rows; each fit is warm-started from the stricter one."""
    found = Fitted(torch.zeros(buckets + 1, outputs), torch.zeros(outputs), USUAL)
    if valid is None or not len(valid):
        return solve(train, found, losses)
    best, lowest = found, float("inf")
    for strength in STRENGTHS:
        found = solve(train, replace(found, strength=strength), losses)
        loss = float(losses(valid.logits(found.weight, found.bias), valid.targets).mean())
        if loss >= lowest:
            break
        best, lowest = found, loss
    return best


def solve(rows: NGramRows, start: Fitted, losses: Losses) -> Fitted:
    """Minimise mean loss plus penalty."""
    weight, bias = start.weight.clone().requires_grad_(), start.bias.clone().requires_grad_()
    history = 10 if weight.numel() <= MANY_WEIGHTS else 5  # each entry is two more copies of all weights
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=ROUNDS, history_size=history, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = losses(rows.logits(weight, bias), rows.targets).mean()
        loss = loss + weight.square().sum() / (2 * start.strength * len(rows))
        loss.backward()
        return loss

    optimizer.step(closure)
    weight.data[-1] = 0.0
    return Fitted(weight.detach(), bias.detach(), start.strength)
