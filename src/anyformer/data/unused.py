"""Options without effect on some data are rejected before it is read."""

from __future__ import annotations

from collections.abc import Collection

from anyformer.data.settings import Data
from anyformer.errors import UserError


def refuse_columns(settings: Data, what: str, *, used: Collection[str] = ()) -> None:
    """Reject every option that names a column, except those in `used`: `what` would ignore it."""
    split = settings.split
    named = {
        "--target": settings.target, "--inputs": settings.inputs, "--types": settings.types,
        "--split-column": split.column, "--group": split.group, "--time": split.time,
    }  # fmt: skip
    for option, value in named.items():
        if value and option not in used:
            raise UserError(f"{what}: no column is looked at by this option", where=option, fix="leave it out")


def refuse_both(settings: Data, what: str) -> None:
    """Reject --target with --inputs if both mean the same."""
    if settings.target and settings.inputs:
        raise UserError(f"{what}: --target and --inputs both name what is read", where="--target", fix="give one")
