"""How a command was started: when, and its rank among several processes."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from anyformer.training.distributed.world import ALONE, World


@dataclass(frozen=True)
class Launch:
    """The start of a command: its place among the processes of a launcher, and its time on `time.perf_counter`."""

    world: World = ALONE
    started: float = field(default_factory=time.perf_counter)


def process_age() -> float:
    """Seconds since this process began, including imports; 0 if unknown."""
    try:
        # The program name is in parentheses and may contain any character; the 20th field after it is the start time.
        words = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        began = int(words[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
