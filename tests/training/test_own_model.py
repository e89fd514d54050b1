"""A network of one's own, its embedding and mixer from outside the library, through `anyformer.train` and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import anyformer
from anyformer import MLP, Block, Embed, LayerNorm, Mixer, Model, Pooled, Stack
from anyformer.core.context import Context, lay_out

ROWS = 300
STEPS = {"training.threads": 1, "training.save_every": 20}


class Bins(Embed):
    """A number by the bin it falls into, one token a column; how many columns there are is for the data to say."""

    bins: int = 16
    numbers: int = 0

    def fit_data(self, sizes: Any) -> Bins:
        return self.replace(numbers=sizes.numbers)

    def build(self, width: int) -> nn.Module:
        return BinsModule(self, width)


class BinsModule(nn.Module):
    def __init__(self, spec: Bins, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.table = nn.Parameter(torch.zeros(spec.numbers * spec.bins, width))

    def layout(
        self, numbers: Tensor, categories: Any = None, *, mask: Any = None, positions: Any = None,
        documents: Any = None, segments: Any = None, state: Any = None,
    ) -> Context:  # fmt: skip
        return lay_out(len(numbers), self.spec.numbers, numbers.device, mask=mask, positions=positions,
                       documents=documents, segments=segments, state=state)  # fmt: skip

    def forward(self, numbers: Tensor, categories: Any = None, *, context: Context) -> Tensor:
        chance = torch.special.ndtr(numbers.nan_to_num(0.0))  # scaled numbers to 0..1
        found = (chance * self.spec.bins).long().clamp(max=self.spec.bins - 1)  # (B,F)
        return self.table[found + self.spec.bins * torch.arange(self.spec.numbers, device=found.device)]


class MeanOfAll(Mixer):
    """Every token takes in the mean of all tokens."""

    def build(self, width: int, *, causal: bool, relative: Any, memory_width: int | None = None) -> nn.Module:
        return MeanOfAllModule(width)


class MeanOfAllModule(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Context, state: Any, tables: Any) -> Tensor:
        return self.out(x.mean(1, keepdim=True).expand_as(x))


OWN = Model(
    embed=Bins(bins=16, numbers=1),
    stack=Stack(width=32, depth=2, causal=False, block=Block(mixer=MeanOfAll(), feed=MLP(), norm=LayerNorm())),
    head=Pooled(classes=2, pool="mean"),
)


def rings() -> dict[str, list[Any]]:
    """Points inside or outside a circle: no linear model tells them apart."""
    x, y = np.random.default_rng(0).normal(size=(2, ROWS))
    return {"x": x.tolist(), "y": y.tolist(), "where": ["in" if r < 1.2 else "out" for r in np.hypot(x, y)]}


def test_own_embedding_and_mixer_train_and_come_back(tmp_path: Path) -> None:
    run = anyformer.train(rings(), model=OWN, target="where", steps=150, lr=3e-3, seed=1, out=tmp_path / "run",
                          device="cpu", settings=STEPS, quiet=True)  # fmt: skip
    assert run.metrics["accuracy"] > 0.75
    opened = anyformer.load(run.path)
    assert isinstance(opened.spec.embed, Bins) and opened.spec.embed.numbers == 2
    assert opened.predict([{"x": 0.1, "y": 0.1}, {"x": 2.0, "y": -2.0}]) == ["in", "out"]
    saved = opened.save(tmp_path / "model")
    assert anyformer.load(saved).predict([{"x": 2.0, "y": -2.0}]) == ["out"]
    assert run.facts["modules"] == [__name__]


class Stubborn(Bins):
    """One that is taken as it stands, whatever the data says."""

    def fit_data(self, sizes: Any) -> Stubborn:
        return self


def test_control_an_own_embedding_is_changed_by_nobody_else(tmp_path: Path) -> None:
    run = anyformer.train(rings(), model=OWN.replace(embed=Stubborn(bins=4, numbers=2)), target="where", steps=2,
                          out=tmp_path / "run", device="cpu", settings=STEPS, quiet=True)  # fmt: skip
    assert anyformer.load(run.path).spec.embed == Stubborn(bins=4, numbers=2)
