"""The page of a served model: computed on demand only, with only the newest captures kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from anyformer.inspection.look_app import LookApp, LookResponse

if TYPE_CHECKING:
    from anyformer.inference.predictor import Predictor
    from anyformer.inspection.capture import Capture

BUDGET = "256MB"  # per look
RING = 3  # captures kept, each within the budget
TYPED = 16 * 2**10  # bytes of a text or a row: the cost of a pass is quadratic in its tokens
FINISHED = 32  # finished requests whose tokens are kept; their pass runs when a page opens one


class MountedLook(LookApp):
    """The page of a served model. It starts with an example; new inputs are entered on the page.

    A finished request that asked for it is kept as token ids; a client with its id can open the page on them.
    """

    def __init__(self, predictor: Predictor, name: str) -> None:
        self.predictor, self.name = predictor, name
        self.started = False
        self.finished: OrderedDict[str, tuple[tuple[int, ...], tuple[int, ...] | None]] = OrderedDict()

    def keep(self, request: str, tokens: Sequence[int], source: Sequence[int] | None) -> None:
        """Store the tokens of a finished request, prompt and output; `source` is the encoder's input."""
        if tokens:
            self.finished[request] = tuple(tokens), None if source is None else tuple(source)
        while len(self.finished) > FINISHED:
            self.finished.popitem(last=False)

    def needs_work(self, address: str) -> bool:
        """Whether a response needs computation, unlike a static file."""
        return address.startswith("/look/api/")

    def route(self, method: str, address: str, body: bytes) -> LookResponse:
        if not self.started and self.needs_work(address):
            self.start()
        return super().route(method, address, body)

    def start(self) -> None:
        """Make the first capture."""
        from anyformer.inspection.capture import look

        capture = look(self.predictor, name=self.name, budget=BUDGET)
        super().__init__(capture, ring=RING, typed=TYPED, beside=1)
        self.started = True

    def capture(self, parameters: dict[str, str]) -> tuple[str, Capture]:
        """As in LookApp; a finished request is captured when first opened, and only the newest such capture is kept."""
        wanted = parameters.get("capture", "")
        if wanted in self.finished:
            with self.lock:
                if wanted not in self.captures:
                    made = self.look_at(*self.finished[wanted])
                    for name in [name for name in self.captures if not name.isdigit()]:
                        del self.captures[name]
                    self.captures[wanted] = made
        return super().capture(parameters)

    def look_at(self, tokens: tuple[int, ...], source: tuple[int, ...] | None) -> Capture:
        """A capture of a request's prompt and output."""
        from anyformer.inspection.capture import look

        device = self.predictor.device
        ids = torch.tensor([tokens], device=device)
        given = ids if source is None else (torch.tensor([source], device=device), ids)
        found = look(self.predictor, given, name=self.name, budget=BUDGET)
        words = self.predictor.tokenizer
        if words is not None:
            found.given = replace(found.given, text=words.decode(list(tokens if source is None else source)))
        return found
