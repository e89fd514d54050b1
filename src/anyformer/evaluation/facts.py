"""What a report shows of an evaluation, as small JSON-compatible values for evaluation.json."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from anyformer.evaluation import calibration
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.baseline_rows import sample_rows
from anyformer.evaluation.metrics import auc, class_counts, known_classes, pad_tags
from anyformer.evaluation.spans import are_spans, precision_recall_f1, span_counts

MOST_CLASSES, MOST_LABELS, MOST_POINTS = 30, 200, 2000
SHOWN = 300  # characters of a text in a table


def plain(value: Any) -> Any:
    """A value as strict JSON: no numpy types, and null for nan and infinity."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def short(text: Any, most: int = SHOWN) -> str:
    """Text on one line, truncated if long."""
    line = " ".join(str(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def digits(value: float, count: int = 6) -> float:
    """A number rounded to significant digits, enough for points of a figure."""
    return float(f"{value:.{count}g}")


# ---------------------------------------------------------------- by task


def class_facts(answers: Answers) -> dict[str, Any]:
    """Confusion matrix, scores per class, calibration."""
    truth, predicted, probability = known_classes(answers)
    if not len(truth):
        return {"rows": 0}
    count = max(int(truth.max()) + 1, int(predicted.max()) + 1, len(answers.labels or ()))
    names = list(answers.labels or ()) + [str(c) for c in range(len(answers.labels or ()), count)]
    facts = {"rows": len(truth)} | confusion(class_counts(truth, predicted, count), names)
    if probability is not None:
        bins = calibration.of_classes(truth, probability)
        what = f"probability of {names[1]!r}" if probability.shape[1] == 2 else "probability of the answer given"
        facts["calibration"] = bins_as_json(bins, what)
    return facts


def confusion(counts: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    """The confusion matrix, of many classes only the most confused ones, and the scores per class."""
    hits, true, said = counts.diagonal(), counts.sum(1), counts.sum(0)
    met = np.flatnonzero(true + said)
    wrong = true + said - 2 * hits
    shown = met
    if len(met) > MOST_CLASSES:
        shown = np.sort(met[np.argsort(-wrong[met], kind="stable")[:MOST_CLASSES]])
    table = []
    for c in met[np.argsort(-true[met], kind="stable")[:MOST_LABELS]].tolist():
        precision, recall, f1 = precision_recall_f1(int(true[c]), int(said[c]), int(hits[c]))
        table.append({"label": names[c], "rows": true[c], "precision": precision, "recall": recall, "f1": f1})
    matrix = {"labels": [names[c] for c in shown.tolist()], "counts": counts[np.ix_(shown, shown)], "classes": len(met)}
    return {"confusion": matrix, "labels": table, "label_count": len(met)}


def bins_as_json(bins: calibration.Reliability, what: str) -> dict[str, Any]:
    """A reliability diagram as JSON-compatible values."""
    return {"what": what, "count": bins.count, "said": bins.said, "true": bins.true, "error": bins.error}


def label_set_facts(answers: Answers) -> dict[str, Any]:
    """Scores per label, and calibration over all of them."""
    truth, predicted = np.asarray(answers.truth).astype(bool), np.asarray(answers.predicted).astype(bool)
    if not len(truth):
        return {"rows": 0}
    table = []
    for c in np.argsort(-truth.sum(0), kind="stable")[:MOST_LABELS]:
        scores = precision_recall_f1(*(int(part[:, c].sum()) for part in (truth, predicted, truth & predicted)))
        area = None if answers.probability is None else auc(truth[:, c], answers.probability[:, c])
        name = answers.labels[c] if answers.labels else str(c)
        row = {
            "label": name,
            "rows": truth[:, c].sum(),
            **dict(zip(("precision", "recall", "f1"), scores, strict=True)),
        }
        table.append(row | {"auc": area})
    facts: dict[str, Any] = {"rows": len(truth), "labels": table, "label_count": truth.shape[1]}
    if answers.probability is not None:
        facts["calibration"] = bins_as_json(
            calibration.of_label_sets(truth, answers.probability), "probability of each label"
        )
    return facts


def tag_facts(answers: Answers) -> dict[str, Any]:
    """Confusion matrix of the tags of words; scores per span type, or per tag."""
    truth, predicted = answers.truth, pad_tags(answers.truth, answers.predicted)
    want, got = list(chain.from_iterable(truth)), list(chain.from_iterable(predicted))
    facts: dict[str, Any] = {"rows": len(truth), "words": len(want)}
    if not want:
        return facts
    names = sorted(set(want) | set(got))
    number = {name: i for i, name in enumerate(names)}
    counts = class_counts(np.array([number[t] for t in want]), np.array([number[t] for t in got]), len(names))
    facts |= confusion(counts, [name or "(no tag)" for name in names])
    if are_spans(answers.labels or names):
        rows: list[dict[str, Any]] = []
        for kind, (true, said, both) in span_counts(truth, predicted).items():
            precision, recall, f1 = precision_recall_f1(true, said, both)
            rows.append({"label": kind, "rows": true, "precision": precision, "recall": recall, "f1": f1})
        rows.sort(key=lambda row: -row["rows"])
        facts |= {"labels": rows[:MOST_LABELS], "label_count": len(rows), "spans": True}
    return facts


def number_facts(answers: Answers) -> dict[str, Any]:
    """Predicted against true values and the distribution of errors, for at most four outputs."""
    truth, predicted = (np.asarray(part, np.float64) for part in (answers.truth, answers.predicted))
    if not len(truth):
        return {"rows": 0}
    truth, predicted = truth.reshape(len(truth), -1), predicted.reshape(len(predicted), -1)
    figures = []
    for k in range(min(4, truth.shape[1])):
        keep = np.isfinite(truth[:, k]) & np.isfinite(predicted[:, k])
        true, said = truth[keep, k], predicted[keep, k]
        if not len(true):
            continue
        chosen = sample_rows(len(true), MOST_POINTS, 0)
        points = [[digits(a), digits(b)] for a, b in zip(true[chosen].tolist(), said[chosen].tolist(), strict=True)]
        wrong = said - true
        low, high = np.quantile(wrong, [0.005, 0.995])
        if high - low > 1e-9 * max(abs(low), abs(high)):
            counts, edges = np.histogram(np.clip(wrong, low, high), bins=min(40, max(8, int(len(wrong) ** 0.5))))
        else:
            counts, edges = np.array([len(wrong)]), np.array([low - 0.5, low + 0.5])
        figures.append({
            "name": answers.labels[k] if answers.labels and k < len(answers.labels) else "", "points": points,
            "count": len(true), "within": [digits(float(share)) for share in np.quantile(np.abs(wrong), [0.5, 0.9])],
            "errors": {"counts": counts, "edges": [digits(edge, 9) for edge in edges.tolist()]},
        })  # fmt: skip
    return {"rows": len(truth), "numbers": figures}
