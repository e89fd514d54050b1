"""How much memory this process uses, and how much it may use."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")


@dataclass(frozen=True)
class Memory:
    """Bytes used now, the most ever used, and the limit; None where the system does not say."""

    used: int | None
    peak: int | None
    limit: int | None
    kind: str = "memory"  # or "GPU memory"


def usage(device: str = "cpu") -> Memory:
    """Memory of the training device: the process on a CPU, the allocator on a GPU (without synchronisation)."""
    torch = sys.modules.get("torch")
    if device.startswith("cuda") and torch is not None:
        total = torch.cuda.get_device_properties(device).total_memory
        now, most = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
        return Memory(now, most, total, kind="GPU memory")
    return Memory(resident_bytes(), peak(), limit())


def resident_bytes(root: Path = ROOT) -> int | None:
    """Resident bytes of this process, without worker processes."""
    return status_field(root, "VmRSS")


def peak(root: Path = ROOT) -> int | None:
    """Peak resident bytes of this process."""
    found = status_field(root, "VmHWM")
    if found is not None:
        return found
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def limit(root: Path = ROOT) -> int | None:
    """Memory limit of this process: the machine's memory, or less by its cgroup."""
    found = [bound for bound in (physical(root), *group_limits(root)) if bound]
    return min(found) if found else None


def physical(root: Path = ROOT) -> int | None:
    """Bytes of memory in this machine."""
    lines = text(root / "proc/meminfo").splitlines()
    for line in lines:
        if line.startswith("MemTotal:"):
            return kibibytes(line)
    if root != ROOT:
        return None
    import os

    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def group_limits(root: Path = ROOT) -> list[int]:
    """Limits of this process's cgroups and all their ancestors, v1 and v2."""
    found = []
    for line in text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be the host's and not exist here; its own group is then at the top.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            words = text(base.joinpath(*parts[:depth], name)).strip()
            # Version 1 writes a number near 2**63 for "none"; version 2 writes "max".
            if words.isdecimal() and 0 < int(words) < 2**60:
                found.append(int(words))
    return found


def status_field(root: Path, name: str) -> int | None:
    for line in text(root / "proc/self/status").splitlines():
        if line.startswith(name + ":"):
            return kibibytes(line)
    return None


def kibibytes(line: str) -> int | None:
    """`VmRSS:   123 kB` as bytes."""
    words = line.split()
    return int(words[1]) * 1024 if len(words) > 1 and words[1].isdecimal() else None


def text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
