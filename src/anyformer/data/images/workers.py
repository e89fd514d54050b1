"""Image decoding in worker processes; an image that kills its worker is identified."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from anyformer.data.images.decoding import ImageShape, Unreadable, looked_at, pixels
from anyformer.parent_death import end_with_parent

TOGETHER = 32  # images per task of a worker
FEW = 256  # below this, starting workers takes longer than decoding
Work = Callable[[Any, Path], Any]


def look(value: Any, folder: Path) -> Any:
    """The header of one image, or the reason why not."""
    try:
        return looked_at(value, folder)
    except Unreadable as error:
        return str(error)


def decode(value: Any, folder: Path, shape: ImageShape) -> Any:
    """The pixels of one image, or the reason why not."""
    try:
        return pixels(value, folder, shape)
    except Unreadable as error:
        return str(error)


def each(work: Work, values: list[Any], folder: Path) -> list[Any]:
    """Process one task in a worker."""
    return [work(value, folder) for value in values]


def map_in_workers(work: Work, values: list[Any], folder: Path, processes: int) -> Iterator[Any]:
    """Map the work over the values in order; in several processes if there are many files."""
    if processes < 2 or len(values) < FEW or "fork" not in multiprocessing.get_all_start_methods():
        yield from (work(value, folder) for value in values)
        return
    parts = [values[at : at + TOGETHER] for at in range(0, len(values), TOGETHER)]
    # Forked workers do not import the script that started the training, and touch neither torch nor a GPU.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with pool(processes) as workers:
            waiting: deque[Any] = deque()
            done = 0
            try:
                for number, part in enumerate(parts):
                    waiting.append(workers.submit(each, work, part, folder))
                    if number >= 4 * processes:  # a few tasks ahead, so that memory stays bounded
                        yield from waiting.popleft().result()
                        done += 1
                while waiting:
                    yield from waiting.popleft().result()
                    done += 1
            except BrokenProcessPool:
                pass
    for part in parts[done:]:
        yield from alone(work, part, folder)


def pool(processes: int) -> concurrent.futures.ProcessPoolExecutor:
    """Forked workers that end with this process, however it ends."""
    return concurrent.futures.ProcessPoolExecutor(
        processes, multiprocessing.get_context("fork"), initializer=end_with_parent, initargs=(os.getpid(),)
    )


def alone(work: Work, values: list[Any], folder: Path) -> Iterator[Any]:
    """A task in which an image may have killed the worker: retried as a whole, then each image in its own process."""
    try:
        with pool(1) as worker:
            yield from worker.submit(each, work, values, folder).result()
        return
    except BrokenProcessPool:
        pass
    for value in values:
        try:
            with pool(1) as worker:
                yield worker.submit(work, value, folder).result()
        except BrokenProcessPool:
            yield "crashes the decoder"
