"""Attention step by step: one row of the map as a spreadsheet in which changes propagate to later steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from anyformer.errors import UserError
from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.steps import SHOWN, HeadSteps, has_steps, lecture_example, shown_around, steps_of

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture

TITLE = "Step by step"
READ = (
    "Each row is a key. From left to right its score with the query becomes a weight, and the weight its share of the "
    "output. Change a score, show a hidden key or leave out the square root: what follows is computed again."
)
CLAIM = "softmax-scale"
TOUR = (3, "Step by step. The numbers behind one row, from the scores to the output. Change one and watch the rest.")
NOTES = {
    "lecture": "EPFL's slide: scores 102 and 99 with D_K = 3 give 58.9 and 57.2, then .85 and .15. The slide "
    "shows no vectors; these have those products.",
}

MOST = 2**18  # elements of keys and values sent at once: above, only those of the shown keys
EXPORTED = 400_000  # bytes of steps in an exported page
PROJECTION = 2**14  # elements of W_O per head in an exported page


def applies(capture: Capture) -> str | None:
    """Applies if some layer has queries, keys and values."""
    if any(has_steps(call.module) for call in capture.found.mixers):
        return None
    return "No layer of this model weighs values by queries and keys."


def answer(capture: Capture, query: Query) -> ViewAnswer:
    """The steps of one token in one head; with `part=projection` only that head's rows of W_O."""
    if query.choice("example", "none", ("none", "lecture")) == "lecture":
        return answer_of(lecture_example(), example=True)
    if query.choice("part", "steps", ("steps", "projection")) == "projection":
        return projection(capture, query)
    steps = steps_of(capture, query.site, query.head, query.query)
    if not is_partial(steps):  # then the page has every key and paginates by itself
        return answer_of(steps)
    start, _ = shown_around(steps.weights)
    return answer_of(steps, query.integer("from", start, 0, len(steps.keys) - 1))


def projection(capture: Capture, query: Query) -> ViewAnswer:
    """One head's rows of W_O, requested by the page when a change must be projected."""
    steps = steps_of(capture, query.site, query.head, 0)
    if steps.projection is None:
        raise UserError("this layer has no output projection", where=steps.label, fix="ask for its steps")
    return ViewAnswer(arrays={"projection": floats(steps.projection)})


def is_partial(steps: HeadSteps) -> bool:
    """Whether there are so many keys that only the vectors of the shown ones are sent."""
    return len(steps.keys) * (steps.k.shape[1] + steps.v.shape[1]) > MOST


def answer_of(steps: HeadSteps, first: int | None = None, *, example: bool = False) -> ViewAnswer:
    """Every number of the table, with the range of shown keys: by default around the largest weight."""
    partial = is_partial(steps)
    start, stop = shown_around(steps.weights)
    if first is not None:
        start, stop = first, min(len(steps.keys), first + SHOWN)
    rows = slice(start, stop) if partial else slice(None)
    facts = {
        "label": steps.label, "head": steps.head, "query": steps.query, "token": steps.token, "keys": list(steps.keys),
        "first": start, "stop": stop, "partial": partial, "scale": steps.scale, "root": steps.root,
        "soft_cap": steps.soft_cap, "plain": steps.plain, "projected": steps.projection is not None, "gap": steps.gap,
        "related": not steps.related.equal(steps.scores), "biased": not steps.biased.equal(steps.capped),
        "example": example, "count_from": steps.count_from, "crossed": steps.crossed,
    }  # fmt: skip
    arrays = {
        "q": steps.q, "k": steps.k[rows], "v": steps.v[rows], "scores": steps.scores,
        "relative": steps.related - steps.scores, "bias": finite_difference(steps.biased, steps.capped),
        "weights": steps.weights, "z": steps.z, "out": steps.out, "others": steps.others, "total": steps.total,
    }  # fmt: skip
    outside = steps.weighted.sum(0) - steps.weighted[rows].sum(0) if partial else None
    optional = {"x": steps.x, "beside": None if steps.beside is None else steps.beside[rows], "outside": outside,
                "out_bias": steps.bias, "expected": steps.expected}  # fmt: skip
    arrays |= {name: part for name, part in optional.items() if part is not None}
    found = {name: floats(part) for name, part in arrays.items()}
    return ViewAnswer(facts, found | {"visible": steps.visible.numpy().astype(np.uint8)})


def floats(x: Tensor) -> np.ndarray:
    found: np.ndarray = x.detach().float().numpy()
    return found


def finite_difference(a: Tensor, b: Tensor) -> Tensor:
    """a - b, -inf where a is -inf (from a user-given mask)."""
    return (a - b).masked_fill(a.isneginf(), float("-inf"))


def exported(capture: Capture) -> Iterator[Query]:
    """The lecture's example, then tokens and heads as far as they fit, last tokens first: they see the most keys."""
    yield Query(options={"example": "lecture"})
    room = EXPORTED
    sites = [site for site in capture.sites if has_steps(capture.found.mixers[site.index].module)]
    longest = max((len(capture.axes[site.queries]) for site in sites), default=0)
    for back in range(longest):
        for site in sites:
            token = len(capture.axes[site.queries]) - 1 - back
            for head in range(site.heads if token >= 0 else 0):
                steps = steps_of(capture, site.index, head, token)
                weight = steps.projection
                with_weight = back == 0 and weight is not None and weight.numel() <= PROJECTION
                room -= len(answer_of(steps).to_bytes()) + (
                    4 * weight.numel() if weight is not None and with_weight else 0
                )
                if room < 0:
                    return
                yield Query(site.index, head, token)
                if with_weight:
                    yield Query(site.index, head, options={"part": "projection"})
