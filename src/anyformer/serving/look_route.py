"""/look: the page of `anyformer look` over the model that is served.

Static files are served directly. Computation runs in one thread, one request at a time with a short queue, so that the
page hardly slows generation, and many pages slow only each other.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from anyformer.inspection.look_app import from_own_page, refused
from anyformer.inspection.look_worker import LookWorker
from anyformer.inspection.mounted_app import MountedLook
from anyformer.serving.auth import read_body
from anyformer.serving.error_responses import HTTPError, retry_headers
from anyformer.serving.limits import BUSY_AGAIN

if TYPE_CHECKING:
    from anyformer.inspection.look_app import LookResponse
    from anyformer.serving.app import AppState

BUSY = refused(429, "Too much is being looked at.", "try again in a moment", retry_headers(BUSY_AGAIN))
CLOSING = refused(503, "The server is shutting down.", "open the page again later", retry_headers(5))


class LookRoute:
    """Serves all paths of the page."""

    def __init__(self, state: AppState) -> None:
        self.state, self.worker = state, LookWorker()
        self.app = MountedLook(state.served.predictor, state.served.name)

    def routes(self) -> list[Route]:
        """Routes of the page and everything below it."""
        return [Route(path, self.answer, methods=["GET", "POST"]) for path in ("/look", "/look/{rest:path}")]

    async def answer(self, request: Request) -> Response:
        """Answer a request of the page; errors are in the page's format."""
        if not from_own_page(request.method, request.headers, {request.headers.get("host", "")}):
            return response(refused(400, "This server answers its own page only.", "open /look"))
        body = b""
        if request.method == "POST":
            try:
                body = await read_body(request, self.state.limits)
            except HTTPError as error:
                return response(refused(error.status, error.message, "", error.headers))
        path, query = request.scope["raw_path"].decode("latin-1"), request.scope["query_string"].decode("latin-1")
        address = f"{path}?{query}" if query else path
        if not self.app.needs_work(address):
            return response(self.app.respond(request.method, address, body))
        return await self.computed(request, address, body)

    async def computed(self, request: Request, address: str, body: bytes) -> Response:
        """The worker's response; cancelled if the client disconnects before it has started."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[LookResponse] = loop.create_future()

        def settle(answer: LookResponse) -> None:
            if not found.done():
                found.set_result(answer)

        def work() -> None:
            if found.done():
                return
            answer = CLOSING if self.state.draining else self.app.respond(request.method, address, body)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, answer)

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            found.cancel()

        if not self.worker.ask(work):
            return response(BUSY)
        watching = asyncio.create_task(watch())
        try:
            return response(await found)
        except asyncio.CancelledError:
            if not found.cancelled():
                raise
            return response(refused(400, "The client left.", ""))
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching


def response(found: LookResponse) -> Response:
    return Response(found.body, found.status, found.all_headers)
