"""Screenshots of every view of `anyformer look`, wide and narrow, for docs/how-to/look.md.

    python docs/look_pictures.py --text runs/demo --image runs/photos a.png --pair runs/numbers --table runs/adult b.csv

Each view is drawn from the first of the models that it applies to. Needs chromium, as the browser tests do.
"""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import anyformer
from anyformer.inspection.capture import Capture, look
from anyformer.inspection.server import serve_look
from anyformer.inspection.views import views

OUT = Path(__file__).parent / "images" / "look"
WIDTHS = {1280: "", 360: "-narrow"}
COLOURS = 256  # of a picture: flat surfaces, so that more are not seen
TEXT = "def add(self, key, value):\n    self.data[key] = value"
SENTENCE = "two three six eight"
# What a view shows best, and what of it.
SOURCE = {"image": "image", "filters": "image", "rollout": "image", "cross": "pair", "table": "table"}
CHOSEN = {"map": "&site=1&head=1", "steps": "&site=1&head=1", "cross": "&mean=1", "remove": "&site=1"}


def captures(arguments: argparse.Namespace) -> dict[str, Capture]:
    """One capture a model; the text beside another text, from a run whose checkpoints are there."""
    found: dict[str, Capture] = {}
    given: dict[str, tuple[Path | None, Any]] = {
        "text": (arguments.text, TEXT), "pair": (arguments.pair, SENTENCE),
        "image": arguments.image or (None, None), "table": arguments.table or (None, None),
    }  # fmt: skip
    for name, (folder, inputs) in given.items():
        if folder is not None:
            predictor = anyformer.load(folder)
            found[name] = look(predictor, str(inputs) if isinstance(inputs, Path) else inputs, name=folder.name)
            found[name].run = folder
    if "text" in found:
        found["text"].compare(look(found["text"].source, TEXT.replace("key", "name"), name=arguments.text.name))
    return found


def take(page: Page, address: str, path: Path) -> None:
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_timeout(1000)
    page.locator("main:not([aria-busy])").wait_for()
    page.wait_for_timeout(1500)  # the numbers are checked beside the view
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    picture.quantize(COLOURS).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("text", "pair"):
        parser.add_argument(f"--{name}", type=Path)
    for name in ("image", "table"):
        parser.add_argument(f"--{name}", type=Path, nargs=2, metavar=("FOLDER", "FILE"))
    parser.add_argument("--views", nargs="*", default=list(views()))
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    made = captures(arguments)
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name in arguments.views:
            order = [SOURCE.get(name, "text"), *made]
            capture = next(
                (made[one] for one in order if one in made and views()[name].applies(made[one]) is None), None
            )
            if capture is None:
                print(f"{name}: no model for it")
                continue
            with serve_look(capture) as server:
                for width, suffix in WIDTHS.items():
                    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme="light")
                    take(page, f"{server.url}#view={name}{CHOSEN.get(name, '')}", OUT / f"{name}{suffix}.png")
                    page.close()
            print(f"{name}: {capture.title}")
        browser.close()


if __name__ == "__main__":
    main()
