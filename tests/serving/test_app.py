"""The application in this process: routes, refusals, streams, and what becomes of a request whose client has gone."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import httpx
import pytest
import torch
from pydantic import BaseModel

import anyformer
from anyformer.engine.engine import Engine
from anyformer.generation.cache.eager_store import EagerStore
from anyformer.generation.cache.open_store import open_serving_store
from anyformer.inference.predictor import Predictor
from anyformer.serving.app import PATHS, make_app
from anyformer.serving.auth import AuthMiddleware, local_names
from anyformer.serving.limits import Limits
from anyformer.serving.openapi import describe
from anyformer.serving.response_schemas import (
    ChatChunk,
    ChatCompletion,
    Completion,
    EmbeddingList,
    ErrorBody,
    ModelList,
)
from anyformer.serving.served_model import ServedModel
from tests.serving.folders import Folders

Result = TypeVar("Result")
URL = "http://127.0.0.1"
KEY = "a-long-secret"


class Around:
    """An application with its engine, and a client that speaks to it without a network."""

    def __init__(self, predictor: Predictor, *, limits: Limits | None = None, rows: Any = None, **options: Any) -> None:
        rows = open_serving_store(predictor.model, capacity=4) if rows is None else rows
        text_of = None if predictor.tokenizer is None else predictor.tokenizer.decode
        self.engine = Engine(rows, text_of=text_of, **dict(options))
        self.served = ServedModel(predictor, "writer", rows.limit)
        self.app = make_app(self.served, self.engine, limits or Limits())
        self.state = self.app.state.shared

    def __enter__(self) -> Around:
        self.engine.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.stop()

    def run(self, work: Callable[[httpx.AsyncClient], Awaitable[Result]]) -> Result:
        self.state.mail = None  # a new event loop

        async def inside() -> Result:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=URL, timeout=30) as client:
                return await asyncio.wait_for(work(client), 60)

        return asyncio.run(inside())

    def get(self, path: str) -> httpx.Response:
        return self.run(lambda client: client.get(path))

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.run(lambda client: client.post(path, json=body))


@pytest.fixture(scope="module")
def predictor(folders: Folders) -> Predictor:
    return anyformer.load(folders["writer"])


@pytest.fixture(scope="module")
def around(predictor: Predictor) -> Iterator[Around]:
    made = Around(predictor)
    made.engine.start()
    yield made
    made.engine.stop()


def right(answer: httpx.Response, kind: type[BaseModel]) -> Any:
    assert answer.status_code == 200, answer.text[:300]
    kind.model_validate_json(answer.content)
    return answer.json()


def refused(answer: httpx.Response, status: int, param: str | None = None) -> dict[str, Any]:
    assert answer.status_code == status, answer.text[:300]
    ErrorBody.model_validate_json(answer.content)
    error = answer.json()["error"]
    assert param is None or error["param"] == param, error
    return error


def events(answer: httpx.Response) -> list[Any]:
    lines = answer.text.split("\n\n")
    assert lines[-1] == "" and all(line.startswith("data: ") for line in lines[:-1])
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines[:-1]]


# ---------------------------------------------------------------- completions


@pytest.mark.quick
def test_models_and_health(around: Around) -> None:
    (card,) = right(around.get("/v1/models"), ModelList)["data"]
    assert card["id"] == "writer" and card["context"] == 256 and card["chat_template"] == "plain"
    assert around.get("/v1/models/writer").json() == card
    assert refused(around.get("/v1/models/other"), 404, "model")["code"] == "model_not_found"
    assert around.get("/health/live").json() == {"status": "live"}
    assert around.get("/health/ready").json() == {"status": "ready"}
    assert "anyformer_generated_tokens_total" in around.get("/metrics").text


def test_a_greedy_text_is_that_of_generate(around: Around, predictor: Predictor) -> None:
    prompts = ["The good", "The lovely story was bad, said the"]
    expected = [predictor.generate(one, max_new_tokens=12, do_sample=False, eos_token_id=predictor.tokenizer.eos)
                for one in prompts]  # fmt: skip
    body = {"model": "writer", "prompt": prompts, "max_tokens": 12, "temperature": 0}
    found = right(around.post("/v1/completions", body), Completion)
    assert [choice["text"] for choice in found["choices"]] == expected
    assert found["usage"]["prompt_tokens"] == sum(len(predictor.require_tokenizer().encode(one)) for one in prompts)
    as_ids = right(
        around.post("/v1/completions", body | {"prompt": predictor.require_tokenizer().encode_batch(prompts)}),
        Completion,
    )
    assert [choice["text"] for choice in as_ids["choices"]] == expected


def test_a_stream_is_the_same_text_in_pieces(around: Around) -> None:
    body = {"prompt": "The good", "max_tokens": 40, "seed": 5, "n": 3, "logprobs": 2, "echo": True}
    whole = right(around.post("/v1/completions", body), Completion)
    told = events(around.post("/v1/completions", body | {"stream": True, "stream_options": {"include_usage": True}}))
    assert told[-1] == "[DONE]" and told[-2]["choices"] == [] and told[-2]["usage"] == whole["usage"]
    for index, choice in enumerate(whole["choices"]):
        parts = [part for event in told[:-2] for part in event["choices"] if part["index"] == index]
        assert "".join(part["text"] for part in parts) == choice["text"] and choice["text"].startswith("The good")
        assert [part["finish_reason"] for part in parts][-1] == choice["finish_reason"]
        assert all(part["finish_reason"] is None for part in parts[:-1])
        for name in ("tokens", "token_logprobs", "text_offset"):
            joined = [one for part in parts for one in part["logprobs"][name]]
            if name == "token_logprobs":
                assert joined[0] is None and joined[1:] == pytest.approx(choice["logprobs"][name][1:], abs=1e-4)
            else:
                assert joined == choice["logprobs"][name]
        spelled = "".join(choice["logprobs"]["tokens"])
        assert spelled == choice["text"]
        assert all(choice["text"][at:].startswith(token) for at, token in
                   zip(choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"], strict=True))  # fmt: skip
    assert len({choice["text"] for choice in whole["choices"]}) > 1
    for event in told[:-1]:
        Completion.model_validate(event)


def test_scoring_alone(around: Around, predictor: Predictor) -> None:
    ids = predictor.require_tokenizer().encode("The good film was")
    found = right(
        around.post("/v1/completions", {"prompt": [ids], "max_tokens": 0, "echo": True, "logprobs": 1}), Completion
    )
    (choice,) = found["choices"]
    assert choice["text"] == "The good film was" and len(choice["logprobs"]["tokens"]) == len(ids)
    expected = predictor.score(torch.tensor([ids])).logprobs[0]
    assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(expected[-len(ids) + 1 :].tolist(), abs=1e-4)
    refused(around.post("/v1/completions", {"prompt": "a", "max_tokens": 0}), 400, "max_tokens")


def test_a_stop_is_not_shown(around: Around) -> None:
    body = {"prompt": "The good", "max_tokens": 60, "temperature": 0}
    text = around.post("/v1/completions", body).json()["choices"][0]["text"]
    stop = text[5:9]
    for stream in (False, True):
        answer = around.post("/v1/completions", body | {"stop": ["zzz", stop], "stream": stream})
        parts = [event["choices"][0] for event in events(answer)[:-1]] if stream else answer.json()["choices"]
        assert "".join(part["text"] for part in parts) == text[: text.index(stop)]
        assert parts[-1]["finish_reason"] == "stop"


def test_chat(around: Around) -> None:
    body = {"messages": [{"role": "user", "content": "The good"}], "max_tokens": 10, "temperature": 0, "logprobs": True,
            "top_logprobs": 2}  # fmt: skip
    whole = right(around.post("/v1/chat/completions", body), ChatCompletion)["choices"][0]
    told = events(around.post("/v1/chat/completions", body | {"stream": True}))
    for event in told[:-1]:
        ChatChunk.model_validate(event)
    deltas = [event["choices"][0]["delta"] for event in told[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""} and told[-1] == "[DONE]"
    assert "".join(delta.get("content", "") for delta in deltas) == whole["message"]["content"]
    content = whole["logprobs"]["content"]
    assert "".join(one["token"] for one in content) == whole["message"]["content"]
    assert all(len(one["top_logprobs"]) == 2 for one in content)
    parts = [{"type": "text", "text": "The"}, {"type": "text", "text": " good"}]
    same = around.post("/v1/chat/completions", body | {"messages": [{"role": "user", "content": parts}]}).json()
    assert same["choices"][0]["message"] == whole["message"]
    refused(around.post("/v1/chat/completions", body | {"logprobs": False}), 400, "top_logprobs")


@pytest.mark.parametrize("stream", [False, True])
def test_a_form_is_kept(around: Around, stream: bool) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"],
              "additionalProperties": False}  # fmt: skip
    body = {"prompt": "The", "max_tokens": 100, "seed": 2, "stream": stream}
    for more, check in (({"regex": "[0-9]{3}-(ab|cd)"}, lambda text: len(text) == 6 and text[3] == "-"),
                        ({"json_schema": schema}, lambda text: set(json.loads(text)) == {"n"})):  # fmt: skip
        answer = around.post("/v1/completions", body | more)
        text = "".join(event["choices"][0]["text"] for event in events(answer)[:-1]) if stream else (
            answer.json()["choices"][0]["text"])  # fmt: skip
        assert check(text), text
    refused(around.post("/v1/completions", body | {"regex": "(("}), 400)
    refused(around.post("/v1/completions", body | {"json_schema": {"type": "nothing"}}), 400)
    refused(around.post("/v1/completions", body | {"json_schema": schema, "regex": "a"}), 400, "regex")


def test_what_does_not_fit_is_refused_with_its_figures(around: Around) -> None:
    for prompt, new in (([5] * 256, 1), ([5] * 300, 16), ([5] * 250, 7)):
        error = refused(around.post("/v1/completions", {"prompt": prompt, "max_tokens": new}), 400, "prompt")
        assert (
            error["code"] == "context_length_exceeded"
            and error["limit"] == 256
            and str(len(prompt)) in error["message"]
        )
    assert around.post("/v1/completions", {"prompt": [5] * 250, "max_tokens": 6}).status_code == 200
    assert around.post("/v1/completions", {"prompt": [5] * 250}).status_code == 200  # as many as fit
    refused(around.post("/v1/completions", {"prompt": "x" * 999_999}), 400, "prompt")
    refused(around.post("/v1/completions", {"prompt": [99_999]}), 400, "prompt")
    refused(around.post("/v1/completions", {"prompt": ["a"] * 100, "n": 2}), 400, "n")
    refused(around.post("/v1/completions", {"prompt": "a", "model": "other"}), 404, "model")
    refused(around.post("/v1/completions", {"prompt": "a", "stream_options": {"include_usage": True}}), 400)


def test_embeddings_and_predict(around: Around, predictor: Predictor) -> None:
    texts = ["The good film", "The bad"]
    found = right(around.post("/v1/embeddings", {"input": texts, "encoding_format": "float"}), EmbeddingList)
    expected = predictor.embed(texts)
    assert torch.allclose(torch.tensor([one["embedding"] for one in found["data"]]), expected, atol=1e-5)
    packed = right(around.post("/v1/embeddings", {"input": texts, "encoding_format": "base64"}), EmbeddingList)
    raw = base64.b64decode(packed["data"][1]["embedding"])
    assert list(struct.unpack(f"<{len(raw) // 4}f", raw)) == pytest.approx(found["data"][1]["embedding"], abs=1e-6)
    assert refused(around.post("/v1/predict", {"rows": ["a"]}), 400)["code"] == "unsupported"
    assert refused(around.post("/v1/embeddings", {"input": [[99_999]]}), 400)["param"].startswith("input[0]")


# ---------------------------------------------------------------- the edge


@pytest.mark.quick
def test_paths_methods_and_bodies(around: Around) -> None:
    refused(around.get("/nothing"), 404)
    refused(around.get("/v1/models/"), 404)
    wrong = around.get("/v1/completions")
    refused(wrong, 405)
    assert wrong.headers["allow"] == "POST"
    for method in ("PUT", "OPTIONS", "DELETE"):
        refused(around.run(lambda client, method=method: client.request(method, "/v1/completions")), 405)
    assert around.run(lambda client: client.head("/v1/models")).status_code == 200
    plain = {"Content-Type": "text/plain"}
    refused(around.run(lambda client: client.post("/v1/completions", content=b"{}", headers=plain)), 415)
    packed = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    refused(around.run(lambda client: client.post("/v1/completions", content=b"{}", headers=packed)), 415)
    large = b'{"prompt": "' + b"a" * Limits().body + b'"}'
    json_type = {"Content-Type": "application/json; charset=utf-8"}
    refused(around.run(lambda client: client.post("/v1/completions", content=large, headers=json_type)), 413)

    async def parts():  # no length is told before
        for _ in range(80):
            yield b"a" * 65_536

    refused(around.run(lambda client: client.post("/v1/completions", content=parts(), headers=json_type)), 413)


def test_a_slow_body_is_not_waited_for(predictor: Predictor) -> None:
    made = Around(predictor, limits=Limits(receive=0.1))

    async def slow():
        yield b'{"prompt": '
        await asyncio.sleep(1)
        yield b'"a"}'

    began = time.monotonic()
    headers = {"Content-Type": "application/json"}
    refused(made.run(lambda client: client.post("/v1/completions", content=slow(), headers=headers)), 408)
    assert time.monotonic() - began < 0.9


@pytest.mark.quick
def test_the_door() -> None:
    reached = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def status(path: str, host: str = "127.0.0.1:80", raw: bytes | None = None, **headers: str) -> int:
        hosts, any_address = local_names("127.0.0.1")
        door, sent = AuthMiddleware(app, hosts=hosts, any_address=any_address, key=KEY), []
        scope = {"type": "http", "path": path, "raw_path": path.encode() if raw is None else raw, "method": "GET",
                 "headers": [(b"host", host.encode()), *((k.encode(), v.encode()) for k, v in headers.items())],
        }  # fmt: skip

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(door(scope, None, send))  # type: ignore[arg-type]
        return sent[0]["status"]

    assert status("/health/live") == 200
    for path in ("/v1/models", "/health/ready", "/health/live/", "//health/live", "/nothing", "", "/HEALTH/LIVE"):
        assert status(path) == 401
        assert status(path, authorization=f"Bearer {KEY}") == 200
    assert status("/health/live", raw=b"/health/%6Cive") == 401  # as it was sent, not as it was read
    for word in (KEY, f"Basic {KEY}", f"Bearer {KEY}x", "Bearer", f"Bearer {KEY} {KEY}"):
        assert status("/v1/models", authorization=word) == 401
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1", "[::1]:8000", "::1"):
        assert status("/health/live", host=host) == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "", "[::1", "[::1]x", "192.168.0.1"):
        assert status("/health/live", host=host) == 421


def test_the_description_is_valid_and_tells_every_status(around: Around) -> None:
    found = around.get("/openapi.json").json()
    assert found == json.loads(json.dumps(describe(PATHS, "writer"))) and found["openapi"] == "3.1.0"
    assert {*found["paths"], "/openapi.json"} == {path.path for path in PATHS}
    import jsonschema_rs  # comes with schemathesis

    for schema in found["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)
    text = json.dumps(found)
    for place in {part.split('"')[0] for part in text.split('"$ref": "')[1:]}:
        assert place.startswith("#/components/schemas/") and place.rpartition("/")[2] in found["components"]["schemas"]
    for path, methods in found["paths"].items():
        for entry in methods.values():
            assert "200" in entry["responses"], path
            for status in ("429", "503"):
                if status in entry["responses"]:
                    assert "Retry-After" in entry["responses"][status]["headers"]


# ---------------------------------------------------------------- under way


class Slow(EagerStore):
    """Rows that take their time, so that something can happen in between."""

    pause = 0.02

    def step(self, rows: Any, tokens: Any) -> Any:
        time.sleep(self.pause)
        return super().step(rows, tokens)


def slow(predictor: Predictor, limit: int | None = None) -> Slow:
    return Slow(predictor.model, capacity=1, limit=limit, batched=False, prefix_cache=False)


async def started(made: Around, body: dict[str, Any]) -> tuple[asyncio.Task[None], asyncio.Event, list[Any]]:
    """A request by hand, whose client can go: the task, what makes it go, and what was sent to it."""
    gone, sent = asyncio.Event(), list[Any]()
    data = json.dumps(body).encode()
    messages = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
             "path": "/v1/completions", "raw_path": b"/v1/completions", "query_string": b"", "root_path": "",
             "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")], "client": ("127.0.0.1", 1),
             "server": ("127.0.0.1", 80)}  # fmt: skip
    return asyncio.create_task(made.app(scope, receive, send)), gone, sent  # type: ignore[arg-type]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["queued", "writing"])
def test_a_client_that_goes_has_cancelled(predictor: Predictor, stream: bool, phase: str) -> None:
    made = Around(predictor, rows=slow(predictor, limit=200))
    made.engine.start()
    body = {"prompt": [5], "max_tokens": 190, "temperature": 0, "stream": stream, "seed": 1, "n": 1}

    async def work(client: httpx.AsyncClient) -> None:
        tasks = [await started(made, body) for _ in range(2 if phase == "queued" else 1)]
        while made.engine.counts.new_tokens < 5:
            await asyncio.sleep(0.005)
        task, gone, _ = tasks[-1]
        assert made.engine.counts.queue_length == len(tasks) - 1
        gone.set()
        began = time.monotonic()
        await asyncio.wait_for(task, 2)
        while made.engine.counts.cancelled < 1:
            await asyncio.sleep(0.005)
        assert time.monotonic() - began < 1
        for other, leave, _ in tasks[:-1]:
            assert not other.done()
            leave.set()
            await asyncio.wait_for(other, 2)
        while made.engine.counts.in_flight:
            await asyncio.sleep(0.005)
        assert made.engine.store.available == 1

    made.run(work)
    made.engine.stop()


def test_a_full_queue_and_a_closed_engine_are_told_at_once(predictor: Predictor) -> None:
    made = Around(
        predictor,
        rows=Slow(predictor.model, capacity=1, limit=200, batched=False, prefix_cache=False),
        queue_tokens=400,
    )
    made.engine.start()
    body = {"prompt": [5], "max_tokens": 150, "temperature": 0, "stream": True}

    async def work(client: httpx.AsyncClient) -> None:
        tasks = [await started(made, body)]
        while not made.engine.counts.new_tokens:
            await asyncio.sleep(0.005)
        tasks += [await started(made, body) for _ in range(2)]
        while made.engine.counts.queue_length < 2:
            await asyncio.sleep(0.005)
        began = time.monotonic()
        answer = await client.post("/v1/completions", json=body)
        assert refused(answer, 429)["code"] == "queue_full" and int(answer.headers["retry-after"]) >= 1
        assert time.monotonic() - began < 0.5
        made.state.draining = True
        for path, more in (("/v1/completions", body), ("/v1/embeddings", {"input": "a"})):
            answer = await client.post(path, json=more)
            assert refused(answer, 503)["code"] == "shutting_down" and "retry-after" in answer.headers
        assert (await client.get("/health/ready")).status_code == 503
        assert (await client.get("/health/live")).status_code == 200
        await asyncio.to_thread(made.engine.stop)
        for task, _, sent in tasks:
            await asyncio.wait_for(task, 5)
            if sent[0]["status"] == 200:  # it had begun: the stream ends with an error
                text = b"".join(message.get("body", b"") for message in sent[1:]).decode()
                assert '"error"' in text and "[DONE]" not in text and not sent[-1].get("more_body")
            else:
                assert sent[0]["status"] in (429, 503)

    made.run(work)


def test_an_error_in_one_request_is_told_to_it_alone(predictor: Predictor) -> None:
    class Poor(EagerStore):
        def extend(self, pieces: Any) -> Any:
            if [7] in pieces.values():
                raise MemoryError
            if [8] in pieces.values():
                raise RuntimeError("at 0x7f00deadbeef")
            return super().extend(pieces)

    made = Around(predictor, rows=Poor(predictor.model, capacity=4, batched=False, prefix_cache=False))
    made.engine.start()

    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        body = {"max_tokens": 5, "temperature": 0}
        asked = [client.post("/v1/completions", json=body | {"prompt": [first], "stream": stream})
                 for first in (5, 7, 8, 9) for stream in (False, True)]  # fmt: skip
        return await asyncio.gather(*asked)

    answers = made.run(work)
    assert [answer.status_code for answer in answers] == [200, 200, 503, 503, 500, 500, 200, 200]
    assert all("retry-after" in answer.headers for answer in answers[2:4])
    assert not any("0x" in answer.text for answer in answers)
    made.engine.stop()


def test_a_stuck_engine_is_not_ready(predictor: Predictor) -> None:
    made = Around(predictor, rows=slow(predictor), limits=Limits(stuck=0.05))
    Slow.pause, before = 0.5, Slow.pause
    made.engine.start()

    async def work(client: httpx.AsyncClient) -> None:
        task, gone, _ = await started(made, {"prompt": [5], "max_tokens": 5})
        await asyncio.sleep(0.3)
        answer = await client.get("/health/ready")
        assert refused(answer, 503)["code"] == "stuck" and "retry-after" in answer.headers
        gone.set()
        await asyncio.wait_for(task, 3)

    try:
        made.run(work)
    finally:
        Slow.pause = before
        made.engine.stop()
