"""The filters of the patch embedding: their principal components, beside those of an untrained network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.filters import (
    COUNT,
    components_of,
    find_patch_embedding,
    patch_filters,
    untrained_filters,
)

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture

TITLE = "Patch filters"
READ = (
    "What the first layer looks for in a patch: the patterns along which its filters differ most, strongest first. "
    "Smooth waves and colour contrasts are learned; noise is not."
)
MOST = 64


def applies(capture: Capture) -> str | None:
    return "This model does not cut images into patches." if find_patch_embedding(capture.model) is None else None


def answer(capture: Capture, query: Query) -> ViewAnswer:
    """`filters=components` of the model and of an untrained one, or `filters=raw`: the filters with largest norm."""
    filters = patch_filters(capture.model).float().cpu()
    show = query.choice("filters", "components", ("components", "raw"))
    count = query.integer("components", COUNT, 1, MOST)
    width, pixels = len(filters), filters[0].numel()
    facts = {"show": show, "count": count, "width": width, "pixels": pixels, "shape": list(filters.shape[1:])}
    if show == "raw":
        order = filters.flatten(1).norm(dim=1).argsort(descending=True)[:count]
        return ViewAnswer(
            facts | {"dimensions": order.tolist(), "norms": filters.flatten(1).norm(dim=1)[order].tolist()},
            {"filters": as_floats(filters[order]), "untrained": as_floats(untrained_filters(capture.model)[order])},
        )
    own, fresh = components_of(filters, count), components_of(untrained_filters(capture.model), count)
    return ViewAnswer(
        facts,
        {
            "filters": as_floats(own.components), "explained": as_floats(own.explained),
            "coordinates": as_floats(own.coordinates.mT), "untrained": as_floats(fresh.components),
            "untrained_explained": as_floats(fresh.explained),
        },
    )  # fmt: skip


def as_floats(values: Tensor) -> np.ndarray:
    return values.float().cpu().numpy()


def exported(capture: Capture) -> Iterable[Query]:
    yield Query()
