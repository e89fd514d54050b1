"""Processes joined by torch.distributed: how they communicate, and how a failure of one ends them all."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from anyformer.errors import INTERRUPTED, OUR_BUG, TERMINATED, AlreadyReported, NoRoom, Stopped, UserError
from anyformer.training.distributed.peers import Peers
from anyformer.training.distributed.watch import BEAT, Failure, PeerWatch, claim, leave_at_once
from anyformer.training.distributed.world import World

Value = TypeVar("Value")
logger = logging.getLogger("anyformer")
# The first process may prepare data for hours while the others wait; `PeerWatch` checks that it is alive.
WORD = timedelta(days=7)
BROKEN = ("gloo", "nccl", "connection", "broken pipe", "socket", "store")  # words in torch's errors when a peer is gone
CODES = (INTERRUPTED, TERMINATED)


class JoinedPeers(Peers):
    """The default group carries tensors (NCCL between GPUs); `control` carries messages between hosts (Gloo)."""

    def __init__(self, world: World) -> None:
        super().__init__(world, torch.device("cpu"))
        # The launcher's store outlives a restart, including what the previous processes wrote.
        self.store: dist.Store = dist.PrefixStore(f"attempt-{world.restarts}", next(rendezvous("env://"))[0])
        self.watch = PeerWatch(world, self.end)
        self.watch.start()
        self.joined = True
        self.agreed_stop: int | None = None
        self.failure: Failure | None = None  # why all of them end

    def connect(self, device: torch.device) -> None:
        """Create the process groups, for tensors on this device."""
        self.device = device
        gpu = device if device.type == "cuda" else None
        if gpu is not None:
            torch.cuda.set_device(gpu)  # otherwise a device mesh guesses, and warns
        dist.init_process_group("gloo" if gpu is None else "nccl", store=self.store, rank=self.world.rank,
                                world_size=self.world.size, device_id=gpu)  # fmt: skip
        self.control: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=WORD)

    def broadcast(self, make: Callable[[], Value]) -> Value:
        if self.is_first:
            try:
                value = make()
            except BaseException as error:
                self.send({"code": code_of(error)})
                raise
            self.send({"value": value})
            return value
        found = self.receive()
        if "code" in found:
            raise AlreadyReported(found["code"])
        return found["value"]

    def exchange(self, weight: int) -> int:
        asked = self.asked()
        row = torch.tensor([weight, *(int(asked == code) for code in CODES)])
        dist.all_reduce(row, group=self.control)
        total, *stops = row.tolist()
        self.agreed_stop = next((code for code, count in zip(CODES, stops, strict=True) if count), None)
        return int(total)

    def stop_code(self) -> int | None:
        return self.agreed_stop

    def gather(self, value: Any) -> list[Any]:
        """Gather through the store: values are few and of any length."""
        name = f"gather-{self.watch.step}"
        self.store.set(f"{name}-{self.world.rank}", json.dumps(value))
        return [json.loads(self.store.get(f"{name}-{rank}")) for rank in range(self.world.size)]

    def send(self, message: dict[str, Any]) -> None:
        data = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        dist.broadcast(torch.tensor([len(data)]), 0, group=self.control)
        dist.broadcast(data, 0, group=self.control)

    def receive(self) -> dict[str, Any]:
        size = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(size, 0, group=self.control)
        data = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, 0, group=self.control)
        message: dict[str, Any] = json.loads(data.numpy().tobytes())
        return message

    def note_step(self, done: int) -> None:
        self.watch.step = done

    def part(self) -> None:
        if self.joined:
            dist.barrier(group=self.control)
            self.watch.close()
            self.joined = False
            dist.destroy_process_group()

    # ------------------------------------------------------------ when it goes wrong

    def explain(self, error: BaseException) -> str:
        """The first failure in any process; every failing process calls this."""
        if self.failure is None and self.joined and not isinstance(error, AlreadyReported):
            told_by = 0 if isinstance(error, Stopped) else self.world.rank  # a stop is in all of them
            own = Failure(self.world.rank, self.watch.step, in_words(error), code_of(error), told_by)
            try:
                found = self.watch.find_lost() if is_broken(error) else None
                self.failure = claim(self.watch.store, found or own)
            except RuntimeError:
                self.failure = self.watch.without_store()
        return str(error) if self.failure is None else self.failure.line

    def report(self, error: BaseException) -> BaseException:
        """The exception to raise for an error: the error with rank and step in the process that detected it first, else
        only the exit code."""
        if isinstance(error, AlreadyReported) or not self.joined:
            return error
        self.explain(error)
        assert self.failure is not None
        if self.is_first:
            time.sleep(2 * BEAT)  # it may host the store where the others look up the reason
        self.watch.close()
        if self.failure.told_by != self.world.rank:
            return AlreadyReported(self.failure.code)
        # A stop is collective and a user error occurs in every process; the failure of one process needs its rank.
        of_all = isinstance(error, UserError) and not isinstance(error, NoRoom)
        return error if of_all or isinstance(error, KeyboardInterrupt) else RankFailed(self.failure, error)

    def end(self, failure: Failure) -> None:
        """Exit from the watch thread: the main thread is blocked on a process that will not answer."""
        self.on_abort(failure.line)
        if failure.told_by == self.world.rank:
            logger.error("%s", failure.line)
        for handler in logger.handlers:
            handler.flush()
        leave_at_once(failure.code)


class RankFailed(UserError):
    """One process of several failed, and the others with it."""

    def __init__(self, failure: Failure, error: BaseException) -> None:
        super().__init__(failure.line, details=error.details if isinstance(error, UserError) else ())
        self.exit_code = failure.code


def code_of(error: BaseException) -> int:
    if isinstance(error, UserError | AlreadyReported):
        return error.exit_code
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else OUR_BUG


def in_words(error: BaseException) -> str:
    text = str(error).splitlines()
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {text[0] if text else ''}"


def is_broken(error: BaseException) -> bool:
    """Whether an error only means that another process no longer responds."""
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in BROKEN)
