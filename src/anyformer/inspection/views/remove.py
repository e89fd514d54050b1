"""Remove: the prediction without a head, an edge or a token, beside the attention weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.core.head_names import has_stacks
from anyformer.errors import UserError
from anyformer.evaluation.metrics import rank_correlation
from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.prediction import name_of, number_name
from anyformer.inspection.removal import (
    FollowedAnswer,
    answered_place,
    answers_by_token,
    every_head_in_turn,
    key_part,
    parse,
    pruning,
    removable_heads,
    what_if,
)

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture

TITLE = "Remove"
READ = (
    "Each number is one more pass without a head, an edge or a token: a change below 0 says that it spoke for the "
    "answer. Attention shows where information was read, not why."
)
CLAIM = "attention-is-no-explanation"
TOUR = (8, "Remove. Attention shows where information was read, not why: take a head away and see what changes.")
NOTES = {
    "grouped": " Heads that share keys and values can be pruned in whole groups, or evenly.",
}
SHOWN = 5  # answers compared
EXPORTED = 48  # most heads for the effect of each in an exported page: one pass per head
EXPORTED_CELLS = 16  # most heads for details of each: six passes per head


def applies(capture: Capture) -> str | None:
    if not any(site.layer >= 0 for site in capture.sites) or not has_stacks(capture.model):
        return "This model has no stack whose layers could be removed."
    return None if capture.prediction() else "This model gives no answer whose change could be measured."


def answer(capture: Capture, query: Query) -> ViewAnswer:
    if query.flag("every"):
        return every(capture)
    site = capture.site(query.site)
    by_token = answers_by_token(capture, site)
    of = query.choice("of", "answer", ("answer", "query"))
    at = check_cell(capture, query.site, query.head, query.query, query.key)[2] if of == "query" and by_token else None
    answer = FollowedAnswer(capture, at)
    removal = parse(capture, *(query.options.get(name, "") for name in ("heads", "tokens", "edges")))
    check_cell(capture, query.site, query.head, query.query, query.key)
    weight = capture.weights(site.index, rows=slice(query.query, query.query + 1))[query.head, 0, query.key]
    facts: dict[str, Any] = {
        "target": answer.facts(), "of": of if by_token else "answer", "by_token": by_token,
        "place": answered_place(capture, at), "weight": float(weight),
        "what_if": what_if(answer, site, query.head, query.query, query.key),
        "heads": sum(removable_heads(capture, one) for one in capture.sites),
        "has_heads": removable_heads(capture, site) > 0, "key_part": key_part(capture, site), "removed": None,
    }  # fmt: skip
    if removal:
        facts["removed"] = removed(answer, removal)
    return ViewAnswer(facts)


def removed(answer: FollowedAnswer, removal: Any) -> dict[str, Any]:
    """The top answers before and after the removal of all selected parts."""
    before, after = answer.values(answer.logits), answer.without(removal)
    best = list(dict.fromkeys([*before.topk(min(SHOWN, len(before))).indices.tolist(), int(after.argmax())]))
    rows = []
    for i in best:
        name = number_name(answer.capture, i) if answer.kind == "value" else name_of(answer.capture, i)
        pair = [float(values[i]) if answer.kind == "value" else float(values[i].exp()) for values in (before, after)]
        rows.append({"name": name, "id": i, "before": pair[0], "after": pair[1]})
    change = float(after[answer.id]) - answer.before
    prune = pruning(answer.capture, removal.heads) if removal.heads else None
    return {"answers": rows, "change": change, "pruning": prune}


def every(capture: Capture) -> ViewAnswer:
    """The effect of ablating each head on the answer, one pass per head; cached."""
    if ("every head",) not in capture.kept:
        answer = FollowedAnswer(capture)
        sites, change, weight = every_head_in_turn(answer)
        both = change.isfinite() & weight.isfinite()
        rank = rank_correlation(change[both].abs().numpy(), weight[both].numpy()) if int(both.sum()) > 2 else None
        facts = {"target": answer.facts(), "sites": sites, "rank": rank,
                 "parameters": sum(parameter.numel() for parameter in capture.model.parameters())}  # fmt: skip
        capture.keep(("every head",), (facts, change.numpy(), weight.numpy()))
    facts, changed, weights = capture.kept["every head",]
    return ViewAnswer(facts, {"change": np.asarray(changed, np.float32), "weight": np.asarray(weights, np.float32)})


def check_cell(capture: Capture, site: int, head: int, query: int, key: int) -> tuple[int, int, int, int]:
    """Raise an error for a cell outside the map."""
    at = capture.site(site)
    limits = (len(capture.sites), at.heads, len(capture.axes[at.queries]), len(capture.axes[at.keys]))
    for name, value, limit in zip(("site", "head", "query", "key"), (site, head, query, key), limits, strict=True):
        if value >= limit:
            raise UserError(f"{name} {value} is out of range", where="remove", fix=f"use 0 to {limit - 1}")
    return site, head, query, key


def exported(capture: Capture) -> Iterator[Query]:
    """If heads are few, the ablation of each, and its details for the cell at which the page opens."""
    from anyformer.inspection.manifest import start_of

    heads = [(site.index, head) for site in capture.sites for head in range(removable_heads(capture, site))]
    if not 0 < len(heads) <= EXPORTED:
        return
    yield Query(options={"every": "1"})
    start = start_of(capture)
    for site, head in heads if len(heads) <= EXPORTED_CELLS else ():
        at = capture.site(site)
        if start.query < len(capture.axes[at.queries]) and start.key < len(capture.axes[at.keys]):
            yield Query(site, head, start.query, start.key)
