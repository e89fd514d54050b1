"""Scaling laws: the compute-optimal model size and number of tokens, and fitting a law to one's own runs.

Losses follow L(N, D) = E + A / N^alpha + B / D^beta for N parameters and D tokens, at C = 6 N D FLOPs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from anyformer.errors import UserError, did_you_mean
from anyformer.extras import require

PF_DAY = 8.64e19  # FLOPs: 1e15 a second for a day
FEWEST_RUNS = 6  # a law has five numbers
TRIED = 4  # starts of the optimizer: the best-fitting points of the grid
HUBER = 1e-3  # delta of the Huber loss of log losses, against outliers (2203.15556, D.3)


@dataclass(frozen=True)
class Optimum:
    """The compute-optimal size and tokens by one law."""

    law: str
    flops: float
    parameters: float
    tokens: float
    loss: float | None  # None if the law does not predict it

    @property
    def ratio(self) -> float:
        """Tokens per parameter."""
        return self.tokens / self.parameters


@dataclass(frozen=True)
class ScalingLaw:
    """E + A / N^alpha + B / D^beta."""

    name: str
    E: float
    A: float
    B: float
    alpha: float
    beta: float
    source: str = ""

    def loss(self, parameters: float, tokens: float) -> float:
        """The loss in nats per token."""
        return self.E + self.A * parameters**-self.alpha + self.B * tokens**-self.beta

    @property
    def has_optimum(self) -> bool:
        """Whether more of either lowers the loss; not so for some laws fitted to few or noisy runs."""
        return min(self.A, self.B, self.alpha, self.beta) > 0

    def optimum(self, flops: float) -> Optimum:
        """The size and tokens with the least loss at a compute budget (2203.15556, eq. 4).

        >>> LAWS["hoffmann"].optimum(1e18).parameters / 1e6 // 1
        80.0
        """
        check_budget(flops)
        if not self.has_optimum:
            said = f"with alpha {self.alpha:.3g} and beta {self.beta:.3g} no size is the best"
            raise UserError(said, where=self.name, fix="fit to more runs, longer or of other sizes")
        both = self.alpha + self.beta
        g = (self.alpha * self.A / (self.beta * self.B)) ** (1 / both)
        parameters = g * (flops / 6) ** (self.beta / both)
        tokens = flops / 6 / parameters
        return Optimum(self.name, flops, parameters, tokens, self.loss(parameters, tokens))

    def better(self, parameters: float, tokens: float) -> str:
        """Which lowers the loss more at the same cost: a bigger model or a longer training."""
        bigger = self.alpha * self.A * parameters**-self.alpha
        longer = self.beta * self.B * tokens**-self.beta
        return "bigger" if bigger > longer else "longer"


@dataclass(frozen=True)
class KaplanLaw:
    """The optimal size only, as a power of the compute: N = 1.3e9 (C / PF-day)^.73, without embeddings."""

    name: str = "kaplan"
    source: str = "Kaplan et al. 2020, arXiv 2001.08361, table 6"

    def optimum(self, flops: float) -> Optimum:
        """The optimal size; the tokens follow from the rest of the budget."""
        check_budget(flops)
        parameters = 1.3e9 * (flops / PF_DAY) ** 0.73
        return Optimum(self.name, flops, parameters, flops / 6 / parameters, None)


LAWS: dict[str, ScalingLaw | KaplanLaw] = {
    "hoffmann": ScalingLaw("hoffmann", 1.69, 406.4, 410.7, 0.34, 0.28, "Hoffmann et al. 2022, arXiv 2203.15556, D.3"),
    "besiroglu": ScalingLaw(
        "besiroglu", 1.8172, 482.01, 2085.43, 0.3478, 0.3658, "Besiroglu et al. 2024, arXiv 2404.10102, a refit"
    ),
    "kaplan": KaplanLaw(),
}


def check_budget(flops: float) -> None:
    if not (math.isfinite(flops) and flops > 0):
        raise UserError(f"a budget of {flops} FLOPs buys nothing", where="--flops", fix="use --flops 1e18")


def optimum(flops: float, law: str = "hoffmann") -> Optimum:
    """The compute-optimal size and tokens by a published law.

    >>> round(optimum(1e19).tokens / 1e9, 1)
    7.3
    """
    if law not in LAWS:
        raise UserError(f"unknown law {law!r}", where="law", fix=did_you_mean(law, LAWS))
    return LAWS[law].optimum(flops)


# ---------------------------------------------------------------- fitting


@dataclass(frozen=True)
class TrainedRun:
    """A finished training run: its size, its tokens and its final loss."""

    parameters: float
    tokens: float
    loss: float


@dataclass(frozen=True)
class FittedLaw:
    """A fitted law, with the bootstrap 80 % interval of each coefficient."""

    law: ScalingLaw
    intervals: dict[str, tuple[float, float]]
    runs: int
    error: float  # root mean square error of log losses
    resampled: list[ScalingLaw] = field(default_factory=list, repr=False)

    def optimum(self, flops: float) -> tuple[Optimum, tuple[float, float]]:
        """The optimum for a budget, and the bootstrap 80 % interval of its size."""
        sizes = [law.optimum(flops).parameters for law in self.resampled if law.has_optimum]
        return self.law.optimum(flops), middle(sizes)


def fit(
    runs: Iterable[TrainedRun | tuple[float, float, float]], *, resamples: int = 100, seed: int = 0
) -> FittedLaw:  # fmt: skip
    """Fit a scaling law to runs of (parameters, tokens, loss).

    Error bars come from the bootstrap. Runs must vary sizes and tokens independently: otherwise the two terms cannot be
    told apart.
    """
    check_fitting()
    listed = [run if isinstance(run, TrainedRun) else TrainedRun(*run) for run in runs]
    check_runs(listed)
    sizes, tokens, losses = (np.array([getattr(run, name) for run in listed], dtype=float)
                             for name in ("parameters", "tokens", "loss"))  # fmt: skip
    best = fit_once(sizes, tokens, losses, starts())
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(resamples):
        rows = generator.integers(0, len(listed), len(listed))
        if len(set(sizes[rows])) > 1 and len(set(tokens[rows])) > 1:
            found.append(law_of(fit_once(sizes[rows], tokens[rows], losses[rows], [best]), "resampled"))
    law = law_of(best, "fitted")
    names = ("E", "A", "B", "alpha", "beta")
    intervals = {name: middle([getattr(one, name) for one in found]) for name in names}
    predicted = np.array([law.loss(run.parameters, run.tokens) for run in listed])
    return FittedLaw(law, intervals, len(listed), float(np.sqrt(np.mean((np.log(predicted / losses)) ** 2))), found)


def check_fitting() -> None:
    """Raise an error if a package for fitting is not installed."""
    require("scipy", "fitting a law needs", where="scaling.fit")


def check_runs(runs: Sequence[TrainedRun]) -> None:
    if len(runs) < FEWEST_RUNS:
        raise UserError(f"{len(runs)} runs do not determine a law of five numbers", where="scaling.fit",
                        fix=f"give {FEWEST_RUNS} at least, of several sizes and lengths")  # fmt: skip
    for run in runs:
        if not all(math.isfinite(x) and x > 0 for x in (run.parameters, run.tokens, run.loss)):
            raise UserError(f"a run has {run.parameters} parameters, {run.tokens} tokens and loss {run.loss}",
                            where="scaling.fit", fix="leave out runs that failed")  # fmt: skip
    if len({run.parameters for run in runs}) < 3 or len({run.tokens for run in runs}) < 3:
        raise UserError("the runs have fewer than three sizes or three numbers of tokens", where="scaling.fit",
                        fix="train each size for several lengths")  # fmt: skip


def starts() -> list[np.ndarray]:
    """Starting points (log E, log A, log B, alpha, beta) on a coarse grid, as in the paper."""
    return [np.array([e, a, b, x, y]) for e in (-1.0, 0.5) for a in (2.0, 6.0, 10.0) for b in (2.0, 6.0, 10.0)
            for x in (0.2, 0.5) for y in (0.2, 0.5)]  # fmt: skip


def fit_once(
    sizes: np.ndarray, tokens: np.ndarray, losses: np.ndarray, begin: Sequence[np.ndarray]
) -> np.ndarray:  # fmt: skip
    """The coefficients with the least Huber loss of log losses, over all starts."""
    from scipy.optimize import least_squares

    n, d, wanted = np.log(sizes), np.log(tokens), np.log(losses)

    def residuals(p: np.ndarray) -> np.ndarray:
        return np.logaddexp(np.logaddexp(p[1] - p[3] * n, p[2] - p[4] * d), p[0]) - wanted

    def jacobian(p: np.ndarray) -> np.ndarray:
        terms = np.stack([np.full_like(n, p[0]), p[1] - p[3] * n, p[2] - p[4] * d])
        parts = np.exp(terms - np.logaddexp.reduce(terms))  # each term's share of the loss
        return np.stack([parts[0], parts[1], parts[2], -n * parts[1], -d * parts[2]], 1)

    nearest = sorted(begin, key=lambda start: float(np.abs(residuals(start)).sum()))[:TRIED]
    found = [
        least_squares(residuals, start, jac=jacobian, loss="huber", f_scale=HUBER, max_nfev=300,
                      x_scale=(1, 1, 1, 0.1, 0.1))
        for start in nearest
    ]  # fmt: skip
    return np.asarray(min(found, key=lambda one: one.cost).x)


def law_of(p: np.ndarray, name: str) -> ScalingLaw:
    e, a, b = (float(np.exp(x)) for x in p[:3])
    return ScalingLaw(name, e, a, b, float(p[3]), float(p[4]), "fitted here")


def middle(values: Sequence[float]) -> tuple[float, float]:
    """The 10th and 90th percentile."""
    if not values:
        return math.nan, math.nan
    low, high = np.quantile(np.asarray(values), [0.1, 0.9])
    return float(low), float(high)
