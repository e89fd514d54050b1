"""Norms: what brings a token's channels back to one scale."""

from anyformer.norms.layer import LayerNorm
from anyformer.norms.none import NoNorm
from anyformer.norms.rms import RMSNorm

__all__ = ["LayerNorm", "NoNorm", "RMSNorm"]
