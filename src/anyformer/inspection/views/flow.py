"""The residual stream and the blocks around it: norms by layer, the block's diagram, parameters and FLOPs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from anyformer.core.residual import Residual
from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.flow import ROLES, Part, Summary, measure, stream_norms
from anyformer.inspection.other_mixers import gates_of, one_text, token_jacobian
from anyformer.mixers.recurrent import RecurrentModule

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture
    from anyformer.inspection.replay import BlockCall

TITLE = "Blocks"
READ = (
    "The stream is what all layers add to. The chart shows how long it is and how much each branch adds; "
    "the diagram shows one block, where its norms stand and what its parts cost."
)
CLAIM = "residual-and-norm"
NOTES = {
    "gateless": "The selected layer has no gates.",
    "mixer": "How much output t (row) changes with input s (column): the mixer moves information between tokens.",
    "alone": "The feed-forward network changes each token by itself: all but the diagonal is exactly 0.",
    "together": "This feed-forward network lets tokens change each other.",
}
MOST_DERIVATIVE = 4096  # tokens times channels of a derivative: a second or two on a CPU


def applies(capture: Capture) -> str | None:
    return None if capture.found.blocks else "This model has no blocks of a mixer and a feed-forward network."


def answer(capture: Capture, query: Query) -> ViewAnswer:
    summary = summary_of(capture)
    arrays: dict[str, np.ndarray] = {}
    stacks = []
    for number, stack in enumerate(capture.stacks):
        norms = stream_norms(capture, stack)
        for name in ("stream", "mixer", "cross", "feed"):
            values: Tensor | None = getattr(norms, name)
            if values is not None:
                arrays[f"{name}{number}"] = values.numpy()
        stacks.append({"name": stack, "axis": stack, "layers": len(capture.blocks(stack)),
                       "shares": {name: share.tolist() for name, share in norms.shares().items()}})  # fmt: skip
    facts: dict[str, Any] = {
        "stacks": stacks, "groups": groups_of(capture, summary), "roles": ROLES, "parameters": summary.parameters,
        "flops": summary.flops, "shares": shares_of(summary), "derivative": can_differentiate(capture),
        "recurrent": any(isinstance(call.module, RecurrentModule) for call in capture.found.mixers),
    }  # fmt: skip
    if facts["derivative"] and query.flag("derivative"):
        arrays |= derivatives(capture, query.site)
    if facts["recurrent"] and query.flag("gates"):
        facts["gates"] = add_gates(capture, query.site, arrays)
    return ViewAnswer(facts, arrays)


def summary_of(capture: Capture) -> Summary:
    """The cached summary of the model's parts."""
    key = ("flow",)
    if key not in capture.kept:
        capture.keep(key, measure(capture.model, capture.given.args, capture.given.options))
    found: Summary = capture.kept[key]
    return found


def shares_of(summary: Summary) -> dict[str, dict[str, float]]:
    """Each role's fraction of the parameters and of the FLOPs of all blocks."""
    roles = dict.fromkeys(part.role for part in summary.blocks())
    return {of: {role: summary.share(role, of=of) for role in roles} for of in ("parameters", "flops")}


def groups_of(capture: Capture, summary: Summary) -> list[dict[str, Any]]:
    """Runs of equal layers with their parts; a part outside blocks is its own group."""
    calls = {(call.stack, call.layer): call for call in capture.found.blocks}
    found = []
    for run in summary.groups():
        first, last = run[0][0], run[-1][0]
        call = calls.get((first.stack, first.layer))
        found.append({
            "stack": first.stack, "first": first.layer, "last": last.layer,
            "parts": [part_facts(part) for part in run[0]], "block": None if call is None else block_facts(call),
            "parameters": sum(part.parameters for parts in run for part in parts),
            "flops": sum(part.flops for parts in run for part in parts),
        })  # fmt: skip
    return found


def part_facts(part: Part) -> dict[str, Any]:
    return {"role": part.role, "name": part.name, "path": part.path, "parameters": part.parameters,
            "flops": part.flops, "entered": list(part.entered), "left": list(part.left)}  # fmt: skip


def block_facts(call: BlockCall) -> dict[str, Any]:
    """The facts for a diagram of the block: its branches in order, and the norms around each."""
    block, spec = call.module, call.module.spec
    branches = []
    for role, part, around in (("mixer", block.mixer, block.around_mixer), ("cross", block.cross, block.around_cross),
                               ("feed", block.feed, block.around_feed)):  # fmt: skip
        if part is not None and around is not None:
            name = type(getattr(part, "spec", part)).__name__.removesuffix("Module")
            branches.append({"role": role, "name": name} | norm_facts(around))
    return {"place": spec.place, "order": spec.order, "residual": spec.residual, "branches": branches,
            "shape": list(call.before.shape)}  # fmt: skip


def norm_facts(around: Residual) -> dict[str, Any]:
    """The norms before, inside and after a residual sum, and whether a learned factor scales its branch."""
    names = {at: norm_name(getattr(around, at)) for at in ("before", "inside", "after")}
    return names | {"scaled": around.scale is not None}


def norm_name(norm: nn.Module) -> str | None:
    return None if isinstance(norm, nn.Identity) else type(norm).__name__.removesuffix("Module")


# ---------------------------------------------------------------- on demand


def can_differentiate(capture: Capture) -> bool:
    x = capture.found.blocks[0].before
    return x.shape[1] * x.shape[2] <= MOST_DERIVATIVE


def derivatives(capture: Capture, site: int) -> dict[str, np.ndarray]:
    """Which tokens a branch mixes: the norm of the derivative of its output t by its input s, (T,S)."""
    chosen = capture.site(site)
    call = capture.found.mixers[chosen.index]
    x, context = call.given[0], call.given[1]
    at = min(capture.row, len(x) - 1)
    own = one_text(context, at)
    found = {"mixer_derivative": token_jacobian(lambda given: call.module(given, own, None, call.given[3]), x[at])}
    block = next((b for b in capture.found.blocks if (b.stack, b.layer) == (chosen.stack, chosen.layer)), None)
    if block is not None and block.module.feed is not None and block.module.around_feed is not None:
        entered = block.module.around_feed.enter(before_feed(block))[at]
        feed = block.module.feed
        found["feed_derivative"] = token_jacobian(lambda given: feed(given, own), entered)
    return {name: value.float().cpu().numpy() for name, value in found.items()}


def before_feed(call: BlockCall) -> Tensor:
    """The residual stream before the feed's branch: after the mixer and cross-attention."""
    block, x = call.module, call.before
    if block.spec.order == "parallel":
        return x
    assert call.mixed is not None
    x = block.around_mixer.join(x, block.around_mixer.leave(call.mixed))
    if call.crossed is not None and block.around_cross is not None:
        x = block.around_cross.join(x, block.around_cross.leave(call.crossed))
    return x


def add_gates(capture: Capture, site: int, arrays: dict[str, np.ndarray]) -> list[str]:
    """Add the gates of a recurrent layer over time and return their names; empty for other layers."""
    if not isinstance(capture.found.mixers[capture.site(site).index].module, RecurrentModule):
        return []
    found = gates_of(capture, site)
    for number, gate in enumerate(found.values()):
        arrays[f"gate{number}"] = gate.numpy()
    return list(found)
