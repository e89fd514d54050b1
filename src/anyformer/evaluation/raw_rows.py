"""The rows behind examples as plain values, for baselines: no scaling, no tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyformer.data.datasets.rows import RowExamples
from anyformer.evaluation.baseline_rows import RawRows


def raw_rows(examples: RowExamples) -> RawRows:
    """What a simple learner is given for the same rows."""
    frame = examples.frame.take(examples.rows)
    found: dict[str, Any] = {}
    numbers: list[np.ndarray] = []
    for modality in examples.modalities:
        found |= modality.features(examples, frame)
        numbers += [found.pop("numbers")] if "numbers" in found else []
    if numbers:
        found["numbers"] = np.concatenate(numbers, 1).astype(np.float64)
    return RawRows(**found)
