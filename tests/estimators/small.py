"""Settings with which a fit takes a blink, and data to fit."""

from __future__ import annotations

from typing import Any

import numpy as np

# One layer, no evaluation before the end.
LEAN: dict[str, Any] = {
    "model.stack.width": 32,
    "model.stack.depth": 1,
    "training.eval_every": 1000,
}
FIT: dict[str, Any] = {"preset": "ft-transformer-tiny", "steps": 30, "lr": 0.03, "batch_size": 64, "settings": LEAN}
BLINK: dict[str, Any] = FIT | {"steps": 3}


def blobs(rows: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two classes that one number tells apart."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    X = rng.normal(size=(rows, 3))
    X[:, 1] += 4 * y
    return X, y
