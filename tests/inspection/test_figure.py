"""Pictures: cells have the colour of their weight in PNG and SVG, names stand apart and inside, captions say all."""

from __future__ import annotations

import io
import itertools
import math
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from anyformer import UserError, extras
from anyformer.inspection import canvas
from anyformer.inspection.canvas import Drawing, Label, Pixels, Rectangle, png_bytes, text_width
from anyformer.inspection.capture import Capture, look
from anyformer.inspection.figure import FIGURES, draw, overlay
from anyformer.inspection.grid import cut, wrapped
from anyformer.version import __version__
from tests.inspection import models

SVG = "{http://www.w3.org/2000/svg}"
EVERYWHERE = {"map", "heads", "rollout", "lens", "steps", "positions", "flow", "remove"}
FITTING = {
    "gpt": EVERYWHERE | {"trace"},
    "bert": EVERYWHERE,
    "t5": EVERYWHERE | {"cross", "trace"},
    "vit": EVERYWHERE | {"filters", "image"},
    "ft": EVERYWHERE | {"table", "training"},
    "compared": {"compare"},
}
# Views that say how numbers become colours: the others are lines and bars, or have a number beside each colour.
SCALED = {"map", "heads", "cross", "image", "filters", "table"}
CASES = [(kind, view) for kind, views in FITTING.items() for view in sorted(views)]
# The stops of the page's blue ramp, written down again: the test has its own way from a weight to a colour.
BLUE = [(255, 255, 255), (226, 235, 246), (179, 205, 232), (118, 165, 212), (63, 120, 184), (33, 79, 146),
        (20, 47, 102), (10, 23, 58)]  # fmt: skip
CAPTURES: dict[str, Capture] = {}


def captured(kind: str) -> Capture:
    if kind not in CAPTURES:
        model, given = ("gpt", models.TEXT) if kind == "compared" else (kind, models.inputs(kind))
        CAPTURES[kind] = look(models.predictor(model), given, name=f"small {kind}")
        if kind == "compared":
            CAPTURES[kind].compare(look(CAPTURES[kind].source, "An old cat and a young boy"))
    return CAPTURES[kind]


def colour_of(weight: float, top: float) -> tuple[float, ...]:
    at = round(math.sqrt(weight / top) * 255) / 255 * (len(BLUE) - 1)
    low = min(int(at), len(BLUE) - 2)
    return tuple(a + (at - low) * (b - a) for a, b in zip(BLUE[low], BLUE[low + 1], strict=True))


def cells_of(drawing: Drawing) -> list[Rectangle]:
    return [mark for mark in drawing.marks if isinstance(mark, Rectangle) and mark.fill is not None]


@pytest.mark.parametrize("kind", models.KINDS)
def test_every_cell_of_a_map_has_the_colour_of_its_weight(kind: str, tmp_path: Path) -> None:
    capture = captured(kind)
    weights = capture.weights(1)[2].numpy()
    path = capture.svg(tmp_path / "map.svg", site=1, head=2)
    fills = [node.get("fill") for node in ET.parse(path).iter(f"{SVG}rect")][1:]  # the first is the paper
    found = [tuple(int(fill[i : i + 2], 16) for i in (1, 3, 5)) for fill in fills if fill != "none"]
    wanted = [colour_of(float(w), float(weights.max())) for w in weights.flatten()]
    np.testing.assert_allclose(found, wanted, atol=1.01)
    shuffled = np.roll(np.array(found), 1, 0)
    assert np.abs(shuffled - np.array(wanted)).max() > 3  # control
    image = np.asarray(Image.open(capture.png(tmp_path / "map.png", site=1, head=2)))
    cells = cells_of(draw(capture, "map", site=1, head=2))
    for cell, rgb in zip(cells, found, strict=True):
        middle = image[round(2 * (cell.y + cell.height / 2)), round(2 * (cell.x + cell.width / 2))]
        assert tuple(middle) == rgb


def boxes(drawing: Drawing) -> list[tuple[float, float, float, float, str]]:
    """What each line of type covers: left, top, right, bottom."""
    found = []
    for mark in drawing.marks:
        if not isinstance(mark, Label) or not mark.text:
            continue
        long, thick = 0.93 * text_width(mark.text, mark.size), 0.72 * mark.size
        before = {"start": 0.0, "middle": long / 2, "end": long}[mark.anchor]
        if mark.up:
            found.append((mark.x - thick / 2, mark.y + before - long, mark.x + thick / 2, mark.y + before, mark.text))
        else:
            found.append((mark.x - before, mark.y - thick / 2, mark.x - before + long, mark.y + thick / 2, mark.text))
    return found


def collisions(drawing: Drawing) -> list[tuple[str, str]]:
    return [
        (a[4], b[4])
        for a, b in itertools.combinations(boxes(drawing), 2)
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
    ]


def outside(drawing: Drawing) -> list[str]:
    return [b[4] for b in boxes(drawing) if b[0] < 0 or b[1] < 0 or b[2] > drawing.width or b[3] > drawing.height]


@pytest.mark.parametrize(("kind", "view"), CASES)
def test_no_name_covers_another_or_leaves_the_picture(kind: str, view: str) -> None:
    drawing = draw(captured(kind), view)
    assert len(boxes(drawing)) > 4
    assert not collisions(drawing) and not outside(drawing)
    for mark in drawing.marks:
        if isinstance(mark, Rectangle | Pixels):
            assert mark.x >= 0 and mark.x + mark.width <= drawing.width
            assert mark.y >= 0 and mark.y + mark.height <= drawing.height


def test_control_names_that_cover_each_other_are_seen() -> None:
    drawing = Drawing(50, 50, marks=[Label(5, 5, "one"), Label(8, 7, "two"), Label(40, 40, "far away", up=False)])
    assert collisions(drawing) == [("one", "two")] and outside(drawing) == ["far away"]


@pytest.mark.parametrize("length", [3, 30, 90, 400])
def test_long_inputs_are_thinned_or_pooled(length: int) -> None:
    text = (" ".join(models.TEXTS) * 5)[: 5 * length]
    capture = look(models.gpt(), text, budget="1GB")
    for view in ("map", "heads", "lens"):
        drawing = draw(capture, view, head=None if view == "heads" else 1)
        assert not collisions(drawing) and not outside(drawing)
        assert drawing.width < 1100 and drawing.height < 900


@pytest.mark.parametrize(("kind", "view"), CASES)
def test_svg_is_well_formed_and_the_caption_says_what_is_shown(kind: str, view: str, tmp_path: Path) -> None:
    capture = captured(kind)
    root = ET.parse(capture.svg(tmp_path / "x.svg", view)).getroot()
    assert root.tag == f"{SVG}svg"
    texts = " ".join(node.text or "" for node in root.iter(f"{SVG}text"))
    assert f"small {kind}" in texts and f"anyformer {__version__}" in texts
    assert {"vit": "image of 16 x 12 pixels", "ft": "age 41.0"}.get(kind, models.TEXT) in texts
    assert "scale" in texts or view not in SCALED
    image = Image.open(capture.png(tmp_path / "x.png", view))
    assert image.size == (round(2 * float(root.get("width"))), round(2 * float(root.get("height"))))
    assert image.getpixel((2, 2)) == (255, 255, 255)


def test_names_of_tokens_columns_and_classes_are_there() -> None:
    def texts(kind: str, view: str) -> set[str]:
        return {mark.text for mark in draw(captured(kind), view).marks if isinstance(mark, Label)}

    assert {"An", "old", "dog", "young", "boy", "query", "key"} <= texts("gpt", "map")
    assert {"age", "income", "city", "pet", "read by [CLS]"} <= texts("ft", "table")
    assert {"bad", "fair", "good", "Layer 0", "Embedding"} <= texts("bert", "lens")
    assert {"source", "written", "An", "boy"} <= texts("t5", "cross")
    rows = [mark for mark in draw(captured("translator"), "cross").marks if isinstance(mark, Label)]
    middle = {mark.text.strip(): mark.y for mark in rows if mark.text.strip() in models.PAIRS.values()}
    assert list(middle) == list(models.PAIRS.values())  # the first row writes "zwei"
    assert {"input"} <= texts("vit", "image")


def test_layer_and_head_are_counted_from_one_in_words() -> None:
    words = " ".join(m.text for m in draw(captured("gpt"), "map", site=1, head=2).marks if isinstance(m, Label))
    assert "Layer 1, head 2" in words


def test_a_layer_means_its_site(tmp_path: Path) -> None:
    capture = captured("t5")
    for view, site in (("map", capture.find_site(1)), ("cross", capture.find_site(1, kind="cross"))):
        named = capture.svg(tmp_path / "a.svg", view, layer=1, head=2).read_text()
        assert named == capture.svg(tmp_path / "b.svg", view, site=site.index, head=2).read_text()
        assert named != capture.svg(tmp_path / "c.svg", view, layer=0, head=2).read_text()  # control


def test_an_alignment_outlines_the_strongest_source_of_each_target() -> None:
    capture = captured("t5")
    drawing = draw(capture, "cross", head=1)
    site = next(site for site in capture.sites if site.kind == "cross")
    best = capture.weights(site.index)[1].argmax(1).tolist()
    outlined = [mark for mark in drawing.marks if isinstance(mark, Rectangle) and mark.stroke == "#a34700"]
    cells = cells_of(drawing)
    columns = len(capture.axes[site.keys])
    assert len(outlined) == len(best)
    for i, (mark, j) in enumerate(zip(outlined, best, strict=True)):
        cell = cells[i * columns + j]
        assert (mark.x, mark.y) == (cell.x + 1, cell.y + 1)


def test_an_overlay_is_the_brighter_the_larger_the_weight_of_a_patch() -> None:
    pixels = models.image()
    cells = np.random.default_rng(0).permutation(np.linspace(0, 0.3, 12)).reshape(3, 4)
    shown = overlay(pixels, cells, "linear").astype(float)
    factor = shown.shape[0] // 24
    added = (shown - 0.4 * pixels.astype(float).mean(-1).repeat(factor, 0).repeat(factor, 1)[..., None]).sum(-1)
    middles = added[factor * 4 :: factor * 8, factor * 4 :: factor * 8]  # of each patch
    assert middles.shape == (3, 4)
    assert np.array_equal(np.argsort(middles, None), np.argsort(cells, None))


def test_an_image_is_shown_with_what_its_class_token_reads() -> None:
    capture = captured("vit")
    pictures = [m for m in draw(capture, "image", site=0, head=3).marks if isinstance(m, Pixels)]
    assert np.array_equal(pictures[0].rgb, capture.given.pixels)
    cells = capture.weights(0)[3, :, 1:].reshape(-1, 3, 4).numpy()
    assert np.array_equal(pictures[1].rgb, overlay(capture.given.pixels, cells[0], "sqrt"))
    other = [m for m in draw(capture, "image", site=0, head=3, query=5).marks if isinstance(m, Pixels)]
    assert np.array_equal(other[1].rgb, overlay(capture.given.pixels, cells[5], "sqrt"))


def test_a_table_is_the_mean_over_layers_heads_and_rows() -> None:
    rows = [models.ROW, models.ROW | {"age": 70.0}]
    capture = look(models.predictor("ft"), rows)
    every = [capture.weights(site.index, row=row) for site in capture.sites for row in (0, 1)]
    mean = sum(one.mean(0) for one in every) / len(every)
    bars = [mark for mark in draw(capture, "table").marks if isinstance(mark, Rectangle) and mark.fill == "#3f78b8"]
    wanted = sorted(mean[0, 1:].tolist(), reverse=True)
    np.testing.assert_allclose([bar.width / bars[0].width for bar in bars], np.array(wanted) / wanted[0], rtol=1e-5)


def test_hostile_tokens_stay_text(tmp_path: Path) -> None:
    text = "<script>alert(1)</script> & ]]> \x00\x1b[31m \ufffe \u202e"
    path = look(models.gpt(), text).svg(tmp_path / "x.svg")
    root = ET.parse(path).getroot()
    assert {node.tag for node in root.iter()} <= {
        f"{SVG}{name}" for name in ("svg", "title", "rect", "line", "text", "image")
    }
    assert "<script>alert(1)</script>" in " ".join(node.text or "" for node in root.iter(f"{SVG}text"))
    assert "\x1b" not in path.read_text() and "\u202e" not in path.read_text()


@pytest.mark.parametrize("text", ["Größe naïve →", "日本語", "\U0001f600 smile", "x̂ combined", "plain"])
def test_letters_that_no_font_has_are_written_out(text: str) -> None:
    written, font = canvas.readable(text, 22)
    missing = bytes(font.getmask(canvas.NO_CHARACTER))
    for letter in set(written.replace(" ", "")):
        assert bytes(font.getmask(letter)) != missing or canvas.unicodedata.combining(letter)


def test_pixels_written_by_hand_are_read_by_pillow() -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png_bytes(rgb)))), rgb)


def test_without_pillow_a_png_is_refused_and_an_svg_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda module: module != "PIL")
    with pytest.raises(UserError, match="pip install 'anyformer"):
        captured("gpt").png(tmp_path / "x.png")
    assert not list(tmp_path.iterdir())
    assert captured("gpt").svg(tmp_path / "x.svg").exists()


@pytest.mark.parametrize(
    ("kind", "view", "options"),
    [("gpt", "maps", {}), ("gpt", "cross", {}), ("gpt", "image", {}), ("gpt", "table", {}), ("vit", "table", {}),
     ("gpt", "map", {"site": 9}), ("gpt", "map", {"head": 4}), ("gpt", "map", {"scale": "cubic"}),
     ("gpt", "compare", {}), ("gpt", "training", {}), ("bert", "trace", {}), ("gpt", "trace", {"query": 0}),
     ("gpt", "steps", {"head": 4}), ("gpt", "steps", {"query": 7}), ("vit", "image", {"query": 99}),
     ("t5", "cross", {"site": 0}), ("gpt", "map", {"zoom": 99.0})],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused(kind: str, view: str, options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError):
        captured(kind).png(tmp_path / "x.png", view, **options)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="folder is not there"):
        captured("gpt").svg(tmp_path / "none" / "x.svg")


def test_every_figure_is_tried_for_some_kind() -> None:
    assert set(FIGURES) == {view for _, view in CASES}


def test_words_are_cut_and_wrapped() -> None:
    assert cut("\n") == "(line end)" and cut("") == "(empty)" and len(cut("x" * 99)) == 18
    lines = wrapped("word " * 40 + "x" * 200, 120, 10, most=3)
    assert len(lines) == 3 and lines[-1].endswith("…") and all(text_width(line, 10) <= 130 for line in lines)
