"""Pictures of the views that the page works out: each has the numbers of the model, found here in another way."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import anyformer
from anyformer import UserError
from anyformer.inspection.ablate import ablate
from anyformer.inspection.bundle import Saved
from anyformer.inspection.canvas import Curve, Drawing, Label, Pixels, Rectangle
from anyformer.inspection.capture import Capture, look
from anyformer.inspection.figure import FIGURES, draw
from anyformer.inspection.views import NAMES
from tests.inspection import models, runs

# The stops of the page's two-sided ramp, written down again.
TWO = [(11, 60, 140), (63, 120, 184), (169, 198, 230), (255, 255, 255), (243, 199, 155), (208, 122, 45), (138, 66, 0)]


@pytest.fixture(scope="module")
def gpt() -> Capture:
    return look(models.predictor("gpt"), models.TEXT, name="small gpt")


def texts(drawing: Drawing) -> list[str]:
    return [mark.text for mark in drawing.marks if isinstance(mark, Label)]


def three(value: float) -> str:
    return f"{value:.3g}"


def two_sided(values: np.ndarray, top: float) -> np.ndarray:
    at = (np.clip(values / top, -1, 1) + 1) / 2 * (len(TWO) - 1)
    return np.stack([np.interp(at, range(len(TWO)), [stop[c] for stop in TWO]) for c in range(3)], -1)


def test_every_view_of_the_page_can_be_drawn() -> None:
    assert set(FIGURES) == set(NAMES)


def test_steps_have_the_numbers_of_the_head(gpt: Capture) -> None:
    steps = gpt.steps(1, 2, 3)
    drawing = draw(gpt, "steps", layer=1, head=2, query=3)
    found = texts(drawing)
    for column in (steps.scores, steps.scaled, steps.masked, steps.weights):
        for number in column.tolist():
            assert three(number) in found
    assert found.count("-inf") == len(steps.keys) - 4  # what the query must not see
    bars = [mark.width for mark in drawing.marks if isinstance(mark, Rectangle) and mark.fill == "#3f78b8"]
    np.testing.assert_allclose(bars[:4], 64 * steps.weights[:4].numpy(), rtol=1e-5)
    strips = [mark.rgb for mark in drawing.marks if isinstance(mark, Pixels)]
    vectors = [strip[0] for strip in strips]
    top = float(torch.cat([steps.weighted.flatten(), steps.z]).abs().max())
    np.testing.assert_allclose(vectors[-3], two_sided(steps.z.numpy(), top), atol=2)
    np.testing.assert_allclose(vectors[-1].shape, (32, 3))
    other = draw(gpt, "steps", layer=1, head=1, query=3)  # control
    assert texts(other) != found


def test_long_inputs_have_the_keys_around_the_largest_weight() -> None:
    capture = look(models.gpt(), " ".join(models.TEXTS) * 3)
    drawing = draw(capture, "steps", layer=0, head=0)
    steps = capture.steps(0, 0, len(capture.axes[""]) - 1)
    words = " ".join(texts(drawing))
    assert len(steps.keys) > 64 and f"{len(steps.keys) - 64} more keys" in words


def test_a_trace_has_the_probabilities_of_the_model(gpt: Capture) -> None:
    drawing = draw(gpt, "trace")
    ids = gpt.answer("trace").arrays["top_ids"]
    tokens = torch.tensor([[token["id"] for token in gpt.answer("trace").facts["tokens"]]])
    with torch.no_grad():
        logprobs = gpt.model(tokens).logits[0].log_softmax(-1)
    shares = [float(logprobs[i - 1, tokens[0, i]].exp()) for i in range(1, tokens.shape[1])]
    said = [text for text in texts(drawing) if text.endswith("%")]
    assert said == [f"{100 * share:.3g}%" for share in shares]
    written = tokens.shape[1] - 16
    best = logprobs[written - 1].exp().topk(10)
    assert ids[written][:10].tolist() == best.indices.tolist()
    assert set(map(three, best.values.tolist())) <= set(texts(drawing))
    lines = [mark for mark in drawing.marks if isinstance(mark, Curve)]
    entropy = [float(-(row.exp() * row).sum()) for row in logprobs[: tokens.shape[1] - 1]]
    assert np.corrcoef([-y for _, y in lines[0].points], entropy)[0, 1] > 0.999
    assert np.corrcoef([-y for _, y in lines[1].points], -np.log(shares))[0, 1] > 0.999


def test_positions_are_those_of_the_models_table() -> None:
    capture = look(models.predictor("bert"), models.TEXT)
    table = capture.model.embed.position.table.weight.detach()[:64]
    unit = table / table.norm(dim=-1, keepdim=True)
    drawing = draw(capture, "positions")
    cells = [mark.fill for mark in drawing.marks if isinstance(mark, Rectangle) and mark.fill]
    shown = np.array([[int(fill[i : i + 2], 16) for i in (1, 3, 5)] for fill in cells])
    wanted = two_sided((unit @ unit.T).numpy(), 1.0).reshape(-1, 3)
    np.testing.assert_allclose(shown, wanted, atol=2)
    assert np.abs(shown - np.roll(wanted, 1, 0)).max() > 50  # control


@pytest.mark.parametrize("kind", ["sinusoid", "learned", "rope", "alibi", "buckets"])
def test_every_kind_of_positions_is_drawn(kind: str, tmp_path: Path) -> None:
    relative = {"rope": anyformer.Rope(), "alibi": anyformer.Alibi(), "buckets": anyformer.Buckets()}.get(kind)
    position = {"sinusoid": anyformer.Sinusoid(), "learned": anyformer.Learned(length=64)}.get(kind)
    block = anyformer.Block(mixer=anyformer.Attention(heads=4), **({"relative": relative} if relative else {}))
    embed = anyformer.Tokens(vocab=40, **({"position": position} if position else {}))
    spec = anyformer.Model(
        embed=embed, head=anyformer.LM(tied=True),
        stack=anyformer.Stack(width=32, depth=1, causal=True, block=block),
    )  # fmt: skip
    capture = look(spec.build(seed=0), torch.arange(9)[None])
    drawing = draw(capture, "positions")
    name = capture.answer("positions").facts["name"]
    assert any(f"{name} of this model" in text for text in texts(drawing))
    assert any(isinstance(mark, Curve) for mark in drawing.marks)


def test_the_stream_is_as_long_as_the_residuals(gpt: Capture) -> None:
    lines = [mark.points for mark in draw(gpt, "flow").marks if isinstance(mark, Curve)]
    heights = np.array([y for _, y in lines[0]])
    lengths = np.array([float(x[0].norm(dim=-1).mean()) for x in gpt.residuals()])
    np.testing.assert_allclose((heights - heights[0]) / (heights[-1] - heights[0]),
                               (lengths - lengths[0]) / (lengths[-1] - lengths[0]), atol=1e-5)  # fmt: skip
    total = sum(parameter.numel() for parameter in gpt.model.parameters())
    assert f"{total:,}" in texts(draw(gpt, "flow"))


def test_each_head_is_worth_what_the_answer_loses_without_it(gpt: Capture) -> None:
    drawing = draw(gpt, "remove")
    with torch.no_grad():
        before = gpt.model(*gpt.given.args).logits[0, -1].log_softmax(-1)
        answer = int(before.argmax())
        for layer in (0, 1):
            for head in range(4):
                with ablate(gpt.model, heads=[(layer, head)]):
                    after = gpt.model(*gpt.given.args).logits[0, -1].log_softmax(-1)
                change = float(after[answer] - before[answer])
                shown = [float(text) for text in texts(drawing) if text.lstrip("-")[:1].isdigit()]
                assert min(abs(value - change) for value in shown) < 6e-3 * abs(change)


def test_two_captures_are_drawn_with_their_difference() -> None:
    capture = look(models.predictor("gpt"), models.TEXT)
    other = look(capture.source, "An old cat and a young boy")
    found = capture.compare(other)
    drawing = draw(capture, "compare", layer=1, head=2)
    fills = [mark.fill for mark in drawing.marks if isinstance(mark, Rectangle) and mark.fill]
    change = found.difference(1, 2).numpy()
    cells = fills[-change.size :]
    shown = np.array([[int(fill[i : i + 2], 16) for i in (1, 3, 5)] for fill in cells])
    np.testing.assert_allclose(shown, two_sided(change, np.abs(change).max()).reshape(-1, 3), atol=2)
    moved = found.distances[1][2]
    assert any(f"{moved:.3g} bits" in text for text in texts(drawing))


def test_checkpoints_of_a_run_are_drawn_with_its_loss(tmp_path: Path) -> None:
    folder = runs.text_run(tmp_path / "run")
    capture = look(anyformer.load(folder), "a e k a e k")
    drawing = draw(capture, "training", layer=1, head=1)
    pictures = [mark.rgb for mark in drawing.marks if isinstance(mark, Pixels)]
    steps = [text for text in texts(drawing) if text.startswith("step ")]
    assert steps == ["step 10", "step 20", "step 30"] and len(pictures) == 3
    for picture, step in zip(pictures, (10, 20, 30), strict=True):
        saved = anyformer.load(folder / "checkpoints" / f"step-{step:06d}")
        weights = look(saved, "a e k a e k").attention(1, 1).numpy()
        dark = 255 - picture[..., 0].astype(float)
        assert np.array_equal(weights > 0.002, dark > 0)
        assert np.corrcoef(np.sqrt(weights).flatten(), dark.flatten())[0, 1] > 0.98
    curve = next(mark for mark in drawing.marks if isinstance(mark, Curve))
    assert len(curve.points) == 30


@pytest.mark.parametrize("view", ["map", "steps", "trace", "lens", "positions", "flow", "remove", "compare"])
def test_a_file_draws_what_its_capture_draws(view: str, tmp_path: Path) -> None:
    capture = look(models.predictor("gpt"), models.TEXT, name="small gpt")
    capture.compare(look(capture.source, "An old cat and a young boy"))
    saved = Saved.open(capture.save(tmp_path / "x.look"))
    one, two = capture.svg(tmp_path / "a.svg", view), saved.svg(tmp_path / "b.svg", view)
    assert one.read_text() == two.read_text()


def test_what_a_file_does_not_hold_is_said(gpt: Capture, tmp_path: Path) -> None:
    saved = Saved.open(gpt.save(tmp_path / "x.look"))
    with pytest.raises(UserError, match="does not hold the view 'training'"):
        saved.png(tmp_path / "x.png", "training")


def test_curves_are_painted_with_their_dashes() -> None:
    whole = Curve(((10.0, 10.0), (90.0, 10.0)), "#b34f00", 4.0)
    broken = Curve(((10.0, 30.0), (90.0, 30.0)), "#b34f00", 4.0, "10 10")
    image = np.asarray(Image.open(io.BytesIO(Drawing(100, 40, marks=[whole, broken]).png(zoom=1))))
    assert [tuple(image[10, x]) == (179, 79, 0) for x in (15, 25, 35, 85)] == [True] * 4
    assert [tuple(image[30, x]) == (179, 79, 0) for x in (15, 25, 35, 45)] == [True, False, True, False]
    assert tuple(image[20, 50]) == (255, 255, 255)
