"""From the engine's thread to the event loop: the engine never blocks, and the loop is woken once per batch of
items."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any


class Mailbox:
    """Collects items from the engine's thread for the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.lock = loop, threading.Lock()
        self.full: list[Box] = []
        self.woken = False

    def post(self, box: Box, item: Any) -> None:
        """Put an item into a box; called on the engine's thread."""
        with self.lock:
            box.items.append(item)
            if box.most is not None and len(box.items) >= box.most and not box.behind:
                box.behind = True
                box.tell_behind(True)
            if box.marked:
                return
            box.marked = True
            self.full.append(box)
            wake, self.woken = not self.woken, True
        if wake:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(self.deliver)

    def deliver(self) -> None:
        """Wake the readers of all non-empty boxes."""
        with self.lock:
            full, self.full, self.woken = self.full, [], False
            for box in full:
                box.marked = False
        for box in full:
            box.wake()


class Box:
    """The queue of one request.

    `tell_behind` is called with True when `most` items are queued, on the posting thread, and with False when they
    were taken; it must not block.
    """

    def __init__(
        self, mailbox: Mailbox, most: int | None = None, tell_behind: Callable[[bool], None] = lambda behind: None
    ) -> None:
        self.mailbox, self.items = mailbox, list[Any]()
        self.most, self.tell_behind = most, tell_behind
        self.marked = self.gone = self.behind = False
        self.waiter: asyncio.Future[None] | None = None

    def post(self, item: Any) -> None:
        """Put an item, from any thread."""
        self.mailbox.post(self, item)

    def wake(self) -> None:
        """Wake the reader."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def leave(self) -> None:
        """Close the box: nobody reads any more."""
        self.gone = True
        self.wake()

    async def take(self) -> list[Any]:
        """Wait for and take all items, at least one; empty once closed."""
        while not self.items and not self.gone:
            self.waiter = self.mailbox.loop.create_future()
            await self.waiter
            self.waiter = None
        with self.mailbox.lock:
            items, self.items = self.items, []
            behind, self.behind = self.behind, False
        if behind:
            self.tell_behind(False)
        return items
