"""Calibration: temperatures and thresholds fitted to validation rows after training."""

from __future__ import annotations

from pathlib import Path

from anyformer.errors import UserError
from anyformer.safe_files import AGAIN, inside, read_json
from anyformer.spec import Spec

CALIBRATION_FILE = "calibration.json"


class Calibration(Spec):
    """Maps logits to probabilities and predictions. Temperatures never change the argmax."""

    temperature: tuple[float, ...] = (1.0,)
    """Logits are divided by it: one for all classes, or one for each label of a set."""
    threshold: float | None = None
    """The probability from which on the second of two classes, or a label of a set, is the answer; 0.5 if not given."""

    def check(self) -> None:
        if not self.temperature or not all(0 < one < 1e6 for one in self.temperature):
            raise UserError(f"temperature {self.temperature} is not positive", where="Calibration", fix="use 1.0")
        if self.threshold is not None and not 0 < self.threshold < 1:
            raise UserError(f"threshold {self.threshold} is outside 0 to 1", where="threshold", fix="use 0.5")


def read_calibration(run: Path, weights: str) -> Calibration | None:
    """The calibration that a run has fitted to these weights; None if there is none or it is for other weights."""
    path = inside(run, CALIBRATION_FILE)
    if not path.is_file():
        return None
    found = read_json(path)
    if not isinstance(found.get("calibration"), dict):
        raise UserError("does not hold a calibration", where=str(path), fix=AGAIN)
    return Calibration.from_dict(found["calibration"]) if found.get("weights") == weights else None
