"""A training step as one CUDA graph, for steps that take the host about as long to launch as the GPU to run.

The step is run as usual a few times, once with a look at the clock, then recorded: loss, backward pass, clipping and
update. From then on a step copies its batch to where the recorded one lay, and launches everything at once. Random
numbers follow the seed that is set before each launch, and the learning rate is read from memory, so a recorded step
gives what a plain one gives.
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
WARM_UP = 3  # steps before recording: compilers, allocators and libraries settle
# Weights times entries of the input, below which launches surely take longer than the work: some 30 ms on a large GPU.
SMALL = 2e12
LAUNCHES = 0.5  # share of a step's time spent on launching it, from which on it is recorded
MEMORY = 0.5  # share of the GPU's memory that a recorded step may take: evaluation cannot use it meanwhile
# From a batch on the device and the weight of its targets to the loss and the norm of the gradients. What waits for the
# GPU must come before anything is moved: it is an error while that is tried, and the step is then run again.
Body = Callable[[Batch, Tensor], tuple[Tensor, Tensor]]


def is_small(weights: int, batch: Batch) -> bool:
    """Whether a step on this batch is surely bound by launches."""
    entries = max((leaf.numel() for leaf in leaves_of(batch)[0] if isinstance(leaf, Tensor)), default=0)
    return weights * entries < SMALL


class StepGraph:
    """Records `body` for batches of one form, and runs it; unless `always` only where launches take long."""

    def __init__(self, body: Body, device: torch.device, *, always: bool = True) -> None:
        self.body, self.device, self.always = body, device, always
        self.graph: torch.cuda.CUDAGraph | None = None
        self.lost = ""  # why the step cannot be recorded
        self.runs = 0
        self.form: Any = None
        self.slots: list[Any] = []
        self.batch: Batch | None = None
        self.weight = torch.ones((), device=device)
        self.results: tuple[Tensor, Tensor] | None = None

    def takes(self, batch: Batch) -> bool:
        """Whether this batch goes through the recording; the first one decides about the form."""
        if self.lost:
            return False
        form = form_of(batch)
        if self.form is None:
            self.form = form
        return bool(form == self.form)

    def __call__(self, batch: Batch, weight: int) -> tuple[Tensor, Tensor]:
        """The loss and the norm of the gradients of a whole step."""
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
        except Exception as error:  # whatever a library may refuse: without it things are only slower
            self.lost = " ".join(str(error).split())[:200] or type(error).__name__
            log.info("steps are not recorded as a CUDA graph: %s", self.lost)
        if self.lost:  # out here the error is gone, and with it the half of a pass that it kept alive
            return self.body(batch.to(self.device), self.weight)
        return self.replay(batch)

    def run_timed(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """A plain step, which shows whether the GPU waits for the host, and whether there is memory for a recording."""
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
        """A plain step, on a stream of its own, as recording will be."""
        aside = torch.cuda.Stream(self.device)
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(aside):
            results = self.body(batch.to(self.device), self.weight)
        torch.cuda.current_stream(self.device).wait_stream(aside)
        return results

    def record(self, batch: Batch) -> None:
        """Record the step; nothing of it runs yet."""
        moved = batch.to(self.device)
        leaves, form = leaves_of(moved)
        self.slots = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.batch = batch.with_tensors(pytree.tree_unflatten(self.slots, form))
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()  # the recording has memory of its own
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the GPU meanwhile: the one that fetches batches does.
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
        return loss.clone(), norm.clone()  # the next step writes there


def leaves_of(batch: Batch) -> tuple[list[Any], Any]:
    """Everything in a batch but the numbers of its rows, and how it hangs together."""
    return pytree.tree_flatten(batch.tensors)


def form_of(batch: Batch) -> tuple[Any, ...]:
    """What must be the same for two batches to go through one recording."""
    leaves, form = leaves_of(batch)
    return (
        form,
        batch.most_targets,
        *((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves),
    )


@contextmanager
def refusing_waits() -> Iterator[None]:
    """Inside, whatever waits for the GPU is an error: it could not be recorded, and would break the recording."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
