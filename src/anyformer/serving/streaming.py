"""Responses of generated text: as a stream of server-sent events, or whole at the end.

A client that disconnects is noticed immediately, in the queue as well as during generation, and its sequences are
cancelled. One that reads too slowly does not affect others: its buffered output is bounded, its sequences are paused
until it has read that, and if it reads nothing for long it is disconnected.
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
from anyformer.engine.sequence import Event
from anyformer.engine.sequence import Sequence as EngineSequence
from anyformer.serving.choices import ResponseChoice, TokenLogprob
from anyformer.serving.error_responses import HTTPError, to_http_error
from anyformer.serving.limits import Limits
from anyformer.serving.mailbox import Box, Mailbox
from anyformer.serving.sequences import PendingResponse

MANY = 128  # tokens with log-probabilities from which they are serialised outside the event loop
PART = 65_536  # bytes of a response written at once
SSE = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
DONE = b"data: [DONE]\n\n"
Result = TypeVar("Result")


class EventFormat(Protocol):
    """The wire format of a response: the only difference between completions and chat."""

    def first(self, choice: ResponseChoice) -> str | None:
        """The opening event of a choice, if any."""

    def chunk(self, choice: ResponseChoice, piece: str, entries: Sequence[TokenLogprob], reason: str | None) -> str:
        """The event of a piece, as JSON."""

    def last(self, usage: dict[str, int]) -> str | None:
        """The usage event, if requested."""

    def whole(self, choices: Iterable[tuple[ResponseChoice, str, list[TokenLogprob]]], usage: dict[str, int]) -> str:
        """The whole response, as JSON."""


class ClientGone(Exception):
    """The client has disconnected or reads nothing."""


class GenerationResponse(Response):
    """Submits the sequences of a request and sends their output, watching for a disconnect meanwhile."""

    def __init__(
        self,
        pending: PendingResponse,
        form: EventFormat,
        stream: bool,
        engine: Engine,
        mailbox: Mailbox,
        limits: Limits,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.on_end = on_end
        self.pending, self.form, self.stream, self.engine, self.limits = pending, form, stream, engine, limits
        self.box = Box(mailbox, limits.ahead * len(pending.sequences) if stream else None, self.set_paused)
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Submit the sequences, send their output, and cancel whatever is left."""
        watch: asyncio.Task[None] | None = None
        try:
            self.submit()
            watch = asyncio.create_task(self.watch(receive))
            await (self.send_stream(send) if self.stream else self.send_whole(send))
        except ClientGone:
            pass
        except HTTPError as error:
            await error.response()(scope, receive, send)
        finally:
            self.cancel()
            self.on_end()
            if watch is not None:
                watch.cancel()
                with suppress(asyncio.CancelledError):
                    await watch

    def submit(self) -> None:
        """Submit all sequences, or none."""
        for choice, sequence in zip(self.pending.choices, self.pending.sequences, strict=True):
            sequence.on_event = post_events(self.box, choice)
            try:
                self.engine.submit(sequence)
            except Exception as error:
                raise to_http_error(error) from None

    def cancel(self) -> None:
        """Cancel all sequences."""
        for sequence in self.pending.sequences:
            self.cancel_sequence(sequence)

    def cancel_sequence(self, sequence: EngineSequence) -> None:
        if sequence.status != "finished" and not sequence.cancelled:
            self.engine.cancel(sequence)

    def set_paused(self, paused: bool) -> None:
        """Pause or resume the sequences as the client falls behind or catches up."""
        if not paused:
            self.engine.resume(self.pending.sequences)
            return
        for sequence in self.pending.sequences:
            sequence.paused = True

    async def watch(self, receive: Receive) -> None:
        """Cancel when the client disconnects."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.cancel()
        self.box.leave()

    async def receive_events(self) -> Iterator[ResponseChoice]:
        """Process queued events; returns the affected choices."""
        items = await self.box.take()
        if self.box.gone:
            raise ClientGone
        touched: dict[int, ResponseChoice] = {}
        for choice, event in items:
            choice.receive(event)
            touched[choice.index] = choice
        return iter(touched.values())

    # ------------------------------------------------------------ whole

    async def send_whole(self, send: Send) -> None:
        """Wait for all choices, then send them at once."""
        choices = self.pending.choices
        while not all(choice.finished for choice in choices):
            for choice in await self.receive_events():
                if choice.error is not None:
                    raise choice.error

        def write() -> bytes:
            found = [(choice, *choice.take_new()) for choice in choices]
            return self.form.whole(found, self.pending.usage).encode()

        body = await run_beside(write, sum(choice.waiting for choice in choices))
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await self.send(send, {"type": "http.response.start", "status": 200, "headers": headers})
        for at in range(0, len(body), PART):
            part = body[at : at + PART]
            await self.send(send, {"type": "http.response.body", "body": part, "more_body": at + PART < len(body)})

    # ------------------------------------------------------------ piece by piece

    async def send_stream(self, send: Send) -> None:
        """Stream events. An error before the first event is sent as a plain error response."""
        left = len(self.pending.choices)
        begun: set[int] = set()
        started = False
        while left:
            lines: list[str] = []
            for choice in await self.receive_events():
                if choice.end_sent:
                    continue
                if choice.error is not None:
                    if not started:
                        raise choice.error
                    lines.append(json.dumps(choice.error.body))
                    await self.send_events(send, lines, end=True)
                    return
                waiting = choice.waiting
                piece, entries = await run_beside(choice.take_new, waiting)
                if choice.index not in begun and (first := self.form.first(choice)) is not None:
                    lines.append(first)
                begun.add(choice.index)
                if choice.until.found:
                    self.cancel_sequence(self.pending.sequences[choice.index])
                if piece or entries or choice.finished:
                    chunk = partial(self.form.chunk, choice, piece, entries, choice.reason)
                    lines.append(await run_beside(chunk, waiting))
                choice.end_sent = choice.finished
                left -= choice.finished
            if not started:
                await self.send(send, {"type": "http.response.start", "status": 200, "headers": SSE})
                started = True
            if lines and left:
                await self.send_events(send, lines)
        if (last := self.form.last(self.pending.usage)) is not None:
            lines.append(last)
        await self.send_events(send, lines, end=True, done=True)

    async def send_events(self, send: Send, lines: list[str], end: bool = False, done: bool = False) -> None:
        """Send events in one write."""
        body = "".join(f"data: {line}\n\n" for line in lines).encode() + (DONE if done else b"")
        await self.send(send, {"type": "http.response.body", "body": body, "more_body": not end})

    async def send(self, send: Send, message: Message) -> None:
        """Write to the client; if it reads nothing, this blocks until its connection is aborted (connection.py)."""
        await send(message)
        if self.box.gone:
            raise ClientGone


async def run_beside(work: Callable[[], Result], tokens: int) -> Result:
    """Run work for many tokens outside the event loop."""
    return await asyncio.to_thread(work) if tokens > MANY else work()


def post_events(box: Box, choice: ResponseChoice) -> Callable[[Event], None]:
    """The engine's event callback for one sequence."""
    return lambda event: box.post((choice, event))
