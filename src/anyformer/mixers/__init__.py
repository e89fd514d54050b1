"""Mixers: how tokens exchange information."""

from anyformer.mixers.attention import Attention
from anyformer.mixers.cross import Cross

__all__ = ["Attention", "Cross"]
