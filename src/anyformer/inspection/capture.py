"""Capture: one pass of a model over one input, from which every map, lens and picture is made on demand.

capture = anyformer.look(anyformer.load("runs/mine"), "An old dog and a young boy")
capture.attention(layer=3, head=5)        # exact float32 weights
capture.show()                            # the page, on loopback
capture.html("inside.html")               # the page as one file
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from anyformer.core.attend import Scores, weights_of
from anyformer.core.model import Seq2Seq
from anyformer.embeds.table import Table
from anyformer.errors import UserError
from anyformer.inspection.answer import Query, ViewAnswer, finite
from anyformer.inspection.axis import TokenAxis, axis_of, merged, numbered, with_segments
from anyformer.inspection.budget import bytes_of, check, check_map, price_call
from anyformer.inspection.capture_base import ALL, CaptureBase
from anyformer.inspection.example_input import example_input, input_kind
from anyformer.inspection.given import NetworkInputs, given_to
from anyformer.inspection.prediction import PossibleAnswer, predictions
from anyformer.inspection.record import record_pass
from anyformer.inspection.replay import BlockCall, MixerCall, PassRecord
from anyformer.inspection.site import Site, head_counts, is_weighing, kind_of, label_of, part_of
from anyformer.inspection.word_names import written_tokens
from anyformer.mixers.attention import AttentionInputs

if TYPE_CHECKING:
    from anyformer.inference.predictor import Predictor
    from anyformer.inspection.checkpoint_steps import CheckpointSteps
    from anyformer.inspection.compare import Comparison
    from anyformer.inspection.lens import Lens
    from anyformer.inspection.rollout import Fuse
    from anyformer.inspection.steps import HeadSteps
    from anyformer.inspection.trust import Trust

MOST_KEPT = 64 * 2**20  # bytes of cached results; a long map is requested in many parts
Layers = str | Iterable[int]


def look(
    source: Any,
    inputs: Any = None,
    *,
    target: str | None = None,
    layers: Layers = "all",
    budget: str | int = "1GB",
    name: str = "",
) -> Capture:
    """Run a model once on one input and record what inspection needs; the model itself is not changed.

    `source` is the result of `anyformer.load`, or a network. `inputs` is its input: a text, an image, a row or rows of
    a table, token ids (1, T), or a tuple of tensors for a bare network; by default an example of a trained model.
    `target` is the target text of an encoder-decoder (by default what it generates). `layers` are those whose maps are
    wanted, counted from 0. More memory than `budget` is an error before any work, which names alternatives. `name` is
    the model's name in titles.
    """
    predictor, model = opened(source)
    if inputs is None:
        if predictor is None:
            raise UserError("there is nothing to look at", where="look", fix="give token ids (1, T) or other tensors")
        inputs = example_input(predictor)
    layers = layers if isinstance(layers, str) else tuple(layers)
    wanted = layer_filter(layers)
    with torch.no_grad():
        given = given_to(predictor, model, inputs, target)
        check_budget(getattr(model, "_orig_mod", model), given, layers, budget)  # of a compiled model, the wrapped one
        copied, given, found = record_pass(model, given, wanted)
        return Capture(source, inputs, predictor, copied, given, found, name=name, budget=budget)


def opened(source: Any) -> tuple[Predictor | None, nn.Module]:
    """A predictor and its network, or a network alone."""
    if isinstance(source, nn.Module):
        return None, source
    from anyformer.inference.predictor import Predictor

    if isinstance(source, Predictor):
        return source, source.model
    raise UserError(f"{type(source).__name__} cannot be looked into", where="look",
                    fix="give what anyformer.load gives, or a built network")  # fmt: skip


def layer_filter(layers: Layers) -> Callable[[str, int], bool]:
    """A predicate for the blocks whose mixers are recorded."""
    if isinstance(layers, str):
        if layers != "all":
            raise UserError(f"layers {layers!r} is not known", where="look", fix='use "all" or numbers from 0')
        return lambda stack, layer: True
    chosen = set(layers)
    return lambda stack, layer: layer in chosen


def check_budget(model: nn.Module, given: NetworkInputs, layers: Layers, budget: str | int) -> None:
    """Raise an error for a look that needs more memory than the budget."""
    check(price_call(model, given.args, given.options, layers), budget)


class Capture(CaptureBase):
    """One recorded pass, and everything computed from it; see the module's docstring."""

    def __init__(
        self, source: Any, inputs: Any, predictor: Predictor | None, model: nn.Module, given: NetworkInputs,
        found: PassRecord, *, name: str = "", budget: str | int = "1GB",
    ) -> None:  # fmt: skip
        self.budget = bytes_of(budget)
        self.source, self.inputs, self.predictor = source, inputs, predictor
        self.model, self.given, self.found, self.name = model, given, found, name
        self.output = found.output
        self.row = 0
        self.others: list[Capture] = []
        self.run: Path | None = None  # the training run that it is from, whose checkpoints a page can show
        self.axes = self.find_axes()
        if "decoder" in self.axes:
            self.axes["decoder"] = replace(self.axes["decoder"], written=written_tokens(self))
        self.sites = tuple(self.site_of(i, call) for i, call in enumerate(found.mixers))
        self.kept: dict[tuple[Any, ...], Any] = {}  # cache of the newest results, of which a page requests parts

    def __repr__(self) -> str:
        return f"Capture({self.title}, {self.given.text[:40]!r})"

    # ------------------------------------------------------------ model and input

    @cached_property
    def modality(self) -> str:
        """text, image, table, pair (an encoder-decoder) or other."""
        if isinstance(getattr(self.model, "spec", None), Seq2Seq):
            return "pair"
        if isinstance(getattr(getattr(self.model, "spec", None), "embed", None), Table):
            return "table"
        tokens = next(iter(self.axes.values())).tokens if self.axes else ()
        kinds = {token.kind for token in tokens}
        return "image" if "patch" in kinds else "table" if "column" in kinds else "text" if "word" in kinds else "other"

    @cached_property
    def input_kind(self) -> str | None:
        """How a new input is entered on the page: text, image, or table (JSON); None if it cannot be."""
        return None if self.predictor is None else input_kind(self.predictor)

    @cached_property
    def title(self) -> str:
        """A short description of the model."""
        name = self.name or type(getattr(self.model, "spec", self.model)).__name__
        blocks = len(self.found.blocks)
        heads = max((site.heads for site in self.sites), default=0)
        return f"{name} · {blocks} layer{'s' * (blocks != 1)} · {heads} head{'s' * (heads != 1)}"

    def find_axes(self) -> dict[str, TokenAxis]:
        """The input tokens of every stack."""
        lengths: dict[str, int] = {}
        for call in self.found.blocks:
            lengths.setdefault(call.stack, call.before.shape[1])
        found = {}
        for stack, length in lengths.items():
            module: Any = self.model.get_submodule(stack) if stack else self.model
            embed = getattr(module, "embed", None)
            if embed is not None:
                axis = axis_of(stack, embed, self.inputs_for(stack), length, self.predictor, 0)
                found[stack] = with_segments(axis, None if stack else self.given.options.get("segments"), 0)
            else:
                found[stack] = numbered(stack, length)
        return found

    def inputs_for(self, stack: str) -> Sequence[Any]:
        """The inputs of a stack's embedding."""
        args = self.given.args
        if stack in ("encoder", "first"):
            return args[0] if isinstance(args[0], tuple) else (args[0],)
        if stack in ("decoder", "second"):
            last = args[1] if len(args) > 1 else None
            return last if isinstance(last, tuple) else (last,)
        return args

    def site_of(self, index: int, call: MixerCall) -> Site:
        kind, x, context = kind_of(call), call.given[0], call.given[1]
        weights = call.module.weights(*call.given, slice(0, 1)) if is_weighing(call.module) else None  # type: ignore[operator]
        heads, groups = head_counts(call.module, weights)
        spec = getattr(call.module, "spec", None)
        queries = self.axis_for(call.stack, x.shape[1] if isinstance(x, Tensor) else 0)
        length = x.shape[1]
        if kind == "cross" and context.memory is not None:
            length = context.memory.shape[1]
        elif weights is not None:
            length = weights.shape[-1]
            queries = self.axis_for(call.stack, length) if kind == "self" else queries
        other = {"decoder": "encoder", "first": "second", "second": "first"}.get(call.stack, call.stack)
        keys = self.axis_for(other if kind == "cross" else call.stack, length)
        causal = bool(getattr(call.module, "causal", False)) and kind != "cross"
        name = type(spec if spec is not None else call.module).__name__
        return Site(index, label_of(call, kind, part_of(call.path)), call.stack, call.layer, kind, name, call.path,
                    heads, groups, causal, queries, keys)  # fmt: skip

    def axis_for(self, stack: str, length: int) -> str:
        """The name of an axis of this length: the stack's own, or a new one if layers change the number of tokens."""
        if stack in self.axes and len(self.axes[stack]) == length:
            return stack
        name = f"{stack}:{length}"
        if name not in self.axes:
            self.axes[name] = merged(name, self.axes.get(stack), length)
        return name

    def token_ids(self, stack: str = "") -> list[int] | None:
        """The token ids of the shown row, if tokens have ids."""
        axis = self.axes.get(stack) or self.axes.get("decoder")
        ids = [] if axis is None else [token.id for token in axis.tokens]
        return None if not ids or any(number is None for number in ids) else [int(number or 0) for number in ids]

    # ------------------------------------------------------------ maps

    def weights(self, site: int, *, rows: slice = ALL, row: int | None = None) -> Tensor:
        """The attention weights (H,t,S) of a site for some queries of one row of the batch, in float32 on the CPU."""
        call, at = self.found.mixers[self.site(site).index], self.row if row is None else row
        key = ("weights", site, rows.start, rows.stop, rows.step, at)
        if key not in self.kept:
            one = self.sites[site]
            queries = len(range(*rows.indices(len(self.axes[one.queries]))))
            check_map(one.heads, queries, len(self.axes[one.keys]), self.budget)
            self.keep(key, self.compute_weights(call, rows, at, site))
        found: Tensor = self.kept[key]
        return found

    def compute_weights(self, call: MixerCall, rows: slice, at: int, site: int) -> Tensor:
        with torch.no_grad():
            if is_weighing(call.module):
                x, context, _, tables = call.given
                every: Tensor = call.module.weights(x, context, None, tables, rows)  # type: ignore[operator]
                return every[min(at, len(every) - 1)].float().cpu()
            p = self.inputs_of(site, row=at)
            if p is not None:
                return weights_of(p.q, p.k, p.scores, rows)[0].float().cpu()
            from anyformer.inspection.other_mixers import matrix_of

            return matrix_of(self, site, row=at)[:, rows].float().cpu()

    def inputs_of(self, site: int, *, row: int | None = None) -> AttentionInputs | None:
        """Queries, keys, values and scores of one row as a batch of one; None for mixers without queries and keys."""
        call, at = self.found.mixers[site], self.row if row is None else row
        prepare = getattr(call.module, "prepare", None)
        if is_weighing(call.module) or prepare is None:
            return None
        key = ("inputs", site, at)
        if key not in self.kept:
            with torch.no_grad():
                x, context, _, tables = call.given
                self.keep(key, one_row(prepare(x, context, None, tables), at))
        found: AttentionInputs = self.kept[key]
        return found

    def keep(self, key: tuple[Any, ...], value: Any, most: int = 16) -> None:
        """Cache a result; the oldest are evicted by count and size, the newest always stays."""
        self.kept[key] = value
        while len(self.kept) > most or (len(self.kept) > 1 and sum(map(bytes_in, self.kept.values())) > MOST_KEPT):
            self.kept.pop(next(iter(self.kept)))

    def fused(self, site: int) -> Tensor:
        """The mixer's output in the recorded pass, from whatever kernel ran, (B,T,D)."""
        out = self.found.mixers[site].out
        assert out is not None
        return out

    # ------------------------------------------------------------ the residual stream

    def blocks(self, stack: str = "") -> list[BlockCall]:
        """The calls of a stack's blocks, in order."""
        return [call for call in self.found.blocks if call.stack == stack]

    @property
    def stacks(self) -> list[str]:
        """The stacks that ran, in order."""
        return list(dict.fromkeys(call.stack for call in self.found.blocks))

    def residuals(self, stack: str = "") -> list[Tensor]:
        """The residual stream (B,T,D) before the first block and after each."""
        calls = self.blocks(stack)
        return [call.before for call in calls[:1]] + [call.after for call in calls if call.after is not None]

    def rerun(self, given: NetworkInputs | None = None) -> Any:
        """Run the shadow again, by default on the same input, for example inside `ablate`."""
        given = self.given if given is None else given
        with torch.no_grad():
            return self.model(*given.args, **given.options)

    # ------------------------------------------------------------ answers

    def prediction(self, output: Any = None, *, at: int | None = None, top: int = 5) -> list[PossibleAnswer]:
        """The model's predictions, best first."""
        return predictions(self, output, at=at, top=top)

    def names(self, ids: Iterable[int], kind: str) -> dict[int, str]:
        """Names of token or class ids."""
        from anyformer.inspection.word_names import names_of

        return names_of(self, ids, kind)

    @property
    def batch(self) -> int:
        """Rows of the input."""
        return self.found.blocks[0].before.shape[0] if self.found.blocks else 1

    @cached_property
    def trust(self) -> Trust:
        """How well the numbers shown agree with the model's own computation."""
        from anyformer.inspection.trust import trust_of

        return trust_of(self)

    def steps(self, layer: int, head: int, query: int, *, kind: str = "self", stack: str | None = None) -> HeadSteps:
        """The whole computation of one head for one token, every intermediate named."""
        from anyformer.inspection.steps import steps_of

        return steps_of(self, self.find_site(layer, kind=kind, stack=stack).index, head, query)

    def rollout(
        self, *, fuse: Fuse = "mean", residual: float = 0.5, depth: int | None = None, discard: float = 0.0,
        stack: str = "", rows: Sequence[int] | None = None,
    ) -> Tensor:  # fmt: skip
        """Attention rollout through all layers (T,S), rows sum to 1; see `inspection.rollout.rollout`."""
        from anyformer.inspection.rollout import rollout

        return rollout(self, fuse=fuse, residual=residual, depth=depth, discard=discard, stack=stack, rows=rows)

    def relevance(
        self, *, answer: int | None = None, at: int | None = None, depth: int | None = None, stack: str = "",
        rows: Sequence[int] | None = None,
    ) -> Tensor:  # fmt: skip
        """Relevance of each input token for an answer, (T,S); see `inspection.relevance.relevance`."""
        from anyformer.inspection.relevance import relevance

        return relevance(self, answer=answer, at=at, depth=depth, stack=stack, rows=rows)

    def lens(self, top: int = 10) -> Lens:
        """The logit lens: the head's predictions after each layer."""
        from anyformer.inspection.lens import lens_of

        return lens_of(self, top)

    def heads(self) -> list[dict[str, Any]]:
        """A table of statistics, one row per head."""
        from anyformer.inspection.head_stats import head_statistics

        return head_statistics(self)

    def compare(self, other: Capture) -> Comparison:
        """Compare with another capture, also on the page; returns the differences of maps, heads and answers."""
        from anyformer.inspection.compare import Comparison

        found = Comparison(self, other)
        self.others.append(other)
        return found

    @cached_property
    def checkpoints(self) -> CheckpointSteps | None:
        """This input in every checkpoint of the model's run; None if the model does not come from a run."""
        from anyformer.inspection.checkpoint_steps import series_of

        return series_of(self)

    # ------------------------------------------------------------ pages and pictures

    def show(self, port: int = 0, *, open_browser: bool = True) -> Any:
        """Serve the page on loopback until stopped; returns the running server."""
        from anyformer.inspection.server import serve_look

        return serve_look(self, port=port, open_browser=open_browser)

    @property
    def start(self) -> Query:
        """The cell selected when its page opens."""
        from anyformer.inspection.manifest import start_of

        return start_of(self)

    def answer(self, view: str, query: Query | None = None) -> ViewAnswer:
        """A view's answer for the page: facts and arrays."""
        from anyformer.inspection.read_query import view_answer

        found, _ = view_answer(self, view, Query() if query is None else query)
        return ViewAnswer(finite(found.facts), found.arrays)

    def page_parts(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The page's manifest, and the answers of every view in an exported page."""
        from anyformer.inspection.manifest import manifest_of, trust_of_page
        from anyformer.inspection.page import held_answers

        return {**manifest_of(self), "trust": trust_of_page(self)}, held_answers(self)

    def save(self, path: str | Path) -> Path:
        """Write a .look file with the answers of every view, which opens without the model."""
        from anyformer.inspection.bundle import save

        return save(self, path)

    @staticmethod
    def open(path: str | Path) -> Any:
        """Open a .look file."""
        from anyformer.inspection.bundle import Saved

        return Saved.open(path)


def bytes_in(value: Any) -> int:
    """Bytes of the tensors of a result."""
    parts = value if isinstance(value, tuple) else (value,)
    return sum(part.numel() * part.element_size() for part in parts if isinstance(part, Tensor))


PER_ROW = ("query_positions", "key_positions", "query_index", "key_index", "key_mask", "query_documents",
           "key_documents", "allowed", "added")  # fmt: skip


def one_row(p: AttentionInputs, row: int) -> AttentionInputs:
    """The attention inputs of one row of the batch."""
    batch = p.q.shape[0]
    if batch == 1:
        return p
    row = min(row, batch - 1)
    here = slice(row, row + 1)
    parts = {name: value[here] for name in PER_ROW
             if (value := getattr(p.scores, name)) is not None and value.shape[0] == batch}  # fmt: skip
    scores: Scores = replace(p.scores, **parts)
    return AttentionInputs(p.q[here], p.k[here], p.v[here], scores)
