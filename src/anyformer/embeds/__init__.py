"""Embeds: how words, images, tables and several of them together become tokens."""

from anyformer.embeds.joint import Joint
from anyformer.embeds.patches import Patches
from anyformer.embeds.table import Table
from anyformer.embeds.tokens import Tokens

__all__ = ["Joint", "Patches", "Table", "Tokens"]
