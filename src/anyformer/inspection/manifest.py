"""The page's manifest, loaded before any view: the model, its input and prediction, layers, tokens, views."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from anyformer.inspection.answer import Query, finite
from anyformer.inspection.axis import text_of
from anyformer.inspection.views import views
from anyformer.inspection.web_files import web_files
from anyformer.version import __version__

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture

LONGEST_INPUT = 2_000  # characters of the input that the header shows

KEYS = (
    ("previous, next layer", "[", "]"),
    ("previous, next head", "{", "}"),
    ("move the cell (in a map)", "\u2190\u2191", "\u2192\u2193"),
    ("nearer, farther, all (in a large map)", "+", "\u2212", "0"),
    ("first, last key of the row (in a map)", "Home", "End"),
    ("the cell step by step (in a map)", "Enter"),
    ("find a token", "/"),
    ("scale: square root, linear, log", "c"),
    ("numbers in the cells", "n"),
    ("hide the key with the largest mean weight (the sink)", "s"),
    ("compare with another input", "d"),
    ("export", "e"),
    ("these keys", "?"),
    ("close; back to the starting cell", "Esc"),
)
AGREES = "What is drawn here agrees with what the model computed."
DIFFERS = (
    "Some numbers differ from what the model computed by more than its precision explains: read the pictures with care."
)


def manifest_of(capture: Capture) -> dict[str, Any]:
    """The manifest of a capture as JSON-compatible data."""
    start = start_of(capture)
    drawn = {name: module for name, module in views().items() if f"views/{name}.js" in web_files()}
    shown = [view_entry(name, module, capture) for name, module in drawn.items()]
    open_first = next((entry["name"] for entry in shown if entry["applies"] and entry["name"] == "map"), None)
    open_first = open_first or next((entry["name"] for entry in shown if entry["applies"]), "")
    return {
        "title": capture.title,
        "kind": capture.modality,
        "input": capture.given.text[:LONGEST_INPUT],
        "target": written(capture),
        "prediction": finite([asdict(choice) for choice in capture.prediction()]),
        "sites": [site.to_json() for site in capture.sites],
        "axes": {name: axis.to_json() for name, axis in capture.axes.items()},
        "views": shown,
        "start": {"view": open_first, "site": start.site, "head": start.head, "query": start.query, "key": start.key},
        "keys": KEYS,
        "version": __version__,
    }


def view_entry(name: str, module: Any, capture: Capture) -> dict[str, Any]:
    """One entry of the navigation."""
    why = module.applies(capture)
    tour = getattr(module, "TOUR", None)  # its position in the guided tour, and its text there
    notes = getattr(module, "NOTES", {})  # explanations beside its figures
    claim = getattr(module, "CLAIM", None)  # the lab claim about it, for `anyformer lab run`
    return {"name": name, "title": module.TITLE, "read": module.READ, "applies": why is None, "why": why or "",
            "tour": tour, "notes": notes, "claim": claim}  # fmt: skip


def trust_of_page(capture: Capture) -> dict[str, Any]:
    """The trust checks of the capture as JSON-compatible data."""
    trust = capture.trust
    checks = [{"name": check.name, "value": check.value, "tolerance": check.tolerance, "ok": check.ok}
              for check in trust.checks]  # fmt: skip
    return dict(finite({"ok": trust.ok, "says": AGREES if trust.ok else DIFFERS, "checks": checks}))


def start_of(capture: Capture) -> Query:
    """The cell selected at start: the first attention, its first head, the last token and its strongest key."""
    site = next((site for site in capture.sites if site.kind != "other"), None)
    if site is None:
        return Query()
    axis = capture.axes[site.queries]
    query = len(axis) - 1 if axis.grid is None and axis.tokens[0].kind != "special" else 0
    row = capture.weights(site.index, rows=slice(query, query + 1))[0, 0]
    return Query(site.index, 0, query, int(row.argmax()))


def written(capture: Capture) -> str:
    """The target text of an encoder-decoder, generated or given."""
    axis = capture.axes.get("decoder")
    if axis is None or capture.modality != "pair":
        return ""
    return text_of(axis.tokens)[:LONGEST_INPUT].strip()
