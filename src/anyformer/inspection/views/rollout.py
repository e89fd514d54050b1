"""Attention rollout through all layers, with gradient times attention beside it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from anyformer.errors import UserError
from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.place_maps import shown_image
from anyformer.inspection.prediction import PossibleAnswer, answer_logits, name_of
from anyformer.inspection.relevance import relevance, why_not
from anyformer.inspection.rollout import (
    FUSES,
    attention_sites,
    chosen_stack,
    columns_axis,
    depth_of,
    input_axes,
    output_axis,
    rollout,
    stacks_of,
)
from anyformer.inspection.views.image import patch_sites

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture

TITLE = "Rollout"
READ = (
    "How much of each input token reaches the chosen token if attention alone carried it through the layers. "
    "Beside it: the weights that raised the answer."
)
NOTES = {
    "alone": "Without the token itself: the product of the maps alone.",
    "passed": "The second part stands for what a block passes on unread.",
}


def applies(capture: Capture) -> str | None:
    try:
        stack = chosen_stack(capture, "")
        deepest(capture, stack)
        if stack == "cross":
            attention_sites(capture, "encoder", None)
    except UserError as error:
        return f"{error.what[0].upper()}{error.what[1:]}."
    return None


def answer(capture: Capture, query: Query) -> ViewAnswer:
    stacks = stacks_of(capture)
    stack = query.choice("side", chosen_stack(capture, ""), stacks)
    most = deepest(capture, stack)
    depth = min(query.integer("depth", most, 0, 10_000), most)  # another stack may have fewer layers
    target = query.choice("towards", default_target(capture), ("token", "mean"))
    rows_axis = output_axis(capture, stack, depth)
    count = len(capture.axes[rows_axis])
    token = None if target == "mean" else traced_token(query, count, of_its_own=len(stacks) > 1)
    rows = None if token is None else [token]
    found = rollout(
        capture, fuse=query.choice("fuse", "mean", FUSES), residual=query.number("residual", 0.5, 0, 1),  # type: ignore[arg-type]
        depth=depth, discard=query.number("discard", 0, 0, 0.99), stack=stack, rows=rows,
    ) if stack != "cross" or depth else None  # fmt: skip
    columns = columns_axis(capture, stack)
    facts: dict[str, Any] = {
        "stacks": stacks, "stack": stack, "depth": depth, "most": most, "target": target, "token": token,
        "own_token": len(stacks) > 1, "default_target": default_target(capture), "queries": rows_axis,
        "keys": input_axes(capture, stack),
        "grid": columns.grid, "first": columns.first, "grid_axis": columns.name,
        "picture": bool(patch_sites(capture)) and shown_image(capture) is not None,
    }  # fmt: skip
    arrays = {"rollout": one_row(found, len(columns))}
    facts |= add_relevance(capture, query, stack, depth, token, rows, arrays)
    return ViewAnswer(facts, arrays)


def add_relevance(
    capture: Capture, query: Query, stack: str, depth: int, token: int | None, rows: list[int] | None,
    arrays: dict[str, np.ndarray],
) -> dict[str, Any]:  # fmt: skip
    """Add gradient times attention for one answer, or return why there is none."""
    why = why_not(capture)
    if why is None and stack == "cross" and not depth:
        why = "no layer has looked at the source yet"
    if why is not None:
        return {"why_no_relevance": f"{why[0].upper()}{why[1:]}."}
    by_token = capture.output.logits.dim() == 3
    answers_here = by_token and stack in ("", "decoder", "cross") and token is not None
    at = token if answers_here else None
    # Answer spans with the same start token are one entry here.
    by_id: dict[int, PossibleAnswer] = {}
    for choice in capture.prediction(at=at, top=10):
        by_id.setdefault(choice.id, choice)
    choices = list(by_id.values())
    logits, _ = answer_logits(capture, at=at)
    wanted = query.integer("raised", choices[0].id if choices else 0, 0, 0 if logits is None else len(logits) - 1)
    arrays["relevance"] = one_row(
        relevance(capture, answer=wanted, at=at, depth=depth, stack=stack, rows=rows),
        arrays["rollout"].shape[0],
    )
    listed = [{"id": choice.id, "name": choice.name, "probability": choice.probability} for choice in choices]
    if all(choice.id != wanted for choice in choices):
        listed.append({"id": wanted, "name": name_of(capture, wanted), "probability": None})
    return {"answers": listed, "answer": wanted}


def traced_token(query: Query, count: int, *, of_its_own: bool) -> int:
    """The selected query; with several stacks a separate selection, as the selected layer may have other tokens."""
    chosen = query.integer("trace", count - 1, 0, 2**31) if of_its_own else query.query
    return min(chosen, count - 1)


def one_row(found: Tensor | None, length: int) -> np.ndarray:
    """The selected token's row, or the mean over all tokens."""
    return np.zeros(length, np.float32) if found is None else found.mean(0).float().numpy()


def default_target(capture: Capture) -> str:
    """What the head pools: one token, or the mean of all."""
    spec = getattr(capture.model, "spec", None)
    return "mean" if getattr(getattr(spec, "head", None), "pool", None) == "mean" else "token"


def deepest(capture: Capture, stack: str) -> int:
    """Number of layers that can be rolled out: up to the first without attention weights."""
    within = "decoder" if stack == "cross" else stack
    others = [site.layer for site in capture.sites if site.stack == within and site.kind == "other"]
    most = min(others, default=depth_of(capture, stack))
    if most < 1:
        raise UserError("the first layer mixes tokens without attention weights", where=TITLE, fix="open another view")
    return most


def exported(capture: Capture) -> Iterable[Query]:
    """Every depth for the token selected at start; for a short text or table, every token at full depth."""
    from anyformer.inspection.manifest import start_of

    start, stack = start_of(capture), chosen_stack(capture, "")
    most = deepest(capture, stack)
    yield from (Query(query=start.query, options={"depth": str(depth)}) for depth in range(most))
    tokens = len(capture.axes[output_axis(capture, stack, most)])
    if default_target(capture) == "token" and tokens <= 40:
        several = len(stacks_of(capture)) > 1
        yield from (Query(options={"trace": str(token)}) if several else Query(query=token) for token in range(tokens))
    yield from (Query(query=start.query, options={"fuse": fuse}) for fuse in FUSES[1:])
    yield Query(query=start.query, options={"residual": "0"})
