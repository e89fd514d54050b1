"""The page as one file: from disk, in a sandboxed frame, without any network, and what it does not hold."""

from __future__ import annotations

import pytest

from anyformer.inspection.manifest import manifest_of
from tests.inspection.models import KINDS

MOST_BYTES = 3_000_000


@pytest.mark.parametrize("kind", KINDS)
def test_every_view_opens_from_disk(kind, file_of, pages, capture_of, settled):
    path = file_of(kind)
    assert path.stat().st_size < MOST_BYTES
    page = pages.open(path.as_uri())
    settled(page)
    assert capture_of(kind).title in page.inner_text("h1")
    for view in manifest_of(capture_of(kind))["views"]:
        if view["applies"]:
            page.click(f"#views button[data-focus=view-{view['name']}]")
            settled(page)
            assert page.locator(".state").count() == 0, f"{view['name']}: {page.inner_text('#panel')}"
            assert page.locator(".drawing > *").count() > 0, view["name"]


def test_its_numbers_are_the_captures(file_of, pages, capture_of, settled):
    page = pages.open(file_of("gpt").as_uri() + "#view=map&site=1&head=3")
    settled(page)
    page.click("details.exact > summary")
    page.wait_for_selector("details.exact tbody tr")
    exact = capture_of("gpt").weights(1)[3]
    last = page.locator("details.exact tbody tr").last.locator("td").all_inner_texts()[1:]
    assert [float(cell) for cell in last] == pytest.approx(exact[-1].tolist(), rel=1e-5)
    page.keyboard.press("{")
    settled(page)
    assert page.locator(".state").count() == 0  # every head of a short text is inside
    page.go_back()
    settled(page)
    assert page.input_value("select[aria-label=Head]") == "3"


def test_what_it_does_not_hold_is_said(file_of, pages, settled):
    page = pages.open(file_of("gpt").as_uri() + "#view=map&show=values&head=2")
    settled(page)
    assert "This page holds" in page.inner_text("#panel") and "anyformer look" in page.inner_text("#panel")
    page.locator(".state button").first.click()
    settled(page)
    assert page.locator(".field").count() == 1


def test_a_notebooks_frame_shows_it(pages, capture_of):
    page = pages.open("about:blank")
    page.set_content(f"<!doctype html><html lang=en><title>x</title>{capture_of('gpt')._repr_html_()}")
    frame = page.frame_locator("iframe")
    frame.locator("html[data-ready=yes][data-busy=no]").wait_for(state="attached")
    frame.locator(".field").click()
    frame.get_by_role("button", name="Heads", exact=True).click()
    frame.locator(".thumb").first.wait_for()
    assert page.frames[1].evaluate("window.origin") == "null"  # sandboxed: it has no origin, and reaches nothing


def test_the_policy_of_the_file_forbids_all_network(file_of, pages, settled):
    page = pages.open(file_of("gpt").as_uri())
    settled(page)
    tried = page.evaluate("""async () => {
        const failed = [];
        const tried = (name, node, add) => new Promise((done) => {
            node.onload = done;
            node.onerror = () => { failed.push(name); done(); };
            node.src = "https://example.org/x";
            if (add) document.body.append(node);
        });
        await fetch("https://example.org/").catch(() => failed.push("fetch"));
        await tried("image", new Image(), false);
        await tried("script", document.createElement("script"), true);
        return failed; }""")
    assert tried == ["fetch", "image", "script"]
    told = [text for text in pages.problems if not text.startswith("a request to https://example.org")]
    assert len(told) >= 3 and all("Content Security Policy" in text for text in told)  # not by our block
    pages.problems.clear()


def test_a_changed_script_does_not_run(file_of, pages, tmp_path):
    text = file_of("gpt").read_text()
    (tmp_path / "changed.html").write_text(
        text.replace('<script type="module">', '<script type="module">window.hit=1;')
    )
    page = pages.open((tmp_path / "changed.html").as_uri())
    page.wait_for_timeout(300)
    assert page.evaluate("window.hit") is None and pages.problems
    pages.problems.clear()


def test_it_saves_files_too(file_of, pages, settled):
    page = pages.open(file_of("gpt").as_uri())
    settled(page)
    for end in ("PNG", "SVG", "CSV"):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=f"Export as {end}").click()
        assert waiting.value.path().stat().st_size > 100, end
