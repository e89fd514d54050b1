"""Who may ask at all: the key on every route, odd paths and names, nothing told that is nobody's business."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path

import pytest

from tests.cli.trying import run
from tests.serving.folders import Folders
from tests.serving.server import KEY, LEAKS, Server, serving
from tests.serving.wire import Answer, ask, request

OPEN = {"/health/live"}
KNOWN = ["/v1/models", "/v1/models/x", "/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/predict",
         "/health/ready", "/metrics", "/openapi.json"]  # fmt: skip
ODD = ["/", "//v1/models", "/v1//models", "/v1/../v1/models", "//v1/..", "/%2e/v1/models", "/v1/%2e%2e/v1/models",
       "/v1%2fmodels", "/health/live/../../v1/models", "/health/live/..%2f..%2fmetrics", "/health/live%2f..%2fready",
       "/health/live/", "/health/live?x=/metrics", "/health/live#/metrics", "/health/live;/../metrics",
       "/HEALTH/LIVE", "/health/../metrics", "/metrics/", "/metrics?key=", "/docs", "/redoc", "/static/x",
       "/\\v1\\models", "/.%00/metrics", "http://127.0.0.1/metrics", "*", "/health/live\\..\\..\\metrics"]  # fmt: skip


def asked(server: Server, path: str, method: str = "GET", **headers: str) -> Answer:
    body = b"{}" if method in ("POST", "PUT", "PATCH") else None
    return asyncio.run(ask(server.port, path, body, method=method, **headers))


def routes(server: Server) -> list[str]:
    described = server.get("/openapi.json", Authorization=f"Bearer {KEY}").json()["paths"]
    return sorted({*described, *KNOWN})


def test_the_key_is_asked_for_on_every_route_and_every_method(locked: Server) -> None:
    assert len(routes(locked)) >= 9
    wrong = {"none": {}, "empty": {"Authorization": "Bearer "}, "wrong": {"Authorization": "Bearer x"},
             "longer": {"Authorization": f"Bearer {KEY}x"}, "shorter": {"Authorization": f"Bearer {KEY[:-1]}"},
             "basic": {"Authorization": f"Basic {KEY}"}, "bare": {"Authorization": KEY},
             "not ASCII": {"Authorization": "Bearer \xe9\xe8"}}  # fmt: skip
    for path in routes(locked):
        for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            for name, headers in wrong.items() if method in ("GET", "POST") else [("none", {})]:
                answer = asked(locked, path, method, **headers)
                if path in OPEN and method == "GET":
                    assert answer.status == 200
                elif path not in OPEN:
                    assert answer.status == 401, (path, method, name, answer.status)
                    assert "www-authenticate" in answer.headers
                    assert answer.json["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("path", ODD)
def test_odd_paths_open_nothing(locked: Server, path: str) -> None:
    live = asked(locked, "/health/live").body
    answer = asked(locked, path)
    # Either refused, or it is the one thing that is open to all.
    assert answer.status in (400, 401, 404, 405) or answer.body == live, (path, answer.status, answer.body[:200])
    assert b"anyformer_" not in answer.body and b'"data"' not in answer.body


def test_the_right_key_opens(locked: Server) -> None:
    assert KEY not in locked.errors() and KEY not in json.dumps(locked.line)
    for path in ("/v1/models", "/health/ready", "/metrics", "/openapi.json"):
        assert asked(locked, path, Authorization=f"Bearer {KEY}").status == 200
    assert asked(locked, "/v1/nothing", Authorization=f"Bearer {KEY}").status == 404
    assert asked(locked, "/v1/completions", Authorization=f"Bearer {KEY}").status == 405


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1", "a" * 300,
                                  "127.0.0.1@evil.example", "localhost.evil"])  # fmt: skip
def test_another_host_is_refused(writer: Server, host: str) -> None:
    """A page in a browser that names this machine under its own address (DNS rebinding) gets nothing."""
    for path in ("/v1/models", "/metrics"):
        answer = asyncio.run(ask(writer.port, path, host=host))
        assert 400 <= answer.status < 500, (host, answer.status, answer.body[:100])


def test_control_its_own_names_are_not(writer: Server) -> None:
    for host in ("127.0.0.1", f"127.0.0.1:{writer.port}", "localhost", f"localhost:{writer.port}"):
        assert asyncio.run(ask(writer.port, "/v1/models", host=host)).status == 200


def test_no_page_of_another_origin_may_read(writer: Server) -> None:
    answer = asked(writer, "/v1/models", Origin="https://evil.example")
    assert not any(name.startswith("access-control") for name in answer.headers)
    before = asked(writer, "/v1/completions", "OPTIONS", Origin="https://evil.example",
                   Access_Control_Request_Method="POST")  # fmt: skip
    assert not any(name.startswith("access-control-allow") for name in before.headers) and before.status >= 400


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_beyond_the_loopback_a_key_is_needed(folders: Folders, host: str) -> None:
    said = run("serve", folders["writer"], "--host", host, "--port", "0")
    assert said.code == 2 and said.out == "" and "Traceback" not in said.err
    (line,) = said.errors
    assert len(line) <= 300 and "--key" in line


WATCH = """
import os, sys
def seen(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "urllib.Request", "pickle.find_class"):
        with open(os.environ["SEEN"], "a") as file:
            file.write(f"{event} {args!r}\\n")
sys.addaudithook(seen)
"""


def test_nothing_is_fetched(folders: Folders, tmp_path: Path) -> None:
    """Watched from inside by an audit hook and from outside by the list of open lines."""
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    seen = tmp_path / "seen"
    seen.touch()
    (tmp_path / "key").write_text(f"{KEY}\n")
    env = {"PYTHONPATH": str(tmp_path), "SEEN": str(seen)}
    with serving(folders["pictures"], "--key-file", str(tmp_path / "key"), env=env) as server:
        assert server.get("/v1/models").status_code == 401
        with socket.create_server(("127.0.0.1", 0)) as trap:
            trap.settimeout(0.5)
            port = trap.getsockname()[1]
            for url in (f"http://127.0.0.1:{port}/a.png", f"https://127.0.0.1:{port}/a.png", "file:///etc/hostname",
                        f"ftp://127.0.0.1:{port}/a", "//127.0.0.1/a.png", f"\\\\127.0.0.1@{port}\\a.png",
                        "/etc/hostname", "../../etc/hostname", f"data:image/png,http://127.0.0.1:{port}/"):  # fmt: skip
                for row in (url, {"image": url}):
                    answer = server.post("/v1/predict", {"rows": [row]}, Authorization=f"Bearer {KEY}")
                    assert answer.status_code == 400, (url, answer.text)
                    assert not LEAKS.search(answer.text)
            with pytest.raises(TimeoutError):
                trap.accept()
        assert established(server.pid) <= {server.port}
        assert KEY not in server.errors() and KEY not in json.dumps(server.line)
    assert [line for line in seen.read_text().splitlines() if "127.0.0.1" not in line] == []
    assert "pickle" not in seen.read_text() and f"{port}" not in seen.read_text()


def test_control_the_hook_sees_a_connection(tmp_path: Path) -> None:
    import subprocess

    (tmp_path / "sitecustomize.py").write_text(WATCH)
    code = "import socket; s = socket.socket(); s.settimeout(.1); s.connect_ex(('127.0.0.1', 9))"
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(tmp_path),
                   "SEEN": str(tmp_path / "seen")}, check=True, timeout=60)  # fmt: skip
    assert "socket.connect" in (tmp_path / "seen").read_text()


def established(pid: int) -> set[int]:
    """Local ports of a process's open TCP lines."""
    own = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            own.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            continue
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if f"socket:[{words[9]}]" in own:
                ports.add(int(words[1].rpartition(":")[2], 16))
    return ports


@pytest.mark.parametrize("raw", [
    b"GET / HTTP/1.1\r\n\r\n", b"GET /v1/models HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00",
    b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X-A: " + b"a" * 200_000 + b"\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    + (b"10000\r\n" + b"x" * 65536 + b"\r\n") * 100 + b"0\r\n\r\n",
    request("/v1/completions", b"{}", Content_Encoding="gzip"), request("/v1/completions", b"{}", Expect="200-maybe"),
], ids=range(13))  # fmt: skip
def test_broken_http(writer: Server, raw: bytes) -> None:
    """Refused or closed within the time a request may take; the server goes on."""
    with socket.create_connection(("127.0.0.1", writer.port), timeout=15) as sock:
        try:
            sock.sendall(raw)
            sock.shutdown(socket.SHUT_WR)
            answer = sock.recv(65536)
        except OSError:
            answer = b""
    status = int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0
    assert status == 0 or 400 <= status < 500, answer[:300]
    assert not LEAKS.search(answer.decode("latin-1"))
    assert writer.get("/health/live").status_code == 200
