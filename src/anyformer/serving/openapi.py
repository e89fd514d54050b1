"""The server's OpenAPI 3.1 description, generated from the table of paths and the request and response models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from anyformer.serving.response_schemas import ErrorBody
from anyformer.version import __version__

SAID = {
    400: "something in the request is wrong; the error names it", 401: "the API key is missing or wrong",
    404: "unknown model", 408: "the request came too slowly", 413: "the body is too large",
    415: "the body is not plain JSON", 421: "the Host is not one of this server's names",
    429: "the queue is full; Retry-After says when there may be room",
    503: "not now; Retry-After says when to ask again",
}  # fmt: skip
# The schema of a stream describes one event; its data is the JSON of a chunk, or [DONE].
EVENT = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
AGAIN = {"Retry-After": {"description": "seconds", "required": True, "schema": {"type": "integer", "minimum": 1}}}


@dataclass(frozen=True)
class Path:
    """One path: its handler, request and response models, and error statuses."""

    path: str
    method: str
    answer: Callable[[Request, Any], Awaitable[Response]]
    takes: type[BaseModel] | None = None
    gives: type[BaseModel] | None = None
    also: str | None = None  # an additional response content type
    refuses: tuple[int, ...] = ()
    open: bool = False  # needs no key


def describe(paths: Sequence[Path], name: str) -> dict[str, Any]:
    """The whole description; `name` is the model's name."""
    taken = [path.takes for path in paths if path.takes is not None]
    given = [path.gives for path in paths if path.gives is not None] + [ErrorBody]
    both: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = []
    both += [(model, "validation") for model in taken]
    both += [(model, "serialization") for model in given]
    where, found = models_json_schema(
        both,
        ref_template="#/components/schemas/{model}",
    )
    schemas = found["$defs"]
    for model in taken:  # only this model is served; any other name is a 404
        schemas[model.__name__]["properties"]["model"] = {"enum": [name, None]}
    table: dict[str, Any] = {}
    for path in paths:
        if path.takes is None and path.gives is None and path.also is None:  # the description itself
            continue
        table.setdefault(path.path, {})[path.method.lower()] = operation(path, where, name)
    return {
        "openapi": "3.1.0",
        "info": {"title": "anyformer", "version": __version__,
                 "description": "A model over HTTP, as OpenAI's clients expect it."},
        "paths": table,
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }  # fmt: skip


def operation(path: Path, where: Any, name: str) -> dict[str, Any]:
    """One path's entry."""
    content: dict[str, Any] = {}
    if path.gives is not None:
        content["application/json"] = {"schema": where[path.gives, "serialization"]}
    if path.also is not None:
        content[path.also] = {"schema": EVENT if path.also == "text/event-stream" else {"type": "string"}}
    error = {"application/json": {"schema": where[ErrorBody, "serialization"]}}
    answers: dict[str, Any] = {"200": {"description": "done", "content": content}}
    for status in sorted(path.refuses):
        answers[str(status)] = {"description": SAID[status], "content": error}
        if status in (429, 503):
            answers[str(status)]["headers"] = AGAIN
    entry: dict[str, Any] = {
        "operationId": path.answer.__name__, "summary": (path.answer.__doc__ or "").rstrip("."), "responses": answers,
    }  # fmt: skip
    if path.open:
        entry["security"] = []
    if "{model}" in path.path:
        entry["parameters"] = [{"name": "model", "in": "path", "required": True, "example": name,
                                "schema": {"type": "string", "minLength": 1, "maxLength": 256}}]  # fmt: skip
    if path.takes is not None:
        body = {"schema": where[path.takes, "validation"]}
        entry["requestBody"] = {"required": True, "content": {"application/json": body}}
    return entry
