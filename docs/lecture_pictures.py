"""The pages of docs/lectures, run: their pictures, and what their code prints.

    python -m docs.lecture_pictures             redraw every picture
    python -m docs.lecture_pictures --outputs   and write what the code prints into the pages

A page is one program: its ```python blocks run from top to bottom in one namespace, and the ```text block behind one is
what it prints. A picture is drawn from the names that its page has left behind, so it shows what the code computed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anyformer.inspection.canvas import Drawing, Label, Mark, Pixels
from anyformer.inspection.filters import tile_filters
from anyformer.inspection.grid import TYPE
from anyformer.inspection.positions import PositionSizes, position_arrays
from docs import lecture_layer_pictures as layers
from docs import lecture_token_pictures as tokens
from docs.lecture_drawing import EDGE, Names, Panel, lines, matrices, scatter, signed, view

HERE = Path(__file__).parent
PAGES, IMAGES = HERE / "lectures", HERE / "images" / "lectures"
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<printed>.*?)```\n)?", re.DOTALL)


@dataclass(frozen=True)
class CodeBlock:
    """One block of a page, the lines before it, and what the page says it prints."""

    code: str
    printed: str
    line: int = 0


def pages() -> list[Path]:
    """The lectures, in their order; README.md is no lecture."""
    return sorted(PAGES.glob("[0-9]-*.md"))


def blocks(text: str) -> list[CodeBlock]:
    """The Python of a page.

    >>> blocks("```python\\nprint(1)\\n```\\n\\n```text\\n1\\n```\\n")
    [CodeBlock(code='print(1)\\n', printed='1\\n', line=1)]
    """
    return [
        CodeBlock(found["code"], found["printed"] or "", text.count("\n", 0, found.start("code")))
        for found in BLOCK.finditer(text)
    ]


def run(text: str) -> tuple[dict[str, Any], list[str]]:
    """The names that a page's code leaves behind, and what each block printed."""
    names: dict[str, Any] = {"__name__": "lecture"}
    printed = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for block in blocks(text):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile("\n" * block.line + block.code, "page", "exec"), names)  # errors name the page's line
            printed.append(out.getvalue())
    return names, printed


def with_outputs(text: str, printed: Sequence[str]) -> str:
    """The page with what its blocks print today behind them."""
    told = iter(printed)

    def filled(found: re.Match[str]) -> str:
        said = next(told)
        return f"```python\n{found['code']}```\n" + (f"\n```text\n{said}```\n" if said else "")

    return BLOCK.sub(filled, text)


# ---------------------------------------------------------------- the pictures, by page


def gradient_reach(names: Names) -> str:
    curves = {name: sizes.tolist() for name, sizes in names["reaches"].items()}
    return lines("Gradient left, by distance", "tokens back", "share", curves, log_up=True)


def three_attentions(names: Names) -> str:
    capture, titles = names["capture"], ("encoder", "decoder", "decoder to encoder")
    chosen = [next(s for s in capture.sites if (s.stack, s.kind) == wanted) for wanted in
              (("encoder", "self"), ("decoder", "self"), ("decoder", "cross"))]  # fmt: skip
    return matrices(*(Panel(title, capture.weights(site.index)[0].numpy(), side=140)
                      for title, site in zip(titles, chosen, strict=True)))  # fmt: skip


def max_margin(names: Names) -> str:
    texts = names["texts"].tolist()
    others = [token for text in texts for token in text[1:]]
    points = {"chosen token": [text[0] for text in texts], "other tokens": others}
    arrows = {"attention": names["p"].tolist(), "hard-margin SVM": names["w"].tolist()}
    return scatter("Tokens, and the direction that chooses", points, arrows)


def pattern(names: Names) -> str:
    site, words = names["pattern"].sites[0].index, names["words"]
    inputs = names["pattern"].inputs_of(site)
    scores = (inputs.q @ inputs.k.mT)[0, 0]
    weights = names["pattern"].weights(site)[0]
    shown = (scores - scores.min()).numpy()
    return matrices(
        Panel("q · k, from the least up", shown, words, words, side=216),
        Panel("weights, rows sum to 1", weights.numpy(), words, words, side=216), apart=True,
    )  # fmt: skip


def soft_dictionary(names: Names) -> str:
    points = list(zip(names["temperatures"], names["answers"], strict=True))
    marks = {"attention": points, "dict[query]": [(t, 4.0) for t, _ in points], "mean": [(t, 2.8) for t, _ in points]}
    return lines("Asked for key 2", "temperature", "answer", marks, log_across=True)


def cost_by_length(names: Names) -> str:
    one = names["cost"]["attention"][0]
    curves = {
        name: [(length, flops / one) for length, flops in zip(names["lengths"], each, strict=True)]
        for name, each in names["cost"].items()
    }
    up = "FLOPs of one token, attention over 256 tokens = 1"
    return lines("FLOPs of one token", "tokens of the text", up, curves, log_across=True, log_up=True)


def toeplitz(names: Names) -> str:
    return signed("h as a Toeplitz matrix: row i, column j holds the tap of lag i - j", names["matrix"].detach(),
                  "token that reads", "token that is read", side=288)  # fmt: skip


def jacobians(names: Names) -> str:
    shown = [Panel(title, names["jacobians"][part].numpy(), down="answer", across="input", side=160)
             for title, part in (("attention", "mixer"), ("feed", "feed"))]  # fmt: skip
    return matrices(*shown, apart=True, title="Who moves whom")


def masks(names: Names) -> str:
    return matrices(*(Panel(name, weights.numpy(), side=150) for name, weights in names["maps"].items()))


def reversing(names: Names) -> str:
    rows, columns = ([f"{letter} {place}" for place, letter in enumerate(word, 1)] for word in names["names"])
    return matrices(Panel("written (rows) looks at read (columns)", names["looks"].numpy(), rows, columns, side=240))


def sinusoids(names: Names) -> str:
    return signed("Sinusoids of width 64", names["table"], "position", "channel")


def sinusoid_positions(names: Names) -> str:
    curves = {f"pos = {pos}": names["table"][pos, 1::2].tolist() for pos in (2, 50)}
    return lines("The cosines of two positions", "i", "PE(pos, 2i+1)", curves)


def binary_counter_picture(names: Names) -> str:
    arrays = position_arrays("sinusoid", None, PositionSizes(length=64, width=64)).arrays
    bits = arrays["counter"] * 2.0 - 1.0
    gap = np.zeros((len(bits), 1))
    whole = np.concatenate([bits, gap, arrays["waves"], gap, arrays["small"]], 1)
    return signed(
        "bits | sinusoids with the bits' periods | a small table", whole, "number", "bit or channel", side=380
    )


def vanishing(names: Names) -> str:
    curves = {name: list(zip(names["back"], kept, strict=True)) for name, kept in names["gradients"].items()}
    return lines("Gradient left, by distance", "tokens back", "share of the newest token's", curves, log_up=True)


def sampling(names: Names) -> str:
    both = np.stack([names["p"].detach().numpy(), names["share"].numpy()])
    rows = ["probability", "of 4,000 draws"]
    return matrices(
        Panel("The next token, by its id", both, rows, [str(i) for i in range(12)], numbers=".3f", side=480)
    )


def plain_attention(names: Names) -> str:
    tokens = [f"x{i}" for i in range(1, 5)]
    weights = names["simple"].weights(0)[0].numpy()
    return matrices(
        Panel("α, each row one a", weights, [f"a{i}" for i in range(1, 5)], tokens, numbers=".2f", side=160)
    )


def rank_collapse(names: Names) -> str:
    above = {name: [max(share, 1e-14) for share in each] for name, each in names["spread"].items()}  # below: rounding
    return lines("How far tokens are from their mean", "layer", "share of their size", above, log_up=True)


def kv_cache(names: Names) -> str:
    curves = {name: list(zip(names["lengths"], work, strict=True)) for name, work in names["work"].items()}
    scaled = {name: [(x, y / 1e9) for x, y in points] for name, points in curves.items()}
    return lines("Writing a text", "tokens", "GFLOP", scaled)


def families(names: Names) -> str:
    return matrices(*(Panel(name, seen.numpy(), side=130) for name, seen in names["seen"].items()))


def chinchilla(names: Names) -> str:
    curves = {}
    for budget in (1e17, 1e18, 1e19):
        sizes = [1e6 * 1.3**i for i in range(30)]
        points = [(size, names["law"].loss(size, budget / 6 / size)) for size in sizes]
        least = min(loss for _, loss in points)
        curves[f"C = {budget:.0e}".replace("+", "")] = [(n, loss) for n, loss in points if loss < least + 0.6]
    return lines("Loss at fixed compute", "parameters", "nats a token", curves, log_across=True)


def slanted_triangle(names: Names) -> str:
    curves = {
        title: [(float(step), names["rate"](step) / 2.6**depth) for step in range(0, 1001, 10)]
        for depth, title in enumerate(("top layer", "one below", "two below"))
    }
    return lines("Slanted triangles", "step", "learning rate", curves)


def pixel_reach(names: Names) -> str:
    seen = ((name, (cells > 0).double()) for name, cells in names["reach"].items())
    return matrices(*(Panel(name, cells.numpy(), down="row", across="column", side=150) for name, cells in seen))


def relative(names: Names) -> str:
    shown = (Panel(name, weights.numpy(), side=144) for name, weights in names["alone"].items())
    return matrices(*shown, scale="sqrt", title="Weights among 24 equal tokens, by kind of relative position")


def weights_and_mask(names: Names) -> str:
    pair = (("P", names["P"]), ("P with the causal mask", names["causal"]))
    return matrices(*(Panel(title, weights.detach().numpy(), side=170) for title, weights in pair))


def sharpness(names: Names) -> str:
    curves = {name: [(size, peak) for size, peak, _ in rows] for name, rows in names["sharp"].items()}
    return lines("Largest of 128 weights", "D_K", "mean max p", curves, log_across=True)


def receptive_field(names: Names) -> str:
    shown = (
        Panel(name, cells.numpy(), down="row", across="column", side=150) for name, cells in names["fields"].items()
    )
    return matrices(*shown, apart=True, scale="sqrt", title="What the middle cell reads")


def filters(names: Names) -> str:
    """Untrained above, trained below; each filter at its own scale, mid-grey is 0."""
    rows = [tile_filters(names[which].components, columns=12) for which in ("random", "learned")]
    marks: list[Mark] = []
    for row, (title, pixels) in enumerate(zip(("untrained", "trained"), rows, strict=True)):
        high, wide = (float(8 * side) for side in pixels.shape[:2])
        top = EDGE + row * (high + 30)
        marks += [Label(EDGE, top + 6, title, TYPE), Pixels(EDGE, top + 18, wide, high, pixels)]
    return Drawing(wide + 2 * EDGE, 2 * (high + 30) + 2 * EDGE, "Principal components of patch filters", marks).svg()


def rollout(names: Names) -> str:
    return view(names["capture"], "rollout")


PICTURES: dict[str, dict[str, Callable[[Names], str]]] = {
    "0": {
        "gradient-reach.svg": gradient_reach, "three-attentions.svg": three_attentions, "max-margin.svg": max_margin,
        "pattern.svg": pattern, "soft-dictionary.svg": soft_dictionary, "cost-by-length.svg": cost_by_length,
        "toeplitz.svg": toeplitz, "model-parts.svg": layers.model_parts, "attention-chain.svg": layers.attention_chain,
        "memory-alone.svg": layers.memory_alone,
    },
    "1": {
        "columns.svg": layers.columns, "kernel-average.svg": layers.kernel_average,
        "same-at-every-position.svg": layers.same_at_every_position, "tied.svg": layers.tied,
        "jacobians.svg": jacobians, "masks.svg": masks, "reversing.svg": reversing, "sinusoids.svg": sinusoids,
        "sinusoid-positions.svg": sinusoid_positions, "binary-counter.svg": binary_counter_picture,
    },
    "2": {
        "vanishing.svg": vanishing, "sampling.svg": sampling, "plain.svg": plain_attention,
        "impulse.svg": layers.impulse, "carried.svg": layers.carried,
        "alignments.svg": layers.alignments, "one-hot.svg": tokens.one_hot,
        "queries-keys-values.svg": layers.queries_keys_values,
    },
    "3": {
        "rank-collapse.svg": rank_collapse, "kv-cache.svg": kv_cache, "families.svg": families,
        "chinchilla.svg": chinchilla, "slanted.svg": slanted_triangle, "pixel-reach.svg": pixel_reach,
        "relative.svg": relative, "cross-weights.svg": layers.cross_weights, "bert-masking.svg": tokens.bert_masking,
        "five-fields.svg": tokens.five_fields, "pieces.svg": tokens.pieces, "spans.svg": tokens.spans,
        "mouse-and-cat.svg": layers.mouse_and_cat, "raw-or-weights.svg": layers.raw_or_weights,
        "gpt2-parts.svg": layers.gpt2_parts, "all-texts.svg": layers.all_texts, "gpt2-sizes.svg": layers.gpt2_sizes,
        "matching.svg": layers.matching, "cache-per-token.svg": layers.cache_per_token,
        "patch-sizes.svg": tokens.patch_sizes, "table-tokens.svg": tokens.table_tokens,
    },
    "4": {
        "weights.svg": weights_and_mask, "sharpness.svg": sharpness, "receptive-field.svg": receptive_field,
        "filters.svg": filters, "rollout.svg": rollout, "patches.svg": tokens.patches, "shapes.svg": layers.shapes,
        "two-orders.svg": layers.two_orders, "vit-shapes.svg": tokens.vit_shapes, "recap.svg": layers.recap,
        "kinds.svg": tokens.kinds, "answers.svg": layers.answers,
        "overview.svg": layers.overview, "embedding.svg": tokens.embedding, "step-by-step.svg": layers.step_by_step,
        "mlp-shapes.svg": layers.mlp_shapes, "window-memory.svg": layers.window_memory,
    },
}  # fmt: skip


# ---------------------------------------------------------------- from the command line


def pictures_of(page: Path, names: Names) -> dict[str, str]:
    """Every picture of a page, by the name of its file."""
    return {name: make(names) for name, make in PICTURES[page.stem[0]].items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", action="store_true", help="write what the code prints into the pages")
    parser.add_argument("pages", nargs="*", help="numbers of lectures; all if none is given")
    arguments = parser.parse_args()
    IMAGES.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for page in pages():
        if arguments.pages and page.stem[0] not in arguments.pages:
            continue
        text = page.read_text(encoding="utf-8")
        names, printed = run(text)
        if arguments.outputs:
            page.write_text(with_outputs(text, printed), encoding="utf-8")
        for name, drawn in pictures_of(page, names).items():
            (IMAGES / name).write_text(drawn, encoding="utf-8")
        print(page.name)


if __name__ == "__main__":
    main()
