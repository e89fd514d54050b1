"""The page of image attention and of patch filters, in a browser: what is drawn is what the capture says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Page

from anyformer.inspection.capture import Capture, look
from anyformer.inspection.place_maps import map_attention
from anyformer.inspection.server import LookServer, serve_look
from anyformer.presets import preset
from tests.inspection import models
from tests.inspection.browser.conftest import without_faults

GRID = "[data-focus=patches]"
THUMBS = ".thumbs button.thumb"
OTHERS = "[aria-label='Weights of tokens that are no patches'] button"


def alpha_of(page: Page) -> float:
    return float(page.evaluate("document.querySelector('canvas.map').style.opacity"))


def colours(page: Page) -> list[list[int]]:
    """The map's pixels as they would stand on white, one a patch."""
    return page.evaluate(
        """() => { const map = document.querySelector('canvas.map');
        const pixels = map.getContext('2d').getImageData(0, 0, map.width, map.height).data;
        return Array.from({length: map.width * map.height}, (_, i) => Array.from(pixels.slice(i * 4, i * 4 + 3),
            (c) => 255 + (c - 255) * pixels[i * 4 + 3] / 255)); }"""
    )


def light(pixel: list[int]) -> int:
    return sum(pixel)


def patch_at(page: Page, row: int, column: int) -> dict[str, float]:
    """The middle of a patch of the 3 by 4 grid, within the field."""
    box = page.locator(GRID).bounding_box()
    assert box is not None
    return {"x": (column + 0.5) * box["width"] / 4, "y": (row + 0.5) * box["height"] / 3}


def test_the_map_has_one_pixel_a_patch_on_the_true_grid(page_of: Callable[..., Page], capture_of: Any) -> None:
    page = page_of("vit", "image", site=1, head=2, scale="linear", range="least")
    weights = capture_of("vit").weights(1)[2, 0, 1:]
    pixels = colours(page)
    assert len(pixels) == 12
    drawn = [light(pixel) for pixel in pixels]  # the stronger the darker
    assert drawn.index(min(drawn)) == int(weights.argmax()) and drawn[int(weights.argmin())] == max(drawn)
    assert page.get_attribute(GRID, "aria-rowcount") == "3" and page.get_attribute(GRID, "aria-colcount") == "4"
    assert page.locator(THUMBS).count() == 4


def test_nothing_lies_over_what_is_not_looked_at(page_of: Callable[..., Page], capture_of: Any) -> None:
    page = page_of("vit", "image", site=1, head=2, scale="linear")
    weights = capture_of("vit").weights(1)[2, 0, 1:]
    alpha = page.evaluate(
        """() => { const map = document.querySelector('canvas.map');
        const { data } = map.getContext('2d').getImageData(0, 0, map.width, map.height);
        return Array.from({length: map.width * map.height}, (_, i) => data[i * 4 + 3] / 255); }"""
    )
    assert alpha == pytest.approx((weights / weights.max()).tolist(), abs=3e-3)  # as strong as the weight


def test_the_picture_is_under_the_map(page_of: Callable[..., Page], capture_of: Any) -> None:
    page = page_of("vit", "image")
    pixel = page.evaluate(
        """() => { const under = document.querySelector('[data-focus=patches] canvas:not(.map)');
        return [under.width, under.height, ...under.getContext('2d').getImageData(6, 4, 1, 1).data]; }"""
    )
    assert pixel == [16, 12, *capture_of("vit").given.pixels[4, 6].tolist(), 255]


def test_a_patch_is_chosen_by_click_and_by_keys(page_of: Callable[..., Page], settled: Any) -> None:
    page = page_of("vit", "image")
    assert page.locator(f"{GRID} rect.chosen").count() == 0  # the class token is no patch
    page.locator(GRID).click(position=patch_at(page, 1, 2))
    settled(page)
    assert "query=7" in page.url  # the class token, then row 1, column 2, both from 0
    assert page.locator(f"{GRID} rect.chosen").count() == 1 and '"r1 c2"' in page.inner_text(".summary")
    page.locator(GRID).press("ArrowDown")
    settled(page)
    page.locator(GRID).press("ArrowRight")
    settled(page)
    assert "query=12" in page.url and "r2 c3" in page.inner_text("#live")
    page.locator(GRID).press("ArrowRight")  # the edge holds
    settled(page)
    assert "query=12" in page.url
    page.locator(OTHERS).first.click()
    settled(page)
    assert "query=0" in page.url and page.locator(f"{GRID} rect.chosen").count() == 0


def test_moving_over_a_patch_shows_its_row(page_of: Callable[..., Page], capture_of: Any) -> None:
    page = page_of("vit", "image", head=1, scale="linear")
    page.wait_for_timeout(300)  # all rows of the head arrive behind the page
    before = colours(page)
    page.locator(GRID).hover(position=patch_at(page, 0, 1))
    row = capture_of("vit").weights(0)[1, 2, 1:]
    during = [light(pixel) for pixel in colours(page)]
    assert during.index(min(during)) == int(row.argmax())
    assert "r0 c1" in page.inner_text(".readout") and "looks itself" in page.inner_text(".readout")
    page.locator("h2").hover()
    assert colours(page) == before


def test_heads_opacity_and_contours(page_of: Callable[..., Page], settled: Any, capture_of: Any) -> None:
    page = page_of("vit", "image")
    page.locator(THUMBS).nth(3).click()
    settled(page)
    assert "head=3" in page.url and page.locator(THUMBS).nth(3).get_attribute("aria-pressed") == "true"
    assert alpha_of(page) == pytest.approx(0.6)
    page.locator("[data-focus=option-opacity]").fill("0.2")
    settled(page)
    assert alpha_of(page) == pytest.approx(0.2)
    page.locator("[data-focus=option-contour]").select_option("all")
    settled(page)
    assert page.evaluate("[...document.querySelectorAll('path.contour')].map(p => p.dataset.share)") == [
        "0.5",
        "0.75",
        "0.9",
    ]
    page.get_by_role("button", name="Smooth").click()
    settled(page)
    assert page.evaluate("document.querySelector('canvas.map').style.imageRendering") == "auto"
    page.get_by_role("button", name="Mean of heads").click()
    settled(page)
    mean = capture_of("vit").weights(0).mean(0)[0]
    page.locator("details.exact > summary").click()
    page.locator("details.exact tbody tr").nth(5).wait_for()  # the table is written once its fold is open
    cells = page.locator("details.exact tbody tr").nth(5).locator("td").all_inner_texts()
    assert cells[0] == "r1·c0" and float(cells[-1]) == pytest.approx(float(mean[5]), rel=1e-4)


def test_a_contour_holds_its_share_of_the_weight(page_of: Callable[..., Page]) -> None:
    page = page_of("vit", "image")
    found = page.evaluate(
        """async () => { const { strongest, outline } = await import('look/patches');
        const data = Float32Array.from([0.4, 0.05, 0.3, 0.05, 0.15, 0.05]);
        return [[...strongest(data, 0.5)], [...strongest(data, 0.7)], [...strongest(data, 0.85)],
                outline(strongest(data, 0.4), [2, 3], 10, 10)]; }"""
    )
    assert found[0] == [1, 0, 1, 0, 0, 0] and found[1] == [1, 0, 1, 0, 0, 0] and found[2] == [1, 0, 1, 0, 1, 0]
    assert found[3].count("M") == 4  # one patch has four sides


# ---------------------------------------------------------------- registers, visual tokens, objects


@pytest.fixture(scope="module")
def other_servers() -> Iterator[Callable[[str], tuple[LookServer, Capture]]]:
    running: dict[str, tuple[LookServer, Capture]] = {}

    def server(kind: str) -> tuple[LookServer, Capture]:
        if kind not in running:
            torch.manual_seed(0)
            if kind == "registers":
                capture = look(models.vit(registers=2), models.image())
            elif kind == "tokens":
                capture = look(preset("vt-resnet-tiny").build(seed=0), (torch.randn(1, 3, 32, 32),))
            elif kind == "places":
                net = preset("sagan-32-tiny").build(seed=0)
                capture = look(net, (torch.randn(1, net.spec.noise), torch.tensor([2])))
            else:
                capture = look(preset("detr-r50-tiny").build(seed=0), (torch.randn(1, 3, 64, 64), None))
            running[kind] = serve_look(capture), capture
        return running[kind]

    yield server
    for one, _ in running.values():
        one.close()


def test_registers_are_chips_and_no_patches(other_servers: Any, pages: Any, settled: Any) -> None:
    server, capture = other_servers("registers")
    page = pages.open(f"{server.url}#view=image")
    settled(page)
    chips = page.locator(OTHERS)
    assert chips.count() == 3 and "register" in chips.nth(2).inner_text()
    value = float(chips.nth(2).locator(".value").inner_text())
    assert value == pytest.approx(float(capture.weights(0)[0, 0, 2]), rel=1e-2)
    chips.nth(2).click()
    settled(page)
    assert "query=2" in page.url and '"register 1"' in page.inner_text(".summary")


def test_visual_tokens_have_a_map_each(other_servers: Any, pages: Any, settled: Any) -> None:
    server, capture = other_servers("tokens")
    page = pages.open(f"{server.url}#view=image&round=1&token=2&scale=linear&range=least")
    settled(page)
    own = capture.model.embed.backbone.token_maps(capture.given.args[0])[0][0, 2].flatten()
    drawn = [light(pixel) for pixel in colours(page)]
    assert len(drawn) == 64 and drawn.index(min(drawn)) == int(own.argmax())
    page.locator(THUMBS).nth(1).click()
    settled(page)
    assert "token=1" in page.url and "visual token 1" in page.inner_text(".summary")


def test_objects_look_at_the_image(other_servers: Any, pages: Any, settled: Any) -> None:
    server, capture = other_servers("objects")
    crossing = next(site for site in capture.sites if site.kind == "cross")
    page = pages.open(f"{server.url}#view=image&site={crossing.index}")
    settled(page)
    page.locator("[aria-label='Tokens that look'] button").nth(4).click()
    settled(page)
    assert "query=4" in page.url and '"object 4"' in page.inner_text(".summary")
    assert len(colours(page)) == 64


def test_places_of_a_generated_image_look_at_each_other(other_servers: Any, pages: Any, settled: Any) -> None:
    server, capture = other_servers("places")
    page = pages.open(f"{server.url}#view=image&scale=linear&range=least")
    settled(page)
    found = map_attention(capture)
    assert found is not None
    page.locator(GRID).press("ArrowDown")
    settled(page)
    assert f"cell={found.grid[1]}" in page.url
    drawn = [light(pixel) for pixel in colours(page)]
    weights = found.weights[found.grid[1]]
    assert len(drawn) == weights.size and weights[drawn.index(min(drawn))] == pytest.approx(weights.max(), rel=0.01)


# ---------------------------------------------------------------- filters


def test_filters_are_drawn_and_chosen(page_of: Callable[..., Page], settled: Any, capture_of: Any) -> None:
    from anyformer.inspection.filters import filter_components

    page = page_of("vit", "filters")
    tiles = page.locator("section[aria-label='This model'] button.thumb")
    assert tiles.count() == 28 and page.locator("section[aria-label=Untrained] .thumb").count() == 28
    first = filter_components(capture_of("vit").model).components[0]
    pixel = page.evaluate(
        """() => [...document.querySelector("section[aria-label='This model'] canvas").getContext('2d')
        .getImageData(1, 2, 1, 1).data]"""
    )
    expected = (127.5 + 127.5 * first[:, 2, 1] / first.abs().max()).round().tolist()
    assert pixel[:3] == pytest.approx(expected, abs=1)
    tiles.nth(2).click()
    settled(page)
    assert "filter=2" in page.url and "Component 2 in every filter" in page.inner_text(".drawing")
    page.get_by_role("button", name="Filters", exact=True).click()
    settled(page)
    assert page.locator("details.exact > summary").inner_text().startswith("Exact values (28")
    page.locator("label:has-text('Untrained beside it') input").uncheck()
    settled(page)
    assert page.locator("section[aria-label=Untrained]").count() == 0


# ---------------------------------------------------------------- accessible, and without a server


@pytest.mark.parametrize("view", ["image", "rollout", "filters"])
def test_it_is_without_faults_in_both_themes_and_fits(view: str, page_of: Callable[..., Page]) -> None:
    without_faults(page_of("vit", view, query=6, contour="all"))


def test_an_exported_page_has_the_picture_and_every_layer(
    pages: Any, settled: Any, file_of: Callable[[str], Path]
) -> None:
    page = pages.open(f"{file_of('vit').as_uri()}#view=image&site=1&head=3")
    settled(page)
    assert len(colours(page)) == 12 and page.locator(THUMBS).nth(3).get_attribute("aria-pressed") == "true"
    assert "Layer 1, head 3" in page.inner_text(".summary")
    page = pages.open(f"{file_of('vit').as_uri()}#view=rollout&depth=1&query=0")
    settled(page)
    assert "After 1 layer" in page.inner_text(".summary") and page.locator("canvas.map").count() == 2
    page = pages.open(f"{file_of('vit').as_uri()}#view=filters&filter=5")
    settled(page)
    assert "Component 5 in every filter" in page.inner_text(".drawing")
