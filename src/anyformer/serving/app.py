"""The application: routes, and what each does with a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from anyformer.engine.engine import Engine
from anyformer.errors import UserError
from anyformer.serving.auth import read_body
from anyformer.serving.calls import Abilities, What, called, checked, packed
from anyformer.serving.choices import json_list, to_json
from anyformer.serving.error_responses import HTTPError, json_response, service_unavailable, to_http_error
from anyformer.serving.limits import Limits
from anyformer.serving.look_route import LookRoute
from anyformer.serving.mailbox import Mailbox
from anyformer.serving.metrics import Metrics
from anyformer.serving.openapi import Path, describe
from anyformer.serving.request_schemas import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    GenerationRequest,
    PredictRequest,
    read,
)
from anyformer.serving.response_schemas import (
    ChatCompletion,
    Completion,
    EmbeddingList,
    Health,
    ModelCard,
    ModelList,
    Predictions,
)
from anyformer.serving.responses import ChatFormat, CompletionFormat
from anyformer.serving.sequences import PendingResponse, build_chat, build_completion, prompts_of
from anyformer.serving.served_model import ServedModel
from anyformer.serving.streaming import GenerationResponse

log = logging.getLogger("anyformer")
SAID = {404: "there is nothing at this path", 405: "this path does not know that method"}


@dataclass
class AppState:
    """State shared by the routes."""

    served: ServedModel
    engine: Engine
    limits: Limits
    metrics: Metrics
    abilities: Abilities
    draining: bool = False
    mail: Mailbox | None = None
    look: LookRoute | None = None

    @property
    def mailbox(self) -> Mailbox:
        """The mailbox of the running event loop."""
        if self.mail is None:
            self.mail = Mailbox(asyncio.get_running_loop())
        return self.mail

    def check_open(self) -> None:
        """Raise 503 while the server is shutting down."""
        if self.draining:
            raise service_unavailable("the server is shutting down", "shutting_down", 5)

    async def call(self, request: Request, what: What | UserError, rows: list[Any]) -> list[Any]:
        """Process rows by the engine."""
        return await called(request, self.engine, self.mailbox, self.limits, what, rows)


def make_app(served: ServedModel, engine: Engine, limits: Limits) -> Starlette:
    """The application for one model; the engine must be running."""
    state = AppState(served, engine, limits, Metrics(engine), Abilities(served.predictor))
    state.look = LookRoute(state)
    app = Starlette(
        routes=[
            # A model's name may contain a slash.
            *(
                Route(
                    path.path.replace("{model}", "{model:path}"), guard_route(path.answer, state), methods=[path.method]
                )
                for path in PATHS
            ),
            *state.look.routes(),
        ],
        exception_handlers={
            HTTPException: handle_starlette_error,
            HTTPError: handle_http_error,
            Exception: handle_error,
        },
    )
    app.router.redirect_slashes = False
    app.state.shared = state
    return app


Handler = Callable[[Request, Any], Awaitable[Response]]


def guard_route(function: Handler, state: AppState) -> Callable[[Request], Awaitable[Response]]:
    """Wrap a route so that every exception becomes an error response."""

    async def endpoint(request: Request) -> Response:
        try:
            return await function(request, state)
        except Exception as error:
            refusal = to_http_error(error)
            if refusal.status == 500:
                log.exception("a request failed")
            return refusal.response()

    return endpoint


async def handle_starlette_error(request: Request, error: Exception) -> Response:
    """Starlette's own errors: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    return HTTPError(
        error.status_code, SAID.get(error.status_code, str(error.detail)), headers=error.headers
    ).response()


async def handle_http_error(request: Request, error: Exception) -> Response:
    """An HTTP error raised outside a route."""
    return to_http_error(error).response()


async def handle_error(request: Request, error: Exception) -> Response:
    """An unexpected error; its message is only logged."""
    return to_http_error(error).response()


# ---------------------------------------------------------------- routes


async def models(request: Request, state: AppState) -> Response:
    """List the served model."""
    return json_response({"object": "list", "data": [state.served.card()]})


async def model(request: Request, state: AppState) -> Response:
    """Get a model by name."""
    state.served.check_name(request.path_params["model"])
    return json_response(state.served.card())


async def completions(request: Request, state: AppState) -> Response:
    """Create completions of prompts."""
    state.check_open()
    asked = read(CompletionRequest, await read_body(request, state.limits))
    pending = await build_completion(state.served, state.limits, asked, client_of(request), state.engine.check_room)
    form = CompletionFormat(state.served.name, state.served.reader, asked.logprobs is not None, wants_usage(asked),
                            bool(asked.look))  # fmt: skip
    return respond(state, pending, form, asked)


async def chat(request: Request, state: AppState) -> Response:
    """Create chat completions."""
    state.check_open()
    asked = read(ChatRequest, await read_body(request, state.limits))
    pending = await build_chat(state.served, state.limits, asked, client_of(request), state.engine.check_room)
    form = ChatFormat(state.served.name, state.served.reader, bool(asked.logprobs), wants_usage(asked),
                      bool(asked.look))  # fmt: skip
    return respond(state, pending, form, asked)


def respond(
    state: AppState, pending: PendingResponse, form: CompletionFormat | ChatFormat, asked: GenerationRequest
) -> GenerationResponse:
    """The response that submits the sequences and sends their output."""

    def keep() -> None:
        if asked.look and state.look is not None:
            state.look.app.keep(form.id, pending.sequences[0].tokens, pending.sequences[0].source)

    return GenerationResponse(pending, form, bool(asked.stream), state.engine, state.mailbox, state.limits, keep)


def wants_usage(asked: GenerationRequest) -> bool:
    """Whether a stream ends with a usage event."""
    if asked.stream_options is not None and not asked.stream:
        raise HTTPError(400, "stream_options needs stream true", param="stream_options")
    return asked.stream_options is not None and asked.stream_options.include_usage


def client_of(request: Request) -> str:
    """The client's address, by which requests are queued fairly."""
    return request.client.host if request.client is not None else ""


async def embeddings(request: Request, state: AppState) -> Response:
    """Create embeddings."""
    state.check_open()
    asked = read(EmbeddingRequest, await read_body(request, state.limits))
    state.served.check_name(asked.model)
    rows = prompts_of(asked.input)
    found = checked(await state.call(request, state.abilities.embed, rows), "input")
    as_text = asked.encoding_format == "base64"
    data = ({"object": "embedding", "index": at, "embedding": packed(one["embedding"]) if as_text else one["embedding"]}
            for at, one in enumerate(found))  # fmt: skip
    tokens = sum(one["tokens"] for one in found)
    return await list_response(state, data, {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}})


async def list_response(state: AppState, data: Iterable[Any], more: dict[str, Any] | None = None) -> Response:
    """A list response, serialised outside the event loop."""

    def write() -> bytes:
        head = to_json({"object": "list", "model": state.served.name} | (more or {}))
        return f'{head[:-1]},"data":{json_list(data)}}}'.encode()

    return Response(await asyncio.to_thread(write), media_type="application/json")


async def predict(request: Request, state: AppState) -> Response:
    """Predict labels, numbers, tags or objects for rows."""
    state.check_open()
    asked = read(PredictRequest, await read_body(request, state.limits))
    state.served.check_name(asked.model)
    found = checked(await state.call(request, state.abilities.predict, asked.rows), "rows")
    return await list_response(state, found)


async def live(request: Request, state: AppState) -> Response:
    """Liveness: the process responds."""
    return json_response({"status": "live"})


async def ready(request: Request, state: AppState) -> Response:
    """Readiness: requests sent now would be processed."""
    if state.draining:
        raise service_unavailable("the server is shutting down", "shutting_down", 5)
    if state.engine.stuck_for > state.limits.stuck:
        raise service_unavailable(f"no progress for {state.limits.stuck:.0f} s", "stuck", 10)
    return json_response({"status": "ready"})


async def metrics(request: Request, state: AppState) -> Response:
    """Metrics for Prometheus."""
    return Response(state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def openapi(request: Request, state: AppState) -> Response:
    """This description."""
    return json_response(describe(PATHS, state.served.name))


WRONG = (400, 401, 421)  # for every path that needs a key
READ = (408, 413, 415)  # for every path with a request body
NOT_NOW = (429, 503)
STREAM = "text/event-stream"
PATHS = (
    Path("/v1/models", "GET", models, gives=ModelList, refuses=WRONG),
    Path("/v1/models/{model}", "GET", model, gives=ModelCard, refuses=(*WRONG, 404)),
    Path("/v1/completions", "POST", completions, takes=CompletionRequest, gives=Completion, also=STREAM,
         refuses=(*WRONG, 404, *READ, *NOT_NOW)),
    Path("/v1/chat/completions", "POST", chat, takes=ChatRequest, gives=ChatCompletion, also=STREAM,
         refuses=(*WRONG, 404, *READ, *NOT_NOW)),
    Path("/v1/embeddings", "POST", embeddings, takes=EmbeddingRequest, gives=EmbeddingList,
         refuses=(*WRONG, 404, *READ, *NOT_NOW)),
    Path("/v1/predict", "POST", predict, takes=PredictRequest, gives=Predictions,
         refuses=(*WRONG, 404, *READ, *NOT_NOW)),
    Path("/health/live", "GET", live, gives=Health, refuses=(400, 421), open=True),
    Path("/health/ready", "GET", ready, gives=Health, refuses=(*WRONG, 503)),
    Path("/metrics", "GET", metrics, also="text/plain", refuses=WRONG),
    Path("/openapi.json", "GET", openapi, refuses=WRONG),
)  # fmt: skip
