"""The loss of an ensemble: the mean of its members' losses, not the loss of their mean prediction."""

from __future__ import annotations

from torch import Tensor, nn

from anyformer.core.model import ModelModule
from anyformer.objectives.batch import Batch
from anyformer.objectives.objective import Phase


def with_member_losses(phase: Phase, model: nn.Module) -> Phase:
    """The phase with the loss averaged over the members; unchanged if the model is not an ensemble."""
    if not isinstance(model, ModelModule) or model.members is None:
        return phase
    count = model.members.spec.members

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return phase.loss(model, batch.for_members(count)) / count

    return phase._replace(loss=loss)
