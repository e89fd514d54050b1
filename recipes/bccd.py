"""Blood cells (BCCD): boxes around red cells, white cells and platelets, from scratch.

    python recipes/bccd.py --data .cache/scoreboard

205 images train, 87 validate and 72 test, as the set's own lists say.
cost: 5 minutes a seed.
reference: about .9 AP50 for detectors that were trained on COCO before; there is no table of models from scratch.
"""

from __future__ import annotations

from common import arguments, report, settings_of, unpack

from anyformer.training.train import train

SETTINGS = {"training.minutes": 5.0}


def main() -> None:
    asked = arguments(__doc__, runs=3)
    folder = unpack(asked.data, "bccd", asked.out)
    for seed in asked.seeds:
        run = train(folder, "detect", asked.preset, device=asked.device,
                    settings=SETTINGS | settings_of(asked) | {"training.seed": seed},
                    out=asked.out / f"bccd-{seed}", progress="lines")  # fmt: skip
        report("bccd", seed, run, asked)


if __name__ == "__main__":
    main()
