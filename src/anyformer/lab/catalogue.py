"""All claims by name, discovered from the files in `claims/`, each of which defines a `CLAIM`."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from anyformer.errors import UserError, did_you_mean
from anyformer.lab import claims
from anyformer.lab.claim import Claim

ALSO = {"svm": "max-margin"}  # aliases of claims


@cache
def all_claims() -> dict[str, Claim]:
    """Every claim, sorted by lecture, then by name."""
    names = [f"{claims.__name__}.{found.name}" for found in pkgutil.iter_modules(claims.__path__)]
    modules = [importlib.import_module(name) for name in names]
    every = sorted((module.CLAIM for module in modules), key=lambda claim: (claim.lecture, claim.name))
    return {claim.name: claim for claim in every}


def find_claim(name: str) -> Claim:
    """The claim of that name, or an error with the nearest one."""
    every = all_claims()
    name = ALSO.get(name, name)
    if name not in every:
        raise UserError(f"unknown claim {name!r}", where="lab run", fix=did_you_mean(name, every))
    return every[name]
