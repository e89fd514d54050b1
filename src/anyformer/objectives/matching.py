"""Bipartite matching of predictions and targets with the least total cost (the Hungarian method)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anyformer.extras import require

DEAR = 1e9  # replaces nan: matched only as a last resort, so that training can report the divergence


def assign(costs: Tensor, counts: Sequence[int]) -> Tensor:
    """The target of every prediction (...,B,Q), -1 for none, from costs (...,B,Q,M); row b has `counts[b]` targets.

    A one-to-one matching of minimal total cost; every target is matched if there are enough predictions.

    >>> assign(torch.tensor([[[1.0, 5.0], [2.0, 1.0], [9.0, 9.0]]]), [2]).tolist()
    [[0, 1, -1]]
    """
    if torch.compiler.is_compiling():  # runs on the CPU; checked here, not at import
        return torch.compiler.disable(matched)(costs, counts)
    return matched(costs, counts)


@torch.no_grad()
def matched(costs: Tensor, counts: Sequence[int]) -> Tensor:
    """`assign` in eager mode."""
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
