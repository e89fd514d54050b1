"""Steps that the device repeats by itself: recorded once as a CUDA graph, then only told "again".

Everything a step reads and changes is a tensor that stays where it is, its own number included, so the host neither
prepares a step nor waits for one; from time to time it looks, a little late, whether all texts have ended. On other
devices the same code calls the step plainly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

WARM = 3  # calls before recording: kernels are compiled, tuned and given their workspaces
EVERY = 16  # steps between two looks


@dataclass(frozen=True)
class Replay:
    """A recorded step, which reads and writes memory of its own."""

    graph: torch.cuda.CUDAGraph
    step: Callable[[], object]  # what was recorded holds the tensors: without it their memory would be given away

    def __call__(self) -> None:
        """Do it again."""
        self.graph.replay()


def captured(step: Callable[[], object], *changed: Tensor, warm: int = WARM) -> Callable[[], object]:
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
    return Replay(graph, step)


class Glance:
    """A small tensor of the device as it was when last asked for: asking does not wait, reading waits for the asked."""

    def __init__(self, watched: Tensor) -> None:
        self.watched, self.asked = watched, False
        self.event = torch.cuda.Event() if watched.is_cuda else None
        self.host = torch.empty_like(watched, device="cpu", pin_memory=watched.is_cuda)

    def ask(self) -> None:
        """Copy it behind whatever the device has been told to do so far."""
        self.asked = True
        self.host.copy_(self.watched, non_blocking=True)
        if self.event is not None:
            self.event.record(torch.cuda.current_stream(self.watched.device))

    def read(self) -> Tensor:
        """What was asked for last."""
        if self.event is not None:
            self.event.synchronize()
        return self.host


def repeat(step: Callable[[], object], most: int, over: Tensor | None, every: int = EVERY) -> int:
    """Call `step` up to `most` times, and soon after `over` (a bool tensor) is all true no more; how often it was.

    On a GPU the look at `over` is one of `every` steps ago, so that the device always has steps ahead of it; steps
    after the end must do no harm.
    """
    if over is None:
        for _ in range(most):
            step()
        return most
    glance, every = Glance(over), every if over.is_cuda else 1
    made = 0
    while made < most:
        for _ in range(min(every, most - made)):
            step()
            made += 1
        if over.is_cuda and glance.asked and bool(glance.read().all()):
            break
        glance.ask()
        if not over.is_cuda and bool(glance.read().all()):
            break
    return made


class Texts(NamedTuple):
    """Texts being written on the device, by steps that change these tensors in place."""

    tokens: Tensor  # (B,) chosen last, to be read next
    places: Tensor  # (B,1) where they will stand
    number: Tensor  # () tokens written so far
    written: Tensor  # (B,N) what was chosen, padding behind the end
    logprobs: Tensor  # (B,N)
    over: Tensor  # (B,) whether a text has ended

    @classmethod
    def start(cls, first: Tensor, places: Tensor, most: int, padding: int, dtype: torch.dtype = torch.float32) -> Texts:
        """Nothing written yet; `first` (B,) are the last tokens of the prompts and `places` (B,) where they stand."""
        batch, device = first.shape[0], first.device
        return cls(
            tokens=first.clone(), places=places[:, None].clone(),
            number=torch.zeros((), dtype=torch.long, device=device),
            written=torch.full((batch, most), padding, device=device),
            logprobs=torch.zeros(batch, most, device=device, dtype=dtype),
            over=torch.zeros(batch, dtype=torch.bool, device=device),
        )  # fmt: skip

    def restart(self, first: Tensor, places: Tensor, padding: int) -> None:
        """The same tensors, for other texts."""
        for held, new in ((self.tokens, first), (self.places, places[:, None])):
            held.copy_(new)
        self.written.fill_(padding)
        for held in (self.number, self.logprobs, self.over):
            held.zero_()

    def note(self, chosen: Tensor, logprobs: Tensor, ends: Tensor, padding: int) -> None:
        """One token more of every row; a row that has ended stays where it is and reads token 0, unseen by anybody."""
        at = self.number[None]
        self.written.index_copy_(1, at, torch.where(self.over, padding, chosen)[:, None])
        self.logprobs.index_copy_(1, at, torch.where(self.over, 0.0, logprobs)[:, None])
        self.places.add_((~self.over)[:, None])
        self.tokens.copy_(torch.where(self.over, 0, chosen))
        self.over.logical_or_((chosen[:, None] == ends[None, :]).any(1))
        self.number.add_(1)


def first_largest(scores: Tensor, parts: int = 64, wide: int = 4096) -> Tensor:
    """`argmax` over the last axis, the lowest of equals: in two rounds, as one block of a GPU alone would be slow."""
    if scores.shape[-1] < wide:
        return scores.argmax(-1)
    size = -(-scores.shape[-1] // parts)
    padded = torch.nn.functional.pad(scores, (0, parts * size - scores.shape[-1]), value=-torch.inf)
    split = padded.unflatten(-1, (parts, size))
    part = split.amax(-1).argmax(-1, keepdim=True)  # (B,1) the first part that holds the largest
    within = split.argmax(-1).gather(-1, part)
    return (part * size + within)[..., 0]
