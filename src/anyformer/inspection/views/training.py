"""Training: one input in every checkpoint of a run, beside the loss; a running training is followed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.errors import UserError
from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.checkpoint_steps import followed_runs, losses_at, own_step, spread
from anyformer.inspection.head_stats import STATISTICS
from anyformer.inspection.run_watch import PROBE
from anyformer.training.run.history import History, figures_of, history

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture
    from anyformer.inspection.checkpoint_steps import CheckpointLook

TITLE = "Training"
READ = "Move the slider to see this head at each checkpoint; the curves show when heads form and what the loss does."
NOTES = {
    "gone": "The server does not answer; it may have been stopped.",
    "other": "This layer is not attention: it has no map. The loss is below.",
    "early": "The run has no checkpoint yet: they appear here as they are written (--set training.save_every=100).",
    "few": "A run keeps its two newest checkpoints and the best one; train with --set training.keep=100 to "
    "see heads form.",
    "induction": "No token of this input comes twice, so that no head can show induction. Try a text that "
    "repeats itself.",
    "none": "This number has no meaning in this layer.",
}
POINTS = 400  # of a curve
TOP = 3  # predictions of each checkpoint


def applies(capture: Capture) -> str | None:
    if capture.checkpoints is None:
        return "This model does not come from a run of anyformer train: open the folder of a run."
    return None


def answer(capture: Capture, query: Query) -> ViewAnswer:
    series = capture.checkpoints
    if series is None:
        raise UserError("this model does not come from a run", where="training", fix="open the folder of a run")
    query.integer("seen", 0, 0, 2**53)  # part of the cache key: a page that saw a new checkpoint asks again
    looks, past = series.read(), history(series.folder)
    steps = [found.step for found in looks]
    facts: dict[str, Any] = {
        "run": series.folder.name, "steps": steps, "own": own_step(capture),
        "runs": [folder.name for folder in followed_runs(capture)],
        "statistics": list(STATISTICS), "names": STATISTICS, "losses": losses_at(past, steps),
        "predictions": [
            [{"name": one.name, "probability": one.probability, "logit": one.logit} for one in found.prediction[:TOP]]
            for found in looks
        ],
        "curves": curves(past), "probes": probe_curves(past),
    }  # fmt: skip
    if not capture.sites:  # no layer mixes tokens: only the loss is shown
        return ViewAnswer(facts)
    site = capture.site(query.site)
    head = min(query.head, site.heads - 1)
    rows, columns = capture.axes[site.queries], capture.axes[site.keys]
    cut = series.tokens
    facts |= {"site": site.index, "head": head, "label": site.label, "queries": rows.texts[:cut],
              "keys": columns.texts[:cut], "tokens": len(rows), "cut": cut < len(rows)}  # fmt: skip
    if not looks or site.kind == "other":
        return ViewAnswer(facts)
    maps = np.stack([found.maps[site.index][head] for found in looks])  # (K,t,s)
    return ViewAnswer(facts, {"maps": maps, "heads": statistics(looks, site.index, site.heads)})


def statistics(looks: list[CheckpointLook], site: int, heads: int) -> np.ndarray:
    """Statistics (checkpoints, heads, statistics); nan where undefined."""
    out = np.full((len(looks), heads, len(STATISTICS)), np.nan, np.float32)
    for number, found in enumerate(looks):
        for row in found.heads:
            if row["site"] == site:
                values = [row[name] for name in STATISTICS]
                out[number, row["head"]] = [np.nan if value is None else value for value in values]
    return out


def curves(past: History) -> dict[str, list[tuple[float, float]]]:
    """The training loss and that of every evaluated split, subsampled."""
    found = {"training": past.curve("loss")} | {split: past.curve("loss", split) for split in past.splits()}
    return {name: spread(points, POINTS) for name, points in found.items() if points}


def probe_curves(past: History) -> dict[str, list[tuple[float, float]]]:
    """The probe figures logged in training, by name, subsampled."""
    found: dict[str, list[tuple[float, float]]] = {}
    for line in past.steps:
        for name, value in figures_of(line).items():
            if name.startswith(PROBE):
                found.setdefault(name.removeprefix(PROBE), []).append((line["step"], value))
    return {name: spread(points, POINTS) for name, points in found.items()}


def exported(capture: Capture) -> Iterable[Query]:
    """The first head of every layer."""
    if applies(capture) is not None:
        return []
    return [Query(site=site.index) for site in capture.sites if site.kind != "other"][:12]
