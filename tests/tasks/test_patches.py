"""Masked image modelling: what is hidden, what is asked, that it is learned, resumed to the bit, and starts others."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from anyformer import Model, Patches, UserError, load, preset
from anyformer.data.sizes import Sizes
from anyformer.embeds.patches import cut, paste
from anyformer.objectives import Batch, MaskedPatches
from anyformer.objectives.draw import EVALUATION, Draw
from anyformer.objectives.masked_patches import hide_patches
from tests.cli import made
from tests.cli.trying import done, standing_in
from tests.tasks_by_name import network
from tests.training.tiny import differing

SMALL = ["--set", "model.stack.width=48", "--set", "model.stack.depth=2", "--progress", "none"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Striped images in class folders, and a model that has learned to rebuild them."""
    folder = tmp_path_factory.mktemp("patches")
    made.photos(folder)
    with standing_in(folder):
        done("train", "photos", "--task", "patches", "--steps", "200", "--lr", "3e-3", "--out", "run",
             "--set", "data.images.crop=0", "--set", "training.eval_every=200", *SMALL)  # fmt: skip
    return folder


def batch_of(images: int = 6, size: int = 16, seed: int = 0) -> Batch:
    pixels = torch.randn(images, 3, size, size, generator=torch.Generator().manual_seed(seed))
    return Batch((pixels,), torch.zeros(images, dtype=torch.long), torch.arange(images))


def hide(objective: MaskedPatches, batch: Batch, draw: Draw) -> Batch:
    """What is hidden of images does not depend on where they come from."""
    return objective.corrupt(batch, draw, None)  # type: ignore[arg-type]


# ---------------------------------------------------------------- what is hidden


def evenness(drawn: Callable[[int], Tensor]) -> float:
    """The p-value of all patches being hidden equally often, by chi-square."""
    counts = sum(drawn(epoch).double().sum(0) for epoch in range(40))
    assert isinstance(counts, Tensor)
    return float(chisquare(counts.numpy()).pvalue)


def test_every_patch_is_hidden_equally_often() -> None:
    batch = batch_of(50)

    def ours(epoch: int) -> Tensor:
        return hide_patches(batch.inputs[0], batch.rows, Draw(0, epoch), (4, 4), 0.6)

    def biased(epoch: int) -> Tensor:  # control: the first patch is spared in one image of five
        hidden = ours(epoch)
        hidden[: len(hidden) // 5, 0] = False
        return hidden

    assert ours(0).sum(1).eq(round(0.6 * 16)).all()
    assert evenness(ours) > 1e-4
    assert evenness(biased) < 1e-6


def test_a_row_is_hidden_alike_in_any_batch_and_anew_in_every_epoch() -> None:
    batch, objective = batch_of(), MaskedPatches(patch=(4, 4))
    whole = hide(objective, batch, Draw(3, 1))
    part = Batch((batch.inputs[0][2:4],), batch.targets[2:4], batch.rows[2:4])
    assert torch.equal(hide(objective, part, Draw(3, 1)).inputs[1], whole.inputs[1][2:4])
    assert not torch.equal(hide(objective, batch, Draw(3, 2)).inputs[1], whole.inputs[1])
    moved = Batch(part.inputs, part.targets, torch.tensor([90, 91]))  # in evaluation the place does not matter
    one, two = (hide(objective, given, EVALUATION).inputs[1] for given in (part, moved))
    assert torch.equal(one, two)


def test_nothing_of_a_hidden_patch_is_seen() -> None:
    """Other pixels under what is hidden change neither input nor answer; other pixels beside it do."""
    torch.manual_seed(0)
    sizes, objective = Sizes(parts=["image"], image=16, channels=3), MaskedPatches(patch=(4, 4))
    model = network("vit-mini", "patches", sizes).build(seed=0).eval()
    batch = batch_of()
    asked = hide(objective, batch, Draw(0, 0))
    hidden = asked.inputs[1]

    def answer(changed: Tensor) -> Tensor:
        pixels = cut(batch.inputs[0], 4)
        other = paste(torch.where(changed[..., None], pixels + 1, pixels), (4, 4), 4)
        given = hide(objective, Batch((other,), batch.targets, batch.rows), Draw(0, 0))
        with torch.no_grad():
            return model(*given.inputs).logits

    assert torch.equal(answer(hidden), answer(torch.zeros_like(hidden)))
    assert not torch.allclose(answer(~hidden), answer(torch.zeros_like(hidden)))


# ---------------------------------------------------------------- the loss


@torch.no_grad()
def test_the_loss_is_its_formula() -> None:
    """A loop over patches and pixels in double precision; halves of a batch add up to the whole."""
    sizes = Sizes(parts=["image"], image=16, channels=3)
    model = network("vit-mini", "patches", sizes).build(seed=0).double().eval()
    objective, batch = MaskedPatches(patch=(4, 4), rate=0.5), batch_of(4)
    batch = Batch((batch.inputs[0].double(),), batch.targets, batch.rows)
    asked = hide(objective, batch, Draw(0, 0))
    rebuilt = model(*asked.inputs).logits
    total, count = 0.0, 0
    for row in range(4):
        for number in range(16):
            if not asked.inputs[1][row, number]:
                continue
            top, left = 4 * (number // 4), 4 * (number % 4)
            patch = batch.inputs[0][row, :, top : top + 4, left : left + 4].flatten()
            wanted = (patch - patch.mean()) / (patch.var(unbiased=False) + 1e-6).sqrt()
            total += float((rebuilt[row, number] - wanted).square().mean())
            count += 1
    assert objective.weight(asked) == count == 4 * 8
    assert float(objective.loss(model, asked)) == pytest.approx(total, rel=1e-9)
    halves = [
        Batch(tuple(part[at] for part in asked.inputs), asked.targets[at], asked.rows[at])
        for at in (slice(0, 1), slice(1, 4))
    ]
    assert sum(float(objective.loss(model, half)) for half in halves) == pytest.approx(total, rel=1e-9)
    assert float(objective.row_losses(model(*asked.inputs), asked).mean()) == pytest.approx(total / count, rel=1e-9)


def test_zeros_have_a_loss_of_one() -> None:
    """What the docstring says of chance: the mean of a patch, and nothing else."""
    asked = hide(MaskedPatches(patch=(4, 4)), batch_of(), Draw(0, 0))
    known = ~torch.isnan(asked.targets)
    assert float(asked.targets[known].square().mean()) == pytest.approx(1.0, abs=1e-3)


@torch.no_grad()
def test_it_starts_at_the_loss_of_the_mean() -> None:
    """A new head answers nearly nothing; one drawn like other layers adds its own noise to the loss."""
    model = network("vit-mini", "patches", Sizes(parts=["image"], image=16, channels=3)).build(seed=0).eval()
    objective = MaskedPatches(patch=(4, 4))
    asked = hide(objective, batch_of(), Draw(0, 0))
    chance = float(asked.targets[~torch.isnan(asked.targets)].square().mean())

    def loss() -> float:
        return float(objective.loss(model, asked)) / objective.weight(asked)

    assert loss() == pytest.approx(chance, rel=0.03)
    torch.nn.init.xavier_uniform_(model.head.out.weight, generator=torch.Generator().manual_seed(0))
    assert loss() > 1.5 * chance  # control


def test_paste_undoes_cut() -> None:
    pixels = torch.randn(2, 3, 8, 12)
    assert torch.equal(paste(cut(pixels, (4, 3)), (2, 4), (4, 3)), pixels)


def test_hidden_patches_need_something_in_their_place() -> None:
    model = preset("vit-mini").build(seed=0)
    assert isinstance(model.spec, Model) and isinstance(model.spec.embed, Patches)
    with pytest.raises(UserError, match="masked=True"):
        model(torch.zeros(1, 3, 32, 32), torch.ones(1, 64, dtype=torch.bool))
    wide = network("vit-mini", "patches", Sizes(parts=["image"], image=16, channels=3)).build(seed=0)
    with pytest.raises(UserError, match=r"expected \(1, 16\)"):
        wide(torch.zeros(1, 3, 16, 16), torch.ones(1, 4, dtype=torch.bool))


# ---------------------------------------------------------------- a run


def test_stripes_are_rebuilt(home: Path) -> None:
    """Their direction and phase can be seen beside what is hidden: below 1, the loss of each patch's mean."""
    found = json.loads((home / "run" / "evaluation.json").read_text())
    ours, trivial = found["metrics"]["test"]["loss"], found["baselines"]["trivial"]["metrics"]["loss"]
    assert trivial == pytest.approx(1.0, abs=0.01)
    assert ours < 0.85  # about half of the patches lie within a stripe, where noise alone is left to rebuild
    assert 0 < found["baselines"]["strong"]["metrics"]["loss"] < 1
    assert "data:image/png;base64" in (home / "run" / "report.html").read_text()


def test_it_is_judged_alike_every_time_and_shows_what_it_rebuilds(home: Path) -> None:
    from PIL import Image

    with standing_in(home):
        kept = json.loads(Path("run/evaluation.json").read_text())["metrics"]["test"]["loss"]
        assert done("evaluate", "run", "--json").json["loss"] == pytest.approx(kept, rel=1e-5)
        Path("flat").mkdir()
        for at, path in enumerate(sorted(Path("photos/down").iterdir())[:5]):
            (Path("flat") / f"{at}.png").write_bytes(path.read_bytes())
        done("predict", "run", "flat", "-o", "errors.csv")
        assert done("evaluate", "run", "flat", "--json").json["rows"] == 5
        errors = load("run").predict([str(path) for path in sorted(Path("flat").iterdir())])
        assert len(errors) == 5 and all(0 < error < 2 for error in errors)
        assert load("run").predict(["flat/3.png"])[0] == pytest.approx(errors[3], rel=1e-4)  # whatever is beside it
        done("predict", "run", "flat", "-o", "rebuilt.png")
        with Image.open("rebuilt.png") as picture:
            assert picture.size == (5 * 12, 3 * 12)


def test_it_starts_a_classifier(home: Path) -> None:
    """The layers are those of the masked model; the mask and the head are not there any more."""
    with standing_in(home):
        done("train", "photos", "--from", "run", "--steps", "1", "--lr", "1e-12", "--out", "named",
             "--progress", "none")  # fmt: skip
        before, after = load("run").model.state_dict(), load("named").model.state_dict()
    assert "embed.mask" in before and "embed.mask" not in after and load(home / "named").labels == ["across", "down"]
    shared = [name for name in after if name.startswith(("embed.", "stack."))]
    assert shared and all(torch.allclose(before[name], after[name], atol=1e-6) for name in shared)


def test_a_resumed_run_ends_in_the_same_bits(home: Path) -> None:
    settings = ("batch_size=16", "save_every=4", "eval_every=4", "threads=1", "schedule={type: Constant, warmup: 0.0}")
    few = [word for setting in settings for word in ("--set", f"training.{setting}")] + SMALL
    with standing_in(home):
        for out, steps in (("whole", "8"), ("parts", "4"), ("other", "8")):
            seed = ["--seed", "1"] if out == "other" else []
            done("train", "photos", "--task", "patches", "--steps", steps, "--out", out, *few, *seed)
        done("resume", "parts", "--set", "training.steps=8", "--allow-change", "steps", "--quiet")
    assert differing(home / "parts", home / "whole") == []
    assert differing(home / "other", home / "whole")  # control


def test_images_without_class_folders_and_tables_are_read(home: Path, tmp_path: Path) -> None:
    paths = sorted((home / "photos" / "down").iterdir())[:20]
    (tmp_path / "flat").mkdir()
    for path in paths:
        (tmp_path / "flat" / path.name).write_bytes(path.read_bytes())
    made.table(tmp_path / "images.csv", ["image", "note"], [[f"flat/{path.name}", "x"] for path in paths])
    with standing_in(tmp_path):
        for source in ("flat", "images.csv"):
            done("train", source, "--task", "patches", "--steps", "1", "--out", f"run-{source}", *SMALL)
            assert Path(f"run-{source}/report.html").is_file()


@pytest.mark.parametrize("name", ["vit-b16-tiny", "vit-small-tiny"])
def test_any_vision_model_of_patches_takes_it(name: str) -> None:
    spec = network(name, "patches", Sizes(parts=["image"], image=32, channels=1))
    hidden = torch.zeros(2, 64, dtype=torch.bool)
    assert spec.build(seed=0)(torch.zeros(2, 1, 32, 32), hidden).logits.shape == (2, 64, 16)
    with pytest.raises(UserError, match="vit-mini"):
        network("bert-base-tiny", "patches", Sizes(parts=["image"], image=32, channels=1))


def test_a_picture_of_a_run_is_a_png(home: Path) -> None:
    from PIL import Image

    (sample,) = (home / "run" / "samples").iterdir()
    with Image.open(io.BytesIO(sample.read_bytes())) as picture:
        assert picture.size == (8 * 12, 3 * 12) and np.asarray(picture).std() > 0
