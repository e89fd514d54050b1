"""Servers and requests off the beaten track: other addresses, bombs in pictures, tiny vocabularies, an early signal."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import io
import math
import signal
import struct
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

import anyformer
from anyformer.checkpoints.folder import Opened
from anyformer.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from anyformer.inference.predictor import Predictor
from tests.attack.trailers import MOST_GROWTH, watched
from tests.serving.folders import Folders
from tests.serving.server import KEY, LEAKS, Server, serving
from tests.serving.wire import ask

# ---------------------------------------------------------------- addresses


def test_the_loopback_of_ipv6(folders: Folders) -> None:
    with serving(folders["writer"], "--host", "::1") as server:
        assert server.url == f"http://[::1]:{server.port}" and server.url in server.errors()
        assert server.complete("The", max_tokens=2)["finish_reason"] == "length"
        for host, status in (("localhost", 200), ("[::1]", 200), (f"[::1]:{server.port}", 200), ("::1", 200),
                             ("[::1]:x", 421), ("[::2]", 421), ("evil.example", 421)):  # fmt: skip
            assert server.get("/v1/models", Host=host).status_code == status, host
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{server.port}/health/live", trust_env=False)


def test_every_address_with_a_key(folders: Folders) -> None:
    """Bound everywhere, asked over the loopback alone: an address may be any, a name must be known."""
    with serving(folders["writer"], "--host", "0.0.0.0", env={"ANYFORMER_API_KEY": KEY}) as server:
        assert server.url == f"http://127.0.0.1:{server.port}"
        assert server.get("/v1/models").status_code == 401
        for host, status in (("127.0.0.1", 200), ("192.0.2.7", 200), ("localhost", 200), ("evil.example", 421),
                             ("192.0.2.7.evil.example", 421), ("0x7f.1", 421), ("127.0.0.1:80@evil", 421)):  # fmt: skip
            answer = asyncio.run(ask(server.port, "/v1/models", host=host, Authorization=f"Bearer {KEY}"))
            assert answer.status == status, host


# ---------------------------------------------------------------- pictures


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *further: bytes, rows: bytes | None = None) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    data = zlib.compress(rows if rows is not None else bytes((width + 1) * height))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(further) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def frames(count: int) -> bytes:
    from PIL import Image

    sink = io.BytesIO()
    first, *rest = [Image.new("L", (64, 64), at % 256) for at in range(count)]
    first.save(sink, "GIF", save_all=True, append_images=rest)
    return sink.getvalue()


BOMBS: dict[str, Callable[[], tuple[str, bytes]]] = {
    "60,000 x 60,000": lambda: ("png", png(60_000, 60_000, rows=bytes(10_000))),
    "4,097 x 4,096": lambda: ("png", png(4097, 4096)),
    "a profile that unpacks to 200 MB": lambda: (
        "png", png(8, 8, chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(200_000_000))))),
    "a text that unpacks to 200 MB": lambda: (
        "png", png(8, 8, chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(200_000_000))))),
    "many texts that unpack to 1 MB": lambda: (
        "png", png(8, 8, *[chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1_000_000)))] * 1000)),
    "10,000 frames": lambda: ("gif", frames(10_000)),
    "no such format": lambda: ("png", b"MZ" + bytes(1000)),
    "another format than it says": lambda: ("png", frames(1)),
    "half a picture": lambda: ("png", png(64, 64)[:60]),
}  # fmt: skip


@pytest.mark.parametrize("what", BOMBS)
def test_a_bomb_in_a_picture(served: Callable[..., Server], what: str) -> None:
    """Refused, or read as the small picture it is: soon, in little memory, and the next request is answered."""
    server = served("pictures")
    kind, data = BOMBS[what]()
    url = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    with watched(server) as growth:
        began = time.monotonic()
        answer = server.post("/v1/predict", {"rows": [{"image": url}]})
    assert answer.status_code in (200, 400), (answer.status_code, answer.text[:200])
    assert time.monotonic() - began < 5 and growth[0] < 2 * MOST_GROWTH and not LEAKS.search(answer.text), growth
    if what in ("60,000 x 60,000", "4,097 x 4,096", "no such format", "half a picture"):
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "rows[0].image"


@pytest.mark.parametrize("url", ["data:image/png;base64,", "data:image/png;base64,####", "data:image/png;base64,AAA",
                                 "data:image/png;base64," + "A" * 1_000_001, "data:image/png;base64,\u00e9",
                                 "data:image/svg+xml;base64,AAAA", "data:,", "data:image/png;base64;base64,AAAA",
                                 "data:image/png;base64," + "=" * 400_000])  # fmt: skip
def test_garbage_for_a_picture(served: Callable[..., Server], url: str) -> None:
    answer = served("pictures").post("/v1/predict", {"rows": [{"image": url}]})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "rows[0].image", answer.text[:200]


# ---------------------------------------------------------------- vocabularies


def small_writer(folder: Path, tokenizer: Tokenizer) -> Path:
    spec = anyformer.preset("gpt2-tiny")
    spec = dataclasses.replace(spec, embed=dataclasses.replace(spec.embed, vocab=tokenizer.size))
    return Predictor(Opened(spec, spec.build(seed=0).eval()), tokenizer=tokenizer).save(folder)


def test_ten_characters(tmp_path: Path) -> None:
    """Fewer tokens than may be asked for: log-probabilities are of those there are, and stops are found."""
    words = train_tokenizer(["abcdefg " * 20], "char", 10)
    assert words.size <= 10
    with serving(small_writer(tmp_path / "chars", words)) as server:
        choice = server.complete("abc", max_tokens=20, logprobs=20, echo=True, temperature=1.0, seed=1)
        for at, top in enumerate(choice["logprobs"]["top_logprobs"]):
            assert (top is None) == (at == 0) and (top is None or 1 <= len(top) <= words.size)
            if top is not None:
                assert math.isclose(sum(map(math.exp, top.values())), 1.0, abs_tol=1e-3), top  # all there are
        text = choice["text"][3:]
        stop = text[4:6]
        cut = server.complete("abc", max_tokens=20, temperature=1.0, seed=1, stop=[stop])
        assert cut["text"] == text[: text.index(stop)] and cut["finish_reason"] == "stop"
        body = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 4, "logprobs": True, "top_logprobs": 20}
        said = server.post("/v1/chat/completions", body)
        assert said.status_code == 200, said.text
        assert all(len(one["top_logprobs"]) <= words.size for one in said.json()["choices"][0]["logprobs"]["content"])
        assert server.post("/v1/completions", {"prompt": "Wörter, die keiner kennt 🙂", "top_k": 1000,
                                               "max_tokens": 3}).status_code == 200  # fmt: skip
        refused = server.post("/v1/completions", {"prompt": [words.size], "max_tokens": 1})
        assert refused.status_code == 400 and refused.json()["error"]["code"] == "unknown_token"


def test_bytes(tmp_path: Path) -> None:
    """Tokens that are single bytes: whole characters only, in a stream as in one piece."""
    words = train_tokenizer(["Grüße 日本 🙂"], "byte", 300)
    with serving(small_writer(tmp_path / "bytes", words)) as server:
        asked = {"max_tokens": 60, "temperature": 1.0, "seed": 3}
        whole = server.complete("日本", logprobs=3, **asked)
        assert len(whole["logprobs"]["tokens"]) == 60 or whole["finish_reason"] == "stop"
        events = asyncio.run(ask(server.port, "/v1/completions", {"prompt": "日本", "stream": True, **asked})).events
        assert "".join(event["choices"][0]["text"] for event in events) == whole["text"]
        letter = next((one for one in whole["text"] if one != "\ufffd"), None)
        if letter is not None:
            cut = server.complete("日本", stop=[letter], **asked)
            assert cut["text"] == whole["text"].partition(letter)[0] and cut["finish_reason"] == "stop"


# ---------------------------------------------------------------- the end


def test_a_signal_while_a_template_renders(folders: Folders, tmp_path: Path) -> None:
    """The conversation under way is answered or told why not; the template's process does not outlive the server."""
    import shutil

    folder = tmp_path / "slow"
    shutil.copytree(folders["talker"], folder)
    (folder / "chat_template.jinja").write_text(
        "{% for i in range(40) %}{% for j in range(40000) %}{% endfor %}{% endfor %}{{ messages[0].content }}"
    )
    with serving(folder, "--grace", "5") as server:
        before = server.group()
        assert len(before) >= 2
        told = list[int]()

        def talk() -> None:
            body = {"messages": [{"role": "user", "content": "The"}], "max_tokens": 2}
            told.append(httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=30,
                                   trust_env=False).status_code)  # fmt: skip

        talking = threading.Thread(target=talk)
        talking.start()
        time.sleep(0.3)
        began = time.monotonic()
        server.send(signal.SIGTERM)
        assert server.wait(30) == 0 and time.monotonic() - began < 5 + 2 + 5
        talking.join()
        assert told[0] in (200, 400, 503), told  # done, too slow for a template, or shutting down
        assert server.group() == [] and "Traceback" not in server.errors()
