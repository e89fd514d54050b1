"""Train on every set by the defaults and write down ours beside the baselines of the run's own report.

python -m benchmarks.scoreboard --raw ../shared/data --data .cache/scoreboard --minutes 5
python -m benchmarks.scoreboard --raw ../shared/data --data FOLDER --prepare        # the archives alone
python -m benchmarks.scoreboard --data FOLDER --only sst2 adult --seeds 0 1 2        # elsewhere, from the archives
python -m benchmarks.scoreboard.page                                                # docs/results.md anew
"""

from __future__ import annotations

import argparse
import datetime
import os
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import torch

from benchmarks.gpu.results import file_name
from benchmarks.scoreboard import results
from benchmarks.scoreboard.archives import archive_of, prepare
from benchmarks.scoreboard.page import describe_row
from benchmarks.scoreboard.runs import RunOptions, run_set
from benchmarks.scoreboard.sets import SETS, DataSet


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw", type=Path, help="the folder with the published sets, to prepare archives from")
    parser.add_argument("--data", type=Path, required=True, help="the folder with the archives")
    parser.add_argument("--prepare", action="store_true", help="prepare the archives and stop")
    parser.add_argument("--only", nargs="+", metavar="SET", help="some of the sets, in this order")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="of each run")
    parser.add_argument("--baselines", action="store_true",
                        help="train for a step only, then learn the baselines from all rows, however long")  # fmt: skip
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time, which share the device")
    parser.add_argument("--seconds", type=float, help="of the whole; a run that would not end in it is not begun")
    parser.add_argument("--csv", type=Path, help="the file of figures; one in benchmarks/results if not given")
    parser.add_argument("--out", type=Path, default=Path(".cache/scoreboard-runs"), help="for logs")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="PATH=VALUE",
                        help="a setting of every run, to compare a default with another")  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="keep the folders of the runs, checkpoints included")
    return parser.parse_args()


def choose_sets(names: list[str] | None) -> list[DataSet]:
    """All, or those named; a name that is none stops the script."""
    known = {one.name: one for one in SETS}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise SystemExit(f"error: no set is called {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names or known]


def main() -> None:
    arguments = parse_arguments()
    chosen = choose_sets(arguments.only)
    if arguments.raw is not None:
        for one in chosen:
            prepare(arguments.raw, arguments.data, one)
            print(f"prepared {one.name}: {archive_of(arguments.data, one).stat().st_size / 2**20:.2f} MiB", flush=True)
    if arguments.prepare:
        return
    if not any(archive_of(arguments.data, one).is_file() for one in chosen):
        raise SystemExit(f"error: {arguments.data} holds none of these sets; give --raw to prepare them")
    arguments.out.mkdir(parents=True, exist_ok=True)
    threads = max(1, (os.cpu_count() or 1) // arguments.workers)
    began = time.monotonic()
    deadline = None if arguments.seconds is None else began + arguments.seconds
    minutes = None if arguments.baselines else arguments.minutes
    options = RunOptions(arguments.data, arguments.out, minutes, arguments.device, arguments.workers, threads,
                  deadline, tuple(arguments.settings), arguments.keep)  # fmt: skip
    path = arguments.csv or results.FOLDER / file_name(results.BASELINES if arguments.baselines else results.KIND)
    length = "a step each" if minutes is None else f"{minutes:g} minutes each"
    print(f"{datetime.datetime.now():%H:%M} {len(chosen)} sets, {length}, "
          f"{arguments.workers} at a time, into {path}", flush=True)  # fmt: skip
    with ThreadPoolExecutor(arguments.workers) as pool:
        waiting = [pool.submit(run_set, one, seed, options) for seed in arguments.seeds for one in chosen]
        for done in as_completed(waiting):
            row = done.result()
            results.append(path, row)
            print(f"{time.monotonic() - began:6.0f} s  {describe_row(row)}", flush=True)


if __name__ == "__main__":
    main()
