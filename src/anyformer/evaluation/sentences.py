"""Sentences of a report: names of metrics, and how a model compares to its baselines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from anyformer.evaluation.bootstrap import Interval, relate
from anyformer.evaluation.metric_directions import better, direction
from anyformer.evaluation.run_files import is_number
from anyformer.evaluation.svg import number

NAMES = {
    "loss": "loss (nats)", "perplexity": "perplexity", "bits_per_byte": "bits per byte", "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy", "macro_f1": "macro-F1", "micro_f1": "micro-F1", "auc": "AUC",
    "log_loss": "log loss", "exact_match": "exact match", "f1": "F1", "rmse": "RMSE", "mae": "MAE", "r2": "R²",
    "scaled_rmse": "scaled RMSE",
    "span_f1": "span F1", "span_precision": "span precision", "span_recall": "span recall", "bleu": "BLEU",
    "chrf": "chrF", "rouge_1": "ROUGE-1", "rouge_2": "ROUGE-2", "rouge_l": "ROUGE-L",
    "fid": "FID",
    "ap": "AP (overlaps .5 to .95)", "ap50": "AP at overlap .5", "ap75": "AP at overlap .75",
}  # fmt: skip


def metric_name(name: str) -> str:
    """The display name of a metric.

    >>> metric_name("rmse.price"), metric_name("balanced_accuracy")
    ('RMSE of price', 'balanced accuracy')
    """
    base, _, of = name.partition(".")
    return NAMES.get(base, base.replace("_", " ")) + (f" of {of}" if of else "")


def verdict(main: str, ours: float, baselines: Mapping[str, Any], rows: int | None = None) -> str:
    """How the model compares to each baseline, in a sentence.

    >>> other = {"trivial": {"name": "always answering 'no'", "metrics": {"accuracy": 0.71}},
    ...          "strong": {"name": "TF-IDF + logistic regression", "metrics": {"accuracy": 0.91}}}
    >>> verdict("accuracy", 0.85, other, rows=5000)
    "better than always answering 'no' (0.71), worse than TF-IDF + logistic regression (0.91)"
    """
    said, missing = [], []
    for role, one in baselines.items():
        if not isinstance(one, Mapping):
            continue
        theirs = one.get("metrics", {}).get(main)
        if theirs is None:
            missing.append(str(one.get("name", "")))
            continue
        known = difference_of(one)
        how = relation(main, ours, theirs, rows) if known is None else relate(main, known)
        more = "" if known is None else f": {show_difference(known)}"
        said.append(f"{how} {one.get('name', role)} ({number(theirs)}){more}")
    return ", ".join(said) + ("" if not missing else ("; " if said else "") + "; ".join(missing))


def difference_of(baseline: Mapping[str, Any]) -> Interval | None:
    """The interval of the difference to a baseline, from its entry in evaluation.json."""
    found = baseline.get("difference")
    return Interval(**found) if isinstance(found, Mapping) and all(is_number(one) for one in found.values()) else None


def differences_beside(baseline: Mapping[str, Any]) -> list[str]:
    """How the model compares to a baseline by the secondary metrics, with their intervals.

    >>> differences_beside({"name": "boosting", "beside": {"auc": {"value": 0.03, "low": 0.01, "high": 0.05}}})
    ['better than boosting: AUC +0.03 (+0.01 to +0.05)']
    """
    said = []
    for metric in baseline.get("beside") or {}:
        found = difference_of({"difference": baseline["beside"][metric]})
        if found is not None:
            name = f"{relate(metric, found)} {baseline.get('name')}"
            said.append(f"{name}: {metric_name(metric)} {show_difference(found)}")
    return said


def show_difference(difference: Interval) -> str:
    """A difference with its interval, all with signs.

    >>> show_difference(Interval(0.0123, 0.004, 0.021))
    '+0.0123 (+0.004 to +0.021)'
    """
    value, low, high = (f"{one:+.3g}" for one in difference)
    return f"{value} ({low} to {high})"


def undecided(baselines: Mapping[str, Any]) -> str:
    """A note if the model and the strong baseline are indistinguishable, else ""."""
    strong = baselines.get("strong") or {}
    found = difference_of(strong)
    beside = [difference_of({"difference": one}) for one in (strong.get("beside") or {}).values()]
    if found is None or not found.has_zero or any(one is not None and not one.has_zero for one in beside):
        return ""
    return "these rows and one seed do not decide which is better; more test rows or several --seed would"


def relation(main: str, ours: float, theirs: float, rows: int | None) -> str:
    """Better than, worse than, or neither: equal to three digits, or within chance for this number of rows."""
    if number(ours) == number(theirs):
        return "the same as"
    if main == "accuracy" and rows and 0 <= ours <= 1 and 0 <= theirs <= 1:
        spread = math.sqrt((ours * (1 - ours) + theirs * (1 - theirs)) / rows)
        if abs(ours - theirs) < 1.96 * spread:
            return f"{'a little better' if ours > theirs else 'a little worse'}, within chance for {rows:,} rows, than"
    return "better than" if better(main, ours, theirs) else "worse than"


def way(name: str) -> str:
    """Whether smaller or larger values of a metric are better, in words."""
    return "smaller is better" if direction(name) == "min" else "larger is better"


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(7.2), duration(75), duration(3725)
    ('7.2 s', '1 min 15 s', '1 h 02 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_ = divmod(minutes, 60)
    return f"{hours} h {minutes_:02d} min" if hours else f"{minutes} min {rest:02d} s"
