"""Positions: the position encodings as maps and curves, and the effect of removing them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.core.model import ModelModule
from anyformer.embeds.patches import PatchesModule
from anyformer.errors import UserError
from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.positions import KINDS, PositionSizes, position_arrays, position_kinds
from anyformer.inspection.shuffling import reads_order, shuffle_tokens, why_fixed

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture

TITLE = "Positions"
READ = (
    "Attention by itself sees a set of tokens. Here is what tells it their order: the model's own kind first, "
    "the others to compare with."
)
CLAIM = "permutation"
NOTES = {
    "bits": "Each bit of a counter is a square wave, twice as slow as the one to its right.",
    "change": "Change of each token's vector when the tokens are shuffled",
    "counter": "The last bit of a counter changes with every number, the one before it half as often: "
    "sinusoids are the same idea with smooth waves.",
    "patch": "Choose a patch: the map shows how alike its position is to every other one.",
    "interpolation": "An image of another size gets positions between those that were trained, bicubic over the "
    "patches; a longer text those of anyformer convert --max-length, linear between two neighbours.",
    "scaling": "linear divides every angle; NTK raises the base, so that slow pairs stretch and fast ones "
    "hardly change; YaRN keeps fast pairs, divides slow ones and raises the score a little.",
    "shuffle": "Without positions and without a mask, shuffled tokens give the same answers in shuffled order "
    "(permutation equivariance).",
}
CHANNELS = 128  # most channels sent of a table of vectors: more would exceed a screen's resolution
SHUFFLED = 64  # most tokens for a shuffle in an exported page


def applies(capture: Capture) -> str | None:
    return None


def answer(capture: Capture, query: Query) -> ViewAnswer:
    found = position_kinds(capture.model)
    kind = query.choice("scheme", found[0].kind, [one.kind for one in found])
    sizes = PositionSizes(length=query.integer("length", 64, 8, 256), width=64)
    made = position_arrays(kind, capture.model, sizes)
    facts: dict[str, Any] = made.facts | {
        "own": made.own, "kinds": [{"kind": one.kind, "name": KINDS[one.kind], "own": one.own} for one in found],
        "length": sizes.length, "shuffles": why_not_shuffled(capture) is None, "stack": shuffled_stack(capture),
    }  # fmt: skip
    arrays = {name: cut(name, array) for name, array in made.arrays.items() if name != "products" or kind == "sinusoid"}
    if facts["shuffles"] and query.flag("shuffle"):
        facts["shuffled"], arrays["change"] = shuffled(capture, query.integer("seed", 0, 0, 10_000))
    return ViewAnswer(facts, arrays)


def exported(capture: Capture) -> Iterable[Query]:
    """Each kind once, and a shuffle if there are few tokens: its answer repeats the tables of the model's kind."""
    found = [Query(), *(Query(options={"scheme": one.kind}) for one in position_kinds(capture.model)[1:])]
    many = max(map(len, capture.axes.values()), default=0) > SHUFFLED
    return found if many or why_not_shuffled(capture) else [*found, Query(options={"shuffle": "1"})]


def cut(name: str, array: np.ndarray) -> np.ndarray:
    """The first channels of tables of vectors; other arrays unchanged."""
    return array[:, :CHANNELS] if name in ("table", "keys", "values") else array


# ---------------------------------------------------------------- shuffled tokens


def shuffled_stack(capture: Capture) -> str:
    """The stack whose tokens are shuffled: for an encoder-decoder the encoder."""
    return "" if isinstance(capture.model, ModelModule) else "encoder"


def why_not_shuffled(capture: Capture) -> str | None:
    model, given = shuffle_target(capture)
    if not isinstance(model, ModelModule) or not given:
        return "its tokens are not one sequence"
    if capture.given.options.get("mask") is not None or capture.given.options.get("source_mask") is not None:
        return "the input is padded"
    if why_fixed(model):
        return why_fixed(model)
    axis = capture.axes.get(shuffled_stack(capture))
    words = axis is not None and all(token.id is not None for token in axis.tokens)
    return None if isinstance(model.embed, PatchesModule) or words else "only texts and images of patches are shuffled"


def shuffle_target(capture: Capture) -> tuple[Any, tuple[Any, ...]]:
    """The network and its inputs; for an encoder-decoder those of the encoder."""
    args = capture.given.args
    if isinstance(capture.model, ModelModule):
        return capture.model, args
    encoder = getattr(capture.model, "encoder", None)
    return encoder, args[:1]


def shuffled(capture: Capture, seed: int) -> tuple[dict[str, Any], np.ndarray]:
    """The equivariance error per token, and facts for the page."""
    model, given = shuffle_target(capture)
    try:
        found = shuffle_tokens(model, given, seed=seed)
    except UserError as error:
        return {"why": error.line}, np.zeros((0, 0), np.float32)
    facts = {"order": found.order.tolist(), "as_is": found.as_is, "without_positions": found.without_positions,
             "without_mask": found.without_mask, "seed": seed, "reads_order": reads_order(model)}  # fmt: skip
    return facts, found.by_token.numpy().astype(np.float32)
