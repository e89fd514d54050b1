"""Things: what a detector answers with."""

from __future__ import annotations

from anyformer.data.targets import Target
from anyformer.errors import UserError


class Things(Target):
    """Objects of an image, each of one class; `most` is how many one training image holds at most."""

    labels: tuple[str, ...]
    counts: tuple[int, ...]  # training objects of each class
    most: int

    def check(self) -> None:
        if len(self.labels) != len(self.counts) or len(set(self.labels)) != len(self.labels):
            raise UserError("labels and counts do not fit", where="Things", fix="train again")
