"""Checks of schemas and patterns before compiling them, and shortened error messages."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from anyformer.errors import UserError

DEEPEST = 64  # nesting levels of a schema
MULTIPLES = 10_000  # limit on the product of all multipleOf values, hence on automaton states


def check_length(text: str, most: int, what: str, where: str) -> None:
    if len(text) > most:
        raise UserError(f"{what} has {len(text):,} characters", where=where, fix=f"use at most {most:,}")


def check_parts(value: Any, place: str = "", depth: int = 0) -> int:
    """Reject schemas that are too deep or whose `multipleOf` values make large tables; returns their product."""
    if depth > DEEPEST:
        raise UserError(f"{place[:60]}... is {depth} levels deep", where="JSON schema", fix=f"use at most {DEEPEST}")
    inner = value.items() if isinstance(value, Mapping) else enumerate(as_list(value))
    product = 1
    for name, part in inner:
        if name == "multipleOf" and isinstance(part, int | float) and math.isfinite(part):
            product *= max(1, int("".join(map(str, Decimal(str(part)).normalize().as_tuple().digits))))
        else:
            product *= check_parts(part, f"{place}/{name}", depth + 1)
        if product > MULTIPLES:
            raise UserError(f"multipleOf {part} makes too large a table" if name == "multipleOf" else
                            "all multipleOf together make too large a table", where=f"JSON schema {place}"[:120],
                            fix=f"keep their product below {MULTIPLES:,}")  # fmt: skip
    return product


def short(error: object) -> str:
    """The first informative line of an error message, without the grammar it quotes."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not re.fullmatch(r"[\^ ]+|\d+ \|.*", line)]
    useful = [line.removeprefix("error: ") for line in told if line.startswith("error: ")] or told
    said = re.sub(r"^at \d+\(\d+\): ", "", useful[0]) if useful else "not valid"
    if said.startswith("NoExtensionBias"):
        return "no token of this vocabulary can continue the text"
    return re.split(r" in regex /|\. Enable '", said.removeprefix("failed to compile JSON schema: "))[0][:160]


def as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
