"""A training step as one CUDA graph, for steps that are bound by kernel launches.

The step runs eagerly a few times, once of them timed, then it is captured: loss, backward pass, clipping and update.
From then on a step copies its batch into the captured input buffers and replays the graph. Random numbers follow the
seed that is set before each replay, and the learning rate is read from device memory, so a replayed step gives the same
result as an eager one.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anyformer.objectives import Batch

log = logging.getLogger("anyformer")
WARM_UP = 3  # steps before capture, for compilers, allocators and libraries to initialise
# Weights times input entries below which a step is certainly launch-bound: some 30 ms on a large GPU.
SMALL = 2e12
LAUNCHES = 0.5  # fraction of a step's time spent on launches above which it is captured
MEMORY = 0.5  # most of the GPU's memory that a captured step may take: evaluation cannot use it meanwhile
# From a batch on the device and the weight of its targets to the loss and the gradient norm. A synchronisation must
# come
# before any weight is updated: it raises during the capture attempt, and the step is then run again eagerly.
Body = Callable[[Batch, Tensor], tuple[Tensor, Tensor]]


def is_small(weights: int, batch: Batch) -> bool:
    """Whether a step on this batch is certainly launch-bound."""
    entries = max((leaf.numel() for leaf in leaves_of(batch)[0] if isinstance(leaf, Tensor)), default=0)
    return weights * entries < SMALL


class StepGraph:
    """Captures `body` for batches of one shape and replays it; unless `always`, only if it is launch-bound."""

    def __init__(self, body: Body, device: torch.device, *, always: bool = True) -> None:
        self.body, self.device, self.always = body, device, always
        self.graph: torch.cuda.CUDAGraph | None = None
        self.lost = ""  # why the step cannot be captured
        self.runs = 0
        self.form: Any = None
        self.slots: list[Any] = []
        self.batch: Batch | None = None
        self.weight = torch.ones((), device=device)
        self.results: tuple[Tensor, Tensor] | None = None

    def takes(self, batch: Batch) -> bool:
        """Whether this batch can use the graph; the first batch fixes the shapes."""
        if self.lost:
            return False
        form = form_of(batch)
        if self.form is None:
            self.form = form
        return bool(form == self.form)

    def __call__(self, batch: Batch, weight: int) -> tuple[Tensor, Tensor]:
        """Run a whole step; returns its loss and gradient norm."""
        self.weight.fill_(weight)
        self.runs += 1
        if self.graph is not None:
            return self.replay(batch)
        if self.runs == WARM_UP - 1 and not self.always:
            return self.run_timed(batch)
        if self.runs < WARM_UP:
            return self.run_aside(batch)
        try:
            if self.runs == WARM_UP:
                with refusing_waits():
                    return self.run_aside(batch)
            self.record(batch)
        except Exception as error:  # any library may reject capture: eager steps are only slower
            self.lost = " ".join(str(error).split())[:200] or type(error).__name__
            log.info("steps are not captured as a CUDA graph: %s", self.lost)
        if self.lost:  # only here, outside the handler, is the error's traceback and the memory it held freed
            return self.body(batch.to(self.device), self.weight)
        return self.replay(batch)

    def run_timed(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """An eager step, timed to see whether it is launch-bound and whether there is memory for a graph."""
        torch.cuda.synchronize(self.device)
        began = time.perf_counter()
        results = self.run_aside(batch)
        launched = time.perf_counter() - began
        torch.cuda.synchronize(self.device)
        share = launched / (time.perf_counter() - began)
        taken = (
            torch.cuda.max_memory_allocated(self.device) / torch.cuda.get_device_properties(self.device).total_memory
        )
        if share < LAUNCHES:
            self.lost = f"launching takes {share:.0%} of a step's time"
        elif taken > MEMORY:
            self.lost = f"a step takes {taken:.0%} of the memory"
        return results

    def run_aside(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """An eager step on a side stream, as capture will be."""
        aside = torch.cuda.Stream(self.device)
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(aside):
            results = self.body(batch.to(self.device), self.weight)
        torch.cuda.current_stream(self.device).wait_stream(aside)
        return results

    def record(self, batch: Batch) -> None:
        """Capture the step; nothing of it runs yet."""
        moved = batch.to(self.device)
        leaves, form = leaves_of(moved)
        self.slots = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.batch = batch.with_tensors(pytree.tree_unflatten(self.slots, form))
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()  # the graph has its own memory pool
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the GPU during capture: the prefetcher does.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.results = self.body(self.batch, self.weight)
        self.graph = graph

    def replay(self, batch: Batch) -> tuple[Tensor, Tensor]:
        assert self.graph is not None and self.results is not None
        for slot, leaf in zip(self.slots, leaves_of(batch)[0], strict=True):
            if isinstance(slot, Tensor):
                slot.copy_(leaf, non_blocking=True)
        self.graph.replay()
        loss, norm = self.results
        return loss.clone(), norm.clone()  # the next replay overwrites them


def leaves_of(batch: Batch) -> tuple[list[Any], Any]:
    """The leaves of a batch, without its row numbers, and the tree structure."""
    return pytree.tree_flatten(batch.tensors)


def form_of(batch: Batch) -> tuple[Any, ...]:
    """What must be equal for two batches to share one graph: structure, shapes and dtypes."""
    leaves, form = leaves_of(batch)
    return (
        form,
        batch.most_targets,
        *((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves),
    )


@contextmanager
def refusing_waits() -> Iterator[None]:
    """Make synchronisation with the GPU an error inside: it would break the capture."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the prototype warning
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
