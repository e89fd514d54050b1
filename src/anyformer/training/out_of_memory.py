"""Out-of-memory errors: what was tried, and what to try next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from anyformer.errors import NoRoom
from anyformer.training.settings import Training

FULL = ("out of memory", "not enough memory", "can't allocate memory")  # torch's messages, by device and system


@contextmanager
def enough_memory(said: Callable[[], NoRoom]) -> Iterator[None]:
    """Raise the error made by `said` if memory runs out inside; other errors pass through."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError):
            if not any(words in str(error) for words in FULL):
                raise
        raise said() from None


def too_large(training: Training, step: int, rows: int, length: int | None, folder: Path) -> NoRoom:
    """The error for a step that does not fit, with at least three ways to use less memory."""
    ways = [f"--set training.micro_batch_size={rows // 2}"] if rows > 1 else []
    if length and length > 8:
        ways.append(f"--set data.tokenizer.max_length={max(8, length // 2)}")
    if training.precision == "fp32":
        ways.append("--set training.precision=bf16")
    ways += ["a smaller --preset", "--set model.stack.recompute=true"]
    shape = f"batch {rows}" + (f" x length {length}" if length else "")
    return NoRoom(f"step {step:,}: out of memory with {shape}", where=str(folder), fix=f"try {ways[0]}",
                  details=[f"or {way}" for way in ways[1:]])  # fmt: skip


def lost_worker(error: Exception, folder: Path) -> Exception:
    """The error for a killed data-loading worker; any other error is returned unchanged.

    torch reports it itself, unless the worker dies while one of its tensors is fetched: then the connection breaks.
    """
    if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
        return error
    return NoRoom("a process that makes batches was killed, most likely for want of memory", where=str(folder),
                  fix=f"set workers to 0 in config.yaml, then: anyformer resume {folder}")  # fmt: skip
