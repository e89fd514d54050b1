"""Why a combination of parts may be refused: each reason, and a check that shows it true of the parts at hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from anyformer import LM, DynamicScaling, Grid, Head, ImageTextHead, LMWithPair, NoRelative, NTKScaling, Patches, Rope
from anyformer.spec import fields_of
from tests.laws.examples import gathered
from tests.laws.nets import around, build, gap, inputs, looking

Parts = dict[str, Any]  # what the cell was made of: embed, mixer, relative, head, ... and width


def no_position_setting(parts: Parts) -> bool:
    return "position" not in fields_of(type(parts["embed"]))


def text_has_no_grid(parts: Parts) -> bool:
    """The layout of text knows no rows and columns, so a grid would have nothing to read."""
    embed = parts["embed"].replace(position=None)
    grid = embed.build(parts["width"]).layout(*inputs(embed, 1, 3)).grid
    return isinstance(parts["position"], Grid) and grid is None


def odd_channels(parts: Parts) -> bool:
    return parts["mixer"].sizes(parts["width"]).channels % 2 == 1 and parts["relative"].width is None


def one_pair_only(parts: Parts) -> bool:
    """With one pair there is no slow end to stretch: the formula's exponent width / (width - 2) divides by zero."""
    turned = parts["relative"].width or parts["mixer"].sizes(parts["width"]).channels
    return (
        isinstance(parts["relative"], Rope)
        and isinstance(parts["relative"].scaling, NTKScaling | DynamicScaling)
        and turned == 2
    )


def other_sequence(parts: Parts) -> bool:
    """The mixer has no queries and keys of one sequence."""
    return not parts["mixer"].takes_relative and not isinstance(parts["relative"], NoRelative)


def word_head(head: Head | None) -> LM | None:
    """The part of a head that scores words: itself, or the one of those with several parts."""
    if isinstance(head, LMWithPair | ImageTextHead):
        return head.words
    return head if isinstance(head, LM) else None


def no_words(parts: Parts) -> bool:
    words = word_head(parts["head"])
    return parts["embed"].vocabulary is None and words is not None and words.tied


def narrow_table(parts: Parts) -> bool:
    table = parts["embed"].build(parts["width"]).table.weight
    words = word_head(parts["head"])
    return words is not None and table.shape[1] != parts["width"] and words.transform is None and words.tied


def one_branch(parts: Parts) -> bool:
    return parts["order"] == "parallel" and parts["feed"] is None


def no_place_for_cross(parts: Parts) -> bool:
    return parts["order"] == "parallel" and parts["cross"] is not None


def own_sequence_only(parts: Parts) -> bool:
    """Given two different memories, the part answers the same: it does not look."""
    return parts["cross"].takes_relative and not parts["cross"].looks_at_memory


def registers_without_a_grid(parts: Parts) -> bool:
    embed = parts["embed"]
    return isinstance(embed, Patches) and embed.registers > 0 and not isinstance(parts["position"], Grid)


def no_rows_and_columns(parts: Parts) -> bool:
    """The layout of the embedding knows no grid."""
    embed = parts["embed"].build(parts["width"]).double()
    asks = parts["mixer"].needs_grid or (parts.get("head") is not None and parts["head"].needs_grid)
    return asks and embed.layout(*inputs(parts["embed"])).grid is None


def nothing_to_add_to(parts: Parts) -> bool:
    """The layout of the embedding has positions for every layer, and the mixer is not one that takes them."""
    embed = parts["embed"].build(parts["width"]).double()
    return embed.layout(*inputs(parts["embed"])).added is not None and not parts["mixer"].takes_added


@torch.no_grad()
def sees_the_future(parts: Parts) -> bool:
    """Built without causal order, the first token's answer moves with the last one's input."""
    mixer = parts["mixer"]
    net = build(around(mixer, causal=False))
    given = inputs(net.spec.embed)
    changed = (given[0].clone(),)
    changed[0][:, -1] = changed[0].flip(-1)[:, -1]
    moved = gap(net(*given, **looking(mixer)).hidden[:, 0], net(*changed, **looking(mixer)).hidden[:, 0])
    return parts["causal"] and moved > 1e-6


REASONS: dict[str, Callable[[Parts], bool]] = {
    r"\w+ has no setting 'position'": no_position_setting,
    r"Grid positions are for images": text_has_no_grid,
    r"a head has \d+ channels, an odd number": odd_channels,
    r"\w+ stretches slow pairs and Rope turns one pair only": one_pair_only,
    r"\w+ takes no relative positions": other_sequence,
    r"the embedding has no vocabulary to score": no_words,
    r"a table of \d+ channels cannot score \d+-wide tokens": narrow_table,
    r"a parallel block without a feed has one branch": one_branch,
    r"a parallel block has no place for cross-attention": no_place_for_cross,
    r"\w+ does not look at an encoder's output": own_sequence_only,
    r"register tokens have no place among other positions than Grid": registers_without_a_grid,
    r"\w+ needs rows and columns, \w+ gives none": no_rows_and_columns,
    r"\w+ has no causal form": sees_the_future,
    r"\w+ has no queries and keys to add positions to": nothing_to_add_to,
    **gathered("REASONS"),
}


def shown_true(message: str, parts: Parts) -> bool:
    """Whether the reason is a known one and holds of these parts."""
    known = [check for reason, check in REASONS.items() if re.search(reason, message)]
    assert known, f"a reason without a proof: {message!r}; add it to REASONS in tests/laws/refusals.py"
    return all(check(parts) for check in known)
