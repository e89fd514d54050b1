"""A baseline's figures, as reports and evaluation.json hold them. What the baselines are is each task's own to say."""

from __future__ import annotations

from typing import Any, NamedTuple


class Baseline(NamedTuple):
    """A baseline's name, its metrics and the seconds it took; without metrics the name says why there are none."""

    name: str
    metrics: dict[str, float]
    seconds: float

    def facts(self) -> dict[str, Any]:
        """As evaluation.json holds it."""
        return {"name": self.name, "metrics": self.metrics, "seconds": round(self.seconds, 2)}
