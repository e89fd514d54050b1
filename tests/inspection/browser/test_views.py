"""Every view of every kind of model opens, shows something, and says it in numbers too."""

from __future__ import annotations

import pytest

from anyformer.inspection.manifest import manifest_of
from anyformer.inspection.views import NAMES, views
from anyformer.inspection.web_files import web_files
from tests.inspection.browser.conftest import AXE
from tests.inspection.models import KINDS


def test_every_view_has_both_its_halves():
    assert list(views()) == list(NAMES)
    assert {name for name in web_files() if name.startswith("views/")} == {f"views/{name}.js" for name in NAMES}


def applying(capture):
    return [view["name"] for view in manifest_of(capture)["views"] if view["applies"]]


# Which views axe looks at with which kind of model: each once in each theme, where it can with another kind. Of others
# their own tests do it, with more on the page: image, rollout, filters, remove, compare and training.
AXED = {
    "light": {
        "gpt": {"steps", "trace"},
        "bert": {"lens", "positions"},
        "t5": {"cross", "map"},
        "vit": {"heads", "flow"},
        "ft": {"table"},
    },
    "dark": {
        "gpt": {"map", "heads"},
        "bert": {"steps", "flow"},
        "t5": {"cross", "trace"},
        "vit": {"lens", "positions"},
        "ft": {"table"},
    },
}
ELSEWHERE = {"image", "rollout", "filters", "remove", "compare", "training"}


def test_axe_looks_at_every_view_once_in_both_themes():
    for by_kind in AXED.values():
        assert sorted([*(name for names in by_kind.values() for name in names), *ELSEWHERE]) == sorted(NAMES)


def violations(page):
    """What axe has to say: rule and element."""
    found = AXE.run(page, options={"resultTypes": ["violations"]})
    return [(one["id"], one["nodes"][0]["html"][:200]) for one in found.response["violations"]]


def says_why_a_view_does_not_apply(page, capture):
    for view in manifest_of(capture)["views"]:
        name, why = view["name"], view["why"] or None
        entry = page.locator(f"#views button[data-focus=view-{name}]")
        assert entry.get_attribute("aria-disabled") == (None if why is None else "true")
        if why is not None:
            assert page.text_content(f"#why-{name}") == why


@pytest.mark.parametrize("theme, width", [("light", 1280), ("dark", 360)])
@pytest.mark.parametrize("kind", KINDS)
def test_every_view_draws_fits_and_can_be_read_by_all(kind, theme, width, page_of, capture_of, settled):
    page = page_of(kind, theme=theme, width=width)
    names = applying(capture_of(kind))
    assert "map" in names and "heads" in names
    if theme == "light":
        says_why_a_view_does_not_apply(page, capture_of(kind))
    for name in names:
        page.evaluate("name => { location.hash = 'view=' + name; }", name)
        page.wait_for_selector(f"#views button[aria-current=page][data-focus=view-{name}]", state="attached")
        settled(page)
        assert not page.query_selector(".state"), f"{name}: {page.inner_text('#panel')}"
        assert page.locator(".drawing > *").count() > 0, name
        assert page.inner_text("h2") == views()[name].TITLE
        assert page.inner_text(".read") == views()[name].READ
        page.locator("details.exact > summary").click()
        page.locator("details.exact tbody tr").first.wait_for(timeout=5000)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{name} is {wide} pixels wide"
        if name in AXED[theme][kind]:
            assert not violations(page), name
        page.locator("details.exact > summary").click()
