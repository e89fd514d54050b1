"""The style sheet of every page without script: reports, plans, claims. Its colours are those of `anyformer look`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np

from anyformer.inspection.palette import CATEGORIES, DASHES, TOKENS, hex_of, ramp

SHADES = 32  # steps of a map's colours above none
DARK = "@media screen and (prefers-color-scheme: dark)"  # paper is always light
SERIES = ("first", "second", "third")  # lines of a picture, in the order of the page
NAMED = ("paper", "wash", "ink", "soft", "hair", "line", "accent", "on-accent")


@cache
def style_sheet() -> str:
    """The whole sheet, for a `style` element."""
    sheet = (files("anyformer.evaluation") / "web" / "report.css").read_text(encoding="utf-8")
    return f"{colour_rules()}{sheet}{shade_rules()}"


def colour_rules() -> str:
    """Surfaces, type and lines, light and dark; a second line is dashed as on the page, for eyes and printers without
    colours."""

    def variables(theme: int, name: str) -> str:
        found = {one: TOKENS[one][theme] for one in NAMED}
        found |= dict(zip(SERIES, CATEGORIES[name], strict=False))
        accent = TOKENS["accent"][theme]
        found["heat"] = " ".join(str(int(accent[i : i + 2], 16)) for i in (1, 3, 5))  # its parts, to be made paler
        return "".join(f"--{one}:{value};" for one, value in found.items())

    dashes = f".plot:not(.small) .line.second{{stroke-dasharray:{DASHES[1]}}}"
    return f":root{{{variables(0, 'light')}}}\n{DARK}{{:root{{{variables(1, 'dark')}}}}}\n{dashes}\n"


def shade_rules() -> str:
    """The colours of a map's cells as CSS, light and dark."""

    def rules(name: str) -> str:
        colours = ramp(name)[np.linspace(0, 255, SHADES + 1).round().astype(int)]
        return "".join(f".shade{i}{{fill:{hex_of(colour)}}}" for i, colour in enumerate(colours))

    return f"{rules('blue')}\n{DARK}{{{rules('night')}}}\n"
