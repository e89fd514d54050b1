"""What happened so far: written by the training loop, read by the show's own thread."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from anyformer.demo.training import Pace

READ_EVERY = 0.25  # seconds between readings of the loss: each one waits for the device


@dataclass
class Record:
    """The curve, the held-out figures and the samples of one run; bits are per byte throughout."""

    pace: Pace
    tokens_a_step: int
    bits_a_nat: float  # bits a byte that one nat a token makes of the training text
    gzip_bits: float
    xz_bits: float
    training: list[tuple[int, float]] = field(default_factory=list)
    held_out: list[tuple[int, float]] = field(default_factory=list)
    samples: list[tuple[int, str]] = field(default_factory=list)
    waiting: list[Tensor] = field(default_factory=list)
    read_at: float = field(default_factory=time.perf_counter)

    def note(self, step: int, loss: Tensor) -> None:
        """Keep a loss; now and then read all that were kept and add their mean to the curve."""
        self.waiting.append(loss)
        if time.perf_counter() - self.read_at >= READ_EVERY or self.pace.done:
            mean = float(torch.stack(self.waiting).mean())
            self.training.append((step, mean * self.bits_a_nat))
            self.waiting, self.read_at = [], time.perf_counter()

    @property
    def rate(self) -> float:
        """Tokens a second, everything between the steps included."""
        return self.pace.at * self.tokens_a_step / max(self.pace.elapsed, 1e-9)

    @property
    def first(self) -> float:
        return self.held_out[0][1] if self.held_out else math.nan

    @property
    def last(self) -> float:
        return self.held_out[-1][1] if self.held_out else math.nan

    def smooth(self, keep: float = 0.7) -> list[tuple[int, float]]:
        """The training curve with its noise averaged away."""
        out: list[tuple[int, float]] = []
        mean, weight = 0.0, 0.0
        for step, value in list(self.training):  # a copy: the loop may append meanwhile
            mean, weight = keep * mean + (1 - keep) * value, keep * weight + (1 - keep)
            out.append((step, mean / weight))
        return out
