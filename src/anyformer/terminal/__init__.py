"""Pictures made of characters: curves, heat maps and text shaded by a number. Nothing here prints."""

from anyformer.terminal.colour import ink, shade
from anyformer.terminal.curve import Canvas, Series, curve
from anyformer.terminal.heat import heat_map
from anyformer.terminal.words import clean, shaded, visible

__all__ = ["Canvas", "Series", "clean", "curve", "heat_map", "ink", "shade", "shaded", "visible"]
