"""Every field of every request is bounded, and each bound holds at once and without holding anybody else up."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import httpx
import pytest
from pydantic import BaseModel, ConfigDict, Field

from anyformer.serving import request_schemas
from tests.serving.bounds import beyond, branches, requests, unbounded, within
from tests.serving.figures import percentile
from tests.serving.server import LEAKS, Server

WHOLE_BODY = ("invalid_json", "too_many_parts")  # what is said of a body before its fields are looked at
VALID: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    "/v1/completions": (request_schemas.CompletionRequest, {"prompt": "The", "max_tokens": 1}),
    "/v1/chat/completions": (request_schemas.ChatRequest,
                             {"messages": [{"role": "user", "content": "The"}], "max_tokens": 1}),
    "/v1/embeddings": (request_schemas.EmbeddingRequest, {"input": "The"}),
}  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize("model", requests(), ids=lambda model: model.__name__)
def test_every_field_has_a_bound(model: type[BaseModel]) -> None:
    assert unbounded(model) == []


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class LooseInt(Closed):
    n: Annotated[int, Field(ge=0)]


class LooseFloat(Closed):
    t: float


class LooseText(Closed):
    text: str | None = None


class LooseList(Closed):
    items: list[Annotated[str, Field(max_length=3)]]


class LooseItems(Closed):
    items: Annotated[list[int], Field(max_length=3)]


class LooseKeys(Closed):
    map: Annotated[dict[str, bool], Field(max_length=3)]


class LooseMap(Closed):
    map: dict[Annotated[str, Field(max_length=3)], bool]


class Anything(Closed):
    value: Any


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    flag: bool = False


class Inner(Closed):
    inner: LooseInt | None = None


@pytest.mark.quick
@pytest.mark.parametrize(
    "model", [LooseInt, LooseFloat, LooseText, LooseList, LooseItems, LooseKeys, LooseMap, Anything, Open, Inner],
    ids=lambda model: model.__name__,
)  # fmt: skip
def test_control_a_field_without_a_bound_is_seen(model: type[BaseModel]) -> None:
    assert unbounded(model)


def tries(path: str, finder: Any) -> Iterator[tuple[str, str]]:
    """Field and JSON text, for every field of a route's request and every kind it may be of."""
    model, _ = VALID[path]
    whole = model.model_json_schema()
    for name, schema in whole["properties"].items():
        kinds = list(branches(schema, whole))
        for kind in kinds:
            for text in finder(kind):
                if finder is within or not any(fits(text, other) for other in kinds):
                    yield name, text


def fits(text: str, kind: Any) -> bool:
    """Whether another kind of the same field would take it (a list of ids is a prompt too)."""
    begins = {"[": "array", "{": "object", '"': "string"}.get(text[0])
    if text in ("true", "false"):
        return kind.get("type") == "boolean"
    if begins == "array":
        ones = text.startswith("[1") and kind.get("items", {}).get("type") == "integer"
        return kind.get("type") == "array" and ones and text.count(",") < kind["maxItems"]
    if begins is not None:
        return kind.get("type") == begins and ("enum" not in kind and "maxLength" in kind and len(text) < 99)
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return kind.get("type") == "number" and kind.get("minimum", -1e999) <= value <= kind.get("maximum", 1e999)


def ask(server: Server, path: str, name: str, text: str) -> tuple[httpx.Response, float]:
    """A valid body with one field as given."""
    _, valid = VALID[path]
    rest = {key: value for key, value in valid.items() if key != name}
    body = json.dumps(rest)[:-1] + (", " if rest else "") + f"{json.dumps(name)}: {text}}}"
    began = time.perf_counter()
    answer = server.client.post(path, content=body.encode(), headers={"Content-Type": "application/json"})
    return answer, time.perf_counter() - began


class Probe:
    """Asks whether the server lives, 20 times a second, and notes how long each answer took."""

    def __init__(self, server: Server) -> None:
        self.url, self.took, self.stop = f"{server.url}/health/live", list[float](), threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        with httpx.Client(timeout=10, trust_env=False) as client:
            while not self.stop.wait(0.05):
                began = time.perf_counter()
                assert client.get(self.url).status_code == 200
                self.took.append(time.perf_counter() - began)

    def __enter__(self) -> Probe:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        until = time.monotonic() + 5
        while len(self.took) < 5 and time.monotonic() < until:
            time.sleep(0.02)
        self.stop.set()
        self.thread.join()


def refusals(server: Server, path: str) -> tuple[float, float]:
    """Every try beyond a bound is refused by name; how long that took, and the life signs meanwhile: 95th percentiles.

    A shared machine stops any process for a moment now and then, so the worst of them says nothing about the code.
    """
    took = []
    with Probe(server) as probe:
        for name, text in tries(path, beyond):
            answer, seconds = ask(server, path, name, text)
            assert 400 <= answer.status_code < 500, (name, text[:60], answer.status_code, answer.text[:200])
            error = answer.json()["error"]
            assert name in (error["message"] + str(error["param"])) or error["code"] in WHOLE_BODY, (text[:60], error)
            assert not LEAKS.search(answer.text) and len(error["message"]) <= 300
            took.append(seconds)
    return percentile(took, 0.95), percentile(probe.took, 0.95)


@pytest.mark.alone
@pytest.mark.parametrize("path", VALID)
def test_what_is_beyond_a_bound_is_refused_at_once(talker: Server, path: str) -> None:
    ask(talker, path, "model", json.dumps(talker.line["model"]))  # warm
    took, alive = refusals(talker, path)
    assert took <= 0.1 and alive <= 0.05, (took, alive)


@pytest.mark.parametrize("path", VALID)
def test_what_is_at_a_bound_is_answered(talker: Server, path: str) -> None:
    for name, text in tries(path, within):
        if name == "n" and text != "1":
            text = "8"  # as many texts as are allowed would take long, and prove nothing more
        answer, _ = ask(talker, path, name, text)
        assert answer.status_code < 500, (name, text[:60], answer.status_code, answer.text[:200])


HOSTILE = {
    "deep nesting": b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"json_schema": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b', "prompt": "x"}',
    "not JSON": b"prompt=The",
    "empty": b"",
    "half": b'{"prompt": "The',
    "not UTF-8": b'{"prompt": "\xff\xfe"}',
    "a lone surrogate": b'{"prompt": "\\ud800"}',
    "NUL": b'{"prompt": "\\u0000", "max_tokens": 1}',
    "NUL byte": b'{"prompt": "\x00"}',
    "a list": b"[]",
    "a number": b"17",
    "null": b"null",
    "twice the same field": b'{"prompt": "a", "prompt": "b", "max_tokens": 1}',
    "a long number": b'{"prompt": "a", "seed": ' + b"9" * 5_000 + b"}",
    "a long fraction": b'{"prompt": "a", "temperature": 0.' + b"9" * 100_000 + b"}",
    "many fields": b'{"prompt": "a", ' + b", ".join(b'"f%d": 1' % i for i in range(100_000)) + b"}",
    "as many fields as fit": b'{"prompt": "a", ' + b",".join(b'"%d":1' % i for i in range(370_000)) + b"}",
    "many wrong items": b'{"prompt": [' + b",".join([b"{}"] * 1_000_000) + b"]}",
    "many lists": b'{"prompt": [' + b",".join([b"[1]"] * 1_000_000) + b"]}",
    "many names that end oddly": b"{" + b",".join(rb'"%d\\":1' % i for i in range(300_000)) + b"}",
    "many wrong messages": b'{"messages": [' + b",".join([b"{}"] * 1000) + b"]}",
    "a long name": b'{"prompt": "a", "' + b"x" * 1_000_000 + b'": 1}',
    "a long text": b'{"prompt": "' + b"The film " * 110_000 + b'", "max_tokens": 1}',
    "one long word": b'{"prompt": "' + b"a" * 1_000_000 + b'", "max_tokens": 1}',
    "a large body": b'{"prompt": "' + b"x" * 8_000_000 + b'"}',
}


@pytest.mark.alone
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_bodies(talker: Server, what: str) -> None:
    with Probe(talker) as probe:
        for path in VALID:
            answer = talker.client.post(path, content=HOSTILE[what], headers={"Content-Type": "application/json"})
            assert answer.status_code == 200 or 400 <= answer.status_code < 500, (path, answer.text[:300])
            if answer.status_code != 200:
                assert not LEAKS.search(answer.text) and answer.json()["error"]["message"]
    assert percentile(probe.took, 0.5) <= 0.05, sorted(probe.took)


HEAVY: dict[str, tuple[str, Callable[[int], dict[str, Any]], set[int]]] = {
    "log-probabilities of long prompts": ("/v1/completions", lambda limit: {
        "prompt": [[5 + at] * (limit // 2) for at in range(2)], "max_tokens": 0, "echo": True, "logprobs": 20}, {200}),
    "the same as a stream": ("/v1/completions", lambda limit: {
        "prompt": [[5 + at] * (limit // 2) for at in range(2)], "max_tokens": 0, "echo": True, "logprobs": 20,
        "stream": True}, {200}),
    "two million ids": ("/v1/completions", lambda limit: {"prompt": [[7] * 131_000] * 15}, {400}),
    "many long prompts": ("/v1/completions", lambda limit: {"prompt": ["The film was, " * 285] * 128,
                                                            "max_tokens": limit - 1}, {400}),
    "a long conversation": ("/v1/chat/completions", lambda limit: {"messages": [
        {"role": "user", "content": "The film was. " * 60}] * 128, "max_tokens": 1}, {400, 429}),
    "vectors of many texts": ("/v1/embeddings", lambda limit: {"input": ["The film was " * 40] * 32}, {200}),
}  # fmt: skip


def stall(server: Server, path: str, body: bytes, statuses: set[int]) -> float:
    """The slowest sign of life while a heavy request is dealt with."""
    with Probe(server) as probe:
        answer = server.client.post(path, content=body, headers={"Content-Type": "application/json"}, timeout=60)
    assert answer.status_code in statuses, (answer.status_code, answer.text[:300])
    return max(probe.took)


@pytest.mark.alone
@pytest.mark.parametrize("what", HEAVY)
def test_heavy_requests_hold_nobody_up(served: Callable[..., Server], what: str) -> None:
    """Best of three: a shared machine stops any process for a moment now and then."""
    server = served("patient")
    path, make, statuses = HEAVY[what]
    body = json.dumps(make(server.line["context"]), separators=(",", ":")).encode()
    assert len(body) < 4 * 2**20
    found = list[float]()
    while len(found) < 3 and (not found or found[-1] > 0.1):
        found.append(stall(server, path, body, statuses))
    assert min(found) <= 0.1, found


@pytest.mark.quick
def test_a_prompt_too_long_is_told_with_its_tokens_and_the_limit(talker: Server) -> None:
    limit = talker.line["context"]
    for tokens in (limit, limit + 1, 20 * limit):
        answer = talker.post("/v1/completions", {"prompt": [5] * tokens, "max_tokens": 1})
        error = answer.json()["error"]
        assert answer.status_code == 400, answer.text
        assert str(limit) in error["message"].replace(",", "") and error["param"] == "prompt", error
        assert limit in error.values() and tokens in error.values(), error
    whole = talker.complete([5] * (limit - 1), max_tokens=1)
    assert whole["finish_reason"] in ("length", "stop")
    # Without a number, what fits is written, and no more.
    assert talker.complete([5] * (limit - 3), temperature=0)["finish_reason"] in ("length", "stop")
