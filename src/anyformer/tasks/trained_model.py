"""The interface of a trained model to a task."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from anyformer.data.images.preprocessing import ImageSteps
from anyformer.data.preprocess import Preprocess
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.slots import Network


class TrainedModel(Protocol):
    """What a task needs of a trained model: the network, and how rows and images become its inputs."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def spec(self) -> Network: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def images(self) -> ImageSteps | None: ...

    @property
    def tokenizer(self) -> Tokenizer | None: ...

    @property
    def preprocess(self) -> Preprocess | None: ...  # None: it was not trained on columns


def preprocess_of(predictor: TrainedModel) -> Preprocess:
    """The preprocessing of a model that was trained on columns, like all models that tasks predict with."""
    assert predictor.preprocess is not None
    return predictor.preprocess
