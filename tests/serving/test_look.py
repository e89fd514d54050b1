"""/look: the page of `anyformer look` over a served model, behind the same door, and never in the way of a text."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch
from starlette.requests import Request

from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.capture import look
from anyformer.inspection.given import TEXT
from anyformer.inspection.look_worker import MOST_WAITING, POLITE, LookWorker, switch_interval
from anyformer.inspection.mounted_app import BUDGET, RING, TYPED, MountedLook
from anyformer.inspection.views import views
from anyformer.inspection.web_files import web_files
from anyformer.serving.app import PATHS
from anyformer.serving.auth import AuthMiddleware
from tests.inspection import models
from tests.serving.folders import Folders
from tests.serving.server import KEY, LEAKS, Server
from tests.serving.test_app import URL, Around

BEARER = {"Authorization": f"Bearer {KEY}"}
ADDRESSES = ["/look", "/look/", "/look/look.css", "/look/app.js", "/look/api/manifest", "/look/api/view/map",
             "/look/api/new", "/look/nothing"]  # fmt: skip


def basic(password: str, name: str = "me") -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


@pytest.fixture(scope="module")
def around() -> Iterator[Around]:
    with Around(models.gpt()) as one:
        yield one


# ---------------------------------------------------------------- the page


def test_the_page_its_files_and_its_answers_are_there(around: Around) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        for path in ("/look", "/look/"):
            page = await client.get(path)
            policy = page.headers["content-security-policy"]
            assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
            assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        for name in web_files():
            file = await client.get(f"/look/{name}")
            assert file.status_code == 200 and file.text == web_files()[name].text
            assert file.headers["x-content-type-options"] == "nosniff"
        told = (await client.get("/look/api/manifest")).json()
        assert told["input"] == TEXT and told["renew"] and told["title"].startswith("writer")
        answer = await client.get("/look/api/view/map?site=1&head=2&query=3")
        served = ViewAnswer.from_bytes(answer.content)
        own = views()["map"].answer(look(around.served.predictor, TEXT), Query(1, 2, 3))
        assert served.facts == own.facts and served.arrays["map"].tobytes() == own.arrays["map"].tobytes()
        assert "head" in answer.headers["look-reads"].split(",")

    around.run(work)


def test_nothing_is_computed_before_somebody_asks() -> None:
    one = MountedLook(models.gpt(), "gpt")
    assert one.respond("GET", "/look").status == 200 and not one.started
    assert one.respond("GET", "/look/api/manifest").status == 200 and one.started


@pytest.mark.parametrize("kind", models.KINDS)
def test_every_kind_of_model_starts_with_an_example(kind: str) -> None:
    one = MountedLook(models.predictor(kind), kind)
    told = json.loads(one.respond("GET", "/look/api/manifest").body)
    applying = [view["name"] for view in told["views"] if view["applies"]]
    assert {"map", "heads", "steps"} <= set(applying)
    for name in applying:
        assert one.respond("GET", f"/look/api/view/{name}").status == 200, name


def test_a_run_of_images_takes_the_example_and_another_image(folders: Folders) -> None:
    import anyformer

    one = MountedLook(anyformer.load(folders["pictures"]), "pictures")
    told = json.loads(one.respond("GET", "/look/api/manifest").body)
    assert told["kind"] == "image"
    from anyformer.data.files.data_urls import example_picture

    sent = json.dumps({"image": example_picture().partition(",")[2]}).encode()
    answer = one.respond("POST", "/look/api/new", sent)
    assert answer.status == 200 and json.loads(answer.body)["capture"] == "2"


def test_a_new_input_has_the_budget_and_the_oldest_go() -> None:
    one = MountedLook(models.gpt(), "gpt")
    for text in ("a dog", "an old dog", "a young boy"):
        assert one.respond("POST", "/look/api/new", json.dumps({"input": text}).encode()).status == 200
    assert len(one.captures) == RING and "1" not in one.captures
    assert {capture.budget for capture in one.captures.values()} == {256_000_000} and BUDGET == "256MB"
    answer = one.respond("POST", "/look/api/new", json.dumps({"input": "an old dog " * 1500}).encode())
    assert answer.status == 413 and f"{TYPED:,}" in json.loads(answer.body)["fix"]


@pytest.mark.parametrize("kind", ["ft", "gpt"])
def test_a_text_that_is_posted_is_never_the_path_of_a_file(kind: str) -> None:
    one = MountedLook(models.predictor(kind), kind)
    path = str(models.table_file())
    for value in (path, json.dumps(path), [path], json.dumps([path]), {"age": path}, {"path": path}):
        answer = one.respond("POST", "/look/api/new", json.dumps({"input": value}).encode())
        told = json.loads(answer.body)
        assert (answer.status == 400 and not LEAKS.search(told["error"].replace(path, ""))) or (
            kind == "gpt" and told["input"] == value
        )
    if kind == "ft":  # control: Python may name a file
        assert look(one.predictor, path).batch > 1
        row = one.respond("POST", "/look/api/new", json.dumps({"input": json.dumps(models.ROW)}).encode())
        assert row.status == 200 and "41" in json.loads(row.body)["input"]


def test_an_image_of_very_many_pixels_is_refused_unread() -> None:
    import io

    from PIL import Image

    data = io.BytesIO()
    Image.new("1", (8192, 4096)).save(data, "PNG")
    body = json.dumps({"image": base64.b64encode(data.getvalue()).decode()}).encode()
    answer = MountedLook(models.vit(), "vit").respond("POST", "/look/api/new", body)
    assert len(body) < 50_000 and answer.status == 413 and "pixels" in json.loads(answer.body)["error"]


# ---------------------------------------------------------------- the door


async def through_the_door(app: Any, path: str, method: str = "GET", **headers: Any) -> httpx.Response:
    door = AuthMiddleware(app, hosts={"127.0.0.1"}, key=KEY)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(door), base_url=URL) as client:
        return await client.request(method, path, headers=headers)


@pytest.mark.parametrize("path", ADDRESSES)
def test_the_key_is_asked_for_on_every_address_of_the_page(around: Around, path: str) -> None:
    unread = [{"Authorization": words} for words in (f"Basic {KEY}", "Basic", b"Basic \xe9", f"Bearer {KEY}x")]
    wrong: list[dict[str, Any]] = [{}, basic("x"), basic(KEY[:-1]), basic(""), basic(f"{KEY}:"), *unread]
    for headers in wrong:
        for method in ("GET", "POST", "HEAD"):
            refused = asyncio.run(through_the_door(around.app, path, method, **headers))
            assert refused.status_code == 401, (method, headers)
            assert refused.headers["www-authenticate"].startswith("Basic ")  # a browser asks for the password
    for headers in (BEARER, basic(KEY), basic(KEY, "")):
        assert asyncio.run(through_the_door(around.app, path, **headers)).status_code in (200, 404)


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/lookout", "/look%2fapi/../../v1/models", "/Look"])
def test_a_password_opens_nothing_but_the_page(around: Around, path: str) -> None:
    """A browser sends a password along by itself, also for a page of another site."""
    refused = asyncio.run(through_the_door(around.app, path, **basic(KEY)))
    assert refused.status_code in (401, 404) and "data" not in refused.text and "anyformer_" not in refused.text
    if path in ("/v1/models", "/metrics"):
        assert refused.headers["www-authenticate"] == "Bearer"
        assert asyncio.run(through_the_door(around.app, path, **BEARER)).status_code == 200  # control


def test_a_page_of_another_site_can_have_nothing_computed(around: Around) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        for headers in ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, {"Origin": "http://evil.com"}):
            refused = await client.get("/look/api/view/map", headers=headers)
            assert refused.status_code == 400 and set(refused.json()) == {"error", "fix"}
        form = {"Content-Type": "text/plain"}
        assert (await client.post("/look/api/new", content=b'{"input": "a dog"}', headers=form)).status_code == 415
        own = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Origin": URL}
        assert (await client.get("/look/api/view/map", headers=own)).status_code == 200  # control
        linked = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        assert (await client.get("/look", headers=linked)).status_code == 200

    around.run(work)


def test_other_routes_are_as_they_were(around: Around) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        assert not any("look" in path for path in (await client.get("/openapi.json")).json()["paths"])
        assert not any(path.path.startswith("/look") for path in PATHS)
        for path in ("/lookout", "/v1/look", "/"):
            missing = await client.get(path)
            assert missing.status_code == 404 and missing.json()["error"]["type"] == "not_found_error"

    around.run(work)


# ---------------------------------------------------------------- not in the way


class Held:
    """A look that takes as long as a test wants."""

    def __init__(self, around: Around, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.began = threading.Event(), threading.Event()
        self.running = self.most = self.done = 0
        app, own = around.state.look.app, around.state.look.app.respond

        def slow(method: str, address: str, body: bytes = b"") -> Any:
            self.running += 1
            self.most = max(self.most, self.running)
            self.began.set()
            self.go.wait(30)
            self.running, self.done = self.running - 1, self.done + 1
            return own(method, address, body)

        monkeypatch.setattr(app, "respond", slow)


def test_texts_are_written_while_a_look_takes_its_time(around: Around, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(around, monkeypatch)

    async def work(client: httpx.AsyncClient) -> None:
        looks = [asyncio.create_task(client.get(f"/look/api/view/map?head={i}")) for i in range(4)]
        await asyncio.to_thread(held.began.wait, 10)
        for _ in range(3):
            text = await client.post("/v1/completions", json={"prompt": "An old", "max_tokens": 4})
            assert text.status_code == 200 and text.json()["usage"]["completion_tokens"] == 4
        assert held.done == 0 and not any(one.done() for one in looks)  # control: they are still at it
        held.go.set()
        assert [one.status_code for one in await asyncio.gather(*looks)] == [200] * 4

    around.run(work)
    assert held.most == 1  # one after the other


def test_who_asks_for_too_much_is_told_to_wait(around: Around, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(around, monkeypatch)

    async def work(client: httpx.AsyncClient) -> None:
        looks = [asyncio.create_task(client.get("/look/api/view/map")) for _ in range(MOST_WAITING + 4)]
        await asyncio.to_thread(held.began.wait, 10)
        done, _ = await asyncio.wait(looks, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            assert one.result().status_code == 429 and one.result().headers["retry-after"]
            assert "error" in one.result().json()
        held.go.set()
        statuses = [one.status_code for one in await asyncio.gather(*looks)]
        assert set(statuses) == {200, 429} and statuses.count(200) in (MOST_WAITING, MOST_WAITING + 1)

    around.run(work)


def test_who_leaves_while_waiting_costs_nothing(around: Around, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(around, monkeypatch)
    route = around.state.look

    def request(*messages: str) -> Request:
        scope = {"type": "http", "method": "GET", "path": "/look/api/view/map", "raw_path": b"/look/api/view/map",
                 "query_string": b"", "headers": [(b"host", b"127.0.0.1")]}  # fmt: skip
        waiting = list(messages)

        async def receive() -> dict[str, Any]:
            if waiting:
                return {"type": waiting.pop(0)}
            await asyncio.sleep(30)
            return {"type": "http.request"}

        return Request(scope, receive)

    async def work(client: httpx.AsyncClient) -> None:
        first = asyncio.create_task(route.answer(request("http.request")))
        await asyncio.to_thread(held.began.wait, 10)
        left = await route.answer(request("http.request", "http.disconnect"))
        assert left.status_code == 400
        held.go.set()
        assert (await first).status_code == 200
        assert (await client.get("/look/api/view/map")).status_code == 200  # what came after has its turn

    around.run(work)
    assert held.done == 2  # the first and the last


def test_a_server_that_drains_starts_no_look(monkeypatch: pytest.MonkeyPatch, around: Around) -> None:
    monkeypatch.setattr(around.state, "draining", True)

    async def work(client: httpx.AsyncClient) -> None:
        answer = await client.get("/look/api/view/map")
        assert answer.status_code == 503 and answer.headers["retry-after"] and "shutting down" in answer.json()["error"]

    around.run(work)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_the_thread_steps_back_and_the_others_do_not() -> None:
    worker, found, done = LookWorker(), {}, threading.Event()

    def work() -> None:
        found["nice"] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        found["switch"] = sys.getswitchinterval()
        torch.ones(4) @ torch.ones(4)
        done.set()

    own, usual = os.getpriority(os.PRIO_PROCESS, 0), idle_switch_interval()
    assert worker.ask(work) and done.wait(10)
    assert found["nice"] == min(POLITE, 19) and found["switch"] < usual / 5
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own
    assert idle_switch_interval() == usual


def test_several_workers_give_the_switch_interval_back() -> None:
    usual = idle_switch_interval()
    first, second = LookWorker(), LookWorker()
    begun, release, other = threading.Event(), threading.Event(), threading.Event()
    assert first.ask(lambda: (begun.set(), release.wait(10))) and begun.wait(10)
    assert second.ask(other.set) and other.wait(10)  # its thread starts while the first is busy
    assert sys.getswitchinterval() < usual / 5
    release.set()
    assert idle_switch_interval() == usual


def idle_switch_interval() -> float:
    """The switch interval once no worker of this process is busy."""
    deadline = time.monotonic() + 10
    while switch_interval.busy:
        assert time.monotonic() < deadline, "a worker stays busy"
        time.sleep(0.005)
    return sys.getswitchinterval()


# ---------------------------------------------------------------- a real server


def test_a_served_model_has_its_page(writer: Server) -> None:
    assert f"look     {writer.url}/look" in writer.errors()
    assert writer.get("/look").status_code == 200
    before = writer.complete("The", max_tokens=8, temperature=0, seed=1)["text"]
    told = writer.get("/look/api/manifest").json()
    assert told["input"] == TEXT and len(told["sites"]) == 4
    shown = ViewAnswer.from_bytes(writer.get("/look/api/view/map?site=3&head=1").content)
    assert shown.arrays["map"].shape[0] == len(told["axes"][told["sites"][3]["queries"]]["tokens"])
    fresh = writer.post("/look/api/new", {"input": "The rose was"})
    assert fresh.status_code == 200 and fresh.json()["input"] == "The rose was"
    for path in ("/look/api/view/map?site=99", "/look/api/view/nothing", "/look/..%2fserver.py", "/look/index.html"):
        refused = writer.get(path)
        assert refused.status_code in (400, 404) and not LEAKS.search(refused.text), path
    assert writer.complete("The", max_tokens=8, temperature=0, seed=1)["text"] == before


def test_a_locked_server_asks_a_browser_for_the_key(locked: Server) -> None:
    assert "any name and the key as password" in locked.errors() and KEY not in locked.errors()
    for path in ADDRESSES:
        assert locked.get(path).status_code == 401
    assert locked.get("/look", **basic(KEY)).status_code == 200
    assert locked.get("/look/api/manifest", **basic(KEY)).json()["input"] == TEXT
    assert locked.get("/v1/models", **basic(KEY)).status_code == 401
