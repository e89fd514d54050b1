"""Positions: absolute ones are added to the embedding, relative ones act on the scores inside attention."""

from anyformer.positions.alibi import Alibi
from anyformer.positions.buckets import Buckets
from anyformer.positions.grid import Grid
from anyformer.positions.learned import Learned
from anyformer.positions.none import NoRelative
from anyformer.positions.rope import NTK, Dynamic, Linear, Llama3, Rope, Scaling, Yarn
from anyformer.positions.shaw import Shaw
from anyformer.positions.sinusoid import Sinusoid
from anyformer.positions.sinusoid_grid import SinusoidGrid

__all__ = [
    "NTK", "Alibi", "Buckets", "Dynamic", "Grid", "Learned", "Linear", "Llama3", "NoRelative", "Rope", "Scaling",
    "Shaw", "Sinusoid", "SinusoidGrid", "Yarn",
]  # fmt: skip
