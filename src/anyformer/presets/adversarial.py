"""Generators of images that learn against a discriminator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from anyformer.nets.sagan import SAGAN

# Parameters that learn, both nets together: 5.5 M, 38.6 M and 81.5 M. The classes are replaced by the data's own.
PRESETS: dict[str, Callable[[], SAGAN]] = {
    "sagan-32": partial(SAGAN, size=32, attention=16, classes=10),
    "sagan-64": partial(SAGAN, size=64, attention=32, classes=1000),
    "sagan-128": partial(SAGAN, size=128, attention=32, classes=1000),
    "sagan-32-tiny": partial(SAGAN, size=32, attention=16, classes=10, width=8),
}
for size in (64, 128):
    PRESETS[f"sagan-{size}-tiny"] = PRESETS["sagan-32-tiny"]
