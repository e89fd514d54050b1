"""An attention map for the report of a finished model: the last layer, for one validation row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from anyformer.checkpoints.folder import Opened
from anyformer.inference.predictor import Predictor
from anyformer.inspection.capture import Capture
from anyformer.inspection.given import NetworkInputs
from anyformer.inspection.record import record_pass
from anyformer.inspection.site import Site

if TYPE_CHECKING:
    from anyformer.data.prepared import Prepared
    from anyformer.objectives import Batch
    from anyformer.slots import Network

MOST = 24  # most tokens drawn


@torch.no_grad()
def inside_facts(model: nn.Module, spec: Network, data: Prepared, batch: Batch) -> dict[str, Any] | None:
    """The head-averaged map of the last attention, for the first row of a batch; None for a model without attention.

    For an encoder-decoder it is the last cross-attention, which aligns target and source. For an image it is a grid:
    the first token's attention to each patch.
    """
    predictor = Predictor(Opened(spec, model), tokenizer=data.tokenizer, preprocess=data.preprocess)
    given = NetworkInputs(batch.inputs, batch.named)
    copied, given, found = record_pass(model, given, lambda stack, layer: True)
    capture = Capture(predictor, None, predictor, copied, given, found)
    site = chosen_site(capture)
    if site is None:
        return None
    queries, keys = capture.axes[site.queries], capture.axes[site.keys]
    facts = {"layer": site.label, "heads": site.heads, "kind": site.kind}
    if keys.grid is not None:
        rows, columns = keys.grid
        weights = capture.weights(site.index, rows=slice(0, 1)).mean(0)[0, keys.first : keys.first + rows * columns]
        return facts | {"grid": rounded(weights.reshape(rows, columns)), "query": queries.tokens[0].text}
    weights = capture.weights(site.index, rows=slice(0, MOST)).mean(0)[:, :MOST]
    ids = capture.token_ids(queries.name)
    pad = None if ids is None or data.tokenizer is None else data.tokenizer.target.pad
    real = [i for i in range(len(weights)) if float(weights[i].sum()) > 0 and not (i and ids and ids[i] == pad)]
    named = capture.row_tokens(site)
    return facts | {"queries": [named[i].text for i in real], "keys": keys.texts[:MOST],
                    "weights": rounded(weights[real]), "cut": max(len(queries), len(keys)) > MOST}  # fmt: skip


def chosen_site(capture: Capture) -> Site | None:
    """The last cross-attention, else the last self-attention."""
    for kind in ("cross", "self"):
        found = [site for site in capture.sites if site.kind == kind]
        if found:
            return found[-1]
    return None


def rounded(weights: torch.Tensor) -> list[list[float]]:
    return [[round(value, 4) for value in row] for row in weights.tolist()]
