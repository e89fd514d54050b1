"""The page's server side without a server: a request in, a response out. `server.py` puts it behind HTTP."""

from __future__ import annotations

import base64
import binascii
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

from anyformer.errors import UserError
from anyformer.extras import require
from anyformer.inspection.answer import Query, finite
from anyformer.inspection.checkpoint_steps import followed_runs
from anyformer.inspection.manifest import manifest_of, trust_of_page
from anyformer.inspection.read_query import EVERYTHING, answered
from anyformer.inspection.run_watch import run_news
from anyformer.inspection.views import view
from anyformer.inspection.web_files import import_map, page_html, web_files

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture

log = logging.getLogger("anyformer")
RING = 8  # captures kept: the one a server starts with, and the newest inputs
MOST_BODY = 16 * 2**20  # bytes of a new input
MOST_PARAMETERS = 40
JSON = "application/json; charset=utf-8"


@dataclass(frozen=True)
class LookResponse:
    """A status, a type, a body, and headers beyond those of every answer."""

    status: int
    type: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


class NotThere(UserError):
    """An address or a capture that is not known here."""


class TooLarge(UserError):
    """A body beyond its bound."""


class LookApp:
    """Answers the page about some captures. One lock: a capture computes one thing at a time."""

    def __init__(self, capture: Capture) -> None:
        self.captures: OrderedDict[str, Capture] = OrderedDict({"1": capture})
        self.made = 1
        self.lock = threading.Lock()

    def respond(self, method: str, address: str, body: bytes = b"") -> LookResponse:
        """The answer to a request; mistakes are answered as JSON that says what and how to mend it."""
        try:
            return self.route(method, address, body)
        except NotThere as error:
            return told(404, error)
        except TooLarge as error:
            return told(413, error)
        except UserError as error:
            return told(400, error)
        except Exception:  # the page goes on; what happened stands in the log
            log.exception("look: %s %s", method, address[:200])
            return as_json({"error": "This could not be computed.", "fix": "What happened is in the log."}, 500)

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
            raise NotThere(f"there is no page {path[:80]}", fix="open /")
        if name in web_files():
            found = web_files()[name]
            return LookResponse(200, found.type, found.text.encode())
        if name == "api/manifest":
            number, capture = self.capture(parameters)
            with self.lock:
                return as_json({**manifest_of(capture), "capture": number, "renew": capture.predictor is not None})
        if name == "api/trust":
            _, capture = self.capture(parameters)
            with self.lock:
                return as_json(trust_of_page(capture))
        if name == "api/run":  # without the lock: a page hears of its run while a view is computed
            _, capture = self.capture(parameters)
            return as_json(finite(run_news(followed_runs(capture), parameters)))
        if name.startswith("api/view/"):
            return self.view(name.removeprefix("api/view/"), parameters)
        raise NotThere(f"there is no page {path[:80]}", fix="open /")

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
        """The capture meant by the parameter of that name, else the newest."""
        number = parameters.pop("capture", "") or next(reversed(self.captures))
        if number not in self.captures:
            raise NotThere(f"input {number[:20]} is no longer kept", fix=f"the newest {RING} are; open / again")
        return number, self.captures[number]

    def view(self, name: str, parameters: dict[str, str]) -> LookResponse:
        _, capture = self.capture(parameters)
        module = view(name)
        query = Query.parse(parameters)
        with self.lock:
            why = module.applies(capture)
            if why is not None:
                raise UserError(why, where=module.TITLE, fix="open another view")
            check_selection(capture, query)
            answer, reads = answered(module, capture, query)
            body = answer.to_bytes()
        names = sorted(set(reads) - {EVERYTHING} | (set(parameters) if EVERYTHING in reads else set()))
        keep = "no" if answer.facts.get("keep") is False or EVERYTHING in reads else "yes"
        headers = {"Look-Reads": ",".join(names), "Look-Keep": keep}
        return LookResponse(200, "application/octet-stream", body, headers)

    def new(self, body: bytes, parameters: dict[str, str]) -> LookResponse:
        """Looks at another input with the same model."""
        from anyformer.inspection.capture import look

        _, old = self.capture(parameters)
        with self.lock:
            given = new_input(body, old)
            capture = look(old.source, given, name=old.name)
            capture.run = old.run
            for other in old.others:  # a second model reads the new input too; a second input stays behind
                if other.source is not old.source:
                    capture.compare(look(other.source, given, name=other.name))
            self.made += 1
            self.captures[str(self.made)] = capture
            while len(self.captures) > RING:
                self.captures.popitem(last=False)
            return as_json({**manifest_of(capture), "capture": str(self.made), "renew": True})


def check_selection(capture: Capture, query: Query) -> None:
    """Refuse a cell that is not there, before any view counts on it."""
    if not capture.sites:
        return
    site = capture.site(query.site)
    for name, value, count in (
        ("head", query.head, site.heads),
        ("query", query.query, len(capture.axes[site.queries])),
        ("key", query.key, len(capture.axes[site.keys])),
    ):
        if value >= count:
            raise UserError(f"there is no {name} {value}", where=site.label, fix=f"use 0 to {count - 1}")


def new_input(body: bytes, capture: Capture) -> Any:
    """What was posted: {"input": text}, {"input": {a row}} or {"image": its bytes in base64}."""
    if len(body) > MOST_BODY:
        raise TooLarge(f"{len(body):,} bytes are too many", fix=f"send at most {MOST_BODY:,}")
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise UserError("this is not JSON", where="input", fix='send {"input": "a text"}') from None
    if not isinstance(given, Mapping):
        raise UserError("this is no object", where="input", fix='send {"input": "a text"}')
    if capture.modality == "image":
        return posted_image(given.get("image"))
    value = given.get("input")
    if isinstance(value, str) and capture.modality == "table":
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise UserError("a row is JSON", where="input", fix='write it as {"age": 41, "city": "Bern"}') from None
    if not value or not isinstance(value, str | dict | list):
        raise UserError("there is nothing to look at", where="input", fix="write something")
    return value


def posted_image(value: Any) -> Any:
    """An image from its bytes in base64; paths are not taken from a page."""
    if not isinstance(value, str):
        raise UserError("there is no image", where="image", fix="choose a file")
    require("PIL", "images need", where="image")
    from PIL import Image

    try:
        return Image.open(io.BytesIO(base64.b64decode(value, validate=True))).convert("RGB")
    except (binascii.Error, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise UserError("this is no image that can be read", where="image", fix="send a PNG or JPEG file") from None


def parameters_of(text: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_PARAMETERS)
    except ValueError:
        raise UserError("there are too many parameters", where="query", fix=f"use at most {MOST_PARAMETERS}") from None
    return dict(pairs)


def told(status: int, error: UserError) -> LookResponse:
    where = f"{error.where}: " if error.where else ""
    return as_json({"error": f"{where}{error.what}", "fix": error.fix}, status)


def as_json(value: Any, status: int = 200) -> LookResponse:
    return LookResponse(status, JSON, json.dumps(value, ensure_ascii=False).encode())
