"""Panel: how a table of several series, one row per series and time step, is pivoted to one column per series."""

from __future__ import annotations

from anyformer.errors import UserError
from anyformer.spec import Spec


class Panel(Spec):
    """The series of a table by the columns that name them, and what is measured of each."""

    by: tuple[str, ...]
    measured: tuple[str, ...]
    series: tuple[tuple[str, ...], ...]  # the words of `by` of each, in their order
    forms: tuple[str, ...] | None = None  # how each measure is written: 1.234,5 €; None: as programs write numbers

    def check(self) -> None:
        names = self.names
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise UserError(f"two series would be called {twice!r}", where="Panel", fix="rename a column")

    @property
    def names(self) -> tuple[str, ...]:
        """All columns: every series of the first measure, then those of the next."""
        return tuple(column for name in self.measured for column in self.columns_of(name))

    def columns_of(self, measure: str) -> list[str]:
        """The columns of one measure, one per series."""
        return [f"{measure} {', '.join(words)}" for words in self.series]
