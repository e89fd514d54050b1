"""The page's backend as a function from request to response. `server.py` serves it over HTTP."""

from __future__ import annotations

import base64
import binascii
import copy
import io
import json
import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from anyformer.data.files.data_urls import MOST_PIXELS
from anyformer.errors import UserError
from anyformer.extras import require
from anyformer.inspection.answer import Query, finite
from anyformer.inspection.checkpoint_steps import followed_runs, newest_look
from anyformer.inspection.manifest import manifest_of, trust_of_page
from anyformer.inspection.read_query import EVERYTHING, view_answer
from anyformer.inspection.run_watch import run_news
from anyformer.inspection.web_files import import_map, page_html, web_files
from anyformer.tasks import find

if TYPE_CHECKING:
    from anyformer.data.preprocess import Preprocess
    from anyformer.inspection.capture import Capture

log = logging.getLogger("anyformer")
BESIDE = 3  # most captures compared with one on the page
RING = 8  # most captures kept, the newest ones
MOST_BODY = 16 * 2**20  # bytes of a new input
MOST_PARAMETERS = 40
JSON = "application/json; charset=utf-8"


@dataclass(frozen=True)
class LookResponse:
    """Status, content type, body, and additional headers."""

    status: int
    type: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def all_headers(self) -> dict[str, str]:
        """All response headers except the length."""
        return {
            "Content-Type": self.type,
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
        } | self.headers


class NotThere(UserError):
    """An unknown address or capture (404)."""


class TooLarge(UserError):
    """A request body above the size limit (413)."""


class LookApp:
    """Serves the page for the newest `ring` captures. A single lock: only one answer is computed at a time.

    `typed` is the size limit in bytes of a new input that is not an image, `beside` the most captures that one is
    compared with.
    """

    def __init__(self, capture: Capture, *, ring: int = RING, typed: int = MOST_BODY, beside: int = BESIDE) -> None:
        self.captures: OrderedDict[str, Capture] = OrderedDict({"1": capture})
        self.made, self.ring, self.typed, self.beside = 1, ring, typed, beside
        self.lock = threading.Lock()

    def respond(self, method: str, address: str, body: bytes = b"") -> LookResponse:
        """The response to a request; user errors become JSON with the error and its fix."""
        try:
            return self.route(method, address, body)
        except NotThere as error:
            return told(404, error)
        except TooLarge as error:
            return told(413, error)
        except UserError as error:
            return told(400, error)
        except Exception:  # the page keeps working; the error is in the log
            log.exception("look: %s %s", method, address[:200])
            return refused(500, "This could not be computed.", "What happened is in the log.")

    def route(self, method: str, address: str, body: bytes) -> LookResponse:
        where = urlsplit(address)
        path, parameters = where.path, parameters_of(where.query)
        if method == "POST":
            if path != "/look/api/new":
                raise NotThere(f"nothing is posted to {path[:80]}", fix="post to /look/api/new")
            return self.new(body, parameters)
        if path in ("/", "/look", "/look/"):
            return self.page()
        name = path.removeprefix("/look/")
        if name == path:
            raise NotThere(f"page {path[:80]} not found", fix="open /")
        if name in web_files():
            found = web_files()[name]
            return LookResponse(200, found.type, found.text.encode())
        if name == "api/manifest":
            number, capture = self.capture(parameters)
            with self.lock:
                return as_json({**manifest_of(capture), "capture": number, "renew": capture.input_kind})
        if name == "api/trust":
            _, capture = self.capture(parameters)
            with self.lock:
                return as_json(trust_of_page(capture))
        if name == "api/run":  # without the lock: a page can poll its run while a view is computed
            _, capture = self.capture(parameters)
            return as_json(finite(run_news(followed_runs(capture), parameters)))
        if name.startswith("api/view/"):
            return self.view(name.removeprefix("api/view/"), parameters)
        raise NotThere(f"page {path[:80]} not found", fix="open /")

    def page(self) -> LookResponse:
        nonce = secrets.token_urlsafe(16)
        address = {path: f"/look/{path}" for path in web_files()}
        start = 'import { start } from "look/app"; import { served } from "look/answer"; start(served("/look"));'
        text = page_html(
            styles='<link rel="stylesheet" href="/look/look.css">',
            imports=f'<script type="importmap" nonce="{nonce}">{import_map(address)}</script>',
            start=f'<script type="module" nonce="{nonce}">{start}</script>',
        )
        policy = (
            f"default-src 'none'; script-src 'self' 'nonce-{nonce}'; style-src 'self'; img-src 'self' data: blob:; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
        )
        return LookResponse(200, "text/html; charset=utf-8", text.encode(), {"Content-Security-Policy": policy})

    def capture(self, parameters: dict[str, str]) -> tuple[str, Capture]:
        """The capture given by the parameter `capture`, else the newest."""
        # The capture of a served request is shown only to clients that know its id.
        number = parameters.pop("capture", "") or next(name for name in reversed(self.captures) if name.isdigit())
        if number not in self.captures:
            raise NotThere(
                f"input {number[:20]} is no longer kept", fix=f"the newest {self.ring} are; open the page again"
            )
        return number, self.captures[number]

    def view(self, name: str, parameters: dict[str, str]) -> LookResponse:
        _, capture = self.capture(parameters)
        query = Query.parse(parameters)
        with self.lock:
            answer, reads = view_answer(capture, name, query)
            body = answer.to_bytes()
        names = sorted(set(reads) - {EVERYTHING} | (set(parameters) if EVERYTHING in reads else set()))
        keep = "no" if answer.facts.get("keep") is False or EVERYTHING in reads else "yes"
        headers = {"Look-Reads": ",".join(names), "Look-Keep": keep}
        return LookResponse(200, "application/octet-stream", body, headers)

    def new(self, body: bytes, parameters: dict[str, str]) -> LookResponse:
        """Capture a new input, optionally to compare with the current one, or the newest checkpoint of a run."""
        _, old = self.capture(parameters)
        with self.lock:
            posted = read_body(body, MOST_BODY if old.input_kind == "image" else self.typed)
            capture = newest_look(old) if posted.get("newest") is True else self.with_input(posted, old)
            self.made += 1
            self.captures[str(self.made)] = capture
            while len(self.captures) > self.ring:
                self.captures.popitem(last=False)
            return as_json({**manifest_of(capture), "capture": str(self.made), "renew": capture.input_kind})

    def with_input(self, posted: Mapping[str, Any], old: Capture) -> Capture:
        """A capture of the same model on a posted input."""
        from anyformer.inspection.capture import look

        given = new_input(posted, old)
        capture = look(old.source, given, name=old.name, budget=old.budget)
        capture.run = old.run
        if posted.get("compare") is True:
            return put_beside(old, capture, self.beside)
        for other in old.others:  # a second model also gets the new input; a second input is dropped
            if other.source is not old.source:
                capture.compare(look(other.source, given, name=other.name, budget=other.budget))
        return capture


def from_own_page(method: str, headers: Mapping[str, str], hosts: set[str]) -> bool:
    """Whether a request comes from a page of this server, or follows a link to it; `headers` by lower-case names.

    A page of another site can make the browser send requests, but cannot forge these headers.
    """
    origin = headers.get("origin")
    own = origin is None or urlsplit(origin).netloc in hosts
    fetched = headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    followed = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
    return own and (fetched or followed)


def is_json(kind: str) -> bool:
    """Whether the content type is JSON, which a form of another site cannot send."""
    return kind.partition(";")[0].strip().lower() == "application/json"


def put_beside(first: Capture, second: Capture, most: int) -> Capture:
    """A copy of the first capture that is compared with the second and its newest others, `most` in all."""
    found = copy.copy(first)
    found.kept, found.others = {}, []
    found.compare(second)
    found.others += first.others[: most - 1]
    return found


def read_body(body: bytes, most: int) -> Mapping[str, Any]:
    """The posted JSON object."""
    if len(body) > most:
        raise TooLarge(f"{len(body):,} bytes are too many", fix=f"send at most {most:,}")
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise UserError("this is not JSON", where="input", fix='send {"input": "a text"}') from None
    if not isinstance(given, Mapping):
        raise UserError("this is not an object", where="input", fix='send {"input": "a text"}')
    return given


def new_input(given: Mapping[str, Any], capture: Capture) -> Any:
    """The posted input: {"input": text}, {"input": {a row}} or {"image": base64}."""
    if capture.input_kind is None:
        raise UserError("this model reads nothing that can be typed", where="input", fix="run anyformer look again")
    if capture.input_kind == "image":
        return posted_image(given.get("image"))
    value = given.get("input")
    if isinstance(value, str) and capture.input_kind == "table":
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise UserError("a row is JSON", where="input", fix='write it as {"age": 41, "city": "Bern"}') from None
    if not value or not isinstance(value, str | dict | list):
        raise UserError("there is nothing to look at", where="input", fix="write something")
    predictor = capture.predictor
    return posted_rows(value, predictor.preprocess) if predictor is not None and predictor.preprocess else value


def posted_rows(value: Any, preprocess: Preprocess) -> Any:
    """Rows of a table from a request: a string in them is text, never a file path."""
    from anyformer.serving.predict_rows import row_cells

    if not preprocess.columns or find(preprocess.task).parse_request(value, preprocess) is not None:
        return value
    several = isinstance(value, list) and all(isinstance(row, Mapping) for row in value)
    rows = [row_cells(row, preprocess) for row in (value if several else [value])]
    return [cell for row in rows for cell in row.values()] if len(preprocess.columns) == 1 else rows


def posted_image(value: Any) -> Any:
    """An image from base64; a page cannot give paths."""
    if not isinstance(value, str):
        raise UserError("no image given", where="image", fix="choose a file")
    require("PIL", "images need", where="image")
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(base64.b64decode(value, validate=True)))
        if image.width * image.height <= MOST_PIXELS:  # a small file may decompress to a huge image
            return image.convert("RGB")
    except (binascii.Error, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise UserError("this is not an image that can be read", where="image", fix="send a PNG or JPEG file") from None
    raise TooLarge(f"{image.width:,} x {image.height:,} pixels are too many", fix=f"send at most {MOST_PIXELS:,}")


def parameters_of(text: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_PARAMETERS)
    except ValueError:
        raise UserError("there are too many parameters", where="query", fix=f"use at most {MOST_PARAMETERS}") from None
    return dict(pairs)


def told(status: int, error: UserError) -> LookResponse:
    where = f"{error.where}: " if error.where else ""
    return refused(status, f"{where}{error.what}", error.fix)


def refused(status: int, error: str, fix: str, headers: dict[str, str] | None = None) -> LookResponse:
    """An error response as the page expects it."""
    return LookResponse(
        status, JSON, json.dumps({"error": error, "fix": fix}, ensure_ascii=False).encode(), headers or {}
    )


def as_json(value: Any) -> LookResponse:
    return LookResponse(200, JSON, json.dumps(value, ensure_ascii=False).encode())
