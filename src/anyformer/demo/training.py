"""A short plain training loop: AdamW, warm-up and cosine, and a number of steps that fits the time given."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Settings:
    """Everything the training depends on, beside the text and the model."""

    batch: int = 8
    length: int = 128
    rate: float = 3e-3
    decay: float = 0.1
    warmup: float = 0.04  # share of the training in which the rate grows
    clip: float = 1.0

    @property
    def tokens(self) -> int:
        """Tokens a step."""
        return self.batch * self.length


def schedule(progress: float, warmup: float = 0.04) -> float:
    """Factor on the learning rate at this share of the training: up in a line, then down along a cosine to 0.

    >>> schedule(0.02), schedule(0.04), round(schedule(1.0), 9)
    (0.5, 1.0, 0.0)
    """
    if progress < warmup:
        return progress / warmup
    return 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))


class Windows:
    """Endless batches (B, T+1) of neighbouring tokens; each pass cuts the text elsewhere and shuffles the cuts."""

    def __init__(self, tokens: Tensor, settings: Settings, seed: int) -> None:
        self.tokens, self.settings = tokens, settings
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[Tensor]:
        length, batch = self.settings.length, self.settings.batch
        inside = torch.arange(length + 1)
        while True:
            offset = int(torch.randint(length, (), generator=self.generator))
            starts = torch.arange(offset, len(self.tokens) - length, length)
            starts = starts[torch.randperm(len(starts), generator=self.generator)]
            for at in starts.split(batch):
                if len(at) == batch:
                    yield self.tokens[at[:, None] + inside]


def loss_of(net: nn.Module, window: Tensor) -> Tensor:
    """Mean nats a token for predicting each token of (B, T+1) from those before it."""
    logits = net(window[:, :-1]).logits  # (B,T,V)
    return F.cross_entropy(logits.flatten(0, 1).float(), window[:, 1:].flatten())


def optimizer_of(net: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """AdamW in one fused kernel; only matrices inside the blocks decay, not the table and the norms."""
    matrices = [p for name, p in net.named_parameters() if p.dim() == 2 and not name.startswith("embed")]
    others = [p for name, p in net.named_parameters() if p.dim() != 2 or name.startswith("embed")]
    groups = [{"params": matrices, "weight_decay": settings.decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.rate, betas=(0.9, 0.95), fused=True)


def step(net: nn.Module, optimizer: torch.optim.Optimizer, window: Tensor, settings: Settings, factor: float) -> Tensor:
    """One step at this factor on the learning rate; the loss before it, still on its device."""
    for group in optimizer.param_groups:
        group["lr"] = settings.rate * factor
    loss = loss_of(net, window)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), settings.clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


class Pace:
    """How many steps there will be. With a time budget the number follows from the seconds a step takes.

    Progress runs from 0 to 1 without a jump, so the schedule ends exactly at the last step also when another program
    slows this one down and the number of steps is set anew on the way. `pauses` are seconds that will go into other
    work between the steps.
    """

    def __init__(
        self, *, steps: int | None = None, seconds: float | None = None, step_seconds: float = 0.1, pauses: float = 0.0
    ) -> None:
        self.seconds = None if steps is not None else seconds
        self.total = steps if steps is not None else max(2, int(((seconds or 0.0) - pauses) / step_seconds))
        self.pauses = pauses
        self.at, self.progress, self.worked = 0, 0.0, 0.0
        self.recent_steps, self.recent_seconds = 0.0, 0.0
        self.start()

    def start(self) -> None:
        """The clock runs from here."""
        self.started = self.resumed = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.started

    @property
    def left(self) -> float:
        """Seconds still to go: at the speed so far or at the speed of late, whichever is slower, and the pauses."""
        if self.at == 0:
            return self.seconds or 0.0
        each = max(self.worked / self.at, self.recent_seconds / self.recent_steps)
        return each * (self.total - self.at) + (0.0 if self.done else self.pauses)

    def tick(self) -> None:
        """One step is done."""
        now = time.perf_counter()
        since, self.resumed = now - self.resumed, now
        self.progress += (1 - self.progress) / (self.total - self.at)
        self.at += 1
        self.worked += since
        # "Of late" forgets over a tenth of the time budget.
        fade = math.exp(-since / (self.seconds / 10)) if self.seconds else 1.0
        self.recent_steps, self.recent_seconds = fade * self.recent_steps + 1, fade * self.recent_seconds + since
        if self.seconds is not None and self.at < self.total:
            self.fit(self.seconds)

    def resume(self, pauses: float) -> None:
        """Other work was done since the last step; `pauses` seconds of it are still to come."""
        self.resumed, self.pauses = time.perf_counter(), pauses

    def fit(self, seconds: float) -> None:
        """Set the number of steps anew where the end would come clearly too late or too early."""
        elapsed, left = self.elapsed, self.left
        room = max(seconds - elapsed, 0.0)
        # The first second says little, and a few per cent are left alone: the plan should seldom change.
        if elapsed > min(1.0, seconds / 4) and not 0.9 * room < left < 1.05 * room:
            each = (left - self.pauses) / (self.total - self.at)
            self.total = self.at + max(1, int((room - self.pauses) / each))

    @property
    def done(self) -> bool:
        return self.at >= self.total


@dataclass(frozen=True)
class Moment:
    """Where the training stands after a step."""

    step: int
    loss: Tensor  # nats a token, on its device: reading it waits for the device


def train(net: nn.Module, windows: Windows, settings: Settings, pace: Pace) -> Iterator[Moment]:
    """Train until the pace is done; the caller may do its own work between two steps, on the same clock."""
    optimizer = optimizer_of(net, settings)
    device = next(net.parameters()).device
    for window in windows:
        # The rate in the middle of the step: the first one is not zero and the last one is not wasted.
        factor = schedule(pace.progress + (1 - pace.progress) / (pace.total - pace.at) / 2, settings.warmup)
        net.train()
        loss = step(net, optimizer, window.to(device), settings, factor)
        pace.tick()
        yield Moment(pace.at, loss)
        if pace.done:
            return


def step_seconds(net: nn.Module, windows: Windows, settings: Settings, least: float) -> float:
    """Seconds one step takes here, timed for `least` seconds. It changes the weights: give it a network of its own."""
    optimizer = optimizer_of(net, settings)
    device = next(net.parameters()).device
    batches = iter(windows)
    float(step(net, optimizer, next(batches).to(device), settings, 1.0))  # the first one allocates and chooses kernels
    count, started = 0, time.perf_counter()
    while count == 0 or time.perf_counter() - started < least:
        float(step(net, optimizer, next(batches).to(device), settings, 1.0))  # float() waits for the device
        count += 1
    return (time.perf_counter() - started) / count


def fastest_threads(measure: Callable[[], float]) -> float:
    """Set torch's number of threads to the one with which `measure` gives the fewest seconds; those seconds.

    A small model gains nothing from many cores, and where another program holds a core, two threads wait for each
    other at every operation and are slower than one.
    """
    most = torch.get_num_threads()
    times = {}
    for threads in sorted({1, 2, 4, 8, most}, reverse=True):
        if threads <= most:
            torch.set_num_threads(threads)
            times[threads] = measure()
    best = min(times, key=times.__getitem__)
    torch.set_num_threads(best)
    return times[best]


@torch.no_grad()
def bits_per_byte(net: nn.Module, tokens: Tensor, size: int, length: int, batch: int = 8) -> float:
    """What an ideal coder with this model's predictions would spend on the text, per byte of its `size` bytes.

    Every token counts once; each is predicted from at least half a window of text before it, except at the start, and
    the very first one from nothing (one of V, evenly).
    """
    device = next(net.parameters()).device
    net.eval()
    stride = length // 2
    nats = torch.zeros((), dtype=torch.float64)
    starts = range(0, max(1, len(tokens) - 1 - stride), stride)
    windows = [tokens[at : at + length + 1] for at in starts]
    whole = [window for window in windows if len(window) == length + 1]
    vocabulary = 0
    for group in [whole[i : i + batch] for i in range(0, len(whole), batch)] + [
        [window] for window in windows if len(window) <= length
    ]:
        window = torch.stack(group).to(device)
        logits = net(window[:, :-1]).logits.float()  # (B,T,V)
        vocabulary = logits.shape[-1]
        lost = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten(), reduction="none").view(len(group), -1)
        nats += lost[:, stride:].sum().cpu()
        if group[0] is windows[0]:
            nats += lost[0, :stride].sum().cpu()
    return (float(nats) + math.log(vocabulary)) / math.log(2) / size
