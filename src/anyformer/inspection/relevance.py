"""Gradient times attention (2103.15679): rollout of the weights that raised one logit.

Rollout traces where a token's content came from, independent of the prediction. Here every weight is multiplied by the
gradient of the chosen logit; negative products count as 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from anyformer.core.attend import Scores, spread, weights_of
from anyformer.core.attention_weights import Weighing
from anyformer.errors import UserError
from anyformer.inspection.prediction import one_answer
from anyformer.inspection.rollout import (
    CROSS,
    chosen_stack,
    exchanges,
    output_axis,
    top_rows,
    trace_back,
    trace_streams,
    trace_to_source,
)
from anyformer.inspection.shadow import shadow
from anyformer.mixers.attention import AttentionModule
from anyformer.mixers.cross import CrossModule

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture, Site

MOST_KEPT = 4  # answers whose maps are cached
KEPT: WeakKeyDictionary[Capture, dict[tuple[int, int | None, int | None], dict[int, Tensor]]] = WeakKeyDictionary()


def relevance(
    capture: Capture,
    *,
    answer: int | None = None,
    at: int | None = None,
    depth: int | None = None,
    stack: str = "",
    rows: Sequence[int] | None = None,
) -> Tensor:
    """Relevance (t,S) of each input token for the logit of `answer`, in float64, not negative.

    A layer is identity + mean over heads of max(gradient * weights, 0); the layers are multiplied, and the identity is
    subtracted from the product. `answer` is a class or token id, by default the model's prediction; `at` is the
    predicting token, if every token predicts (by default the last one). `stack`, `depth`, `rows` are as in `rollout`.
    """
    stack = chosen_stack(capture, stack)
    maps = gradient_maps(capture, answer=answer, at=at)

    def matrix(layer: list[Site], part: slice) -> Tensor:
        found = maps[layer[0].index][part].to(torch.float64, copy=True)
        found[torch.arange(len(found)), torch.arange(part.start, part.stop)] += 1.0
        return found

    def read(site: Site, part: slice) -> tuple[Tensor, Tensor]:
        taken = maps[site.index][part].double()
        return torch.ones(len(taken), 1, dtype=taken.dtype), taken

    if stack == CROSS:
        return trace_to_source(capture, depth, rows, matrix, read)
    if exchanges(capture, stack):
        found = trace_streams(capture, stack, depth, rows, matrix, read)
    else:
        found = trace_back(capture, stack, depth, rows, matrix)
    own = top_rows(len(capture.axes[output_axis(capture, stack, depth)]), rows)
    found[:, : own.shape[1]] -= own
    return found


def gradient_maps(capture: Capture, *, answer: int | None = None, at: int | None = None) -> dict[int, Tensor]:
    """Mean over heads of max(gradient * weights, 0) by site, (T,S). The newest few are cached."""
    # Not in `capture.kept`, where the maps of one rollout would evict them: they cost a backward pass.
    known = KEPT.setdefault(capture, {})
    key = (capture.row, answer, at)
    if key not in known:
        while len(known) >= MOST_KEPT:
            known.pop(next(iter(known)))
        known[key] = computed_maps(capture, answer, at)
    return known[key]


def computed_maps(capture: Capture, answer: int | None, at: int | None) -> dict[int, Tensor]:
    why = why_not(capture)
    if why is not None:
        raise UserError(why, where="relevance", fix="use rollout")
    open_model = shadow(capture.model)
    noted = {path: note_weights(module) for path, module in open_model.named_modules() if is_plain(module)}
    with torch.enable_grad():
        args, options = (outside_inference(part) for part in (capture.given.args, capture.given.options))
        output = open_model(*args, **options)
        goal = chosen_logit(capture, output, answer, at)
        steps = [steps for weighed in noted.values() for steps in weighed.steps]
        slopes = torch.autograd.grad(goal, steps, allow_unused=True)
    by_step = {id(step): slope for step, slope in zip(steps, slopes, strict=True)}
    found, calls = {}, dict.fromkeys(noted, 0)
    for site in capture.sites:
        call, calls[site.path] = calls[site.path], calls[site.path] + 1  # layers with shared weights have the same path
        weights, slope = noted[site.path].weights[call], by_step[id(noted[site.path].steps[call])]
        row = min(capture.row, len(weights) - 1)
        raised = torch.zeros_like(weights[row]) if slope is None else (weights[row] * slope[row]).clamp(min=0)
        found[site.index] = raised.detach().mean(0).cpu()
    return found


def why_not(capture: Capture) -> str | None:
    """Why relevance does not apply to this network; None if it does."""
    if getattr(capture.output, "logits", None) is None:
        return "this network has no logits to take a gradient of"
    for site in capture.sites:
        if not is_plain(capture.model.get_submodule(site.path)):
            return f"{site.label} is {site.mixer}, whose weights have no gradient of their own"
    return None


def is_plain(module: Any) -> bool:
    """Whether a mixer is softmax(scores) times values, with both accessible."""
    return isinstance(module, AttentionModule | CrossModule) and not isinstance(module, Weighing)


def chosen_logit(capture: Capture, output: Any, answer: int | None, at: int | None) -> Tensor:
    """The logit whose gradient is taken."""
    logits: Tensor = output.logits
    own = logits[min(capture.row, len(logits) - 1)]
    if own.dim() == 2 and at is not None and not 0 <= at < len(own):
        raise UserError(f"token {at} is out of range", where="relevance", fix=f"use 0 to {len(own) - 1}")
    own = one_answer(capture, own, at).reshape(-1)
    if answer is not None and not 0 <= answer < len(own):
        raise UserError(f"answer {answer} is out of range", where="relevance", fix=f"use 0 to {len(own) - 1}")
    return own[int(own.argmax()) if answer is None else answer]


# ---------------------------------------------------------------- a pass with gradients of the weights


@dataclass
class Weighed:
    """The weights (B,H,T,S) of each call of an attention, and the zeros added to them for gradients."""

    weights: list[Tensor] = field(default_factory=list)
    steps: list[Tensor] = field(default_factory=list)


def note_weights(module: Any) -> Weighed:
    """Replace the forward of a shadow's attention by plain maths that records its weights."""
    noted = Weighed()

    def forward(x: Tensor, context: Any, state: Any, tables: tuple[Tensor, ...], some: Any = None) -> Tensor:
        q, k, v, scores = module.prepare(x, context, None, tables)
        weights = weights_of(q, k, scores)
        # The gradient of an added zero is that of the weight, whether or not any parameter is trainable.
        step = torch.zeros_like(weights).requires_grad_()
        noted.weights.append(weights.detach())
        noted.steps.append(step)
        y = apply_weights(weights + step, v, scores)  # (B,H,T,C')
        out: Tensor = module.out(y.to(v.dtype).transpose(1, 2).flatten(2))
        return out

    module.forward = forward
    return noted


def apply_weights(weights: Tensor, v: Tensor, scores: Scores) -> Tensor:
    """Weights times values, including the value term of relative positions (Shaw): (B,H,T,C')."""
    out = weights @ spread(v, weights.shape[1]).to(weights.dtype)
    relative = scores.relative
    if relative is None or not relative.needs_weights:
        return out
    assert scores.query_positions is not None and scores.key_positions is not None
    extra = relative.values(weights, scores.tables, scores.query_positions, scores.key_positions)
    return out if extra is None else out + extra


def outside_inference(value: Any) -> Any:
    """Clone inference tensors, so that they can be used in a pass with gradients."""
    if isinstance(value, Tensor):
        return value.clone() if value.is_inference() else value
    if isinstance(value, tuple):
        return tuple(outside_inference(part) for part in value)
    if isinstance(value, dict):
        return {name: outside_inference(part) for name, part in value.items()}
    return value


__all__ = ["gradient_maps", "relevance", "why_not"]
