"""/v1/embeddings and /v1/predict through the engine, which batches rows of many clients."""

from __future__ import annotations

import asyncio
import base64
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from starlette.requests import Request

from anyformer.engine.batch_calls import BatchCall
from anyformer.engine.engine import Engine
from anyformer.errors import UserError
from anyformer.inference.predictor import Predictor
from anyformer.serving.error_responses import HTTPError, service_unavailable, to_http_error
from anyformer.serving.limits import Limits
from anyformer.serving.mailbox import Box, Mailbox
from anyformer.serving.predict_rows import embed_what, first_wrong, predict_what

What = Callable[[list[Any]], Sequence[Any]]


class Abilities:
    """The row functions of a model; created once, so that rows of several clients share one function and batch."""

    def __init__(self, predictor: Predictor) -> None:
        self.predict = attempt(predict_what, predictor)
        self.embed = attempt(embed_what, predictor)


def attempt(make: Callable[[Predictor], What], predictor: Predictor) -> What | UserError:
    """The function, or the error why the model has none."""
    try:
        return make(predictor)
    except UserError as error:
        return error


async def called(
    request: Request, engine: Engine, mailbox: Mailbox, limits: Limits, what: What | UserError, rows: list[Any]
) -> list[Any]:
    """Process rows; if the client disconnects they are cancelled."""
    if isinstance(what, UserError):
        raise HTTPError(400, what.line, code="unsupported")
    box = Box(mailbox)
    client = request.client.host if request.client is not None else ""
    deadline = None if limits.deadline is None else time.monotonic() + limits.deadline
    call = BatchCall(what, rows, box.post, deadline=deadline, client=client)
    engine.call(call)

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        engine.cancel(call)
        box.leave()

    watching = asyncio.create_task(watch())
    try:
        found = await box.take()
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    if not found:
        raise HTTPError(400, "the client left", code="disconnected")
    (answers,) = found
    if isinstance(answers, TimeoutError):
        raise service_unavailable("the time of this request was over", "timeout")
    if isinstance(answers, Exception):
        raise to_http_error(answers)
    return list(answers)


def checked(answers: list[Any], field: str) -> list[Any]:
    """The answers; the first invalid row raises an error that names it."""
    wrong = first_wrong(answers)
    if wrong is not None:
        told = wrong.inside(field)
        raise HTTPError(400, told.line, param=told.where, code="invalid_row")
    return answers


def packed(vector: Sequence[float]) -> str:
    """A vector as base64 of little-endian float32, as the openai package requests it."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
