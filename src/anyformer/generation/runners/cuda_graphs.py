"""CUDA graphs: a decode step is captured once, then replayed.

Everything a step reads and changes is a tensor at a fixed address, including the step counter, so the host neither
prepares a step nor waits for one; it only polls occasionally, with a delay, whether all sequences have finished. On
other devices the same code calls the step directly.
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

WARM = 3  # warm-up calls before capture: kernels are compiled, tuned and allocate workspaces
EVERY = 16  # steps between polls


@dataclass(frozen=True)
class CapturedStep:
    """A captured step with its own input and output memory."""

    graph: torch.cuda.CUDAGraph
    step: Callable[[], object]  # keeps the captured tensors alive

    def __call__(self) -> None:
        """Replay the step."""
        self.graph.replay()


def capture_step(step: Callable[[], object], *changed: Tensor, warm: int = WARM) -> Callable[[], object]:
    """Capture `step` as one graph; the tensors in `changed` are restored after the warm-up calls.

    The step must not synchronise with the host (no data-dependent sizes, no `.item()`).
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
    # Other threads may use the device during capture.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    put_back()
    return CapturedStep(graph, step)


class AsyncCopy:
    """Asynchronous copy of a small device tensor to the host; `read` waits for the newest copy."""

    def __init__(self, watched: Tensor) -> None:
        self.watched, self.requested = watched, False
        self.event = torch.cuda.Event() if watched.is_cuda else None
        self.host = torch.empty_like(watched, device="cpu", pin_memory=watched.is_cuda)

    def request(self) -> None:
        """Enqueue a copy after all work queued so far."""
        self.requested = True
        self.host.copy_(self.watched, non_blocking=True)
        if self.event is not None:
            self.event.record(torch.cuda.current_stream(self.watched.device))

    def read(self) -> Tensor:
        """The last requested copy."""
        if self.event is not None:
            self.event.synchronize()
        return self.host


def run_steps(step: Callable[[], object], most: int, finished: Tensor | None, every: int = EVERY) -> int:
    """Call `step` up to `most` times, until shortly after `finished` (bool) is all true; returns the number of calls.

    On a GPU `finished` is read with a delay of `every` steps, so that the device never idles; extra steps after the
    end must be harmless.
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
    """Outputs of sequences on the device; steps update these tensors in place."""

    tokens: Tensor  # (B,) sampled last, run next
    positions: Tensor  # (B,1) their positions
    steps: Tensor  # () tokens generated so far
    generated: Tensor  # (B,N) padded after the end
    logprobs: Tensor  # (B,N)
    finished: Tensor  # (B,)

    @classmethod
    def start(
        cls, first: Tensor, positions: Tensor, most: int, padding: int, dtype: torch.dtype = torch.float32
    ) -> DeviceOutputs:
        """Initial outputs; `first` (B,) are the prompts' last tokens, at `positions` (B,)."""
        batch, device = first.shape[0], first.device
        return cls(
            tokens=first.clone(), positions=positions[:, None].clone(),
            steps=torch.zeros((), dtype=torch.long, device=device),
            generated=torch.full((batch, most), padding, device=device),
            logprobs=torch.zeros(batch, most, device=device, dtype=dtype),
            finished=torch.zeros(batch, dtype=torch.bool, device=device),
        )  # fmt: skip

    def restart(self, first: Tensor, positions: Tensor, padding: int) -> None:
        """Reset the tensors in place for other prompts."""
        for held, new in ((self.tokens, first), (self.positions, positions[:, None])):
            held.copy_(new)
        self.generated.fill_(padding)
        for held in (self.steps, self.logprobs, self.finished):
            held.zero_()

    def append(self, sampled: Tensor, logprobs: Tensor, ends: Tensor, padding: int) -> None:
        """Append a token to every row; a finished row keeps its position and runs token 0, whose output is ignored."""
        at = self.steps[None]
        self.generated.index_copy_(1, at, torch.where(self.finished, padding, sampled)[:, None])
        self.logprobs.index_copy_(1, at, torch.where(self.finished, 0.0, logprobs)[:, None])
        self.positions.add_((~self.finished)[:, None])
        self.tokens.copy_(torch.where(self.finished, 0, sampled))
        self.finished.logical_or_((sampled[:, None] == ends[None, :]).any(1))
        self.steps.add_(1)


class RecordedStep:
    """A captured decode step for the first `rows` slots of a static cache, with fixed input tensors."""

    def __init__(self, model: Any, layers: Sequence[LayerState], columns: Tensor, rows: int) -> None:
        self.tokens, self.positions, self.at = (
            torch.zeros(rows, 1, dtype=torch.long, device=columns.device) for _ in range(3)
        )
        self.logits = torch.empty(0)  # (rows,V), overwritten by the next step
        caches = [layer.mixer for layer in layers]
        for cache in caches:
            assert isinstance(cache, StaticCache)
            cache.at, cache.rows = self.at, torch.arange(rows, device=columns.device)[:, None]

        def step() -> None:
            # Fresh layer states: a pass may modify them.
            state = StaticState(
                [LayerState(cache) for cache in caches], rows, new_positions=self.positions, columns=columns
            )
            self.logits = compute_logits(model, hidden_states(model, self.tokens, None, state))[:, 0]

        self.step: Callable[[], object] = step
        self.captured = False

    def __call__(self, tokens: Tensor) -> Tensor:
        """Logits (rows,V) after tokens (rows,) at `positions`, written to the columns `at`."""
        self.tokens[:, 0] = tokens
        if not self.captured:
            self.captured = True
            try:
                self.step = capture_step(self.step, self.tokens)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # the step synchronises with the host
                log.warning("decoding steps are not recorded: %s", " ".join(str(error).split())[:200])
        self.step()
        return self.logits


def argmax_in_parts(logits: Tensor, parts: int = 64, wide: int = 4096) -> Tensor:
    """`argmax` over the last axis, ties to the lowest index: in two stages, since one GPU block per row would be
    slow."""
    if logits.shape[-1] < wide:
        return logits.argmax(-1)
    size = -(-logits.shape[-1] // parts)
    padded = torch.nn.functional.pad(logits, (0, parts * size - logits.shape[-1]), value=-torch.inf)
    split = padded.unflatten(-1, (parts, size))
    part = split.amax(-1).argmax(-1, keepdim=True)  # (B,1) the first part with the maximum
    within = split.argmax(-1).gather(-1, part)
    return (part * size + within)[..., 0]
