"""The decision threshold of a yes/no prediction, chosen on validation rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from anyformer.evaluation.bootstrap import Interval, RowSums, compare_rows
from anyformer.evaluation.metric_directions import gain

USUAL = 0.5
CANDIDATES = [round(share, 2) for share in np.arange(0.02, 0.99, 0.02).tolist()]


def choose_threshold(metric: str, score_at: Callable[[float], RowSums]) -> tuple[float, Interval]:
    """The threshold with the best metric on all rows, and by how much it beats 0.5.

    `score_at` returns the metric at a threshold. The gain is cross-validated, with thresholds chosen on one half of the
        rows and scored on the other: on the rows it was chosen on, the best of many always seems to gain.
    """
    usual = score_at(USUAL)
    half = np.arange(len(usual.values)) % 2 == 0
    sums = {share: tuple(score_at(share).values[part].sum(0) for part in (half, ~half)) for share in CANDIDATES}

    def best(parts: tuple[int, ...]) -> float:
        def score(share: float) -> tuple[float, float]:
            found = usual.combine(np.sum([sums[share][part] for part in parts], axis=0))
            return gain(metric, float(found)), -abs(share - USUAL)  # ties go to the threshold nearest to 0.5

        return max(CANDIDATES, key=score)

    first, second = score_at(best((0,))).values, score_at(best((1,))).values
    crossed = replace(usual, values=np.where(half[:, None], second, first))
    return best((0, 1)), compare_rows(crossed, usual)
