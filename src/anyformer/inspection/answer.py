"""Messages between a capture and its page: a query with validated parameters, and an answer of facts and arrays.

An answer is one safetensors file whose metadata holds the facts as JSON. The same bytes are sent over HTTP and stored
in exported pages and .look files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import numpy as np
from safetensors.numpy import load as read_arrays
from safetensors.numpy import save as write_arrays

from anyformer.errors import UserError

SELECTION = ("site", "head", "query", "key")
LONGEST = 2_000  # characters of one parameter


@dataclass(frozen=True)
class Query:
    """The selected cell, and a view's own options as unparsed text."""

    site: int = 0
    head: int = 0
    query: int = 0
    key: int = 0
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Query:
        """From the query parameters of a URL."""
        rest = {name: value for name, value in given.items() if name not in SELECTION}
        for name, value in given.items():
            if len(name) > 40 or len(value) > LONGEST:
                raise UserError(f"{name[:40]} is {len(value):,} characters long", where="query",
                                fix=f"use at most {LONGEST:,}")  # fmt: skip
        numbers = cls(options=dict(given))
        chosen = {name: numbers.integer(name, 0, 0, 2**31) for name in SELECTION}
        return cls(**chosen, options=rest)

    def text(self) -> str:
        """The canonical form: sorted, without zeros."""
        chosen = {name: str(getattr(self, name)) for name in SELECTION if getattr(self, name)}
        return urlencode(sorted((chosen | dict(self.options)).items()))

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number between bounds."""
        value = self.number(name, default, low, high)
        if value != int(value):
            raise UserError(f"{name} {value:g} is not a whole number", where="query", fix=f"use {low} to {high}")
        return int(value)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """A number between bounds."""
        given = self.options.get(name)
        try:
            value = float(default if given is None else given)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise UserError(f"{name} {str(given)[:40]!r} is not a number from {low:g} to {high:g}", where="query",
                            fix=f"use {default:g}")  # fmt: skip
        return value

    def choice(self, name: str, default: str, allowed: Sequence[str]) -> str:
        """One of a few words."""
        value = self.options.get(name, default)
        if value not in allowed:
            raise UserError(f"{name} {value[:40]!r} is not known", where="query", fix="use " + ", ".join(allowed))
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean, as 1 or 0."""
        return self.choice(name, "1" if default else "0", ("0", "1")) == "1"


@dataclass
class ViewAnswer:
    """The facts and the arrays of a view."""

    facts: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """One safetensors file."""
        arrays = {name: np.ascontiguousarray(array) for name, array in self.arrays.items()}
        return bytes(write_arrays(arrays, {"facts": json.dumps(finite(self.facts), ensure_ascii=False)}))

    @classmethod
    def from_bytes(cls, data: bytes) -> ViewAnswer:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        return cls(json.loads(header.get("__metadata__", {}).get("facts", "{}")), dict(read_arrays(data)))


def finite(value: Any) -> Any:
    """The value for JSON, with nan and infinity replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def as_bytes(values: np.ndarray, top: float = 1.0) -> np.ndarray:
    """Numbers from 0 to `top`, quantised to 0 to 255."""
    return np.clip(np.rint(values * (255.0 / top)), 0, 255).astype(np.uint8)
