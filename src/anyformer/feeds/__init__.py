"""Feeds: feed-forward layers, applied to each token separately."""

from anyformer.feeds.experts import Experts
from anyformer.feeds.mlp import MLP

__all__ = ["MLP", "Experts"]
