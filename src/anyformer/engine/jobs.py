"""What an engine is asked for, and what it tells while it works."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from anyformer.errors import UserError
from anyformer.generation.config import Generation
from anyformer.generation.guide import Guide
from anyformer.generation.result import NewToken

Phase = Literal["queued", "prefill", "decode", "over"]
Finish = Literal["eos", "stop", "length", "cancelled", "deadline"]


@dataclass(frozen=True)
class PromptRead:
    """The prompt has been read; its log-probabilities where `echo` asked for them (None for the first token)."""

    logprobs: list[float | None] | None = None
    top: list[dict[int, float] | None] | None = None


@dataclass(frozen=True)
class Ended:
    """Nothing more will come."""

    reason: Finish


@dataclass(frozen=True)
class Failed:
    """An error of this job alone; nothing more will come."""

    error: Exception


Event = PromptRead | NewToken | Ended | Failed


@dataclass(eq=False)
class Job:
    """One text to be written. `tell` is called on the engine's thread and must not block."""

    tokens: Sequence[int]  # the prompt; for an encoder-decoder what its text begins with
    settings: Generation
    tell: Callable[[Event], None]
    source: Sequence[int] | None = None
    guide: Guide | None = None
    echo: bool = False  # also tell the log-probabilities of the prompt
    deadline: float | None = None  # of time.monotonic()
    client: str = ""  # jobs of one client wait for each other before they wait for anybody else's
    scope: str = ""  # prompts are reused within it only
    made: float = field(default_factory=time.monotonic)
    phase: Phase = "queued"
    cancelled: bool = False
    held: bool = False  # whoever reads it is behind: nothing more is written until that is over (`Engine.resume`)
    new: int = 0  # tokens written


@dataclass(eq=False)
class Call:
    """Rows to be answered by one function that takes many at once (labels, vectors); others' rows may join them."""

    what: Callable[[list[Any]], Sequence[Any]]
    rows: list[Any]
    tell: Callable[[Sequence[Any] | Exception], None]
    deadline: float | None = None
    client: str = ""
    made: float = field(default_factory=time.monotonic)
    cancelled: bool = False


class Busy(Exception):
    """There is no room in the queue; `after` seconds from now there may be."""

    def __init__(self, after: float) -> None:
        super().__init__(f"the queue is full; try again in {after:.0f} s")
        self.after = after


class Closed(Exception):
    """The engine takes no more work: it is being shut down, or has broken."""


class Cancelled(Exception):
    """What a call that was cancelled is told."""


class TooLong(UserError):
    """A job that no row can hold; a prompt is never cut."""

    def __init__(self, tokens: int, limit: int, *, prompt: int) -> None:
        if tokens == prompt:
            what, fix = (
                f"the prompt's {prompt} tokens leave no room in a context of {limit}",
                f"use {limit - 1} or fewer",
            )
        else:
            what = f"{prompt} tokens of the prompt and {tokens - prompt} new ones do not fit a context of {limit}"
            fix = f"use max_new_tokens={limit - prompt}"
        super().__init__(what, fix=fix)
        self.tokens, self.limit = tokens, limit
