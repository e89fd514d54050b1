"""Pictures of docs/lectures of how data become tokens: pieces of text, hidden words, patches, columns of a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyformer import Seq2Seq, Streams, preset
from anyformer.inspection.canvas import HAIR, SOFT, Drawing, Label, Mark, Pixels, Rectangle, Stroke
from anyformer.inspection.grid import TYPE
from anyformer.inspection.position_pictures import coloured
from docs.lecture_drawing import BLUE, EDGE, GREEN, ORANGE, PALE, Names, Panel, boxes, cells, lines, signed_row


def bert_masking(names: Names) -> str:
    """The first 400 tokens of the page's text, by what BERT's objective did to them."""
    kinds = np.zeros(400, dtype=int)
    for kind, name in enumerate(("[MASK]", "another", "kept"), 1):
        places = names["chosen"][names["kinds_of_chosen"][name]]
        kinds[places[places < 400]] = kind
    legend = {"left alone": PALE, "replaced by [MASK]": BLUE, "by a random token": ORANGE, "chosen, but kept": GREEN}
    return cells("400 tokens; the loss is computed at the coloured ones", kinds.tolist(), legend)


def patch_sizes(names: Names) -> str:
    tokens = names["tokens_by_side"]
    curves = {
        "pairs of tokens": [(side, count**2) for side, count in tokens.items()],
        "tokens": list(tokens.items()),
    }
    return lines("A 224 x 224 image", "side of a patch, in pixels", "how many", curves, log_across=True, log_up=True)


def patches(names: Names) -> str:
    """The image, its patches apart, and their tokens (one row each, blue below 0)."""
    image = np.rint((names["painted"][0].numpy().transpose(1, 2, 0).clip(-1, 1) + 1) * 127.5).astype(np.uint8)
    tokens = names["of_patches"][0].detach().numpy()
    image = image[::4, ::4]  # as large as it is drawn, about
    side, one, top = 196.0, 4, EDGE + 18.0
    marks: list[Mark] = [Label(EDGE, EDGE + 6, "the image, 224 x 224", TYPE), Pixels(EDGE, top, side, side, image)]
    for line in range(1, 14):
        at = line * side / 14
        marks += [Stroke(EDGE + at, top, EDGE + at, top + side, "#ffffff", 0.6)]
        marks += [Stroke(EDGE, top + at, EDGE + side, top + at, "#ffffff", 0.6)]
    left = EDGE + side + 24
    marks.append(Label(left, EDGE + 6, "196 patches, 16 x 16", TYPE))
    spaced = np.full((14 * (one + 1) - 1, 14 * (one + 1) - 1, 3), 255, dtype=np.uint8)
    for row in range(14):
        for column in range(14):
            down, across = row * (one + 1), column * (one + 1)
            spaced[down : down + one, across : across + one] = image[row * one :, column * one :][:one, :one]
    marks.append(Pixels(left, top, side, side, spaced))
    left += side + 24
    marks += [
        Label(left, EDGE + 6, "196 tokens, one a row", TYPE),
        Pixels(left, top, 80, side, coloured(tokens)),
        Rectangle(left, top, 80, side, stroke=HAIR),
        Label(left, top + side + 12, "8 channels; blue below 0,", 9.5, fill=SOFT),
        Label(left, top + side + 25, "orange above", 9.5, fill=SOFT),
    ]
    return Drawing(left + 150, top + side + 40, "From an image to tokens", marks).svg()


def table_tokens(names: Names) -> str:
    rows = ("class", "number 1", "number 2", "number 3", "category 1", "category 2")
    tokens, change = (names[name][0].detach().numpy() for name in ("of_row", "by_doubling"))
    return signed_row(
        Panel("tokens of a row", tokens, rows, across="8 channels", down="", side=22),
        Panel("change when the numbers double", change, rows, across="8 channels", down="", side=22),
        title="A row of a table as tokens",
    )


def vit_shapes(names: Names) -> str:
    """What goes through the page's two Vision Transformers, by its shape."""
    rows: dict[str, tuple[str, ...]] = {"": ("image", "patches", "z_0", "z_L", "y")}
    for name, model in (("vit-b16-tiny", names["vit"]), ("vit-b16", names["big"])):
        width, values = model.embed.patch.weight.shape
        rows_down, columns = model.spec.embed.grid
        patches, (high, wide) = rows_down * columns, model.spec.embed.pixels
        rows[name] = (
            f"{values * patches // (high * wide)} x {high} x {wide}", f"{patches} x {values}",
            f"{patches + 1} x {width}", f"{patches + 1} x {width}", f"{width}",
        )  # fmt: skip
    depths = " or ".join(str(len(names[which].stack.blocks)) for which in ("vit", "big"))
    rows["made by"] = ("", "cutting", "E, class, E_pos", f"{depths} blocks", "LN of row 0")
    return boxes("From pixels to one vector", rows, wide=104, arrows=True)


def five_fields(names: Names) -> str:
    rows: dict[str, list[str]] = {"": ["embedding", "stack", "head"]}
    for name in ("gpt2", "bert-base", "vit-b16", "ft-transformer", "ast-base"):
        spec: Any = preset(name)
        rows[name] = [type(spec.embed).__name__, f"{spec.stack.depth} blocks", type(spec.head).__name__]
    return boxes("Five fields, one architecture", rows, wide=96, arrows=True)


def pieces(names: Names) -> str:
    ids = names["pieces"].encode("The detective investigated")
    rows = {"pieces": [names["pieces"].token(i).replace("Ġ", "·") for i in ids], "ids": [str(i) for i in ids]}
    return boxes("“The detective investigated” (· is a space)", rows, wide=92)


def spans(names: Names) -> str:
    """What the encoder reads of the 500 tokens, by whether it is a sentinel."""
    kinds = [int(token in names["marks"]) for token in names["corrupted"].tolist()]
    return cells(
        "450 tokens the encoder reads", kinds, {"token of the text": PALE, "sentinel: a span is cut out": ORANGE}
    )


def embedding(names: Names) -> str:
    rows, vectors = [f"id {i}" for i in names["ids_of_slide"]], names["embedded"].detach().numpy()
    panel = Panel("X: each id's row of W_emb", vectors, rows, across="16 channels", down="", side=18)
    return signed_row(panel, title="Embedding eight tokens")


def one_hot(names: Names) -> str:
    """Two one-hot rows, the embedding they pick from, and where its gradient is."""
    ids = [f"id {i}" for i in range(9)]
    return signed_row(
        Panel("one-hot", names["one_hot"].numpy(), ("id 5", "id 2"), across="9 ids", down="", side=16),
        Panel("E", names["E"].detach().numpy(), ids, across="4 channels", down="", side=16),
        Panel("gradient of E", names["E"].grad.numpy(), ids, across="4 channels", down="", side=16),
        title="Looking up two words",
    )


def kinds(names: Names) -> str:
    """The embedding and the head of each kind of model of the page."""
    rows: dict[str, list[str]] = {"": ["read by", "answered by"]}
    for kind, name in names["kinds"].items():
        spec: Any = preset(name)
        read = [spec.encoder] if isinstance(spec, Seq2Seq) else [spec]
        read = [spec.first, spec.second] if isinstance(spec, Streams) else read
        rows[kind] = [" and ".join(type(part.embed).__name__ for part in read), type(spec.head).__name__]
    return boxes("Sequences in, sequences out", rows, wide=130, arrows=True)
