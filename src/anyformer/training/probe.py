"""Probe: internal statistics of the model during training, measured repeatedly on the same rows."""

from __future__ import annotations

from anyformer.errors import UserError, check_at_least
from anyformer.spec import Spec

WHERE = "training.probe"


class Probe(Spec):
    """Every `every` steps, the first `rows` validation rows run through a copy of the model.

    The results are logged to metrics.jsonl beside the loss, as probe/entropy, probe/largest_logit and so on: attention
    entropy, the largest attention logit, the norm of the residual stream, weight on the previous and the first token,
    and induction. A growing logit or norm shows long before the loss becomes non-finite.
    """

    every: int = 100
    """Steps from one measurement to the next."""
    rows: int = 4
    """Rows measured, always the same."""
    layers: tuple[int, ...] | None = None
    """Layers whose maps are measured, counted from 0; all if not given."""

    def check(self) -> None:
        for name in ("every", "rows"):
            value = getattr(self, name)
            check_at_least(WHERE, name, value, 1, fix="use 100" if name == "every" else "use 4")
        if self.layers is not None and any(layer < 0 for layer in self.layers):
            raise UserError(f"layers {self.layers} are not all from 0 on", where=f"{WHERE}.layers", fix="use [0]")
