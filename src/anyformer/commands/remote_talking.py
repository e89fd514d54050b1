"""Chat backend: a server with an OpenAI-compatible API."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from anyformer.commands.conversation import Conversation
from anyformer.commands.rates import Rates
from anyformer.commands.talking import CONTINUES, FORGOTTEN, PLAIN_TOKENS, Reply
from anyformer.errors import UserError
from anyformer.log import Log

SECONDS = 600.0  # socket timeout
MOST = 2**20  # largest line or non-streamed response, in bytes


class Refused(UserError):
    """The server returned an error."""

    def __init__(self, status: int, message: str, code: str, url: str) -> None:
        super().__init__(f"the server says {status}: {message[:160]}", where=url[:80])
        self.status, self.message, self.code = status, message, code


class RemoteTalker:
    """A model behind a URL; `model` is queried from the server if not given."""

    def __init__(self, url: str, *, model: str | None = None, key: str | None = None) -> None:
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise UserError(
                "is not an address of a server", where=f"--url {url[:80]}", fix="write http://127.0.0.1:8000"
            )
        try:
            self.secure, self.host, self.port = parts.scheme == "https", parts.hostname, parts.port
        except ValueError:
            raise UserError("the port is not a number", where=f"--url {url[:80]}", fix="use one up to 65535") from None
        self.base = parts.path.rstrip("/").removesuffix("/v1")
        self.url, self.key = url, key
        about = self.about(model)
        self.name = str(about["id"])
        self.plain, self.does = about.get("chat_template") == "plain", CONTINUES
        # Parameters that not every server supports; left out once rejected.
        self.extras: dict[str, Any] = {"stream_options": {"include_usage": True}, "logprobs": 1 if self.plain else True}

    def about(self, model: str | None) -> Mapping[str, Any]:
        """The server's entry for the model, by default its first one."""
        with self.asked("GET", "/v1/models") as response:
            found = read_object(response, self.url).get("data")
        found = found if isinstance(found, list) else []
        entries = [entry for entry in found if isinstance(entry, dict) and entry.get("id")]
        if model is not None:
            return next((entry for entry in entries if entry["id"] == model), {"id": model})
        if not entries:
            raise UserError("the server names no model", where=self.url[:80], fix="add --model NAME")
        return entries[0]

    def answer(self, conversation: Conversation, answer: Reply, log: Log) -> Generator[str, None, None]:
        """Stream the answer."""
        told = False
        while True:
            answer.rates = Rates()
            try:
                path = "/v1/completions" if self.plain else "/v1/chat/completions"
                response = self.asked("POST", path, self.body(conversation))
            except Refused as error:
                blamed = next((name for name in self.extras if name in error.message), None)
                if error.status in (400, 422) and blamed is not None:
                    del self.extras[blamed]
                elif error.code == "context_length_exceeded" and conversation.forget_oldest():
                    if not told:
                        log(FORGOTTEN)
                        told = True
                else:
                    raise
                continue
            with response:
                yield from self.pieces(response, answer)
            return

    def body(self, conversation: Conversation) -> dict[str, Any]:
        """The request body in OpenAI's format."""
        settings: dict[str, Any] = dict(conversation.settings)
        if "max_new_tokens" in settings:
            settings["max_tokens"] = settings.pop("max_new_tokens")
        said: dict[str, Any] = {"messages": conversation.turns}
        if self.plain:
            said = {"prompt": conversation.as_text()}
            settings.setdefault("max_tokens", PLAIN_TOKENS)  # else a text without an end fills the context
        return {"model": self.name, **said, "stream": True, **self.extras, **settings}

    def pieces(self, response: Response, answer: Reply) -> Iterator[str]:
        """The events of a stream."""
        over = False
        try:
            for data in events(response, self.url):
                if data == "[DONE]":
                    over = True
                    return
                for piece, logprob in self.chunk(parse_json(data, self.url), answer):
                    yield answer.add(piece, logprob)
            raise UserError("the answer broke off", where=self.url[:80], fix="ask again")
        except (OSError, http.client.HTTPException) as error:
            reason = type(error).__name__
            raise UserError(f"the answer broke off ({reason})", where=self.url[:80], fix="ask again") from None
        finally:
            answer.finish = answer.finish if over else answer.finish or "cancelled"

    def chunk(self, data: dict[str, Any], answer: Reply) -> Iterator[tuple[str, float | None]]:
        """The content of one event."""
        if isinstance(data.get("error"), dict):
            raise UserError(f"the server says: {str(data['error'].get('message'))[:160]}", where=self.url[:80])
        usage = data.get("usage")
        if isinstance(usage, dict):
            answer.rates.prompt = int(usage.get("prompt_tokens") or 0)
            answer.rates.new = int(usage.get("completion_tokens") or answer.rates.new)
        for choice in data.get("choices") or []:
            told = choice.get("logprobs") or {}
            shares = told.get("token_logprobs") or [token.get("logprob") for token in told.get("content") or []]
            text = choice.get("text") if self.plain else (choice.get("delta") or {}).get("content")
            if shares or text:
                answer.rates.token(len(shares) or 1)
            if text:
                yield str(text), sum(float(share or 0.0) for share in shares) if shares else None
            if choice.get("finish_reason"):
                answer.finish = str(choice["finish_reason"])

    def asked(self, method: str, path: str, body: Any = None) -> Response:
        """Send one request; any failure is an error with the server's message."""
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        connection = kind(self.host, self.port, timeout=SECONDS)
        headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            connection.request(method, self.base + path, None if body is None else json.dumps(body).encode(), headers)
            response = Response(connection, connection.getresponse())
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
            fix = "start one: anyformer serve FOLDER"
            raise UserError(f"no server answers ({reason})", where=self.url[:80], fix=fix) from None
        if response.status != 200:
            with response:
                message, code = complaint(response.read(65_536))
            raise Refused(response.status, message, code, self.url)
        return response

    def close(self) -> None:
        """Nothing to close."""


class Response:
    """A response and its connection; closing it early cancels the request on the server."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self.connection, self.response, self.status = connection, response, response.status

    def __enter__(self) -> Response:
        return self

    def __exit__(self, *error: object) -> None:
        self.response.close()
        self.connection.close()

    def read(self, most: int) -> bytes:
        """Read the body, truncated to a limit."""
        return self.response.read(most)

    def line(self) -> bytes:
        """The next line with its line end; empty at the end of the stream."""
        return self.response.readline(MOST)


def events(response: Response, url: str) -> Iterator[str]:
    """The data of server-sent events."""
    held: list[str] = []
    while raw := response.line():
        if len(raw) >= MOST:
            raise UserError("a line of the answer is too long", where=url[:80], fix="ask again")
        text = raw.decode("utf-8", errors="replace").rstrip("\r\n")
        if text.startswith("data:"):
            held.append(text[5:].removeprefix(" "))
        elif not text and held:
            yield "\n".join(held)
            held = []
    if held:
        yield "\n".join(held)


def parse_json(text: str, url: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UserError("the server's answer is not JSON", where=url[:80], fix="check the address")
    return found


def read_object(response: Response, url: str) -> dict[str, Any]:
    """Parse the whole response as a JSON object."""
    return parse_json(response.read(MOST).decode("utf-8", errors="replace"), url)


def complaint(body: bytes) -> tuple[str, str]:
    """The message and the code of an error response, in OpenAI's format or another."""
    try:
        found = json.loads(body)
        error = found.get("error", found) if isinstance(found, dict) else found
    except (ValueError, RecursionError):
        error = body.decode("utf-8", errors="replace")
    if isinstance(error, dict):
        said = error.get("message") or error.get("detail") or "no reason given"
        return " ".join(str(said).split()), str(error.get("code"))
    return " ".join(str(error).split()) or "no reason given", ""
