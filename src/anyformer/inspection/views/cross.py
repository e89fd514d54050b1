"""Cross-attention: which source tokens each target token attends to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.axis import text_of
from anyformer.inspection.beams import BEAMS, beam_capture, beams_of, has_beams
from anyformer.inspection.replay import ATTENDING
from anyformer.inspection.word_names import token_facts, words_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from anyformer.inspection.capture import Capture
    from anyformer.inspection.site import Site

TITLE = "Cross-attention"
READ = (
    "A row is a target token as it is written, a column a source token. The stronger a cell, the more the decoder "
    "looked there to write it."
)
NOTES = {
    "written": "The source token that was read most to write each token: where, not why.",
    "read": "The source token that was read most by each target token: where, not why.",
}
CLAIM = "bahdanau-alignment"
TOUR = (4, "Cross-attention. Which part of the source each written word looks at.")
WINDOW = 256  # target tokens per answer


def applies(capture: Capture) -> str | None:
    if cross_sites(capture):
        return None
    if capture.modality == "pair":
        return "No layer of this decoder gives weights over the source."
    return "This model has one stack of layers: there is no second sequence to look at."


def cross_sites(capture: Capture) -> list[Site]:
    """The sites where one sequence attends to another."""
    return [site for site in capture.sites if site.kind == "cross" and draws(capture, site)]


def draws(capture: Capture, site: Site) -> bool:
    """Whether the mixer has weights over source tokens, unlike a recurrent decoder with a fixed context vector."""
    return isinstance(capture.found.mixers[site.index].module, ATTENDING)


def answer(capture: Capture, query: Query) -> ViewAnswer:
    beam = query.integer("beam", 0, 0, BEAMS)
    beams = beam_facts(capture) if beam else None
    capture = beam_capture(capture, beam - 1) if beam else capture
    sites = cross_sites(capture)
    site = next((one for one in sites if one.index == query.site), sites[0])
    heads = query.choice("heads", "mean", ("mean", "one"))
    targets, sources = capture.axes[site.queries], capture.axes[site.keys]
    rows = capture.row_tokens(site)
    start = query.integer("start", 0, 0, len(targets) - 1)
    every = capture.weights(site.index, rows=slice(start, start + WINDOW))  # (H,t,S)
    head = min(query.head, site.heads - 1) if heads == "one" else 0
    shown = every[head] if heads == "one" else every.mean(0)  # (t,S)
    best = shown.argmax(-1)
    sums = every.sum(-1)
    facts = {
        "site": site.index, "sites": [{"index": one.index, "label": one.label} for one in sites],
        "mixer": site.mixer, "heads": site.heads, "head": head, "mean": heads == "mean",
        "targets": [token_facts(token) for token in rows[start : start + WINDOW]],
        "after": targets.texts[start : start + WINDOW] if targets.written else None,
        "sources": [token_facts(token) for token in sources.tokens], "start": start, "count": len(targets),
        "window": WINDOW, "sums": [float(sums.min()), float(sums.max())],
        "beam": beam, "beams": beams, "has_beams": has_beams(capture),
    }  # fmt: skip
    return ViewAnswer(
        facts,
        {
            "weights": shown.numpy().astype(np.float32),
            "best": best.numpy().astype(np.int32),
            "by_head": every.argmax(-1).numpy().astype(np.int32),  # (H,t)
        },
    )


def beam_facts(capture: Capture) -> list[dict[str, Any]]:
    """The texts and scores of the beams, for selection."""
    texts = [text_of(words_of(capture, beam.ids[0].tolist())) for beam in beams_of(capture)]
    return [{"text": text, "score": beam.score} for text, beam in zip(texts, beams_of(capture), strict=True)]


def exported(capture: Capture) -> Iterable[Query]:
    """The mean of each layer, and every head of the first layers if they are small."""
    sites = cross_sites(capture)
    found = [Query(), *(Query(site=site.index) for site in sites[:12])]
    if len(capture.axes[sites[0].queries]) * len(capture.axes[sites[0].keys]) * sites[0].heads <= 2**15:
        found += [Query(site=site.index, head=head, options={"heads": "one"})
                  for site in sites[:6] for head in range(site.heads)]  # fmt: skip
    return found
