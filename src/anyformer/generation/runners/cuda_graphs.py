"""CUDA graphs: a decode step is recorded once, then replayed.

Everything a step reads and changes is a tensor that stays where it is, its own number included, so the host neither
prepares a step nor waits for one; from time to time it looks, a little late, whether all sequences have finished. On
other devices the same code calls the step plainly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.core.state import LayerState
from anyformer.core.static_cache import StaticCache, StaticState
from anyformer.generation.runners.eager import compute_logits, hidden_states

log = logging.getLogger("anyformer")

WARM = 3  # calls before recording: kernels are compiled, tuned and given their workspaces
EVERY = 16  # steps between two looks


@dataclass(frozen=True)
class CapturedStep:
    """A recorded step, which reads and writes memory of its own."""

    graph: torch.cuda.CUDAGraph
    step: Callable[[], object]  # what was recorded holds the tensors: without it their memory would be given away

    def __call__(self) -> None:
        """Do it again."""
        self.graph.replay()


def capture_step(step: Callable[[], object], *changed: Tensor, warm: int = WARM) -> Callable[[], object]:
    """`step` as one graph; what it changes and somebody counts on afterwards is `changed`, and is put back.

    The step must not ask the host for anything (no sizes from values, no `.item()`).
    """
    if not changed or not changed[0].is_cuda:
        return step
    device = changed[0].device
    before = [tensor.clone() for tensor in changed]

    def put_back() -> None:
        for tensor, value in zip(changed, before, strict=True):
            tensor.copy_(value)

    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(warm):
            step()
            put_back()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # Other threads may go on using the device while this one records.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    put_back()
    return CapturedStep(graph, step)


class AsyncCopy:
    """A small tensor of the device, copied to the host without waiting; reading it waits for the newest copy."""

    def __init__(self, watched: Tensor) -> None:
        self.watched, self.requested = watched, False
        self.event = torch.cuda.Event() if watched.is_cuda else None
        self.host = torch.empty_like(watched, device="cpu", pin_memory=watched.is_cuda)

    def request(self) -> None:
        """Copy it behind whatever the device has been told to do so far."""
        self.requested = True
        self.host.copy_(self.watched, non_blocking=True)
        if self.event is not None:
            self.event.record(torch.cuda.current_stream(self.watched.device))

    def read(self) -> Tensor:
        """What was requested last."""
        if self.event is not None:
            self.event.synchronize()
        return self.host


def run_steps(step: Callable[[], object], most: int, finished: Tensor | None, every: int = EVERY) -> int:
    """Call `step` up to `most` times, until soon after `finished` (a bool tensor) is all true; how often it was.

    On a GPU what is seen of `finished` is `every` steps old, so that the device always has steps ahead of it; steps
    after the end must do no harm.
    """
    if finished is None:
        for _ in range(most):
            step()
        return most
    seen, every = AsyncCopy(finished), every if finished.is_cuda else 1
    count = 0
    while count < most:
        for _ in range(min(every, most - count)):
            step()
            count += 1
        if finished.is_cuda and seen.requested and bool(seen.read().all()):
            break
        seen.request()
        if not finished.is_cuda and bool(seen.read().all()):
            break
    return count


class DeviceOutputs(NamedTuple):
    """What sequences generate on the device, by steps that change these tensors in place."""

    tokens: Tensor  # (B,) sampled last, to be run next
    positions: Tensor  # (B,1) of those
    steps: Tensor  # () tokens generated so far
    generated: Tensor  # (B,N) padding behind the end
    logprobs: Tensor  # (B,N)
    finished: Tensor  # (B,)

    @classmethod
    def start(
        cls, first: Tensor, positions: Tensor, most: int, padding: int, dtype: torch.dtype = torch.float32
    ) -> DeviceOutputs:
        """Nothing generated yet; `first` (B,) are the last tokens of the prompts, at `positions` (B,)."""
        batch, device = first.shape[0], first.device
        return cls(
            tokens=first.clone(), positions=positions[:, None].clone(),
            steps=torch.zeros((), dtype=torch.long, device=device),
            generated=torch.full((batch, most), padding, device=device),
            logprobs=torch.zeros(batch, most, device=device, dtype=dtype),
            finished=torch.zeros(batch, dtype=torch.bool, device=device),
        )  # fmt: skip

    def restart(self, first: Tensor, positions: Tensor, padding: int) -> None:
        """The same tensors, for other prompts."""
        for held, new in ((self.tokens, first), (self.positions, positions[:, None])):
            held.copy_(new)
        self.generated.fill_(padding)
        for held in (self.steps, self.logprobs, self.finished):
            held.zero_()

    def append(self, sampled: Tensor, logprobs: Tensor, ends: Tensor, padding: int) -> None:
        """One more token of every row; a finished row stays where it is and runs token 0, which nobody sees."""
        at = self.steps[None]
        self.generated.index_copy_(1, at, torch.where(self.finished, padding, sampled)[:, None])
        self.logprobs.index_copy_(1, at, torch.where(self.finished, 0.0, logprobs)[:, None])
        self.positions.add_((~self.finished)[:, None])
        self.tokens.copy_(torch.where(self.finished, 0, sampled))
        self.finished.logical_or_((sampled[:, None] == ends[None, :]).any(1))
        self.steps.add_(1)


class RecordedStep:
    """One more token in each of the first `rows` slots of a static cache; its inputs are tensors that stay."""

    def __init__(self, model: Any, layers: Sequence[LayerState], columns: Tensor, rows: int) -> None:
        self.tokens, self.positions, self.at = (
            torch.zeros(rows, 1, dtype=torch.long, device=columns.device) for _ in range(3)
        )
        self.logits = torch.empty(0)  # (rows,V), until the next step
        caches = [layer.mixer for layer in layers]
        for cache in caches:
            assert isinstance(cache, StaticCache)
            cache.at, cache.rows = self.at, torch.arange(rows, device=columns.device)[:, None]

        def step() -> None:
            # The layers' states are made anew: a pass may note things in them.
            state = StaticState(
                [LayerState(cache) for cache in caches], rows, new_positions=self.positions, columns=columns
            )
            self.logits = compute_logits(model, hidden_states(model, self.tokens, None, state))[:, 0]

        self.step: Callable[[], object] = step
        self.captured = False

    def __call__(self, tokens: Tensor) -> Tensor:
        """Logits (rows,V) after tokens (rows,); `positions` and `at` say where these are."""
        self.tokens[:, 0] = tokens
        if not self.captured:
            self.captured = True
            try:
                self.step = capture_step(self.step, self.tokens)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # it asks the host for something
                log.warning("decoding steps are not recorded: %s", " ".join(str(error).split())[:200])
        self.step()
        return self.logits


def argmax_in_parts(logits: Tensor, parts: int = 64, wide: int = 4096) -> Tensor:
    """`argmax` over the last axis, the lowest of equals: in two rounds, as one block of a GPU alone would be slow."""
    if logits.shape[-1] < wide:
        return logits.argmax(-1)
    size = -(-logits.shape[-1] // parts)
    padded = torch.nn.functional.pad(logits, (0, parts * size - logits.shape[-1]), value=-torch.inf)
    split = padded.unflatten(-1, (parts, size))
    part = split.amax(-1).argmax(-1, keepdim=True)  # (B,1) the first part that holds the largest
    within = split.argmax(-1).gather(-1, part)
    return (part * size + within)[..., 0]
