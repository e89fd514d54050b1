"""The unigram baseline of token models: the frequency of each token in training."""

from __future__ import annotations

import numpy as np

NAME = "guessing tokens by their frequency"


def guess_by_frequency(train: np.ndarray, test: np.ndarray) -> tuple[float, int]:
    """Mean nats per token of `test` under the frequencies in `train`, and the most frequent token.

    One is added to every count, so that a token unseen in training has a large but finite loss.

    >>> nats, token = guess_by_frequency(np.array([0, 0, 1]), np.array([0]))
    >>> round(float(np.exp(-nats)), 3), token  # 3 of 5 counts
    (0.6, 0)
    """
    size = int(max(train.max(initial=0), test.max())) + 1
    counts = np.bincount(train, minlength=size) + 1.0
    return float(-np.log(counts / counts.sum())[test].mean()), int(counts.argmax())
