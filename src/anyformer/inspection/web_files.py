"""The page's files: JavaScript modules and style sheet from `web/`, and the HTML that combines them.

Served and exported pages have the same HTML and the same modules under the same bare names; only the URLs of the import
map differ.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from anyformer.inspection.palette import FOR_THE_PAGE, TOKENS

SCRIPT, SHEET = "text/javascript; charset=utf-8", "text/css; charset=utf-8"


class WebFile(NamedTuple):
    """One file of the page."""

    type: str
    text: str


@cache
def web_files() -> dict[str, WebFile]:
    """Every module and the style sheet, by path below `web/`. Requested names are only looked up here."""
    root = files("anyformer.inspection") / "web"
    colours = "".join(f"--{name}:light-dark({light},{dark});" for name, (light, dark) in TOKENS.items())
    found = {"look.css": WebFile(SHEET, f":root{{{colours}}}\n" + (root / "look.css").read_text(encoding="utf-8"))}
    for folder, prefix in ((root, ""), (root / "views", "views/")):
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if entry.name.endswith(".js"):
                found[prefix + entry.name] = WebFile(SCRIPT, entry.read_text(encoding="utf-8"))
    return found


def import_map(address: dict[str, str]) -> str:
    """The import map from bare module names, such as `look/heatmap`, to URLs."""
    names = {f"look/{path.removesuffix('.js')}": address[path] for path in web_files() if path.endswith(".js")}
    return script_text({"imports": names})


def script_text(value: object) -> str:
    """JSON that is safe inside a script element: no text in it can end the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def page_html(*, policy: str = "", styles: str, imports: str, data: str = "", start: str) -> str:
    """The HTML template with its parts filled in."""
    text = (files("anyformer.inspection") / "web" / "index.html").read_text(encoding="utf-8")
    colours = f'<script type="application/json" id="look-palette">{script_text(FOR_THE_PAGE)}</script>'
    parts = {"policy": policy, "styles": styles, "imports": imports, "data": colours + data, "start": start}
    pieces = re.split(r"<!-- (policy|styles|imports|data|start) -->", text)  # once: a part may contain any text
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))
