"""The backend of a page that contains all its answers: a single address."""

from __future__ import annotations

import webbrowser

from anyformer.errors import UserError
from anyformer.inspection.look_app import LookApp, LookResponse, NotThere, told
from anyformer.inspection.server import LookServer


class SavedApp(LookApp):
    """Serves the page of a .look file only."""

    def __init__(self, page: str) -> None:
        self.body = page.encode()

    def respond(self, method: str, address: str, body: bytes = b"") -> LookResponse:
        if method == "GET" and address.partition("?")[0] == "/":
            return LookResponse(200, "text/html; charset=utf-8", self.body)
        return told(404, NotThere("this page holds all it has to say", fix="open /"))


def serve_saved(page: str, port: int = 0, *, open_browser: bool = False) -> LookServer:
    """Serve a page on loopback; port 0 picks a free one. `server.url` is its address."""
    try:
        server = LookServer(SavedApp(page), port)
    except (OSError, OverflowError) as error:
        raise UserError(f"port {port} cannot be used ({error})", where="--port", fix="leave it out") from None
    if open_browser:
        webbrowser.open(server.url)
    return server
