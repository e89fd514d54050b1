"""CIFAR-10 from scratch: the first 10,000 training and 2,500 test images, or the whole set by its folder.

    python recipes/cifar10.py --data .cache/scoreboard
    python recipes/cifar10.py --data cifar10/                 # folders train/CLASS and test/CLASS

A tenth of the training images validates.
The subset has no published figure to stand beside.
reference: 90.92 % on the whole set for a ViT of 6.3 M parameters, 200 epochs, AutoAugment (omihub777/ViT-CIFAR).
"""

from __future__ import annotations

from common import arguments, report, settings_of, unpack

from anyformer.training.train import train

SETTINGS = {
    "training.batch_size": 128,
    "training.epochs": 150,
    "training.eval_every": 350,
    "training.workers": 4,
    "training.ema": 0.999,
    "objective.mixup": 0.2,
    "objective.cutmix": 0.5,
}


def main() -> None:
    asked = arguments(__doc__, runs=3)
    folder = asked.data if (asked.data / "train").is_dir() else unpack(asked.data, "cifar", asked.out)
    for seed in asked.seeds:
        run = train(folder, "classify", asked.preset, device=asked.device,
                    settings=SETTINGS | settings_of(asked) | {"training.seed": seed},
                    out=asked.out / f"cifar10-{seed}", progress="lines")  # fmt: skip
        report("cifar10", seed, run, asked)


if __name__ == "__main__":
    main()
