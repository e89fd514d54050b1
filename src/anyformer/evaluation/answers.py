"""What a model answered beside what was true: all that metrics and reports need, and nothing of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Answers:
    """One evaluation. Which fields are filled depends on the task; everything is on the CPU.

    classify  truth (N,) and predicted (N,) are class numbers, probability (N,C); multi-label: truth and predicted are
              (N,C) of 0 and 1, probability (N,C) of each label on its own
    regress   truth and predicted (N,) or (N,K), in the units of the file
    tag       truth and predicted are lists of lists of tag names, one inner list a sentence; certainty is how likely
              each predicted tag is
    translate truth and predicted are lists of texts (truth: lists of texts where there are several references)
    qa        truth are lists of texts that are all right, predicted FoundAnswers (tasks/qa.py); arrays of objects
    lm        nats is the summed loss, tokens and bytes what it was summed over
    masked    truth are HiddenTokens (tasks/pretraining.py); nats and tokens as of lm, of the hidden tokens alone
    replaced  truth are ScoredTokens (tasks/replaced.py), with the discriminator's logits
    detect    truth and predicted are lists of Objects (average_precision.py), one an image, in its pixels
    patches   truth are HiddenImages (tasks/patches.py), predicted (N,) the error of each image
    image-text  truth are what the losses of the rows are made of, predicted (N,) how likely image and text belong
    adversarial  truth and predicted are Pictures (tasks/adversarial.py), real and drawn
    """

    task: str  # its name
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
    groups: list[str] | None = None  # what each row belongs to, by which metrics are given too: tasks of one model
    extra: dict[str, float] = field(default_factory=dict)
    logits: np.ndarray | None = None  # what the probabilities are made of, before any calibration
    scale: np.ndarray | None = (
        None  # of each output of a regression: its deviation in training, by which errors compare
    )
    certainty: list[list[float]] | None = None  # how likely the predicted tag of each word is


class RowMetrics(dict[str, float]):
    """Metrics by name, with the answers that they were computed from: two models on the same rows can be compared row
    by row."""

    def __init__(self, found: Mapping[str, float], answers: Answers) -> None:
        super().__init__(found)
        self.answers = answers
