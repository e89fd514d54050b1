"""The server's life cycle: it responds while the model loads, serves, drains and exits."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from anyformer.engine.engine import Engine
from anyformer.errors import UserError
from anyformer.generation.cache.open_store import open_serving_store
from anyformer.inference.opening import best_of, load
from anyformer.serving.app import AppState, make_app
from anyformer.serving.auth import AuthMiddleware, is_loopback, local_names
from anyformer.serving.chat_template import open_chat_template
from anyformer.serving.connection import check_connections, connection_class
from anyformer.serving.error_responses import json_response, service_unavailable
from anyformer.serving.limits import Limits
from anyformer.serving.listener import Listener, most_connections
from anyformer.serving.served_model import ServedModel, can_generate

KEEP_ALIVE = 30  # seconds an idle connection is kept; longer than clients keep theirs
FLUSH = 1  # seconds to send final responses after the grace period
TICK = 0.02


@dataclass(frozen=True)
class ServeOptions:
    """What to serve, and where."""

    folder: Path
    host: str = "127.0.0.1"
    port: int = 8000
    device: str = "auto"
    dtype: torch.dtype | None = None
    quantise: str | None = None
    max_batch_size: int = 16
    context: int | None = None
    key: str | None = None
    no_auth: bool = False
    name: str | None = None
    strict: bool = False
    grace: float = 30.0
    queue_tokens: int = 65_536
    deadline: float | None = None
    connections: int | None = None  # default: as many as open files allow
    known_as: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunningServer:
    """A server that is ready."""

    url: str
    served: ServedModel
    engine: Engine
    bytes: int  # of the weights and the KV cache


def serve(request: ServeOptions, on_ready: Callable[[RunningServer], None]) -> None:
    """Serve until a signal; a second signal exits immediately."""
    if request.key is None and not request.no_auth and not is_loopback(request.host):
        raise UserError(f"{request.host} can be reached by others, and there is no key", where="--host",
                        fix="give --key-file FILE, or --insecure-no-auth")  # fmt: skip
    if request.key is not None and (not request.key.isascii() or len(request.key) < 8 or " " in request.key):
        raise UserError(
            "the key is too short, or holds blanks or letters beyond ASCII",
            where="--key",
            fix="use at least 8 ASCII characters without blanks",
        )
    most = most_connections(request.connections)
    listening = listen(request.host, request.port)
    with contextlib.closing(listening):
        serving = ServerRun(request, listening, most, on_ready)
        asyncio.run(serving.run())
    if serving.is_stuck():
        logging.getLogger("anyformer").warning("the engine hangs and is left behind")
        os._exit(0)  # normal exit would wait for the thread, or crash
    if serving.is_computing():
        os._exit(0)


def listen(host: str, port: int) -> socket.socket:
    """Bind the address, before the model is loaded, so that errors show immediately."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        listening = socket.socket(family, kind)
    except (OSError, UnicodeError) as error:
        raise UserError(f"address {host!r} is not of this machine", where="--host", fix="use 127.0.0.1") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise UserError(f"{host} port {port} cannot be used ({error.strerror})", where="--port",
                        fix="use another, or 0 for any free one") from None  # fmt: skip
    return listening


class AppGate:
    """Forwards to the application once it exists; until then responds that the model is loading."""

    def __init__(self) -> None:
        self.app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if self.app is not None:
            await self.app(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] == "/health/live":
            await json_response({"status": "live"})(scope, receive, send)
        else:
            await service_unavailable("the model is being loaded", "loading", 2).response()(scope, receive, send)


class QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers; ours drain first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


class ServerRun:
    """One server."""

    def __init__(
        self,
        request: ServeOptions,
        listening: socket.socket,
        connections: int,
        on_ready: Callable[[RunningServer], None],
    ) -> None:
        self.request, self.listening, self.connections, self.on_ready = request, listening, connections, on_ready
        self.limits = Limits(deadline=request.deadline)
        self.gate = AppGate()
        hosts, any_address = local_names(request.host, request.known_as)
        door = AuthMiddleware(self.gate, hosts=hosts, any_address=any_address, key=request.key)
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # malformed requests are not worth logging
        self.server = QuietServer(uvicorn.Config(
            door, http=connection_class(self.limits), ws="none", lifespan="off", loop="asyncio", log_config=None,
            access_log=False, server_header=False, timeout_keep_alive=KEEP_ALIVE, timeout_graceful_shutdown=FLUSH,
        ))  # fmt: skip
        self.signals = 0
        self.asked_to_stop = asyncio.Event()
        self.standing: RunningServer | None = None

    async def run(self) -> None:
        """Run from startup to shutdown."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.on_signal, number)
        listener = self.listener()
        serving = asyncio.create_task(self.server.serve(sockets=[]))  # connections come from our own listener
        listener.start()
        looking = asyncio.create_task(self.look())
        try:
            loading = asyncio.ensure_future(asyncio.to_thread(self.load))
            await asyncio.wait({loading, serving, asyncio.create_task(self.asked_to_stop.wait())},
                               return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
            if not loading.done():
                os._exit(0)  # stopped before the model was loaded
            self.standing = loading.result()
            gc.collect()
            gc.freeze()  # exclude long-lived objects from garbage collection, whose full passes block all requests
            self.on_ready(self.standing)
            await self.asked_to_stop.wait()
            await self.drain(self.standing)
        finally:
            listener.close()
            self.server.should_exit = True
            looking.cancel()
            await serving
            self.close()

    def listener(self) -> Listener:
        """The listener that hands connections to uvicorn's protocol."""
        config, shared = self.server.config, self.server.server_state
        config.load()

        def make() -> asyncio.Protocol:
            protocol = config.http_protocol_class(config=config, server_state=shared, app_state={})  # type: ignore[call-arg]
            return protocol

        return Listener(self.listening, make, self.connections, lambda: len(shared.connections))

    def on_signal(self, number: int) -> None:
        """The first signal drains, the second exits."""
        self.signals += 1
        if self.signals > 1:
            os._exit(128 + number)
        self.asked_to_stop.set()

    async def look(self) -> None:
        """Check for slow clients once a second."""
        while True:
            await asyncio.sleep(1.0)
            check_connections(self.server.server_state.connections)

    def load(self) -> RunningServer:
        """Load the model, and create its engine and application."""
        # torch would import this on the first use of a custom op, blocking requests for a second or more.
        import torch._dynamo  # noqa: F401

        request = self.request
        predictor = load(request.folder, device=request.device, dtype=request.dtype)
        if request.quantise is not None:
            from anyformer.kernels.quantise import quantise

            quantise(predictor.model, request.quantise)
        store = None
        if can_generate(predictor) and predictor.tokenizer is not None:
            store = open_serving_store(
                predictor.model, capacity=request.max_batch_size, limit=request.context, strict=request.strict
            )
        text_of = None if predictor.tokenizer is None else predictor.tokenizer.target.decode
        engine = Engine(store, text_of=text_of, queue_tokens=request.queue_tokens)
        served = ServedModel(
            predictor, request.name or name_of(request.folder), None if store is None else store.limit,
            open_chat_template(best_of(request.folder), predictor.tokenizer),
        )  # fmt: skip
        engine.start()
        self.gate.app = make_app(served, engine, self.limits)
        host, port = self.listening.getsockname()[:2]
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        url = f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
        weights = sum(one.numel() * one.element_size() for one in predictor.model.state_dict().values())
        return RunningServer(url, served, engine, weights + (0 if store is None else store.bytes))

    async def drain(self, standing: RunningServer) -> None:
        """Accept no new work; running requests may finish within the grace period, the rest fail with an error."""
        state: AppState = self.gate.app.state.shared  # type: ignore[union-attr]
        state.draining = True
        engine, until = standing.engine, time.monotonic() + self.request.grace
        engine.drain(0)
        while time.monotonic() < until and (engine.counts.in_flight or self.server.server_state.tasks):
            await asyncio.sleep(TICK)
        # In another thread: do not wait for an engine that hangs in the model.
        threading.Thread(target=engine.stop, daemon=True).start()
        until = time.monotonic() + FLUSH / 2
        while time.monotonic() < until and self.server.server_state.tasks:
            await asyncio.sleep(TICK)

    def is_stuck(self) -> bool:
        """Whether the engine's thread does not exit."""
        thread = None if self.standing is None else self.standing.engine.thread
        if thread is not None:
            thread.join(0.3)
        return thread is not None and thread.is_alive()

    def is_computing(self) -> bool:
        """Whether something is still being computed for the page at /look."""
        return self.gate.app is not None and self.gate.app.state.shared.look.worker.busy  # type: ignore[attr-defined]

    def close(self) -> None:
        """Stop everything still running."""
        if self.standing is not None:
            self.standing.served.chat.close()
        gc.freeze()  # a full collection at exit takes a second or more


def name_of(folder: Path) -> str:
    """The folder's name, without characters that need escaping in a URL."""
    name = folder.resolve().name or "model"
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "-" for letter in name)[
        :128
    ]
