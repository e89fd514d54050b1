"""A request may ask to be looked at: its answer has a link, and the page shows exactly what was read and written."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
import torch

from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.capture import look
from anyformer.inspection.mounted_app import FINISHED, MountedLook
from anyformer.inspection.views import views
from tests.inspection import models
from tests.serving.test_app import Around

ASKED = {"prompt": models.TEXT, "max_tokens": 5, "temperature": 0.0, "look": True}


@pytest.fixture(scope="module")
def around() -> Iterator[Around]:
    with Around(models.gpt()) as one:
        yield one


async def manifest(client: httpx.AsyncClient, url: str) -> httpx.Response:
    """What the page of a link asks for first: the part behind # stays in the browser."""
    path, _, selection = url.partition("#")
    assert path == "/look"
    return await client.get(f"/look/api/manifest?{selection}")


def test_the_page_of_a_request_has_its_prompt_and_its_output(around: Around) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        answer = (await client.post("/v1/completions", json=ASKED)).json()
        link = answer["look"]
        assert link["id"] == answer["id"] and link["url"] == f"/look#capture={answer['id']}"
        told = (await manifest(client, link["url"])).json()
        words = around.served.predictor.require_tokenizer()
        ids = [token["id"] for token in told["axes"][""]["tokens"]]
        prompt = words.encode(models.TEXT)
        assert ids[: len(prompt)] == prompt and len(ids) == len(prompt) + answer["usage"]["completion_tokens"]
        assert words.decode(ids[len(prompt) :]) == answer["choices"][0]["text"]
        assert told["input"] == words.decode(ids) and told["capture"] == answer["id"]
        shown = await client.get(f"/look/api/view/map?site=1&head=2&capture={answer['id']}")
        own = views()["map"].answer(look(around.served.predictor, torch.tensor([ids])), Query(1, 2))
        assert ViewAnswer.from_bytes(shown.content).arrays["map"].tobytes() == own.arrays["map"].tobytes()

    around.run(work)


def test_streams_and_chats_have_the_link_too(around: Around) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        streamed = (await client.post("/v1/completions", json=ASKED | {"stream": True})).text
        events = [json.loads(line[6:]) for line in streamed.split("\n\n") if line.startswith("data: {")]
        assert events and all(event["look"]["id"] == event["id"] for event in events)
        assert (await manifest(client, events[0]["look"]["url"])).status_code == 200
        chat = {"messages": [{"role": "user", "content": "a dog"}], "max_tokens": 3, "look": True}
        answer = (await client.post("/v1/chat/completions", json=chat)).json()
        assert (await manifest(client, answer["look"]["url"])).json()["capture"] == answer["id"]

    around.run(work)


def test_a_request_that_does_not_ask_is_not_kept(around: Around) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        for more in ({"look": False}, {}):
            plain = {name: value for name, value in ASKED.items() if name != "look"} | more
            answer = (await client.post("/v1/completions", json=plain)).json()
            assert "look" not in answer
            gone = await client.get(f"/look/api/manifest?capture={answer['id']}")
            assert gone.status_code == 404 and "no longer kept" in gone.json()["error"]
        wrong = await client.post("/v1/completions", json=ASKED | {"look": {"layers": [0]}})
        assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "look"

    around.run(work)


def test_the_page_itself_does_not_show_what_others_asked(around: Around) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        answer = (await client.post("/v1/completions", json=ASKED)).json()
        assert (await manifest(client, answer["look"]["url"])).status_code == 200
        told = (await client.get("/look/api/manifest")).json()
        assert told["capture"].isdigit() and told["capture"] != answer["id"]

    around.run(work)


def test_what_is_kept_is_bounded() -> None:
    one = MountedLook(models.gpt(), "gpt")
    for number in range(FINISHED + 4):
        one.keep(f"cmpl-{number}", [5, 6, 7, number], None)
    one.keep("cmpl-empty", [], None)  # cancelled before its prompt was read
    assert len(one.finished) == FINISHED and not one.started and "cmpl-empty" not in one.finished
    assert one.respond("GET", "/look/api/manifest?capture=cmpl-3").status == 404
    for number in (10, 11):
        assert one.respond("GET", f"/look/api/manifest?capture=cmpl-{number}").status == 200
    assert [name for name in one.captures if not name.isdigit()] == ["cmpl-11"]  # one capture of a request at a time
    assert one.respond("GET", "/look/api/manifest?capture=cmpl-10").status == 200  # made again from its tokens


def test_an_encoder_decoder_shows_its_source_and_what_it_wrote() -> None:
    predictor = models.predictor("t5")
    source = predictor.require_tokenizer().encode(models.TEXT)
    own = look(predictor, models.TEXT)
    written = own.token_ids("decoder")
    one = MountedLook(predictor, "t5")
    one.keep("cmpl-1", written, source)
    told = json.loads(one.respond("GET", "/look/api/manifest?capture=cmpl-1").body)
    assert [token["id"] for token in told["axes"]["encoder"]["tokens"]] == source
    assert [token["id"] for token in told["axes"]["decoder"]["tokens"]] == written
    assert told["input"].strip() == models.TEXT
