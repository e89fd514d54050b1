"""Text-mode graphics: curves, heat maps and text shaded by a number. Nothing here prints."""

from anyformer.terminal.colour import ink, shade
from anyformer.terminal.curve import Canvas, CurveSeries, curve
from anyformer.terminal.heat import heat_map
from anyformer.terminal.words import clean, shaded, visible

__all__ = ["Canvas", "CurveSeries", "clean", "curve", "heat_map", "ink", "shade", "shaded", "visible"]
