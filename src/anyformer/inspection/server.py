"""A small HTTP server for the page on loopback, from the standard library."""

from __future__ import annotations

import http.server
import logging
import threading
import webbrowser
from typing import TYPE_CHECKING

from anyformer.errors import UserError
from anyformer.inspection.look_app import MOST_BODY, LookApp, LookResponse, from_own_page, is_json, refused

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture

log = logging.getLogger("anyformer")
LOOPBACK = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost", "[::1]")
QUIET = 60.0  # seconds after which a silent connection is closed


class LookServer(http.server.ThreadingHTTPServer):
    """Serves from its own thread until `close()`."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, app: LookApp, port: int) -> None:
        super().__init__((LOOPBACK, port), LookHandler)
        self.app = app
        self.thread = threading.Thread(target=self.serve_forever, name="look", daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/"

    def wait(self) -> None:
        """Block until Ctrl-C or `close()`."""
        try:
            while self.thread.is_alive():
                self.thread.join(0.5)
        except KeyboardInterrupt:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Stop serving and release the port."""
        self.shutdown()
        self.server_close()

    def __enter__(self) -> LookServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def handle_error(self, request: object, client_address: object) -> None:
        log.debug("look: a connection broke", exc_info=True)  # only debug level: tabs are closed all the time


def serve_look(capture: Capture, port: int = 0, open_browser: bool = False) -> LookServer:
    """Serve the page of a capture on loopback; port 0 picks a free one. `server.url` is its address."""
    try:
        server = LookServer(LookApp(capture), port)
    except (OSError, OverflowError) as error:
        raise UserError(f"port {port} cannot be used ({error})", where="--port", fix="leave it out") from None
    if open_browser:
        webbrowser.open(server.url)
    return server


class LookHandler(http.server.BaseHTTPRequestHandler):
    """HTTP handler of `LookApp`, with size limits and origin checks."""

    server: LookServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "anyformer", ""
    timeout = QUIET
    wbufsize = -1  # headers and body are sent together; separately, the body could wait for an ACK
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        if self.is_ours():
            self.send(self.server.app.respond("GET", self.path))

    def do_POST(self) -> None:
        if not self.is_ours():
            return
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdecimal() or int(length) > MOST_BODY:
            self.close_connection = True  # the body stays unread
            fix = f"send at most {MOST_BODY:,} bytes, with Content-Length"
            self.send(refused(413, "The body is too large or its length is not given.", fix))
            return
        body = self.rfile.read(int(length))
        if not is_json(self.headers.get("Content-Type", "")):
            self.send(refused(400, "The body is not JSON.", "send application/json"))
            return
        self.send(self.server.app.respond("POST", self.path, body))

    def is_ours(self) -> bool:
        """Whether the request comes from this server's own page; another host name means DNS rebinding."""
        port = f":{self.server.server_port}"
        hosts = {name + port for name in NAMES}
        named = {name.lower(): value for name, value in self.headers.items()}
        if self.headers.get("Host", "") in hosts and from_own_page(self.command, named, hosts):
            return True
        self.close_connection = True
        self.send(refused(400, "This server answers its own page only.", f"open {self.server.url}"))
        return False

    def send(self, found: LookResponse) -> None:
        self.send_response(found.status)
        for name, value in (found.all_headers | {"Content-Length": str(len(found.body))}).items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(found.body)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        log.debug("look: " + format, *args)
