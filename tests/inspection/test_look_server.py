"""The page's server: what it answers, what it refuses, and that an answer names the parameters it read."""

from __future__ import annotations

import base64
import http.client
import io
import json
import re
from pathlib import Path

import pytest

from anyformer.errors import UserError
from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.capture import look
from anyformer.inspection.look_app import MOST_BODY, RING, LookApp
from anyformer.inspection.manifest import KEYS
from anyformer.inspection.read_query import NotedQuery, answered
from anyformer.inspection.server import serve_look
from anyformer.inspection.views import views
from anyformer.inspection.web_files import web_files
from tests.inspection import models


@pytest.fixture(scope="module")
def capture():
    return look(models.gpt(), models.TEXT, name="gpt")


@pytest.fixture(scope="module")
def server(capture):
    with serve_look(capture) as running:
        yield running


def ask(server, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_the_page_and_its_files_are_served_with_their_types(server):
    status, headers, body = ask(server, "GET", "/")
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    nonce = policy.partition("'nonce-")[2].partition("'")[0]
    scripts = re.findall(r"<script[^>]*>", body.decode())
    assert sum(f'nonce="{nonce}"' in one for one in scripts) == 2  # all others are data, which nothing runs
    assert all(f'nonce="{nonce}"' in one or 'type="application/json"' in one for one in scripts)
    assert ask(server, "GET", "/")[1]["Content-Security-Policy"] != policy  # a nonce is used once
    for name in web_files():
        status, headers, body = ask(server, "GET", f"/look/{name}")
        wanted = "text/css" if name.endswith(".css") else "text/javascript"
        assert status == 200 and headers["Content-Type"].startswith(wanted), name
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_a_view_answers_what_python_answers(server, capture):
    status, headers, body = ask(server, "GET", "/look/api/view/map?site=1&head=2&query=3&key=1")
    assert status == 200
    served, own = ViewAnswer.from_bytes(body), views()["map"].answer(capture, Query(1, 2, 3, 1))
    assert served.facts == own.facts
    assert served.arrays["map"].tobytes() == own.arrays["map"].tobytes()
    assert headers["Look-Reads"].split(",") == ["head", "over", "show", "site"]


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1.evil.com:{port}", "127.0.0.1:1", "", "localhost"])
def test_another_name_for_this_machine_is_refused(server, host):
    headers = {"Host": host.format(port=server.server_port)}
    status, _, body = ask(server, "GET", "/look/api/manifest", headers=headers)
    assert status == 400 and set(json.loads(body)) == {"error", "fix"}
    own = {"Host": f"localhost:{server.server_port}"}
    assert ask(server, "GET", "/look/api/manifest", headers=own)[0] == 200  # control


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.com"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Content-Type": "text/plain"},
    ],
)
def test_another_sites_page_cannot_post(server, headers):
    body = json.dumps({"input": "a dog"})
    assert ask(server, "POST", "/look/api/new", body, {"Content-Type": "application/json"} | headers)[0] == 400


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_sites_page_cannot_have_views_computed(server, site):
    path = "/look/api/view/map"
    assert ask(server, "GET", path, headers={"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"})[0] == 400
    assert ask(server, "GET", path, headers={"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"})[0] == 200
    assert ask(server, "GET", "/", headers={"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"})[0] == 200  # a link


@pytest.mark.parametrize(
    "path, status",
    [
        ("/look/api/view/nothing", 400),
        ("/look/api/view/map?site=99", 400),
        ("/look/api/view/map?site=-1", 400),
        ("/look/api/view/map?site=1.5", 400),
        ("/look/api/view/map?site=nan", 400),
        ("/look/api/view/map?head=99", 400),
        ("/look/api/view/map?query=99", 400),
        ("/look/api/view/map?key=99999999999999", 400),
        ("/look/api/view/map?show=" + "x" * 3000, 400),
        ("/look/api/view/map?show=everything", 400),
        ("/look/api/view/map?" + "&".join(f"a{i}=1" for i in range(100)), 400),
        ("/look/api/view/map?capture=77", 404),
        ("/look/api/view/../../server", 400),
        ("/look/../server.py", 404),
        ("/look/views/../answer.py", 404),
        ("/look/%2e%2e/answer.py", 404),
        ("/etc/passwd", 404),
        ("/look/index.html", 404),
    ],
)
def test_what_is_not_there_or_beyond_its_bounds_is_refused_as_json(server, path, status):
    found, headers, body = ask(server, "GET", path)
    assert found == status, body
    assert headers["Content-Type"].startswith("application/json") and set(json.loads(body)) == {"error", "fix"}


@pytest.mark.parametrize("body", [b"", b"x", b"[]", b"3", b"{}", b'{"input": ""}', b'{"input": 3}', b"[" * 100_000])
def test_a_bad_input_is_refused_as_json(server, body):
    status, _, told = ask(server, "POST", "/look/api/new", body, {"Content-Type": "application/json"})
    assert status == 400 and set(json.loads(told)) == {"error", "fix"}


def test_a_large_body_is_refused_unread(server):
    headers = {"Content-Type": "application/json", "Content-Length": str(MOST_BODY + 1)}
    assert ask(server, "POST", "/look/api/new", None, headers)[0] == 413


def test_a_new_input_is_a_new_capture_and_old_ones_go(capture):
    app = LookApp(capture)
    for number in range(2, RING + 2):
        answer = app.respond("POST", "/look/api/new", json.dumps({"input": f"a dog {number}"}).encode())
        told = json.loads(answer.body)
        assert answer.status == 200 and told["capture"] == str(number) and told["input"] == f"a dog {number}"
    assert len(app.captures) == RING and "1" not in app.captures
    assert app.respond("GET", "/look/api/manifest?capture=1").status == 404
    assert json.loads(app.respond("GET", "/look/api/manifest").body)["capture"] == str(RING + 1)


def test_a_second_input_is_put_beside_the_one_that_is_shown(capture):
    app = LookApp(look(models.gpt(), models.TEXT, name="gpt"))

    def post(body, address="/look/api/new"):
        answer = app.respond("POST", address, json.dumps(body).encode())
        return answer.status, json.loads(answer.body)

    def compared(number):
        body = app.respond("GET", f"/look/api/view/compare?capture={number}&site=1&head=2").body
        return ViewAnswer.from_bytes(body)

    assert app.respond("GET", "/look/api/view/compare").status == 400
    status, told = post({"input": "An old cat and a young boy", "compare": True})
    assert status == 200 and told["capture"] == "2" and told["input"] == models.TEXT
    assert next(view for view in told["views"] if view["name"] == "compare")["applies"]
    own = look(models.gpt(), models.TEXT).compare(look(models.gpt(), "An old cat and a young boy"))
    assert compared(2).arrays["difference"] == pytest.approx(own.difference(1, 2).numpy(), abs=1e-6)
    assert app.respond("GET", "/look/api/view/compare?capture=1").status == 400  # what was shown before is as it was
    for text in ("one dog", "two dogs", "three dogs"):
        post({"input": text, "compare": True})
    assert compared(5).facts["others"] == ["three dogs", "two dogs", "one dog"]  # the newest first, and no more
    assert post({"input": "a cat", "compare": True}, "/look/api/new?capture=2")[1]["input"] == models.TEXT
    assert compared(6).facts["others"] == ["a cat", "An old cat and a young boy"]
    assert not app.captures["5"].others[0].others  # control: the second input itself is compared with nothing
    status, told = post({"input": "a dog"})
    assert status == 200 and not next(view for view in told["views"] if view["name"] == "compare")["applies"]
    assert post({"input": "", "compare": True})[0] == 400


def test_the_how_to_names_every_key():
    """The table of the how-to and the page's own list of keys are the same."""
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "look.md").read_text()
    cells = [
        cell.strip() for line in text.splitlines() if line.startswith("| `") for cell in line.strip("|").split("|")
    ]
    written = {does: keys.replace("`", "").split() for keys, does in zip(cells[::2], cells[1::2], strict=True)}
    assert written == {does: list(keys) for does, *keys in KEYS}


def test_an_image_comes_as_bytes_never_as_a_path(tmp_path):
    from PIL import Image

    app = LookApp(look(models.vit(), models.image(), name="vit"))
    Image.fromarray(models.image()).save(tmp_path / "x.png")
    assert app.respond("POST", "/look/api/new", json.dumps({"input": str(tmp_path / "x.png")}).encode()).status == 400
    assert app.respond("POST", "/look/api/new", json.dumps({"image": "bm8gaW1hZ2U="}).encode()).status == 400
    data = io.BytesIO()
    Image.fromarray(models.image()).save(data, "PNG")
    body = json.dumps({"image": base64.b64encode(data.getvalue()).decode()}).encode()
    assert app.respond("POST", "/look/api/new", body).status == 200


def test_our_own_fault_is_told_without_its_insides(capture, monkeypatch, caplog):
    def broken(capture, query):
        raise RuntimeError("a secret of the machine")

    monkeypatch.setattr(views()["map"], "answer", broken)
    answer = LookApp(capture).respond("GET", "/look/api/view/map")
    assert answer.status == 500 and b"secret" not in answer.body and "secret" in caplog.text


def test_a_port_in_use_is_a_user_error(server, capture):
    with pytest.raises(UserError, match="cannot be used"):
        serve_look(capture, port=server.server_port)


def test_a_noted_query_is_the_query_and_notes_what_is_read():
    noted = NotedQuery(Query(1, 2, 3, 4, {"scale": "log"}))
    assert noted.reads == ()
    assert noted.head == 2 and noted.choice("scale", "sqrt", ("sqrt", "log")) == "log" and not noted.flag("n")
    assert noted.reads == ("head", "n", "scale")
    assert noted.text() == Query(1, 2, 3, 4, {"scale": "log"}).text() and "*" in noted.reads


@pytest.mark.parametrize("kind", models.KINDS)
def test_an_answer_depends_on_nothing_but_what_it_read(kind):
    """Two queries that agree on the parameters read have the same answer: the page keeps answers by that."""
    capture = look(models.predictor(kind), models.inputs(kind), name=kind)
    for name, module in views().items():
        if module.applies(capture) is not None:
            continue
        _, reads = answered(module, capture, Query())
        other = {word: 1 for word in ("site", "head", "query", "key") if word not in reads}
        first, second = (answered(module, capture, query)[0] for query in (Query(), Query(**other)))
        if first.facts.get("keep") is False:
            continue
        assert first.arrays.keys() == second.arrays.keys(), name
        for array in first.arrays.keys() - {"milliseconds"}:  # a measured time differs from one time to the next
            assert first.arrays[array].tobytes() == second.arrays[array].tobytes(), f"{name}: {array}"
