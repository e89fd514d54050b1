"""Error responses in OpenAI's format: never with a traceback, a path or an address."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from anyformer.engine.waiting_queue import EngineClosed, QueueFull
from anyformer.errors import UserError, did_you_mean
from anyformer.serving.limits import BUSY_AGAIN

TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 405: "invalid_request_error",
    408: "timeout_error", 413: "invalid_request_error", 415: "invalid_request_error", 421: "invalid_request_error",
    429: "rate_limit_error", 431: "invalid_request_error", 500: "server_error", 503: "unavailable_error",
}  # fmt: skip
MOST = 300  # characters of a message
MOST_ERRORS = 1000  # formatting more validation errors takes seconds, blocking all other requests
BROKEN = "the server could not complete this request"


class HTTPError(Exception):
    """An error response: status and message, with the parameter it is about."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        facts: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message[:MOST], param, code
        self.headers, self.facts = dict(headers or {}), dict(facts or {})

    @property
    def body(self) -> dict[str, Any]:
        """`{"error": {...}}`, with figures as extra fields if there are any."""
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code} | self.facts}

    def response(self) -> Response:
        """The response."""
        return json_response(self.body, self.status, self.headers)


def json_response(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Data as a JSON response."""
    body = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return Response(body, status, dict(headers or {}), "application/json")


def retry_headers(seconds: float) -> dict[str, str]:
    """The Retry-After header."""
    return {"Retry-After": str(max(1, math.ceil(min(seconds, 3600.0))))}


def service_unavailable(message: str, code: str, after: float = BUSY_AGAIN) -> HTTPError:
    """503 with Retry-After."""
    return HTTPError(503, message, code=code, headers=retry_headers(after))


def to_http_error(error: BaseException) -> HTTPError:
    """The HTTP error for an exception; unexpected ones get a generic message."""
    if isinstance(error, HTTPError):
        return error
    if isinstance(error, QueueFull):
        return HTTPError(429, str(error), code="queue_full", headers=retry_headers(error.after))
    if isinstance(error, EngineClosed):
        return service_unavailable("the server is shutting down", "shutting_down", 5)
    if isinstance(error, UserError):
        return HTTPError(400, error.line, param=error.where or None)
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return service_unavailable("there is not enough memory for this request", "out_of_memory")
    return HTTPError(500, BROKEN, code="internal_error")


# ---------------------------------------------------------------- fields


def wrong_field(kind: type[BaseModel], error: ValidationError) -> HTTPError:
    """The most relevant validation error of a body."""
    if error.error_count() > MOST_ERRORS:
        return HTTPError(400, f"{error.error_count()} fields of the body are unknown or wrong; see /openapi.json",
                       code="too_many_errors")  # fmt: skip
    found = error.errors(include_url=False, include_input=False, include_context=False)
    names = names_in(kind)

    def path_of(one: Any) -> list[Any]:
        return [part for part in one["loc"] if isinstance(part, int) or part in names]  # the rest names types

    # An unknown field explains the rest; among union members, prefer the one that matched furthest.
    first = min(found, key=lambda one: (one["type"] != "extra_forbidden", -len(path_of(one))))
    if first["type"] == "json_invalid":
        return HTTPError(
            400, f"the body is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}", code="invalid_json"
        )
    path = path_of(first)
    if first["type"] == "extra_forbidden":
        name = str(first["loc"][-1])[:80]
        holder = holder_of(kind, [part for part in first["loc"][:-1] if isinstance(part, str)])
        known = [field.alias or called for called, field in holder.model_fields.items()]
        param = dotted([*path_of({"loc": first["loc"][:-1]}), name])
        return HTTPError(
            400, f"unknown field {param!r}; {did_you_mean(name, known)}", param=param, code="unknown_field"
        )
    if not path:
        return HTTPError(400, "the body is not a JSON object", code="invalid_type")
    param = dotted(path)
    messages = list(dict.fromkeys(one["msg"] for one in found if path_of(one) == path))  # of each kind it may be
    said = "; or: ".join(message[0].lower() + message[1:] for message in messages[:4])
    return HTTPError(400, f"{param}: {said}", param=param, code=first["type"])


def dotted(path: list[Any]) -> str:
    """`messages[0].content`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def nested(kind: type[BaseModel]) -> list[type[BaseModel]]:
    """A model and all models nested in its fields."""
    found: list[type[BaseModel]] = [kind]
    waiting: list[Any] = [field.annotation for field in kind.model_fields.values()]
    while waiting:
        one = waiting.pop()
        if isinstance(one, type) and issubclass(one, BaseModel):
            if one not in found:
                found.append(one)
                waiting += [field.annotation for field in one.model_fields.values()]
        else:
            waiting += getattr(one, "__args__", ())
    return found


def names_in(kind: type[BaseModel]) -> set[str]:
    """All field names, including nested models; other parts of a location are type names."""
    return {field.alias or name for model in nested(kind) for name, field in model.model_fields.items()}


def holder_of(kind: type[BaseModel], path: list[str]) -> type[BaseModel]:
    """The model that contains the end of a location."""
    by_name = {model.__name__: model for model in nested(kind)}
    holder = kind
    for part in path:
        field = holder.model_fields.get(part)
        inside = [] if field is None else nested_of(field.annotation)
        holder = by_name.get(part) or (inside[0] if len(inside) == 1 else holder)
    return holder


def nested_of(annotation: Any) -> list[type[BaseModel]]:
    """The models directly inside an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for one in getattr(annotation, "__args__", ()) for model in nested_of(one)]
