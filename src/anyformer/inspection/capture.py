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

MOST_KEPT = 64 * 2**20  # bytes of results that are remembered; a long map is asked for in many parts
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
    """Run a model once over one input and keep what is needed to look inside; the model itself is not touched.

    `source` is what `anyformer.load` gives, or a network. `inputs` is what it reads: a text, an image, a row or rows
    of a table, token ids (1, T), or a tuple of tensors for a network by itself; a trained model has an example of its
    own. `target` is the text that an encoder-decoder writes (what it would write itself, if not given). `layers`
    are those whose maps are wanted, counted from 0. What would take more memory than `budget` is refused before any
    work, with smaller ways named. `name` is what the model is called in titles.
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
        check_budget(getattr(model, "_orig_mod", model), given, layers, budget)  # of a compiled model, what it wraps
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
    """Which blocks' mixers are kept."""
    if isinstance(layers, str):
        if layers != "all":
            raise UserError(f"layers {layers!r} is not known", where="look", fix='use "all" or numbers from 0')
        return lambda stack, layer: True
    chosen = set(layers)
    return lambda stack, layer: layer in chosen


def check_budget(model: nn.Module, given: NetworkInputs, layers: Layers, budget: str | int) -> None:
    """Refuse what would take more memory than allowed."""
    check(price_call(model, given.args, given.options, layers), budget)


class Capture(CaptureBase):
    """One pass and everything that can be asked about it; see the module's first lines."""

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
        self.run: Path | None = None  # the folder of the training run it is from, whose checkpoints a page can show
        self.axes = self.find_axes()
        if "decoder" in self.axes:
            self.axes["decoder"] = replace(self.axes["decoder"], written=written_tokens(self))
        self.sites = tuple(self.site_of(i, call) for i, call in enumerate(found.mixers))
        self.kept: dict[tuple[Any, ...], Any] = {}  # the newest results, so that a page can ask for parts of one

    def __repr__(self) -> str:
        return f"Capture({self.title}, {self.given.text[:40]!r})"

    # ------------------------------------------------------------ what it is about

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
        """How another input is typed on the page: text, image, or table (JSON); None where none can be."""
        return None if self.predictor is None else input_kind(self.predictor)

    @cached_property
    def title(self) -> str:
        """The model in a few words."""
        name = self.name or type(getattr(self.model, "spec", self.model)).__name__
        blocks = len(self.found.blocks)
        heads = max((site.heads for site in self.sites), default=0)
        return f"{name} · {blocks} layer{'s' * (blocks != 1)} · {heads} head{'s' * (heads != 1)}"

    def find_axes(self) -> dict[str, TokenAxis]:
        """The tokens of every stack, as they enter its first block."""
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
        """What the embedding of a stack was given."""
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
        """The name of an axis of that length: the stack's own, or a numbered one where layers change the count."""
        if stack in self.axes and len(self.axes[stack]) == length:
            return stack
        name = f"{stack}:{length}"
        if name not in self.axes:
            self.axes[name] = merged(name, self.axes.get(stack), length)
        return name

    def token_ids(self, stack: str = "") -> list[int] | None:
        """The ids of the shown row, where tokens have ids."""
        axis = self.axes.get(stack) or self.axes.get("decoder")
        ids = [] if axis is None else [token.id for token in axis.tokens]
        return None if not ids or any(number is None for number in ids) else [int(number or 0) for number in ids]

    # ------------------------------------------------------------ maps

    def weights(self, site: int, *, rows: slice = ALL, row: int | None = None) -> Tensor:
        """The weights (H,t,S) at a site for some queries of one row of the batch, in float32 on the CPU."""
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
        """Remember a result; the oldest go first, by number and by size, and the newest is always there."""
        self.kept[key] = value
        while len(self.kept) > most or (len(self.kept) > 1 and sum(map(bytes_in, self.kept.values())) > MOST_KEPT):
            self.kept.pop(next(iter(self.kept)))

    def fused(self, site: int) -> Tensor:
        """What the mixer gave in the pass itself, by whatever kernel ran, (B,T,D)."""
        out = self.found.mixers[site].out
        assert out is not None
        return out

    # ------------------------------------------------------------ the stream

    def blocks(self, stack: str = "") -> list[BlockCall]:
        """The calls of a stack's blocks, in order."""
        return [call for call in self.found.blocks if call.stack == stack]

    @property
    def stacks(self) -> list[str]:
        """The stacks that ran, in order."""
        return list(dict.fromkeys(call.stack for call in self.found.blocks))

    def residuals(self, stack: str = "") -> list[Tensor]:
        """The stream (B,T,D) before the first block and after each."""
        calls = self.blocks(stack)
        return [call.before for call in calls[:1]] + [call.after for call in calls if call.after is not None]

    def rerun(self, given: NetworkInputs | None = None) -> Any:
        """One more pass of the shadow over the same input, such as inside `ablate`."""
        given = self.given if given is None else given
        with torch.no_grad():
            return self.model(*given.args, **given.options)

    # ------------------------------------------------------------ answers

    def prediction(self, output: Any = None, *, at: int | None = None, top: int = 5) -> list[PossibleAnswer]:
        """What the model answers, best first."""
        return predictions(self, output, at=at, top=top)

    def names(self, ids: Iterable[int], kind: str) -> dict[int, str]:
        """What ids of words or classes stand for."""
        from anyformer.inspection.word_names import names_of

        return names_of(self, ids, kind)

    @property
    def batch(self) -> int:
        """Rows of the input."""
        return self.found.blocks[0].before.shape[0] if self.found.blocks else 1

    @cached_property
    def trust(self) -> Trust:
        """How well the numbers shown here agree with what the model computed."""
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
        """Attention through all layers as one map (T,S), rows sum to 1; see `inspection.rollout.rollout`."""
        from anyformer.inspection.rollout import rollout

        return rollout(self, fuse=fuse, residual=residual, depth=depth, discard=discard, stack=stack, rows=rows)

    def relevance(
        self, *, answer: int | None = None, at: int | None = None, depth: int | None = None, stack: str = "",
        rows: Sequence[int] | None = None,
    ) -> Tensor:  # fmt: skip
        """How much each input token raised an answer through attention, (T,S); see `inspection.relevance.relevance`."""
        from anyformer.inspection.relevance import relevance

        return relevance(self, answer=answer, at=at, depth=depth, stack=stack, rows=rows)

    def lens(self, top: int = 10) -> Lens:
        """What the head would answer after each layer."""
        from anyformer.inspection.lens import lens_of

        return lens_of(self, top)

    def heads(self) -> list[dict[str, Any]]:
        """A table of statistics, one row a head."""
        from anyformer.inspection.head_stats import head_statistics

        return head_statistics(self)

    def compare(self, other: Capture) -> Comparison:
        """Put another capture beside this one, on the page too; gives the differences of maps, heads and answers."""
        from anyformer.inspection.compare import Comparison

        found = Comparison(self, other)
        self.others.append(other)
        return found

    @cached_property
    def checkpoints(self) -> CheckpointSteps | None:
        """This input through every checkpoint of the run that the model comes from; None where it comes from none."""
        from anyformer.inspection.checkpoint_steps import series_of

        return series_of(self)

    # ------------------------------------------------------------ pages and pictures

    def show(self, port: int = 0, *, open_browser: bool = True) -> Any:
        """Serve the page on loopback until stopped; gives the running server."""
        from anyformer.inspection.server import serve_look

        return serve_look(self, port=port, open_browser=open_browser)

    @property
    def start(self) -> Query:
        """The cell that its page opens with."""
        from anyformer.inspection.manifest import start_of

        return start_of(self)

    def answer(self, view: str, query: Query | None = None) -> ViewAnswer:
        """What the page gets for a view of it: facts and arrays."""
        from anyformer.inspection.read_query import view_answer

        found, _ = view_answer(self, view, Query() if query is None else query)
        return ViewAnswer(finite(found.facts), found.arrays)

    def page_parts(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """What its page knows, and what an exported one holds of every view."""
        from anyformer.inspection.manifest import manifest_of, trust_of_page
        from anyformer.inspection.page import held_answers

        return {**manifest_of(self), "trust": trust_of_page(self)}, held_answers(self)

    def save(self, path: str | Path) -> Path:
        """Write a .look file: the answers of every view, which open without the model."""
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
    """The same for one row of the batch."""
    batch = p.q.shape[0]
    if batch == 1:
        return p
    row = min(row, batch - 1)
    here = slice(row, row + 1)
    parts = {name: value[here] for name in PER_ROW
             if (value := getattr(p.scores, name)) is not None and value.shape[0] == batch}  # fmt: skip
    scores: Scores = replace(p.scores, **parts)
    return AttentionInputs(p.q[here], p.k[here], p.v[here], scores)
