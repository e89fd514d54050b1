""".look files: what comes back is what was saved, and a file that somebody forged is refused in one sentence."""

from __future__ import annotations

import gzip
import json
import os
import struct
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anyformer import UserError
from anyformer.cli import main
from anyformer.inspection import bundle
from anyformer.inspection.answer import Query
from anyformer.inspection.bundle import Saved, save
from anyformer.inspection.capture import Capture, look
from anyformer.inspection.page import held_answers
from anyformer.inspection.views import views
from tests.inspection import models

MADE: dict[str, tuple[Capture, bytes]] = {}


def made(kind: str, folder: Path) -> tuple[Capture, Path]:
    """A capture and its file, saved once a kind."""
    path = folder / f"{kind}.look"
    if kind not in MADE:
        capture = look(models.predictor(kind), models.inputs(kind), name=f"small {kind}")
        MADE[kind] = (capture, capture.save(path).read_bytes())
    path.write_bytes(MADE[kind][1])
    return MADE[kind][0], path


@pytest.mark.parametrize("kind", models.KINDS)
def test_what_is_opened_is_what_was_saved(kind: str, tmp_path: Path) -> None:
    capture, path = made(kind, tmp_path)
    saved = Capture.open(path)
    assert (saved.title, saved.modality, saved.given.text) == (capture.title, capture.modality, capture.given.text)
    assert saved.sites == capture.sites and saved.axes == capture.axes
    for site in capture.sites:
        assert torch.equal(saved.weights(site.index), capture.weights(site.index))
        assert torch.equal(saved.weights(site.index, rows=slice(1, 3)), capture.weights(site.index)[:, 1:3])
    assert torch.equal(saved.attention(1, 2), capture.attention(1, 2))
    torch.testing.assert_close(saved.rollout(), capture.rollout(), atol=1e-6, rtol=0)
    assert saved.prediction() == capture.prediction()
    assert saved.trust.ok and [c.name for c in saved.trust.checks] == [c.name for c in capture.trust.checks]
    assert json.dumps(saved.heads()) == json.dumps(json.loads(bundle.as_text(capture.heads())))
    found, own = saved.lens(top=3), capture.lens(top=3)
    assert torch.equal(found.ids, own.ids.int()) and torch.equal(found.logprobs, own.logprobs)
    assert found.layers == own.layers and saved.names([1], own.kind).keys() == {1}
    pixels = capture.given.pixels
    assert (saved.given.pixels is None) == (pixels is None)
    assert pixels is None or np.array_equal(saved.given.pixels, pixels)


@pytest.mark.parametrize("kind", models.KINDS)
def test_answers_are_those_of_the_views(kind: str, tmp_path: Path) -> None:
    capture, path = made(kind, tmp_path)
    saved = Saved.open(path)
    assert len(saved.answers) == len(held_answers(capture))
    for name in ("map", "heads", "steps"):
        entry = next(entry for entry in saved.answers if entry["view"] == name)
        query = Query.parse(entry["params"])
        with torch.no_grad():
            own = views()[name].answer(capture, query)
        got = saved.answer(name, query)
        assert set(got.arrays) == set(own.arrays)
        for key, array in own.arrays.items():
            np.testing.assert_array_equal(got.arrays[key], array)
    steps = next(entry["params"] for entry in saved.answers if entry["view"] == "steps")
    site = capture.sites[int(steps["site"])]
    found = saved.steps(site.layer, int(steps["head"]), int(steps["query"]), kind=site.kind, stack=site.stack)
    assert found.arrays


def test_what_a_file_does_not_hold_it_says(tmp_path: Path) -> None:
    capture, _ = made("gpt", tmp_path)
    small = Saved.open(save(capture, tmp_path / "small.look", maps=capture.weights(0).numel() * 4))
    assert torch.equal(small.weights(0), capture.weights(0))
    for ask in (
        lambda: small.weights(1),
        lambda: small.weights(0, row=3),
        lambda: small.rollout(),
        lambda: small.answer("nothing"),
        lambda: small.answer("map", Query(0, 0, 0, 0, {"show": "other"})),
    ):
        with pytest.raises(UserError, match="does not hold"):
            ask()
    with pytest.raises(UserError, match="site 9 is out of range"):
        small.weights(9)


PICTURES = [("gpt", "map"), ("gpt", "lens"), ("t5", "cross"), ("vit", "image"), ("ft", "table"), ("bert", "rollout")]


@pytest.mark.parametrize(("kind", "view"), [*PICTURES, ("gpt", "heads")])
def test_pictures_of_a_file_are_those_of_the_capture(kind: str, view: str, tmp_path: Path) -> None:
    capture, path = made(kind, tmp_path)
    saved = Saved.open(path)
    own, got = capture.svg(tmp_path / "a.svg", view), saved.svg(tmp_path / "b.svg", view)
    assert own.read_bytes() == got.read_bytes()
    assert saved.png(tmp_path / "b.png", view).read_bytes() == capture.png(tmp_path / "a.png", view).read_bytes()


def test_the_page_of_a_file_is_that_of_the_capture(tmp_path: Path) -> None:
    capture, path = made("gpt", tmp_path)
    saved = Saved.open(path)
    page = saved.html(tmp_path / "x.html")
    assert (tmp_path / "x.html").read_text() == page
    steady = [entry for entry in held_answers(capture) if entry["view"] != "trace"]  # which holds times
    assert len(steady) > 20 and all(entry["data"] in page for entry in steady)
    assert "srcdoc" in saved._repr_html_()
    with saved.show(open_browser=False) as server:
        with urllib.request.urlopen(server.url) as found:
            assert found.read().decode() == page
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(server.url + "look/api/manifest")
        assert caught.value.code == 404
        caught.value.close()
    copied = saved.save(tmp_path / "copy.look")
    assert copied.read_bytes() == path.read_bytes()


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture, path = made("gpt", tmp_path)
    before = path.read_bytes()

    def fails(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundle, "save_file", fails)
    with pytest.raises(UserError, match="No space left"):
        capture.save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["gpt.look"]
    with pytest.raises(UserError, match="folder is not there"):
        capture.save(tmp_path / "none" / "x.look")


# ---------------------------------------------------------------- files that others made


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(header: Any, body: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def forged(change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    """A file whose header and manifest somebody changed."""

    def make(data: bytes) -> bytes:
        header, body = parts(data)
        manifest = json.loads(header["__metadata__"]["manifest"])
        change(header, manifest)
        header["__metadata__"]["manifest"] = json.dumps(manifest)
        return joined(header, body)

    return make


def put(where: str, *path: Any, value: Any) -> Callable[[bytes], bytes]:
    def change(header: dict[str, Any], manifest: dict[str, Any]) -> None:
        target = header if where == "header" else manifest
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = value

    return forged(change)


def bomb(data: bytes) -> bytes:
    """An answer that unpacks to more than is allowed."""
    header, body = parts(data)
    packed = gzip.compress(bytes(2**22))
    header["answer.0"] = {"dtype": "U8", "shape": [len(packed)], "data_offsets": [len(body), len(body) + len(packed)]}
    return joined(header, body + packed)


HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "short": lambda data: data[:5],
    "cut off": lambda data: data[: len(data) // 2],
    "text": lambda data: b"hello, this is no such file at all",
    "a header longer than the file": lambda data: struct.pack("<Q", 2**62) + data[8:],
    "a header of another form": lambda data: joined(b"[1, 2]", b""),
    "a header that is no JSON": lambda data: joined(b"{" * 4000, b""),
    "brackets": lambda data: joined(b"[" * 100_000 + b"]" * 100_000, b""),
    "deep metadata": lambda data: joined({"__metadata__": {"format": bundle.FORMAT, "manifest": "[" * 60 + "]" * 60,
                                                            "answers": "[]"}}, b""),
    "no metadata": lambda data: joined({"x": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}, b""),
    "another format": put("header", "__metadata__", "format", value="other"),
    "metadata that are no text": put("header", "__metadata__", "format", value=3),
    "an unknown type": put("header", "weights.0", "dtype", value="F64"),
    "a negative shape": put("header", "weights.0", "shape", value=[-4, 7, 7]),
    "a shape of truths": put("header", "weights.0", "shape", value=[True, 7, 7]),
    "a huge shape": put("header", "weights.0", "shape", value=[2**40, 2**40, 2**40]),
    "another shape": put("header", "weights.0", "shape", value=[7, 4, 7]),
    "offsets outside": put("header", "weights.0", "data_offsets", value=[10**9, 10**9 + 784]),
    "offsets backwards": put("header", "weights.0", "data_offsets", value=[784, 0]),
    "no title": forged(lambda header, manifest: manifest.pop("title")),
    "sites that are none": put("manifest", "sites", value=7),
    "a site without an axis": put("manifest", "sites", 0, "queries", value="elsewhere"),
    "a site out of order": put("manifest", "sites", 0, "index", value=1),
    "heads by the million": put("manifest", "sites", 0, "heads", value=10**7),
    "heads as a text": put("manifest", "sites", 0, "heads", value="4"),
    "tokens that are none": put("manifest", "axes", "", "tokens", value=[1, 2]),
    "fewer tokens than rows": forged(lambda header, manifest: manifest["axes"][""]["tokens"].pop()),
    "a grid larger than its tokens": put("manifest", "axes", "", "grid", value=[100, 100]),
    "answers that are none": put("header", "__metadata__", "answers", value='[{"view": 3}]'),
    "an answer that is not there": forged(lambda header, manifest: header.pop("answer.0")),
    "a lens without its numbers": forged(lambda header, manifest: header.pop("lens.logprobs")),
    "a lens of other layers": put("manifest", "lens", "layers", value=["one"]),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_forged_file_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    _, path = made("gpt", tmp_path)
    path.write_bytes(HOSTILE[name](path.read_bytes()))
    with pytest.raises(UserError, match=r"gpt\.look: not a \.look file of anyformer"):
        Saved.open(path)


def test_control_a_file_that_is_put_together_again_opens(tmp_path: Path) -> None:
    capture, path = made("gpt", tmp_path)
    path.write_bytes(forged(lambda header, manifest: None)(path.read_bytes()))
    assert torch.equal(Saved.open(path).weights(0), capture.weights(0))


def test_an_answer_that_unpacks_too_far_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = made("gpt", tmp_path)
    path.write_bytes(bomb(path.read_bytes()))
    monkeypatch.setattr(bundle, "MOST_ANSWER", 2**20)
    saved = Saved.open(path)
    first = saved.answers[0]
    with pytest.raises(UserError, match="too large"):
        saved.answer(first["view"], Query.parse(first["params"]))


@pytest.mark.parametrize("limit", ["MOST_BYTES", "MOST_HEADER", "MOST_TENSORS", "MOST_VALUES"])
def test_every_size_is_bounded(limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = made("gpt", tmp_path)
    Saved.open(path)
    monkeypatch.setattr(bundle, limit, 20)
    with pytest.raises(UserError):
        Saved.open(path)


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.look")
    for place in (tmp_path / "pipe.look", tmp_path, tmp_path / "none.look"):
        with pytest.raises(UserError):
            Saved.open(place)


def test_words_of_a_file_are_no_markup(tmp_path: Path) -> None:
    _, path = made("gpt", tmp_path)
    evil = "</script><script>alert(1)</script>"
    path.write_bytes(put("manifest", "title", value=evil)(path.read_bytes()))
    assert evil not in Saved.open(path).html()


def test_the_command_line_opens_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture, path = made("gpt", tmp_path)
    assert main(["look", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == capture.title
    words = ["look", str(path), "--png", str(tmp_path / "x.png"), "--html", str(tmp_path / "x.html"), "--terminal"]
    assert main([*words, "--layer", "1", "--head", "2"]) == 0
    assert "Layer 1 · head 2" in capsys.readouterr().out
    own = capture.png(tmp_path / "own.png", site=1, head=2).read_bytes()
    assert (tmp_path / "x.png").read_bytes() == own and (tmp_path / "x.html").stat().st_size > 10_000
    whole = capture.svg(tmp_path / "own.svg", "heads").read_bytes()
    assert main(["look", str(path), "--svg", str(tmp_path / "x.svg"), "--view", "heads"]) == 0
    assert (tmp_path / "x.svg").read_bytes() == whole  # every layer, as none was named
    path.write_bytes(b"no such file")
    assert main(["look", str(path)]) == 2
    assert "not a .look file" in capsys.readouterr().err
