"""Predictions with their ground truth: all that metrics and reports need, independent of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Answers:
    """The result of one evaluation. Which fields are set depends on the task; everything is on the CPU.

    classify  truth (N,) and predicted (N,) are class numbers, probability (N,C); multi-label: truth and predicted are
              (N,C) of 0 and 1, probability (N,C) of each label independently
    regress   truth and predicted (N,) or (N,K), in the units of the file
    tag       truth and predicted are lists of lists of tag names, one inner list per sentence; certainty is the
              probability of each predicted tag
    translate truth and predicted are lists of texts (truth: lists of texts if there are several references)
    qa        truth are lists of accepted texts, predicted FoundAnswers (tasks/qa.py); arrays of objects
    lm        nats is the summed loss, tokens and bytes the counts it was summed over
    masked    truth are HiddenTokens (tasks/pretraining.py); nats and tokens as for lm, over the masked tokens only
    replaced  truth are ScoredTokens (tasks/replaced.py), with the discriminator's logits
    detect    truth and predicted are lists of Objects (average_precision.py), one per image, in its pixels
    patches   truth are HiddenImages (tasks/patches.py), predicted (N,) the reconstruction error of each image
    image-text  truth are the terms of the losses of the rows, predicted (N,) the probability that image and text match
    adversarial  truth and predicted are Pictures (tasks/adversarial.py), real and generated
    """

    task: str  # its registered name
    truth: Any = None
    predicted: Any = None
    probability: np.ndarray | None = None
    labels: list[str] | None = None  # names of the classes, or of the outputs of a regression
    losses: np.ndarray | None = None  # the loss of each row (N,), for the worst examples
    nats: float = 0.0
    tokens: int = 0
    bytes: int = 0
    multi: bool = False
    examples: Any = None  # the Examples the rows come from: place(row), shown(row)
    groups: list[str] | None = None  # the group of each row, for metrics per group: the tasks of one model
    extra: dict[str, float] = field(default_factory=dict)
    logits: np.ndarray | None = None  # before any calibration
    scale: np.ndarray | None = (
        None  # standard deviation of each regression output in training, to compare errors across outputs
    )
    certainty: list[list[float]] | None = None  # probability of the predicted tag of each word


class RowMetrics(dict[str, float]):
    """Metrics by name, with the answers they were computed from, so that two models can be compared row by row."""

    def __init__(self, found: Mapping[str, float], answers: Answers) -> None:
        super().__init__(found)
        self.answers = answers
