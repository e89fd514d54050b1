"""The page as one HTML file with modules, styles and answers inlined, and a CSP that forbids all network access.

It opens from disk and inside a sandboxed frame: modules are `data:` URLs under the same bare names, answers are gzipped
safetensors in base64.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
from typing import TYPE_CHECKING, Any

import torch

from anyformer.inspection.answer import SELECTION
from anyformer.inspection.manifest import start_of
from anyformer.inspection.read_query import EVERYTHING, answered
from anyformer.inspection.views import exported_queries, views
from anyformer.inspection.web_files import import_map, page_html, script_text, web_files

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture

START = (
    'import { start } from "look/app"; import { held } from "look/answer"; '
    'start(held(JSON.parse(document.getElementById("look-data").textContent)));'
)
FRAME_HEIGHT = 760  # height in pixels of the page in a notebook


def exported_page(manifest: dict[str, Any], answers: list[dict[str, Any]]) -> str:
    """The page for a manifest and answers."""
    address = {path: f"data:text/javascript;base64,{in_base64(file.text.encode())}"
               for path, file in web_files().items() if path.endswith(".js")}  # fmt: skip
    sheet, imports = web_files()["look.css"].text, import_map(address)
    data = script_text({"manifest": manifest, "answers": answers})
    # Scripts are allowed by their hash, so that nothing else in the file can run.
    scripts = " ".join(f"'sha256-{hashed(text)}'" for text in (imports, START))
    policy = (
        f"default-src 'none'; script-src {scripts} data:; style-src 'sha256-{hashed(sheet)}'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return page_html(
        policy=f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        styles=f"<style>{sheet}</style>",
        imports=f'<script type="importmap">{imports}</script>',
        data=f'<script type="application/json" id="look-data">{data}</script>',
        start=f'<script type="module">{START}</script>',
    )


@torch.no_grad()
def held_answers(capture: Capture) -> list[dict[str, Any]]:
    """The packed answers of every view for an exported page, without duplicates."""
    start = start_of(capture)
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, module in views().items():
        if module.applies(capture) is not None:
            continue
        for query in (start, *exported_queries(module, capture)):
            answer, reads = answered(module, capture, query)
            every = {word: getattr(query, word) for word in SELECTION} | dict(query.options)
            names = sorted(every) if EVERYTHING in reads else list(reads)
            params = {word: str(every[word]) for word in names if word in every}
            key = (name, *sorted(params.items()))
            if key not in found:
                packed = in_base64(gzip.compress(answer.to_bytes(), 9, mtime=0))
                found[key] = {"view": name, "reads": names, "params": params, "data": packed}
    return list(found.values())


def framed_page(text: str) -> str:
    """A page inside a sandboxed iframe."""
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" title="anyformer look" width="100%" height="{FRAME_HEIGHT}" '
        f'style="border:0" srcdoc="{html.escape(text, quote=True)}"></iframe>'
    )


def in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def hashed(text: str) -> str:
    return in_base64(hashlib.sha256(text.encode()).digest())
