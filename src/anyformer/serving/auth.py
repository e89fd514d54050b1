"""Authentication and request limits: API key, Host header and body size."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Iterable

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from anyformer.serving.error_responses import HTTPError
from anyformer.serving.limits import Limits

OPEN = b"/health/live"  # the only path without a key, compared to the raw path
LOOPBACK = ("localhost", "127.0.0.1", "::1")
EVERYWHERE = ("0.0.0.0", "::", "")
HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^\s:@/\\,?#\[\]]+))(?::[0-9]{0,5})?")
TAKEN = 16  # an oversized body is read up to this many times the limit before the connection is closed


class AuthMiddleware:
    """Checks the Host header and API key of every request first."""

    def __init__(
        self, app: ASGIApp, *, hosts: Iterable[str], any_address: bool = False, key: str | None = None
    ) -> None:
        self.app = app
        self.hosts, self.any_address = {name.lower() for name in hosts}, any_address
        self.key = None if key is None else digest(key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or send an error response."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self.check(scope)
        except HTTPError as error:
            await error.response()(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def check(self, scope: Scope) -> None:
        """Raise `HTTPError` for a wrong Host or key."""
        named = [value for name, value in scope["headers"] if name == b"host"]
        if len(named) != 1 or not self.knows(named[0].decode("latin-1")):
            raise HTTPError(421, "this server is not known by that Host", code="unknown_host")
        if self.key is None or (scope.get("raw_path") == OPEN and scope["path"] == OPEN.decode()):
            return
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        kind, _, word = (given[0] if len(given) == 1 else b"").partition(b" ")
        page = is_page(scope["path"])
        if page and kind.lower() == b"basic":
            kind, word = b"bearer", password(word)
        # Digests have equal length, so that the comparison takes constant time.
        if not hmac.compare_digest(digest(word.strip()), self.key) or kind.lower() != b"bearer":
            challenge = 'Basic realm="anyformer: any name, the key as password", charset="UTF-8"' if page else "Bearer"
            raise HTTPError(401, "this server needs an API key: send Authorization: Bearer KEY", code="invalid_api_key",
                          headers={"WWW-Authenticate": challenge})  # fmt: skip

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server; any valid port is accepted."""
        name = host.strip().lower()
        if not is_address(name):  # some clients write an IPv6 address without its brackets
            found = HOST.fullmatch(name)
            if found is None:
                return False
            name = (found["address"] or found["name"]).removesuffix(".")
        return name in self.hosts or (self.any_address and is_address(name))


def is_page(path: str) -> bool:
    """Whether a path is a page for browsers, which can prompt for a password but not for an API key.

    A browser also sends the password with cross-site requests: such routes must check the origin (`look_route`).
    """
    return path == "/look" or path.startswith("/look/")


def password(word: bytes) -> bytes:
    """The password of Basic authentication; empty if malformed."""
    try:
        return base64.b64decode(word.strip(), validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


def digest(word: bytes) -> bytes:
    return hashlib.sha256(word).digest()


def is_address(name: str) -> bool:
    """Whether a name is an IP address, which DNS rebinding cannot redirect."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a bound host is reachable only from this machine."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def local_names(host: str, further: Iterable[str] = ()) -> tuple[set[str], bool]:
    """The accepted Host names of a server bound to `host`, and whether any IP address is accepted."""
    everywhere = host in EVERYWHERE
    return {*LOOPBACK, host, socket.gethostname(), *further} if everywhere else {*LOOPBACK, host, *further}, everywhere


async def read_body(request: Request, limits: Limits) -> bytes:
    """Read a JSON body within the size and time limits."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPError(415, "the body must be JSON: send Content-Type: application/json", code="content_type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HTTPError(415, "compressed bodies are not read; send it as it is", code="content_encoding")
    length = request.headers.get("content-length", "")
    # A client that is still sending when the connection is closed never sees the response: a moderately oversized
    # body is read to its end and dropped. A client that sends Expect: 100-continue (curl does) is told immediately.
    most = limits.body if "expect" in request.headers else TAKEN * limits.body
    if length.isdigit() and (len(length) > 18 or int(length) > most):
        raise too_large(limits)
    found, size = bytearray(), 0
    try:
        async with asyncio.timeout(limits.receive):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise HTTPError(400, "the client left", code="disconnected")
                part = message.get("body", b"")
                size += len(part)
                if size <= limits.body:
                    found += part
                if size > most or (size > limits.body and not message.get("more_body", False)):
                    raise too_large(limits)
                if not message.get("more_body", False):
                    return bytes(found)
    except TimeoutError:
        raise HTTPError(408, f"the body did not come within {limits.receive:.0f} s", code="slow_body",
                      headers={"Connection": "close"}) from None  # fmt: skip


def too_large(limits: Limits) -> HTTPError:
    """413, and close the connection."""
    return HTTPError(413, f"the body is larger than {limits.body} bytes", code="body_too_large",
                   headers={"Connection": "close"}, facts={"limit": limits.body})  # fmt: skip
