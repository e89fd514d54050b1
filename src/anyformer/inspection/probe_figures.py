"""Scalars from one pass that monitor attention and the residual stream in training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from anyformer.core.attend import score_steps
from anyformer.inspection.capture import Capture
from anyformer.inspection.given import NetworkInputs
from anyformer.inspection.head_stats import ENTRIES, HeadSums
from anyformer.inspection.record import record_pass
from anyformer.inspection.site import Site
from anyformer.mixers.attention import AttentionInputs

if TYPE_CHECKING:
    from anyformer.objectives import Batch

LARGEST = ("previous", "induction")  # of the head with the largest value
MEANS = ("entropy", "first")


@torch.no_grad()
def probe_figures(model: nn.Module, batch: Batch, *, layers: Sequence[int] | None = None) -> dict[str, float]:
    """Scalars of a model on a batch, by name, overall and prefixed by layer.

    `entropy` is the mean over heads and queries in bits, `largest_logit` the largest score before any softmax,
    `residual_norm` the mean norm of the residual stream after a layer (overall: after the last), `first` the mean
    weight on the first token, `previous` and `induction` those of the head with the most.
    """
    given = NetworkInputs(batch.inputs, batch.named)
    copied, given, found = record_pass(model, given, lambda stack, layer: layers is None or layer in layers)
    capture = Capture(model, batch.inputs, None, copied, given, found)
    figures: dict[str, float] = {}
    heads: dict[str, list[float]] = {name: [] for name in (*MEANS, *LARGEST)}
    logits: list[float] = []
    for site in capture.sites:
        if capture.inputs_of(site.index) is None:
            continue
        means, logit = site_figures(capture, site)
        for name in heads:
            heads[name] += [value for value in means[name] if value is not None]
        logits.append(logit)
        own = [value for value in means["entropy"] if value is not None]
        figures[f"{place_of(site)}/entropy"] = sum(own) / len(own) if own else math.nan
        figures[f"{place_of(site)}/largest_logit"] = logit
    norms = residual_norms(capture)
    overall = {name: sum(values) / len(values) for name, values in heads.items() if values and name in MEANS}
    overall |= {name: max(values) for name, values in heads.items() if values and name in LARGEST}
    if logits:
        overall["largest_logit"] = max(logits)
    if norms:
        overall["residual_norm"] = list(norms.values())[-1]
    every = overall | figures | norms
    return {name: float(f"{value:.6g}") for name, value in every.items() if math.isfinite(value)}


def site_figures(capture: Capture, site: Site) -> tuple[dict[str, list[float | None]], float]:
    """The statistics of a site's heads over all rows of the batch, and its largest logit."""
    sums, largest = None, -math.inf
    for row in range(len(capture.found.mixers[site.index].given[0])):
        p = capture.inputs_of(site.index, row=row)
        assert p is not None
        ids = ids_of(capture, site, row, p.k.shape[2])
        if sums is None:
            sums = HeadSums(p.q.shape[1], p.q.shape[2], p.k.shape[2], aligned=site.kind == "self", ids=ids)
        sums.ids = ids
        real = real_queries(p) if site.kind == "self" else None
        step = max(1, ENTRIES // (p.q.shape[1] * p.k.shape[2]))
        for start in range(0, p.q.shape[2], step):
            rows = slice(start, min(start + step, p.q.shape[2]))
            found = score_steps(p.q, p.k, p.scores, rows)
            weights, masked = found.weights[0], found.masked[0]  # (H,t,S)
            if real is not None:
                weights = weights * real[rows, None]  # zero the queries of padding
                masked = masked.masked_fill(~real[rows, None], -torch.inf)
            sums.add(weights, start)
            largest = max(largest, float(masked.max()))
    assert sums is not None
    return sums.means(), largest


def real_queries(p: AttentionInputs) -> Tensor | None:
    """The mask of queries that are not padding: bool (T,), or None for all."""
    mask = p.scores.key_mask
    return None if mask is None or mask.shape[1] != p.q.shape[2] else mask[0]


def ids_of(capture: Capture, site: Site, row: int, keys: int) -> Tensor | None:
    """The token ids of one row, if the model reads ids."""
    given = [one for one in capture.inputs_for(site.stack) if isinstance(one, Tensor)]
    if not given or given[0].is_floating_point() or given[0].dim() != 2 or given[0].shape[1] != keys:
        return None
    return given[0][row]


def residual_norms(capture: Capture) -> dict[str, float]:
    """The mean norm of the residual stream after every block, without padding."""
    found: dict[str, float] = {}
    for stack in capture.stacks:
        mask: Any = next((real for site in capture.sites if site.stack == stack and site.kind == "self"
                          if (real := batch_mask(capture, site)) is not None), None)  # fmt: skip
        for layer, call in enumerate(capture.blocks(stack)):
            if call.after is not None:
                norms = call.after.float().norm(dim=-1)  # (B,T)
                counted = norms if mask is None or mask.shape != norms.shape else norms[mask]
                found[f"{stack or 'layer'}-{layer}/residual_norm"] = float(counted.mean())
    return found


def batch_mask(capture: Capture, site: Site) -> Tensor | None:
    """The mask of the batch's real tokens: bool (B,T), or None for all."""
    rows = range(len(capture.found.mixers[site.index].given[0]))
    inputs = [capture.inputs_of(site.index, row=row) for row in rows]
    found = [None if p is None else real_queries(p) for p in inputs]
    return None if any(real is None for real in found) else torch.stack([real for real in found if real is not None])


def place_of(site: Site) -> str:
    """A layer's name in the metrics: layer-0, encoder-1, decoder-0-cross."""
    return f"{site.stack or 'layer'}-{site.layer}" + ("-cross" if site.kind == "cross" else "")
