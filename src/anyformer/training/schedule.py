"""Learning-rate schedules: the lr factor as a pure function of the step, so there is no state to restore."""

from __future__ import annotations

import math

from anyformer.errors import check_at_least, check_fraction
from anyformer.spec import Spec


class Schedule(Spec, slot=True):
    """`factor(step, total)` for step 0 to total - 1: the factor on the full learning rate."""

    def factor(self, step: float, total: int) -> float:
        """The factor on the full learning rate at a step; positive at the first and the last step.

        A corrected plan also uses fractional steps.
        """
        raise NotImplementedError


class WarmedUp(Schedule, slot=True):
    """Linear warm-up, then `after`.

    `warmup` is a fraction of all steps if below 1, else a number of steps.
    """

    warmup: float = 0.02
    """Warm-up as a share of all steps below 1, or in steps."""

    def check(self) -> None:
        check_at_least("training.schedule", "warmup", self.warmup, 0, fix="use 0.02 or 100")

    def warm(self, total: int) -> int:
        """Steps of the warm-up."""
        return min(total, round(self.warmup * total) if self.warmup < 1 else round(self.warmup))

    def factor(self, step: float, total: int) -> float:
        warm = self.warm(total)
        if step < warm:
            return (step + 1) / (warm + 1)
        return self.after(step, warm, total)

    def after(self, step: float, warm: int, total: int) -> float:
        """The factor once the warm-up is over."""
        raise NotImplementedError


def progress(step: float, start: int, total: int) -> float:
    """Progress from start to total at the middle of this step, between 0 and 1."""
    return min(1.0, (step - start + 0.5) / max(1, total - start))


class Constant(WarmedUp):
    """The full learning rate after the warm-up.

    >>> Constant(warmup=1).factor(5, 10)
    1.0
    """

    def after(self, step: float, warm: int, total: int) -> float:
        return 1.0


class Cosine(WarmedUp):
    """Half a cosine down to the factor `floor` (1608.03983).

    >>> round(Cosine(warmup=0).factor(99, 100), 3)
    0.0
    """

    floor: float = 0.0
    """Share of the full learning rate at the end."""

    def after(self, step: float, warm: int, total: int) -> float:
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress(step, warm, total)))


class Linear(WarmedUp):
    """Linear decay to the factor `floor`.

    >>> Linear(warmup=0).factor(49, 99)
    0.5
    """

    floor: float = 0.0
    """Share of the full learning rate at the end."""

    def after(self, step: float, warm: int, total: int) -> float:
        return self.floor + (1 - self.floor) * (1 - progress(step, warm, total))


class InverseSqrt(WarmedUp):
    """Inverse square root of the step (1706.03762); `warmup` is in steps there.

    >>> InverseSqrt(warmup=100).factor(399, 1000)
    0.5
    """

    warmup: float = 4000
    """Warm-up as a share of all steps below 1, or in steps."""

    def after(self, step: float, warm: int, total: int) -> float:
        return math.sqrt(max(1, warm) / (step + 1))


class WSD(WarmedUp):
    """Warm-up, stable, decay: the full learning rate, then linear decay over the last fraction `decay` (2404.06395).

    >>> [WSD(warmup=0, decay=0.5).factor(step, 100) for step in (10, 40, 74)]
    [1.0, 1.0, 0.51]
    """

    decay: float = 0.2
    """Share of all steps over which the learning rate falls at the end."""
    floor: float = 0.0
    """Share of the full learning rate at the end."""

    def check(self) -> None:
        super().check()
        check_fraction("training.schedule", "decay", self.decay, zero=False, one=True, fix="use 0.2")

    def after(self, step: float, warm: int, total: int) -> float:
        start = max(warm, total - round(self.decay * total))
        if step < start:
            return 1.0
        return self.floor + (1 - self.floor) * (1 - progress(step, start, total))


class Slanted(Schedule):
    """Slanted triangular: linear warm-up over the first fraction `cut` of the steps, then linear decay (1801.06146,
    ULMFiT).

    >>> [round(0.01 * Slanted().factor(step, 1000), 7) for step in (0, 50, 100, 550, 1000)]
    [0.0003125, 0.0051563, 0.01, 0.0051563, 0.0003125]
    """

    cut: float = 0.1
    """Share of all steps over which the learning rate rises."""
    ratio: float = 32.0
    """How many times smaller than the full learning rate it is at the start and at the end."""

    def check(self) -> None:
        check_fraction("training.schedule", "cut", self.cut, zero=False, fix="use 0.1")
        check_at_least("training.schedule", "ratio", self.ratio, 1, fix="use 32")

    def factor(self, step: float, total: int) -> float:
        top = math.floor(self.cut * total)  # the step with the full learning rate
        height = step / top if step < top else 1 - (step - top) / max(1, total - top)
        return (1 + height * (self.ratio - 1)) / self.ratio
