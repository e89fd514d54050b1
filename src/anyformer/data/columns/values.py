"""One value of a row in Python and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from anyformer.errors import UserError


def own_value(value: Any) -> Any:
    """Convert a value to a native Python one; missing values of numpy and pandas become None."""
    if isinstance(value, np.datetime64):
        return None if np.isnat(value) else value.astype("datetime64[us]").item()
    if isinstance(value, np.generic):
        return value.item()
    return None if type(value).__name__ in ("NAType", "NaTType") else value


def is_none(value: Any) -> bool:
    """Whether a value is missing."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def shown(value: Any) -> str:
    """A short form of a value for messages."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, np.ndarray):
        return f"an array {value.shape}"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    return "null" if value is None else repr(value)[:40]


def spelled(text: str, where: str = "") -> str:
    """Check that a text can be encoded: JSON can contain lone surrogates, which are not characters."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"character {error.start + 1} is half of a pair", where=where, fix="give whole text") from None
    return text
