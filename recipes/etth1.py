"""ETTh1, 96 hours ahead, by a small PatchTST beside a linear map of the window.

    python recipes/etth1.py --data ett/ETTh1.csv.xz

The protocol of the papers: the first 8,640 hours train, the next 2,880 validate, the next 2,880 test; every channel is
scaled by its training hours; MSE and MAE are of scaled values, over all windows of the test hours and all 7 channels.
hardware: one H200, beside ten other runs. cost: 20 seconds a seed.
expect: MSE .3635, MAE .392 with each of 3 seeds: validation keeps step 0, which is the linear map alone. The same
    PatchTST without it (--preset patchtst-small) reached .3753 to .3781 with 2,000 steps at 5e-4.
reference: PatchTST/64 .370 / .400 (2211.14730, table 3), DLinear .375 / .399, with look-backs of 512 and 336.
"""

from __future__ import annotations

import csv
import lzma
from pathlib import Path

from common import arguments, report, settings_of

from anyformer.data.preprocess import Preprocess
from anyformer.data.targets import Future
from anyformer.training.train import train

HOURS = 14_400  # of which a fifth each validates and tests
SETTINGS = {
    "data.split.valid": 0.2,
    "data.split.test": 0.2,
    "data.series.look_back": 512,
    "data.series.horizon": 96,
    "training.batch_size": 128,
    "training.steps": 1000,
    "training.eval_every": 50,
    "training.patience": 8,
    "training.ema": 0.99,
    "training.optimizer.lr": 3e-4,
}


def table(path: Path) -> dict[str, list[str]]:
    """The hours that the papers use, as columns."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[:HOURS]
    return {name: [row[name] for row in rows] for name in rows[0]}


def scaled_mae(run: Path, metrics: dict[str, float]) -> float:
    """The mean over channels of each one's error in deviations of its training hours."""
    target = Preprocess.read(next(run.glob("checkpoints/*/preprocess.json"))).target
    assert isinstance(target, Future)
    each = [metrics[f"mae.{name}"] / deviation for name, deviation in zip(target.names, target.deviation, strict=True)]
    return sum(each) / len(each)


def main() -> None:
    asked = arguments(__doc__, runs=3)
    for seed in asked.seeds:
        run = train(table(asked.data), "forecast", asked.preset or "forecaster-small", device=asked.device,
                    settings=SETTINGS | settings_of(asked) | {"training.seed": seed},
                    out=asked.out / f"etth1-{seed}", progress="lines")  # fmt: skip
        test = run.evaluation["metrics"]["test"]
        report("etth1", seed, run, asked, mse=round(test["loss"], 4), mae=round(scaled_mae(run.path, test), 4))


if __name__ == "__main__":
    main()
