"""How a command was started: when, and by whom among several processes."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from anyformer.training.distributed.world import ALONE, World


@dataclass(frozen=True)
class Launch:
    """What every verb may ask of its start: its place among the processes of a launcher, and the time on
    `time.perf_counter`."""

    world: World = ALONE
    started: float = field(default_factory=time.perf_counter)


def process_age() -> float:
    """Seconds since this process began, imports included; 0 where the system does not say."""
    try:
        # The name of the program stands in parentheses and may hold any character; the 20th word after it is the start.
        words = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        began = int(words[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
