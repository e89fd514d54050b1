"""Future: what a forecast answers with."""

from __future__ import annotations

from anyformer.data.targets import Values
from anyformer.errors import UserError


class Future(Values):
    """The next `horizon` steps of each channel; `time` is the column that orders the rows, where there is one."""

    horizon: int
    time: str | None = None

    def check(self) -> None:
        if self.horizon < 1:
            raise UserError(f"horizon {self.horizon} is below 1", where="Future", fix="train again")
