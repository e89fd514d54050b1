"""Tables whose columns are numbers with curves, or one token together."""

from __future__ import annotations

APART = {"table-joined"}  # a row is one token: no other one can be moved, masked or seen; tests/laws/test_tables.py
