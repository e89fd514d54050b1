"""How training grows with processes: real commands by torchrun on this machine, their rates from speed.jsonl.

    python benchmarks/processes.py [--processes 1 2 4] [--parallel ddp fsdp] [--device cuda] [--csv FILE]

The same text, model and global batch for every number of processes, one thread each; a figure is the median over the
steps after the first few. More processes than cores (or GPUs) share them and cannot be faster. `peak_rss_mib` is the
most memory that each process had (Linux; empty elsewhere), the first one first, which also evaluates and writes.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = ["processes", "parallel", "ms_per_step", "tokens_per_s", "of_one", "steps", "device", "cores", "torch",
           "peak_rss_mib"]  # fmt: skip
WORDS, LINES = 500, 3000
POLLED = 0.2  # seconds between two looks at the memory of the processes
LEFT_OUT = 5  # steps before the pace is even


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--parallel", nargs="+", default=["ddp", "fsdp"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--preset", default="decoder-mini")
    parser.add_argument("--batch", type=int, default=32, help="rows of a step, over all processes")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-processes-") as folder:
        text = Path(folder) / "text.txt"
        write_text(text)
        rows = [row for kind in asked.parallel for row in measure(asked, text, kind)]
    if asked.csv is not None:
        asked.csv.parent.mkdir(parents=True, exist_ok=True)
        with asked.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def measure(asked: argparse.Namespace, text: Path, parallel: str) -> list[dict[str, object]]:
    """A row for every number of processes; `of_one` compares its rate with that of the first."""
    rows: list[dict[str, object]] = []
    first = 0.0
    for count in asked.processes:
        steps, peaks = train(asked, text, parallel, count)
        rate = statistics.median(step["tokens_per_s"] for step in steps)
        first = first or rate
        row = [count, parallel, round(statistics.median(step["seconds"] for step in steps) * 1e3, 2), round(rate),
               round(rate / first, 3), len(steps), asked.device, os.cpu_count(), torch.__version__,
               " ".join(f"{peak / 2**20:.0f}" for peak in peaks)]  # fmt: skip
        rows.append(dict(zip(COLUMNS, row, strict=True)))
        print(f"{parallel:6} {count:3d} processes {rows[-1]['ms_per_step']:>9} ms a step {rate:10,.0f} tokens/s "
              f"{rate / first:6.2f} of {asked.processes[0]}   peaks {rows[-1]['peak_rss_mib']} MiB",
              flush=True)  # fmt: skip
    return rows


def train(asked: argparse.Namespace, text: Path, parallel: str, count: int) -> tuple[list[dict[str, float]], list[int]]:
    """One training; what speed.jsonl says of its steps, the first few left out, and the peak of each process."""
    run = text.with_name(f"{parallel}-{count}")
    settings = {"training.steps": asked.steps, "training.batch_size": asked.batch, "training.eval_every": asked.steps,
                "training.parallel": parallel, "training.compile": "false"}  # fmt: skip
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count),
               "-m", "anyformer", "train", str(text), "--preset", asked.preset, "--out", str(run),
               "--device", asked.device, *(word for name, value in settings.items()
                                           for word in ("--set", f"{name}={value}"))]  # fmt: skip
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    with open(run.with_suffix(".log"), "w+", encoding="utf-8") as log:
        launcher = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        peaks = watch_memory(launcher, run)
        if launcher.returncode != 0:
            log.seek(0)
            raise SystemExit(f"error: {' '.join(command)} failed\n{log.read()[-2000:]}")
    lines = (run / "speed.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines][min(LEFT_OUT, len(lines) - 1) :], peaks


def watch_memory(launcher: subprocess.Popen[bytes], run: Path) -> list[int]:
    """Wait for a launcher; the most bytes that each process of its training had, in the order of their ranks."""
    peaks: dict[int, int] = {}
    while launcher.poll() is None:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "environ").read_bytes().split(b"\0")
                ranks = [int(word.removeprefix(b"RANK=")) for word in words if word.startswith(b"RANK=")]
                if ranks and os.fsencode(run) in (process / "cmdline").read_bytes().split(b"\0"):
                    peaks[ranks[0]] = max(peaks.get(ranks[0], 0), peak_of(process))
            except OSError:  # it has ended, or is another's
                continue
        time.sleep(POLLED)
    return [peaks[rank] for rank in sorted(peaks)]


def peak_of(process: Path) -> int:
    """The high-water mark of a process's memory in bytes; it never falls, so that looking seldom is enough."""
    for line in (process / "status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def write_text(path: Path) -> None:
    """Lines of words drawn at random: what is learned does not matter here."""
    drawn = torch.randint(WORDS, (LINES, 12), generator=torch.Generator().manual_seed(0))
    path.write_text("\n".join(" ".join(f"w{word}" for word in line) for line in drawn.tolist()), encoding="utf-8")


if __name__ == "__main__":
    main()
