"""Answers that are written while somebody waits: as a stream of events, or whole at the end.

A client that goes is noticed at once, in the queue as in the middle of a text, and its jobs are cancelled. One that
reads too slowly holds up nobody: what waits for it is bounded, its texts are not written on until it has read that,
and if it reads nothing for long it is let go.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from anyformer.engine.engine import Engine
from anyformer.engine.jobs import Event
from anyformer.serving.error_responses import Refusal, from_error
from anyformer.serving.limits import Limits
from anyformer.serving.mailbox import Box, Mailbox
from anyformer.serving.orders import Order
from anyformer.serving.written import Entry, Written

MANY = 128  # tokens with log-probabilities, from which on they are written beside the event loop
PART = 65_536  # bytes of an answer handed to the network at once
SSE = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
DONE = b"data: [DONE]\n\n"
Result = TypeVar("Result")


class Shape(Protocol):
    """How the texts of a request are told: completions and chat differ in this alone."""

    def first(self, text: Written) -> str | None:
        """The event that opens a choice, if there is one."""

    def chunk(self, text: Written, piece: str, entries: Sequence[Entry], reason: str | None) -> str:
        """The event of a piece, as JSON."""

    def last(self, usage: dict[str, int]) -> str | None:
        """The event with the usage, if it was asked for."""

    def whole(self, texts: Iterable[tuple[Written, str, list[Entry]]], usage: dict[str, int]) -> str:
        """The answer at the end, as JSON."""


class Gone(Exception):
    """The client has left, or reads nothing."""


class Answer(Response):
    """The answer to one order; a response of its own kind, since it reads what the client does while it writes."""

    def __init__(
        self, order: Order, shape: Shape, stream: bool, engine: Engine, mailbox: Mailbox, limits: Limits
    ) -> None:
        self.order, self.shape, self.stream, self.engine, self.limits = order, shape, stream, engine, limits
        self.box = Box(mailbox, limits.ahead * len(order.jobs) if stream else None, self.behind)
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the jobs over, tell what comes, and leave nothing running."""
        watch: asyncio.Task[None] | None = None
        try:
            self.submit()
            watch = asyncio.create_task(self.watch(receive))
            await (self.streamed(send) if self.stream else self.gathered(send))
        except Gone:
            pass
        except Refusal as refusal:
            await refusal.response()(scope, receive, send)
        finally:
            self.cancel()
            if watch is not None:
                watch.cancel()
                with suppress(asyncio.CancelledError):
                    await watch

    def submit(self) -> None:
        """All jobs, or none."""
        for text, job in zip(self.order.texts, self.order.jobs, strict=True):
            job.tell = teller(self.box, text)
            try:
                self.engine.submit(job)
            except Exception as error:
                raise from_error(error) from None

    def cancel(self) -> None:
        """Ask for nothing more."""
        for job in self.order.jobs:
            if job.phase != "over" and not job.cancelled:
                self.engine.cancel(job)

    def behind(self, behind: bool) -> None:
        """The client does not take what was written, or has taken it."""
        if not behind:
            self.engine.resume(self.order.jobs)
            return
        for job in self.order.jobs:
            job.held = True

    async def watch(self, receive: Receive) -> None:
        """Wait for the client to go."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.cancel()
        self.box.leave()

    async def events(self) -> Iterator[Written]:
        """Take what has come; the texts it is about."""
        items = await self.box.take()
        if self.box.gone:
            raise Gone
        touched: dict[int, Written] = {}
        for text, event in items:
            text.take(event)
            touched[text.index] = text
        return iter(touched.values())

    # ------------------------------------------------------------ whole

    async def gathered(self, send: Send) -> None:
        """Wait for all texts, then tell them at once."""
        texts = self.order.texts
        while not all(text.over for text in texts):
            for text in await self.events():
                if text.error is not None:
                    raise text.error

        def write() -> bytes:
            found = [(text, *text.new()) for text in texts]
            return self.shape.whole(found, self.order.usage).encode()

        body = await beside(write, sum(text.waiting for text in texts))
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await self.send(send, {"type": "http.response.start", "status": 200, "headers": headers})
        for at in range(0, len(body), PART):
            part = body[at : at + PART]
            await self.send(send, {"type": "http.response.body", "body": part, "more_body": at + PART < len(body)})

    # ------------------------------------------------------------ piece by piece

    async def streamed(self, send: Send) -> None:
        """Tell pieces as they come. The first event decides the status: before it, an error is a plain refusal."""
        left = len(self.order.texts)
        begun: set[int] = set()
        started = False
        while left:
            lines: list[str] = []
            for text in await self.events():
                if text.told:
                    continue
                if text.error is not None:
                    if not started:
                        raise text.error
                    lines.append(json.dumps(text.error.body))
                    await self.tell(send, lines, end=True)
                    return
                waiting = text.waiting
                piece, entries = await beside(text.new, waiting)
                if text.index not in begun and (first := self.shape.first(text)) is not None:
                    lines.append(first)
                begun.add(text.index)
                if text.until.found and text.job is not None and text.job.phase != "over":
                    self.engine.cancel(text.job)
                if piece or entries or text.over:
                    chunk = partial(self.shape.chunk, text, piece, entries, text.reason)
                    lines.append(await beside(chunk, waiting))
                text.told = text.over
                left -= text.over
            if not started:
                await self.send(send, {"type": "http.response.start", "status": 200, "headers": SSE})
                started = True
            if lines and left:
                await self.tell(send, lines)
        if (last := self.shape.last(self.order.usage)) is not None:
            lines.append(last)
        await self.tell(send, lines, end=True, done=True)

    async def tell(self, send: Send, lines: list[str], end: bool = False, done: bool = False) -> None:
        """Events as one write."""
        body = "".join(f"data: {line}\n\n" for line in lines).encode() + (DONE if done else b"")
        await self.send(send, {"type": "http.response.body", "body": body, "more_body": not end})

    async def send(self, send: Send, message: Message) -> None:
        """Write to the client; one that reads nothing is waited for until its connection is cut (connection.py)."""
        await send(message)
        if self.box.gone:
            raise Gone


async def beside(work: Callable[[], Result], tokens: int) -> Result:
    """Do some work, beside the event loop where it is about many tokens."""
    return await asyncio.to_thread(work) if tokens > MANY else work()


def teller(box: Box, text: Written) -> Callable[[Event], None]:
    """What the engine calls for one job."""
    return lambda event: box.post((text, event))
