"""Torch's own layers where it matters how they start."""

from __future__ import annotations

from torch import nn


class Rows(nn.Embedding):
    """A table of rows that is left as it was allocated: all initialisation is in `core/init.py`.

    Torch's own fills itself when it is made; on `meta`, where every network is built first, drawing those numbers that
    nobody will see loads the compiler's tables, one to two seconds the first time.
    """

    def reset_parameters(self) -> None:
        """Nothing; the model is filled as a whole."""
