"""Positions: absolute ones are added to the embedding, relative ones act on the scores inside attention."""

from anyformer.positions.alibi import Alibi
from anyformer.positions.buckets import Buckets
from anyformer.positions.grid import Grid
from anyformer.positions.learned import Learned
from anyformer.positions.none import NoRelative
from anyformer.positions.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    NTKScaling,
    Rope,
    Scaling,
    YarnScaling,
)
from anyformer.positions.shaw import Shaw
from anyformer.positions.sinusoid import Sinusoid
from anyformer.positions.sinusoid_grid import SinusoidGrid
from anyformer.positions.some_heads import SomeHeads

__all__ = [
    "Alibi", "Buckets", "DynamicScaling", "Grid", "Learned", "LinearScaling", "Llama3Scaling", "NTKScaling",
    "NoRelative", "Rope", "Scaling", "Shaw", "Sinusoid", "SinusoidGrid", "SomeHeads",
    "YarnScaling",
]  # fmt: skip
