"""Options that would have no effect on some data are refused before it is read, not passed over."""

from __future__ import annotations

from collections.abc import Collection

from anyformer.data.settings import Data
from anyformer.errors import UserError


def refuse_columns(settings: Data, what: str, *, used: Collection[str] = ()) -> None:
    """Refuse every option that names a column but those in `used`: `what` would not look at it."""
    split = settings.split
    named = {
        "--target": settings.target, "--inputs": settings.inputs, "--types": settings.types,
        "--split-column": split.column, "--group": split.group, "--time": split.time,
    }  # fmt: skip
    for option, value in named.items():
        if value and option not in used:
            raise UserError(f"{what}: no column is looked at by this option", where=option, fix="leave it out")


def refuse_both(settings: Data, what: str) -> None:
    """Refuse --target beside --inputs where both say the same thing and one would win."""
    if settings.target and settings.inputs:
        raise UserError(f"{what}: --target and --inputs both name what is read", where="--target", fix="give one")
