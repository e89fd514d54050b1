"""Embeddings: how text, images, tables and combinations of them become token vectors."""

from anyformer.embeds.conv_stem import ConvStem
from anyformer.embeds.frames import Frames
from anyformer.embeds.joint import Joint
from anyformer.embeds.maps import Maps
from anyformer.embeds.numbers import PeriodicCurve, PiecewiseCurve
from anyformer.embeds.patches import Patches
from anyformer.embeds.queries import Queries
from anyformer.embeds.regions import Regions
from anyformer.embeds.series import Series
from anyformer.embeds.table import Table
from anyformer.embeds.tokens import Tokens
from anyformer.embeds.words import Words

__all__ = [
    "ConvStem", "Frames", "Joint", "Maps", "Patches", "PeriodicCurve", "PiecewiseCurve", "Queries", "Regions", "Series",
    "Table", "Tokens", "Words",
]  # fmt: skip
