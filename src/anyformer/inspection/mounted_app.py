"""The page over a model that is being served: nothing is computed before somebody asks, and only the newest is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyformer.inspection.look_app import LookApp, LookResponse

if TYPE_CHECKING:
    from anyformer.inference.predictor import Predictor

BUDGET = "256MB"  # of one look
RING = 3  # inputs kept, each within the budget
TYPED = 16 * 2**10  # bytes of a text or a row: what a pass takes grows with the square of its tokens


class MountedLook(LookApp):
    """The page of a served model. It starts with an example, and continues with what is typed on it."""

    def __init__(self, predictor: Predictor, name: str) -> None:
        self.predictor, self.name = predictor, name
        self.started = False

    def needs_work(self, address: str) -> bool:
        """Whether an answer takes longer than it takes to find a file."""
        return address.startswith("/look/api/")

    def route(self, method: str, address: str, body: bytes) -> LookResponse:
        if not self.started and self.needs_work(address):
            self.start()
        return super().route(method, address, body)

    def start(self) -> None:
        """The first capture."""
        from anyformer.inspection.capture import look

        capture = look(self.predictor, name=self.name, budget=BUDGET)
        super().__init__(capture, ring=RING, typed=TYPED, beside=1)
        self.started = True
