"""The network of a new run: a preset or the start model, adapted to the data and modified by `--set model.…`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from anyformer.core.model import Model, Seq2Seq
from anyformer.core.streams import Streams
from anyformer.data.sizes import Sizes
from anyformer.embeds import Tokens
from anyformer.errors import UnfitNetwork, UserError
from anyformer.inference.predictor import Predictor
from anyformer.nets.sagan import SAGAN
from anyformer.slots import Network
from anyformer.tasks import Task
from anyformer.tasks.network import longest, parts_of
from anyformer.training.setup.idle_settings import refuse_overruled
from anyformer.training.setup.request import Request, replace_paths

OWN = "own"  # the name of a network that was given as a spec instead of a preset's name


def choose_network(
    request: Request, task: Task, sizes: Sizes, start: Predictor | None, *, gpu: bool
) -> tuple[Network, str]:
    """The network's spec and its display name."""
    changes = request.section("model")
    if start is not None:
        if request.preset is not None:
            raise UserError("both --preset and --from are given", where="--preset", fix="give one of them")
        try:
            spec = task.adapt_network(start.spec, str(request.start), sizes)
        except UnfitNetwork as error:
            what = error.what.replace("the preset", "the model", 1)
            raise UserError(what, where="--from", fix="start from one that does, or leave --from out") from None
        return replace_paths(spec, changes, "model"), Path(str(request.start)).name
    task.check_changes(changes)
    if request.preset is None:
        request = dataclasses.replace(request, preset=task.default_preset(sizes, gpu=gpu))
    base = request.network()
    name = request.preset if isinstance(request.preset, str) else OWN
    early = {path: value for path, value in changes.items() if path.startswith(("stack", "encoder", "decoder", "init"))}
    base = replace_paths(base, early, "model")
    spec = task.fit_network(base, name, sizes)
    late = {path: value for path, value in changes.items() if path not in early}
    refuse_overruled(request, replace_paths(spec, early, "model"), spec, early)
    return replace_paths(spec, late, "model"), name


def check_length(spec: Network, sizes: Sizes) -> None:
    """Reject texts that are longer than the network's number of positions, before the first step."""
    if sizes.length is None:
        return
    reader: Any = spec.encoder if isinstance(spec, Seq2Seq) else spec
    reads = () if isinstance(spec, Streams) else parts_of(reader.embed)
    limit = longest(spec) if any(isinstance(part, Tokens) for part in reads) else None
    if limit is not None and limit < sizes.length:
        raise UserError(f"rows of up to {sizes.length} tokens do not fit the network's {limit} positions",
                        where="model", fix=f"add --set data.tokenizer.max_length={limit}")  # fmt: skip


def describe_network(spec: Any) -> str:
    """A network in a few words."""
    if isinstance(spec, Seq2Seq):
        a, b = spec.encoder.stack, spec.decoder.stack
        return f"{len(a.layers)} + {len(b.layers)} layers, {a.width} wide"
    if isinstance(spec, Streams):
        a, b = spec.first.stack, spec.second.stack
        return f"{len(a.layers)} layers, {a.width} wide, beside {len(b.layers)}, {b.width} wide"
    if isinstance(spec, SAGAN):
        return f"images of {spec.size} x {spec.size}, {spec.width} wide"
    members = f", {spec.ensemble.members} members" if isinstance(spec, Model) and spec.ensemble is not None else ""
    return f"{len(spec.stack.layers)} layers, {spec.stack.width} wide{members}"
