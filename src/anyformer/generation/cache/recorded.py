"""Steps of rows in fixed places as graphs, one for each number of slots: a GPU is told "again" and asked for scores."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anyformer.core.state import LayerState
from anyformer.core.static_cache import PlacedState
from anyformer.generation.runners.cuda_graphs import captured
from anyformer.generation.runners.eager import hidden_states, logits_of

if TYPE_CHECKING:
    from anyformer.generation.cache.slots import SlotRows

log = logging.getLogger("anyformer")


class RecordedStep:
    """One more token in each of the first `count` slots; what a step reads stands in tensors that stay."""

    def __init__(self, rows: SlotRows, count: int) -> None:
        whole = slice(0, count)
        self.tokens, self.places, self.at = (
            torch.zeros(count, 1, dtype=torch.long, device=rows.device) for _ in range(3)
        )
        self.scores = torch.empty(0)  # (count,V), until the next step
        layers = rows.views(whole, rows.held, [], self.at)
        columns, model = rows.columns, rows.model

        def step() -> None:
            # The layers' states are made anew: a pass may note things in them.
            state = PlacedState(
                [LayerState(layer.mixer) for layer in layers], count, places=self.places, columns=columns
            )
            self.scores = logits_of(model, hidden_states(model, self.tokens, None, state))[:, 0]

        self.step: Callable[[], object] = step
        self.made = False

    def __call__(self, ids: Tensor) -> Tensor:
        """Scores (count,V) after tokens (count,); `places` and `at` say where these stand."""
        self.tokens[:, 0] = ids
        if not self.made:
            self.made = True
            try:
                self.step = captured(self.step, self.tokens)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # it asks the host for something
                log.warning("decoding steps are not recorded: %s", " ".join(str(error).split())[:200])
        self.step()
        return self.scores
