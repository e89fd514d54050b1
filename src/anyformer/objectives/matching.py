"""Matching: which answer is held to which target, so that the whole costs least (the Hungarian method)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anyformer.extras import require

DEAR = 1e9  # instead of what is not a number: matched only where nothing else is left, so that training can say so


def assign(costs: Tensor, counts: Sequence[int]) -> Tensor:
    """The target of every answer (...,B,Q), -1 for none, from costs (...,B,Q,M); row b has `counts[b]` targets.

    Every target has one answer and no answer has two, as far as there are answers enough; the sum of the costs of the
    pairs is the least there is.

    >>> assign(torch.tensor([[[1.0, 5.0], [2.0, 1.0], [9.0, 9.0]]]), [2]).tolist()
    [[0, 1, -1]]
    """
    if torch.compiler.is_compiling():  # a loop over whole numbers, for the processor; asked here, not at the import
        return torch.compiler.disable(matched)(costs, counts)
    return matched(costs, counts)


@torch.no_grad()
def matched(costs: Tensor, counts: Sequence[int]) -> Tensor:
    """As `assign`, out of any compiler's sight."""
    require("scipy", "matching needs", where="Detect")
    from scipy.optimize import linear_sum_assignment

    known = costs.cpu().double().nan_to_num(DEAR, DEAR, -DEAR)
    table = (known[None] if known.dim() == 3 else known.flatten(0, -4)).numpy()  # (L,B,Q,M)
    found = torch.full(table.shape[:3], -1)
    for layer, rows in enumerate(table):
        for row, (cost, count) in enumerate(zip(rows, counts, strict=True)):
            if count:
                answers, targets = linear_sum_assignment(cost[:, :count])
                found[layer, row, torch.from_numpy(answers)] = torch.from_numpy(targets)
    return found.reshape(costs.shape[:-1]).to(costs.device)
