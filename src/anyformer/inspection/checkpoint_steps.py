"""One input in every checkpoint of a run: attention maps, head statistics, predictions and losses.

A run that is still training adds checkpoints and may delete old ones; results are cached here.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.checkpoints import store
from anyformer.errors import UserError
from anyformer.inspection.capture import Capture, look
from anyformer.inspection.head_stats import head_statistics
from anyformer.inspection.record import record_pass
from anyformer.inspection.run_watch import MOST_RUNS

if TYPE_CHECKING:
    from anyformer.inspection.prediction import PossibleAnswer
    from anyformer.training.run.history import History

MOST = 24  # most checkpoints, spread over the run
LONGEST = 128  # tokens of a stored map
BYTES = 2**26  # of all stored maps


@dataclass(frozen=True)
class CheckpointLook:
    """The results of one checkpoint for the input."""

    step: int
    heads: list[dict[str, Any]]  # see head_statistics
    maps: dict[int, np.ndarray]  # by site (H,t,s) uint8: 255 sqrt(weight), for resolution of small weights
    prediction: list[PossibleAnswer]

    def weights(self, site: int) -> np.ndarray:
        """The stored weights of a site (H,t,s), to within 0.4 %."""
        return np.square(self.maps[site].astype(np.float32) / 255.0)


class CheckpointSteps:
    """The series of a run's checkpoints, for the input of a capture."""

    def __init__(self, folder: Path, capture: Capture, most: int = MOST) -> None:
        self.folder, self.capture, self.most = folder, capture, most
        self.looks: dict[int, CheckpointLook] = {}
        self.lock = Lock()  # a server calls from several threads
        heads = sum(site.heads for site in capture.sites)
        self.tokens = max(8, min(LONGEST, isqrt(BYTES // max(1, heads * most))))

    def read(self) -> list[CheckpointLook]:
        """Every checkpoint, oldest first; new ones are run now."""
        with self.lock:
            self.take_new()
            return [self.looks[step] for step in sorted(self.looks)]

    def take_new(self) -> None:
        there = sorted(store.committed(self.folder / "checkpoints"))
        for step, path in spread(there, self.most):
            if step not in self.looks and not store.problem(path):
                found = self.see(step, path)
                if found is not None:
                    self.looks[step] = found
        if len(self.looks) > 2 * self.most:  # a long run, followed for a long time
            kept = spread(sorted(self.looks), self.most)
            self.looks = {step: self.looks[step] for step in kept}

    def see(self, step: int, path: Path) -> CheckpointLook | None:
        """Run the input through one checkpoint; None if it was deleted meanwhile."""
        from anyformer.inference.opening import load

        try:
            predictor = load(path, device=str(device_of(self.capture)))
        except (UserError, OSError):
            if path.is_dir() and not store.problem(path):
                raise
            return None
        seen = look_alike(self.capture, predictor)
        cut = self.tokens
        maps = {}
        for site in seen.sites:
            if site.kind != "other":
                weights = seen.weights(site.index, rows=slice(0, cut))[:, :, :cut]
                maps[site.index] = np.rint(weights.clamp(0, 1).sqrt().numpy() * 255).astype(np.uint8)
        return CheckpointLook(step, head_statistics(seen), maps, seen.prediction())


def checkpoint_steps(folder: str | Path, inputs: Any, *, target: str | None = None) -> list[CheckpointLook]:
    """The results of every checkpoint of a run for one input, oldest first."""
    from anyformer.inference.opening import load
    from anyformer.training.run.folder import RunFolder

    run = RunFolder.open(Path(folder))
    return CheckpointSteps(run.path, look(load(run.path), inputs, target=target)).read()


def series_of(capture: Capture) -> CheckpointSteps | None:
    """The checkpoints of the run that a capture's model comes from."""
    folder = run_folder(capture)
    return None if folder is None else CheckpointSteps(folder, capture)


def run_folder(capture: Capture) -> Path | None:
    """The run that a capture's model comes from."""
    if capture.run is not None:
        return capture.run
    return None if capture.predictor is None else run_of(capture.predictor.opened.folder)


def followed_runs(capture: Capture) -> tuple[Path, ...]:
    """The runs that a page of this capture follows: its own, and those of the captures it is compared with."""
    found = [run_folder(one) for one in (capture, *capture.others)]
    return tuple(dict.fromkeys(folder for folder in found if folder is not None))[:MOST_RUNS]


def look_alike(capture: Capture, source: Any) -> Capture:
    """A capture of another model on the same input tensors."""
    from anyformer.inspection.capture import opened

    predictor, model = opened(source)
    copied, given, found = record_pass(model, capture.given, lambda stack, layer: True)
    return Capture(source, capture.inputs, predictor, copied, given, found)


def newest_look(capture: Capture) -> Capture:
    """A capture of the newest checkpoint of the capture's run on the same input."""
    from anyformer.inference.opening import load

    folder = run_folder(capture)
    newest = None if folder is None else store.latest(folder / "checkpoints")
    if folder is None or newest is None:
        raise UserError("there is no checkpoint", where="look", fix="open the folder of a run that has one")
    step, path = newest
    found = look_alike(capture, load(path, device=str(device_of(capture))))
    found.name, found.run, found.budget = f"{folder.name} · step {step:,}", folder, capture.budget
    return found


def own_step(capture: Capture) -> int | None:
    """The step of the capture's checkpoint; None if its model is not one of the run's checkpoints."""
    run, predictor = run_folder(capture), capture.predictor
    own = None if predictor is None else predictor.opened.folder
    if run is None or own is None:
        return None
    there = store.committed(run / "checkpoints")
    return next((step for step, path in there if path.resolve() == Path(own).resolve()), None)


def device_of(capture: Capture) -> Any:
    return next(capture.model.parameters()).device


def spread(items: list[Any], most: int) -> list[Any]:
    """At most `most` items, evenly spread over the list, with the first and the last.

    >>> spread([1, 2, 3, 4, 5, 6, 7], 3)
    [1, 4, 7]
    """
    if len(items) <= most:
        return items
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def losses_at(past: History, steps: list[int]) -> list[dict[str, float | None]]:
    """Training and validation loss at some steps: the last one logged up to each."""
    curves = {"training": past.curve("loss")} | {split: past.curve("loss", split) for split in past.splits()}
    return [{name: value_at(curve, step) for name, curve in curves.items()} for step in steps]


def value_at(curve: list[tuple[float, float]], step: int) -> float | None:
    at = bisect_right([where for where, _ in curve], step)
    return curve[at - 1][1] if at else None


def run_of(folder: str | Path | None) -> Path | None:
    """The run that a model folder belongs to: itself, or the run that it is a checkpoint of."""
    if folder is None:
        return None
    path = Path(folder)
    return next((one for one in (path, path.parent, path.parent.parent) if (one / "run.json").is_file()), None)
