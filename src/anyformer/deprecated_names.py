"""Deprecated aliases of renamed public names: the new name, the version that renamed it, and when the alias goes.

The old name of a public name stays for at least two minor versions as an alias that warns; a test fails when an entry
has outlived its last version. A release that renames something adds a line to `DEPRECATED`.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

from anyformer.log import Log

KEPT = 2  # least number of minor versions that an old name still works


class Renamed(NamedTuple):
    """The new name, the version that renamed it, and the version without the old name."""

    now: str
    since: str
    gone_in: str


DEPRECATED: dict[str, Renamed] = {}


def find_new_name(name: str) -> str | None:
    """The new name of a deprecated one, with a warning at the caller's line; None if it is not deprecated."""
    found = DEPRECATED.get(name)
    if found is None:
        return None
    # Three frames up: this function, the package's __getattr__, the line of the user.
    warnings.warn(
        f"anyformer.{name} is called anyformer.{found.now} since {found.since} and goes in {found.gone_in}",
        FutureWarning, stacklevel=3,
    )  # fmt: skip
    return found.now


def log_of(log: Log, say: Log | None) -> Log:
    """The log of a public function; `say`, the parameter's name before 0.2.0, warns at the caller's line."""
    if say is None:
        return log
    warnings.warn("the parameter say is called log since 0.2.0 and goes in 0.4.0", FutureWarning, stacklevel=3)
    return say


def minor(version: str) -> tuple[int, int]:
    """The first two numbers of a version.

    >>> minor("0.12.3")
    (0, 12)
    """
    first, second, *_ = version.split(".")
    return int(first), int(second)


def is_long_enough(entry: Renamed) -> bool:
    """Whether an alias stays for at least KEPT minor versions, or until the next major version.

    >>> is_long_enough(Renamed("Model", since="0.2.0", gone_in="0.4.0"))
    True
    >>> is_long_enough(Renamed("Model", since="0.2.0", gone_in="0.3.0"))
    False
    """
    (major, since), (last, gone) = minor(entry.since), minor(entry.gone_in)
    return last > major or gone - since >= KEPT
