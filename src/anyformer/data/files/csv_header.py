"""Whether the first row of a table names its columns."""

from __future__ import annotations

import re

from anyformer.data.columns.convert import FORMS, MISSING, NUMBER


def looks_like_header(top: list[str], below: list[list[str]]) -> bool:
    """Whether a first row names the columns: words that are neither values nor like those below them."""
    cells = [cell.strip() for cell in top]
    if len(cells) > 2 and cells == [str(at) for at in range(len(cells))]:
        return True  # numbered columns
    if are_years(cells):
        return True
    if any(is_value(cell) for cell in cells if cell) or not any(cells):
        return False
    if sum(not cell for cell in cells) > 1 or any(cell in MISSING for cell in cells if cell):
        return False
    fitting = [row for row in below if len(row) == len(cells)][:200]
    if not fitting:
        return True
    columns = [[row[at].strip() for row in fitting] for at in range(len(cells))]
    if any(sum(is_value(cell) for cell in column) > 0.5 * len(fitting) for column in columns):
        return True
    if any(cell and cell in column for cell, column in zip(cells, columns, strict=True)):
        return False  # a name does not come again among the values
    # All are words. Names are short and no sentences, and a column of few values does not hold its name among them.
    if any(len(cell) > 60 or len(cell.split()) > 5 or cell[-1:] in ".!?" for cell in cells):
        return False
    if len(fitting) >= 4 and any(len(set(column)) <= len(column) / 2 for column in columns):
        return True
    if all(len(cell.split()) <= 1 for cell in cells):
        return True
    typical = sorted(max(len(cell) for cell in row) for row in fitting)[len(fitting) // 2]
    return max(len(cell) for cell in cells) <= 0.6 * typical


def are_years(cells: list[str]) -> bool:
    """Whether the numbers among names are years, one after the other."""
    found = [int(cell) for cell in cells if re.fullmatch(r"(?:19|20)\d\d", cell)]
    others = [cell for cell in cells if cell and not re.fullmatch(r"(?:19|20)\d\d", cell)]
    return len(found) > 1 and found == sorted(set(found)) and bool(others) and not any(map(is_value, others))


def is_value(cell: str) -> bool:
    """Whether a cell is a number or a date."""
    return any(re.match(form, cell) for form in (NUMBER, *FORMS.values()))
