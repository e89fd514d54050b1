"""The views of images, rollout and filters: their numbers are those of the capture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anyformer.errors import UserError
from anyformer.inspection.answer import Query
from anyformer.inspection.capture import Capture, look
from anyformer.inspection.filters import filter_components, patch_filters
from anyformer.inspection.read_query import answered
from anyformer.inspection.relevance import relevance
from anyformer.inspection.views import filters, image, rollout
from anyformer.presets import preset
from tests.inspection import models
from tests.inspection.test_every_preset import captured as preset_capture
from tests.inspection.test_rollout import image as vit
from tests.inspection.test_rollout import image_and_text, pair, sharp, sound, streams, table, text, windows


def asked(view: Any, capture: Capture, **options: Any) -> Any:
    chosen = {name: options.pop(name, 0) for name in ("site", "head", "query", "key")}
    return view.answer(capture, Query(**chosen, options={name: str(value) for name, value in options.items()}))


def captured(build: Any) -> Capture:
    torch.manual_seed(1)
    model, inputs = build()
    return look(sharp(model), inputs)


@pytest.fixture(scope="module")
def photo() -> Capture:
    return look(models.vit(registers=2), models.image())


# ---------------------------------------------------------------- image


def test_the_picture_is_what_the_model_saw_before_it_was_normalised(photo: Capture) -> None:
    found = asked(image, photo, part="picture").arrays["picture"]
    assert found.shape == (12, 16, 3) and found.dtype == np.uint8
    given = models.image()[::2, ::2].astype(int)  # the same at half the size, but for blur at edges
    assert np.abs(found[4:6, 5:8].astype(int) - given[4:6, 5:8]).max() <= 2
    normalised = photo.given.args[0][0].permute(1, 2, 0).numpy()
    assert np.abs(normalised - found).max() > 100  # control: the model's own numbers are no picture


def test_maps_are_the_row_of_the_chosen_token_on_the_true_grid(photo: Capture) -> None:
    found = asked(image, photo, site=1, query=5)
    weights = photo.weights(1)[:, 5].numpy()
    assert found.facts["grid"] == (3, 4) and found.facts["first"] == 3 and found.facts["others"] == [0, 1, 2]
    assert found.arrays["maps"] == pytest.approx(weights[:, 3:], abs=1e-7) and found.arrays["maps"].shape == (4, 12)
    assert found.arrays["others"] == pytest.approx(weights[:, :3], abs=1e-7)
    total = found.arrays["maps"].sum(1) + found.arrays["others"].sum(1)
    assert total == pytest.approx(np.ones(4), abs=1e-6)


def test_rows_of_a_head_are_its_map_in_bytes(photo: Capture) -> None:
    found = asked(image, photo, part="rows", site=1, head=2)
    rebuilt = found.arrays["rows"] / 255 * found.arrays["top"][:, None]
    exact = photo.weights(1)[2].numpy()[:, 3:]
    assert np.abs(rebuilt - exact).max() <= exact.max() / 255
    assert np.abs(rebuilt - photo.weights(1)[1].numpy()[:, 3:]).max() > exact.max() / 255  # control: another head


def test_rows_of_too_many_patches_are_not_sent_at_once(photo: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(image, photo).facts["has_rows"]
    monkeypatch.setattr(image, "MOST_ROWS", 100)
    assert not asked(image, photo).facts["has_rows"]
    with pytest.raises(UserError, match="too many patches"):
        asked(image, photo, part="rows")


def test_an_answer_depends_on_no_more_than_it_shows(photo: Capture) -> None:
    _, reads = answered(image, photo, Query(options={"part": "picture", "opacity": "0.3"}))
    assert reads == ("part",)
    _, reads = answered(image, photo, Query(site=1, head=1, query=2, key=3, options={"opacity": "0.3"}))
    assert set(reads) == {"part", "site", "query"}


def test_text_beside_an_image_keeps_its_own_tokens() -> None:
    capture = captured(image_and_text)
    found = asked(image, capture, site=0, query=7)
    assert found.facts["grid"] == (2, 2) and found.facts["first"] == 1 and found.facts["others"] == [0, 5, 6, 7, 8, 9]


def test_a_decoder_that_looks_at_an_image_is_shown_by_its_words() -> None:
    torch.manual_seed(0)
    capture = look(preset("detr-r50-tiny").build(seed=0), (torch.randn(1, 3, 64, 64), None))
    crossing = next(site for site in capture.sites if site.kind == "cross")
    found = asked(image, capture, site=crossing.index, query=3)
    assert found.facts["grid"] == (8, 8) and not found.facts["patches_look"]
    assert found.arrays["maps"] == pytest.approx(capture.weights(crossing.index)[:, 3].numpy(), abs=1e-7)
    assert found.arrays["maps"] != pytest.approx(capture.weights(crossing.index)[:, 4].numpy(), abs=1e-7)
    elsewhere = asked(image, capture, site=crossing.index - 1)  # the decoder's own words: the nearest layer is shown
    assert elsewhere.facts["site"] in (crossing.index, crossing.index - 2)


def test_visual_tokens_are_drawn_where_they_looked() -> None:
    torch.manual_seed(0)
    net = preset("vt-resnet-tiny").build(seed=0).eval()
    pixels = torch.randn(1, 3, 32, 32)
    capture = look(net, (pixels,))
    assert image.applies(capture) is None
    maps = net.embed.backbone.token_maps(pixels)
    for at in (1, 2):
        found = asked(image, capture, round=at)
        assert found.facts["rounds"] == 2 and found.facts["grid"] == (8, 8)
        assert found.arrays["maps"] == pytest.approx(maps[at - 1][0].flatten(1).numpy(), abs=1e-6)
        assert found.arrays["maps"].sum(1) == pytest.approx(np.ones(4), abs=1e-5)
    assert not np.allclose(maps[0][0], maps[1][0], atol=1e-6)  # control: rounds differ
    with pytest.raises(UserError, match="round '3' is not a number from 1 to 2"):
        asked(image, capture, round=3)


def test_places_of_a_generator_look_at_each_other() -> None:
    torch.manual_seed(0)
    net = preset("sagan-32-tiny").build(seed=0).eval()
    noise, label = torch.randn(1, net.spec.noise), torch.tensor([2])
    capture = look(net, (noise, label))
    made = net.generate(noise, label)[0]
    shown = asked(image, capture, part="picture").arrays["picture"]
    assert np.abs(shown - ((made + 1) * 127.5).permute(1, 2, 0).detach().numpy()).max() <= 0.51
    seen: list[torch.Tensor] = []
    net.generator.attention.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    net.generate(noise, label)
    rows, columns = seen[0].shape[2:]
    for cell in (0, 17):
        found = asked(image, capture, cell=cell)
        assert found.facts["grid"] == (rows, columns)
        queries, keys = (
            part(seen[0]).flatten(2)[0] for part in (net.generator.attention.query, net.generator.attention.key)
        )
        by_hand = (queries[:, cell] @ keys).softmax(-1)
        assert found.arrays["maps"][0] == pytest.approx(by_hand.detach().numpy(), abs=1e-6)
    with pytest.raises(UserError):
        asked(image, capture, cell=rows * columns)


def test_a_sound_is_seen_as_its_spectrogram() -> None:
    capture = captured(sound)
    (spectra,) = capture.given.args
    found = asked(image, capture, part="picture").arrays["picture"]
    low, high = spectra.min(), spectra.max()
    assert np.abs(found[..., 0] - ((spectra[0] - low) / (high - low) * 255).numpy()).max() <= 0.51
    maps = asked(image, capture, site=1)
    assert maps.facts["grid"] == (2, 3) and maps.facts["others"] == [0]
    assert [token.text for token in capture.axes[""].tokens[:3]] == ["[CLS]", "b0 t0", "b0 t1"]


def test_a_convolutional_stem_has_a_grid_too() -> None:
    capture = look(preset("vitc-mini-tiny").build(seed=0), (torch.randn(1, 3, 32, 32),))
    found = asked(image, capture)
    rows, columns = found.facts["grid"]
    assert rows * columns == found.arrays["maps"].shape[1] == len(capture.axes[""])


def test_models_without_images_say_so() -> None:
    assert image.applies(captured(text)) == "This model was given no image and no sound."
    assert filters.applies(captured(text)) == "This model does not cut images into patches."


# ---------------------------------------------------------------- rollout


@pytest.mark.parametrize("build", [vit, text, table, image_and_text])
def test_the_rollout_view_gives_the_chosen_row(build: Any) -> None:
    capture = captured(build)
    assert rollout.applies(capture) is None
    found = asked(rollout, capture, query=2, depth=2, fuse="max", residual=0.25, discard=0.3)
    whole = capture.rollout(depth=2, fuse="max", residual=0.25, discard=0.3)
    assert found.arrays["rollout"] == pytest.approx(whole[2].numpy(), abs=1e-6)
    assert found.arrays["rollout"].sum() == pytest.approx(1, abs=1e-6)
    every = asked(rollout, capture, towards="mean")
    assert every.arrays["rollout"] == pytest.approx(capture.rollout().mean(0).numpy(), abs=1e-6)


def test_the_relevance_is_that_of_the_chosen_answer() -> None:
    capture = captured(vit)
    best = asked(rollout, capture)
    assert best.facts["answer"] == capture.prediction()[0].id
    other = next(choice.id for choice in capture.prediction() if choice.id != best.facts["answer"])
    found = asked(rollout, capture, raised=other)
    assert found.arrays["relevance"] == pytest.approx(relevance(capture, answer=other, rows=[0])[0].numpy(), rel=1e-5)
    assert found.arrays["relevance"] != pytest.approx(best.arrays["relevance"], rel=1e-3)


def test_in_a_text_the_answer_is_that_of_the_chosen_token() -> None:
    capture = captured(text)
    found = asked(rollout, capture, query=3)
    expected = relevance(capture, at=3, answer=capture.prediction(at=3)[0].id, rows=[3])[0]
    assert found.arrays["relevance"] == pytest.approx(expected.numpy(), rel=1e-5)


def test_every_stack_of_a_pair_can_be_traced() -> None:
    capture = captured(pair)
    for side, shape in {"cross": (4, 6), "encoder": (6, 6), "decoder": (4, 4)}.items():
        found = asked(rollout, capture, side=side, trace=1)
        assert found.facts["stacks"] == ["cross", "encoder", "decoder"]
        assert found.arrays["rollout"].shape == shape[1:]
        assert found.arrays["rollout"] == pytest.approx(capture.rollout(stack=side)[1].numpy(), abs=1e-6)
    assert asked(rollout, capture).facts["token"] == 3  # the last one that was written
    assert asked(rollout, capture, depth=0).arrays["rollout"].sum() == 0  # nothing has been read from the source yet


NAMES = ("ast-small", "bahdanau-seq2seq", "bart-base", "captioner-mini", "clip-b32", "detr-r50", "encoder-mini",
         "forecaster", "ft-transformer", "hyena-small", "llama3-8b", "patchtst", "pyramid-small", "sagan-32",
         "t5-small", "vilbert-base", "vit-s16", "vitc-mini", "vt-resnet")  # fmt: skip


@pytest.mark.parametrize("build", [text, vit, table, sound, image_and_text, streams, pair, windows])
def test_a_rollout_and_its_picture_are_one_line_each(build: Any, tmp_path: Path) -> None:
    capture = captured(build)
    assert capture.rollout().sum(1).numpy() == pytest.approx(1, abs=1e-6)
    assert capture.png(tmp_path / "rollout.png", "rollout").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", NAMES)
def test_named_models_of_every_family_are_rolled_out_or_say_why(name: str) -> None:
    capture = preset_capture(f"{name}-tiny")
    for view in (image, filters):
        why = view.applies(capture)
        if why is None:
            assert asked(view, capture).arrays
        else:
            assert why[0].isupper() and why.endswith(".")
    why = rollout.applies(capture)
    assert (why is None) == (name not in ("bahdanau-seq2seq", "hyena-small", "sagan-32", "vt-resnet")), why
    for stack in rollout.stacks_of(capture) if why is None else ():
        found = asked(rollout, capture, side=stack)
        assert found.arrays["rollout"].sum() == pytest.approx(1, abs=1e-6)
        assert ("relevance" in found.arrays) != ("why_no_relevance" in found.facts)


@pytest.mark.parametrize("kind", models.KINDS)
def test_what_is_exported_can_be_answered(kind: str) -> None:
    capture = look(models.predictor(kind), models.inputs(kind))
    size = 0
    for view in (image, rollout, filters):
        if view.applies(capture) is None:
            size += sum(len(view.answer(capture, query).to_bytes()) for query in view.exported(capture))
    assert 0 < size < 300_000


# ---------------------------------------------------------------- filters


def test_the_filters_view_shows_components_and_filters(photo: Capture) -> None:
    found = asked(filters, photo, components=5)
    expected = filter_components(photo.model, 5)
    assert found.arrays["filters"] == pytest.approx(expected.components.numpy(), abs=1e-6)
    assert found.arrays["explained"] == pytest.approx(expected.explained.numpy(), abs=1e-6)
    assert found.arrays["coordinates"].shape == (5, 32) and found.arrays["untrained"].shape == (5, 3, 4, 4)
    raw = asked(filters, photo, filters="raw", components=4)
    at = raw.facts["dimensions"]
    assert np.array_equal(raw.arrays["filters"], patch_filters(photo.model)[at].numpy())
    assert raw.facts["norms"] == sorted(raw.facts["norms"], reverse=True)


def test_filters_are_drawn_for_print(photo: Capture, tmp_path: Path) -> None:
    assert "99" in photo.svg(tmp_path / "filters.svg", "filters").read_text()  # per cent of the variance
    with pytest.raises(UserError, match="holds no weights"):
        Capture.open(photo.save(tmp_path / "photo.look")).svg(tmp_path / "none.svg", "filters")


@pytest.mark.parametrize(("view", "options"), [(filters, {"components": 65}), (filters, {"filters": "all"}),
                                               (rollout, {"fuse": "sum"}), (rollout, {"residual": 2}),
                                               (image, {"part": "all"})])  # fmt: skip
def test_options_are_bounded(photo: Capture, view: Any, options: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        asked(view, photo, **options)
