"""Feeds: what happens within each token."""

from anyformer.feeds.experts import Experts
from anyformer.feeds.mlp import MLP

__all__ = ["MLP", "Experts"]
