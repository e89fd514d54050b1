"""N-grams beside a head, of one text and of two, with few outputs and with many."""

from __future__ import annotations

from typing import Any

from anyformer.heads.pooled import Pooled
from anyformer.heads.regress import Regress
from anyformer.heads.wide import WideAndDeep

EXAMPLES = {
    WideAndDeep: {
        "wide": WideAndDeep(deep=Pooled(classes=3, pool="mean"), buckets=64),
        "wide-pair": WideAndDeep(deep=Regress(outputs=2, pool="mean"), buckets=64, order=3, pair=True),
    },
}
ALIKE = {"wide-pair"}


def without_ids(parts: dict[str, Any]) -> bool:
    """The embedding has no table of tokens, so there are no ids."""
    return parts["embed"].vocabulary is None


REASONS = {r"there are no token ids to make n-grams of": without_ids}
