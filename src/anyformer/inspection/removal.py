"""Effect of ablations on the prediction: of a head, an edge, a token, a layer's mixer or feed.

Every number is one more pass of the shadow with that part ablated (see ablate.py). It is the change of the prediction:
of the log-probability of the top answer, or of the number for regression.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.checkpoints.prune import planned
from anyformer.core.head_names import CROSS, HeadName, LayerName, find_layer, heads_in, layers_of
from anyformer.errors import UserError
from anyformer.inspection.ablate import ablate
from anyformer.inspection.prediction import answer_logits, default_place, name_of, number_name

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture
    from anyformer.inspection.site import Site

MOST = 64  # most parts ablated at once
QUERIES = 128  # queries over which a head's largest weight is averaged, spread over the text


@dataclass(frozen=True)
class Removal:
    """The arguments of `ablate`."""

    heads: list[tuple[Any, ...]] = field(default_factory=list)
    tokens: list[Any] = field(default_factory=list)
    edges: list[tuple[Any, ...]] = field(default_factory=list)
    mixers: list[Any] = field(default_factory=list)
    feeds: list[Any] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any((self.heads, self.tokens, self.edges, self.mixers, self.feeds))


class FollowedAnswer:
    """The top prediction of a capture, for the whole input or at one token, tracked under ablations."""

    def __init__(self, capture: Capture, at: int | None = None) -> None:
        logits, kind = answer_logits(capture, at=at)
        if logits is None:
            raise UserError("the model gives no answer whose change could be measured", where="remove",
                            fix="look into a model with a head")  # fmt: skip
        self.capture, self.at, self.logits = capture, answered_place(capture, at), logits
        self.kind = "value" if len(logits) == 1 else kind  # the softmax of a single logit is always 1
        self.id = 0 if self.kind == "value" else int(logits.argmax())
        self.before = float(self.values(logits)[self.id])

    def values(self, logits: Tensor) -> Tensor:
        """Log-probabilities, or numbers unchanged."""
        return logits if self.kind == "value" else logits.log_softmax(-1)

    def without(self, removal: Removal) -> Tensor:
        """The values under an ablation."""
        with ablate(self.capture.model, heads=removal.heads, tokens=removal.tokens, edges=removal.edges,
                    mixers=removal.mixers, feeds=removal.feeds):  # fmt: skip
            logits, _ = answer_logits(self.capture, self.capture.rerun(), at=self.at)
        assert logits is not None
        return self.values(logits)

    def change(self, removal: Removal) -> float:
        """Change of the tracked value; negative if the removed part supported the answer."""
        return float(self.without(removal)[self.id]) - self.before

    def share(self, value: float) -> float | None:
        """The probability of a log-probability; None for numbers."""
        return None if self.kind == "value" else float(torch.tensor(value).exp())

    def facts(self) -> dict[str, Any]:
        name = number_name(self.capture, self.id) if self.kind == "value" else name_of(self.capture, self.id)
        unit = "number" if self.kind == "value" else "log-probability"
        return {"id": self.id, "name": name, "kind": self.kind, "unit": unit, "value": self.before,
                "probability": self.share(self.before)}  # fmt: skip


# ---------------------------------------------------------------- names


def part_of_site(site: Site) -> str:
    """The name of a site's part in `ablate`."""
    return CROSS if site.path.endswith(".cross") else site.stack


def head_of_site(site: Site, head: int) -> HeadName:
    return HeadName(part_of_site(site), site.layer, head)


def numbered(part: str, *numbers: int) -> tuple[Any, ...]:
    """A name for `ablate`: without the part if there is only one."""
    return (part, *numbers) if part else numbers


def removable_heads(capture: Capture, site: Site) -> int:
    """How many heads of a site can be ablated individually."""
    if site.layer < 0 or not site.path.endswith((".mixer", ".cross")):
        return 0
    _, mixer = find_layer(capture.model, head_of_site(site, 0).layer_name, "site")
    return heads_in(mixer)


def key_part(capture: Capture, site: Site) -> str | None:
    """The stack whose tokens are a site's keys; None if layers have changed the number of tokens."""
    return site.keys if site.keys in layers_of(capture.model) else None


# ---------------------------------------------------------------- what if


def what_if(answer: FollowedAnswer, site: Site, head: int, query: int, key: int) -> list[dict[str, Any]]:
    """The change of the answer without each selected part, one at a time."""
    capture, part = answer.capture, part_of_site(site)
    found: list[dict[str, Any]] = []

    def add(what: str, removal: Removal) -> None:
        entry: dict[str, Any] = {"what": what, "change": None, "probability": None, "why": ""}
        try:
            change = answer.change(removal)
            entry |= {"change": change, "probability": answer.share(answer.before + change)}
        except UserError as error:
            entry["why"] = error.what
        found.append(entry)

    if site.layer < 0:
        return found
    if removable_heads(capture, site):
        add("head", Removal(heads=[head_of_site(site, head).short]))
        add("edge", Removal(edges=[numbered(part, site.layer, head, query, key)]))
        add("edges", Removal(edges=[numbered(part, query, key)]))
    stack = key_part(capture, site)
    if stack is not None:
        add("token", Removal(tokens=[numbered(stack, key)]))
    add("mixer", Removal(mixers=[numbered(part, site.layer)]))
    if find_layer(capture.model, head_of_site(site, 0).layer_name, "site")[0].block.feed is not None:
        add("feed", Removal(feeds=[numbered(site.stack, site.layer)]))
    return found


# ---------------------------------------------------------------- parts removed on the page


def parse(capture: Capture, heads: str, tokens: str, edges: str) -> Removal:
    """Parse the page's parameters: heads `site.head`, tokens `4` or `encoder.4`, edges `site.head.query.key`."""
    return Removal(
        heads=[head_of_site(capture.site(site), head).short for site, head in whole_numbers(heads, 2, "heads")],
        tokens=[token_name(word) for word in words_of(tokens, "tokens")],
        edges=[
            numbered(part_of_site(capture.site(site)), capture.site(site).layer, head, query, key)
            for site, head, query, key in whole_numbers(edges, 4, "edges")
        ],
    )


def words_of(text: str, where: str) -> list[str]:
    words = [word for word in text.split(",") if word]
    if len(words) > MOST:
        raise UserError(f"{len(words)} things are removed at once", where=where, fix=f"remove at most {MOST}")
    return words


def whole_numbers(text: str, count: int, where: str) -> Iterable[list[int]]:
    for word in words_of(text, where):
        parts = word.split(".")
        if len(parts) != count or not all(part.isdecimal() and len(part) < 10 for part in parts):
            example = ".".join("1203"[:count])
            raise UserError(f"{word[:40]!r} names nothing", where=where, fix=f"write {example}")
        yield [int(part) for part in parts]


def token_name(word: str) -> Any:
    part, _, place = word.rpartition(".")
    if not place.isdecimal() or len(place) > 9:
        raise UserError(f"{word[:40]!r} names no token", where="tokens", fix="write 4 or encoder.4")
    return numbered(part, int(place))


# ---------------------------------------------------------------- every head in turn


def every_head_in_turn(answer: FollowedAnswer) -> tuple[list[dict[str, Any]], Tensor, Tensor]:
    """Sites with heads, the change (sites, heads) without each head, and its largest weight, mean over queries."""
    capture = answer.capture
    sites = [site for site in capture.sites if removable_heads(capture, site)]
    most = max((site.heads for site in sites), default=0)
    change, weight = torch.full((len(sites), most), torch.nan), torch.full((len(sites), most), torch.nan)
    entries = []
    for row, site in enumerate(sites):
        _, mixer = find_layer(capture.model, head_of_site(site, 0).layer_name, "site")
        length = len(capture.axes[site.queries])
        rows = slice(0, length, max(1, length // QUERIES))
        weight[row, : site.heads] = capture.weights(site.index, rows=rows).amax(-1).mean(-1)
        with replayed_below(capture, site):
            for head in range(site.heads):
                change[row, head] = answer.change(Removal(heads=[head_of_site(site, head).short]))
        entries.append({"site": site.index, "label": site.label, "heads": site.heads, "groups": site.groups,
                        "saved": weights_saved(mixer, {0})})  # fmt: skip
    return entries, change, weight


@contextmanager
def replayed_below(capture: Capture, site: Site) -> Iterator[None]:
    """Reuse the recorded outputs of the layers before a site, which an ablation at the site does not change."""
    before = {"": [], "encoder": [], "decoder": ["encoder"]}.get(site.stack)
    known: list[tuple[Any, Tensor]] = []
    for stack in [] if before is None else [*before, site.stack]:
        calls = capture.blocks(stack)
        for layer, call in zip(layers_of(capture.model).get(stack, []), calls, strict=False):
            if layer.uses == 1 and call.after is not None and (stack != site.stack or layer.number < site.layer):
                known.append((layer.block, call.after))
    try:
        for block, after in known:
            block.forward = partial(give, after)
        yield
    finally:
        for block, _ in known:
            block.__dict__.pop("forward", None)


def give(known: Tensor, *given: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """A block's recorded output, in place of its forward pass."""
    return known, {}


# ---------------------------------------------------------------- savings from pruning


def weights_saved(mixer: Any, heads: set[int]) -> int:
    """Parameters removed with some heads: their queries and outputs, and keys and values of entire groups."""
    sizes, out = mixer.sizes, mixer.out
    by_query = getattr(mixer, "qkv", None) or mixer.q
    by_key = getattr(mixer, "qkv", None) or mixer.kv
    rows = lambda linear: linear.in_features + (linear.bias is not None)  # noqa: E731
    each = sizes.channels * rows(by_query) + sizes.value_channels * out.out_features
    whole = [group for group in range(sizes.groups)
             if all(group * sizes.per_group + i in heads for i in range(sizes.per_group))]  # fmt: skip
    return len(heads) * each + len(whole) * (sizes.channels + sizes.value_channels) * rows(by_key)


def pruning(capture: Capture, heads: list[tuple[Any, ...]]) -> dict[str, Any]:
    """Parameters that pruning heads would save, or why they cannot be pruned."""
    names = [HeadName(*(word if isinstance(word[0], str) else ("", *word))) for word in heads]
    by_layer: dict[LayerName, set[int]] = {}
    for name in names:
        by_layer.setdefault(name.layer_name, set()).add(name.head)
    saved, why, model = 0, "", capture.model
    try:
        planned(model.spec, model, names)
        saved = sum(weights_saved(find_layer(model, layer, "heads")[1], gone) for layer, gone in by_layer.items())
    except UserError as error:
        why = error.what
    whole = sum(parameter.numel() for parameter in capture.model.parameters())
    return {"saved": saved, "of": whole, "names": ",".join(str(name) for name in names), "why": why}


def answers_by_token(capture: Capture, site: Site) -> bool:
    """Whether the model predicts at every token of a site's queries."""
    logits = getattr(capture.output, "logits", None)
    return isinstance(logits, Tensor) and logits.dim() == 3 and logits.shape[1] == len(capture.axes[site.queries]) and (
        site.stack in ("", "decoder")
    )  # fmt: skip


def answered_place(capture: Capture, at: int | None) -> int | None:
    """The token whose prediction is tracked; None for a prediction for the whole input."""
    logits = getattr(capture.output, "logits", None)
    if not isinstance(logits, Tensor) or logits.dim() != 3:
        return None
    return default_place(capture, logits[min(capture.row, len(logits) - 1)]) if at is None else at
