"""Compare: the same model on another input, another checkpoint, or another model, map by map and head by head."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from anyformer.errors import UserError
from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.compare import Comparison, layout_problem
from anyformer.inspection.prediction import is_number

if TYPE_CHECKING:
    from anyformer.inspection.axis import TokenAxis
    from anyformer.inspection.capture import Capture

TITLE = "Compare"
READ = "Orange: the second looks there more; blue: the first does. The table says how far each head has moved, in bits."
NOTES = {
    "rest": "Weight on other keys is counted as one more key in the distances.",
    "apart": "The two inputs have no token in common, so that no difference can be drawn: each map stands by itself.",
}
WINDOW = 128  # tokens drawn at once
EXPORTED = 24  # heads whose maps are in an exported page


def applies(capture: Capture) -> str | None:
    if not capture.others:
        return "There is nothing to compare with yet: press d for a second input, or start with --with or --with-model."
    return layout_problem(capture, capture.others[0]) or None


def answer(capture: Capture, query: Query) -> ViewAnswer:
    if not capture.others:
        raise UserError("there is nothing to compare with", where="compare", fix="add a second input with --with")
    number = query.integer("other", 0, 0, len(capture.others) - 1)
    found = comparison(capture, number)
    site = capture.site(query.site)
    if site.kind == "other":
        raise UserError(f"{site.label} is not attention", where="compare", fix="choose another layer")
    head = min(query.head, site.heads - 1)
    second = found.second
    queries, keys = found.queries(site.index), found.keys(site.index)
    shared = min(len(queries), len(keys))
    start = query.integer("from", 0, 0, max(0, max(len(queries), len(keys)) - 1))
    cut = slice(start, start + WINDOW)
    facts: dict[str, Any] = {
        "site": site.index, "head": head, "label": site.label, "other": number,
        "names": names(capture, second), "others": [str(other.given.text)[:80] for other in capture.others],
        "same": queries.complete and keys.complete, "shared": shared,
        "from": start, "window": WINDOW, "count": max(len(queries), len(keys)),
        "distances": found.distances, "labels": [one.label for one in capture.sites],
        "predictions": found.predictions(), "numbers": is_number(capture),
    }  # fmt: skip
    arrays: dict[str, np.ndarray] = {}
    if shared:
        before, after = (part[0, :, :-1][:, cut] for part in found.maps(site.index, rows=cut, head=head))
        arrays |= {"first": plain(before), "second": plain(after), "difference": plain(after - before)}
        facts["queries"] = texts(capture.axes[site.queries], queries.first[cut])
        facts["keys"] = texts(capture.axes[site.keys], keys.first[cut])
        facts["query_places"], facts["key_places"] = list(queries.first[cut]), list(keys.first[cut])
    if not facts["same"]:  # also each map over its own tokens
        for name, one in (("first", capture), ("second", second)):
            own = one.sites[site.index]
            whole = slice(0, WINDOW)
            arrays[f"{name}_own"] = plain(one.weights(own.index, rows=whole)[head, :, whole])
            facts[f"{name}_queries"] = one.axes[own.queries].texts[whole]
            facts[f"{name}_keys"] = one.axes[own.keys].texts[whole]
    return ViewAnswer(facts, arrays)


def exported(capture: Capture) -> Iterable[Query]:
    """The heads that differ most, and the first one, where the page starts."""
    if applies(capture) is not None:
        return []
    moved = [
        (-(value or 0.0), site, head)
        for site, heads in enumerate(comparison(capture, 0).distances)
        for head, value in enumerate(heads)
    ]
    chosen = sorted({(0, 0), *((site, head) for _, site, head in sorted(moved)[:EXPORTED])})
    return [Query(site=site, head=head) for site, head in chosen if capture.sites[site].kind != "other"]


def comparison(capture: Capture, number: int) -> Comparison:
    """The cached comparison with one of the other captures."""
    key = ("comparison", number)
    if key not in capture.kept:
        capture.keep(key, Comparison(capture, capture.others[number]))
    found: Comparison = capture.kept[key]
    return found


def names(first: Capture, second: Capture) -> list[dict[str, str]]:
    """The model and the input of both captures."""
    return [{"model": one.title, "input": str(one.given.text)[:200]} for one in (first, second)]


def texts(axis: TokenAxis, places: tuple[int, ...]) -> list[str]:
    return [axis.tokens[place].text for place in places]


def plain(values: Tensor) -> np.ndarray:
    return np.ascontiguousarray(values.float().numpy())
