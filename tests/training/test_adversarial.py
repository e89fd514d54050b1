"""Two nets trained against each other by the ordinary command: repeatable, resumed to the bit, judged, drawn from."""

from __future__ import annotations

import io
import re
import signal
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anyformer import UserError, faults, load, preset
from anyformer.data.order import Order
from anyformer.data.sizes import Sizes
from anyformer.errors import Diverged
from anyformer.nets.sagan import SAGAN
from anyformer.objectives import Adversarial, Batch
from anyformer.serving.predict_rows import example, predict_what
from anyformer.tasks import find
from anyformer.tasks.adversarial import draw_images, tiled
from anyformer.tasks.prepare import prepare
from anyformer.training.duration import Plan
from anyformer.training.optim import AdamW
from anyformer.training.schedule import Constant
from anyformer.training.settings import Training
from anyformer.training.step import TrainingEngine
from anyformer.training.train import Run, resume, train
from tests.training.nursery import Nursery
from tests.training.test_resume import change, expect
from tests.training.test_resume import resume as resume_words
from tests.training.tiny import differing, logged_lines, steps_of

TINY = SAGAN(size=32, attention=16, width=2, noise=8)
SETTINGS = {"training.steps": 12, "training.batch_size": 8, "training.save_every": 4, "training.eval_every": 6,
            "training.ema": 0.9, "training.threads": 1}  # fmt: skip


def pictures() -> tuple[np.ndarray, np.ndarray]:
    """Bright and dark images of 8 x 8."""
    draw, labels = np.random.default_rng(0), np.arange(30) % 2
    levels = np.where(labels, 200, 50)[:, None, None, None]
    return np.clip(draw.normal(levels, 20, (30, 8, 8, 3)), 0, 255).astype(np.uint8), labels


def write_idx(folder: Path, pixels: np.ndarray, labels: np.ndarray) -> Path:
    folder.mkdir(parents=True)
    for name, array in ((f"images-idx{pixels.ndim}", pixels), ("labels-idx1", labels.astype(np.uint8))):
        head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        (folder / f"train-{name}-ubyte").write_bytes(head + array.tobytes())
    return folder


def write_folders(folder: Path, pixels: np.ndarray, labels: np.ndarray) -> Path:
    from PIL import Image

    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        (folder / f"kind-{label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"kind-{label}" / f"{number:02}.png")
    return folder


def trained(images: Path, out: Path, network: Any = TINY, **changes: Any) -> Run:
    """A run; the settings in `changes` have __ for the dot."""
    settings = SETTINGS | {name.replace("__", "."): value for name, value in changes.items()}
    return train(images, "adversarial", network, out=out, device="cpu", settings=settings, quiet=True)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_idx(tmp_path_factory.mktemp("images") / "idx", *pictures())


@pytest.fixture(scope="module")
def whole(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run at once."""
    return trained(images, tmp_path_factory.mktemp("whole") / "run")


# ---------------------------------------------------------------- a run


def test_a_run_writes_losses_grids_and_checkpoints_that_open_alone(whole: Run) -> None:
    from PIL import Image

    rows = logged_lines(whole.path)
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert set(rows[0]) == {"step", "loss", "lr", "grad_norm", "rows", "discriminator_loss", "generator_loss"}
    assert all(np.isclose(row["loss"], row["discriminator_loss"] + row["generator_loss"]) for row in rows)
    judged = [row["eval"] for row in whole.history if "eval" in row]
    assert len(judged) == 2 and set(judged[0]) == {"split", "fid", "real_score", "fake_score"}
    assert sorted(path.name for path in (whole.path / "samples").iterdir()) == ["step-000006.png", "step-000012.png"]
    with Image.open(whole.path / "samples" / "step-000012.png") as grid:
        assert grid.size == (8 * 32, 2 * 32) and grid.mode == "RGB"
    assert steps_of(whole.path)[-2:] == [8, 12]
    opened = load(whole.path / "checkpoints" / "step-000012")
    assert opened.labels == ["0", "1"] and opened.spec == TINY.replace(classes=2)
    again = resume(whole.path, quiet=True)  # there is nothing left to do: the same nets come back
    net, labels = again.predictor().model, torch.arange(10) % 2
    best = load(whole.folder.best()).model
    assert np.array_equal(draw_images(net, labels, seed=5), draw_images(best, labels, seed=5))
    assert not np.array_equal(draw_images(net, labels, seed=5), draw_images(net, labels, seed=6))


def test_the_report_judges_shows_grids_and_names_its_baselines(whole: Run) -> None:
    found = whole.evaluation
    assert found["main"] == "fid" and found["metrics"]["test"]["fid"] > 0
    assert found["baselines"]["trivial"]["name"] == "the mean image of each class"
    # Twelve steps draw noise: images themselves must be nearer, by a figure that smaller is better.
    assert found["baselines"]["strong"]["metrics"]["fid"] < 0.5 * whole.metrics["fid"]
    assert "fixed random weights: not to be compared with published figures" in found["notes"][0]
    page = (whole.path / "report.html").read_text()
    assert page.count('<img src="data:image/png;base64,') == 2
    assert "worse than copies of training images" in page and "Discriminator loss" in page


def test_an_image_is_drawn_for_each_class_that_is_named(whole: Run, tmp_path: Path) -> None:
    from PIL import Image

    predictor = load(whole.path)
    drawn = predictor.predict(["1", "0", {"label": "1", "seed": 0}])
    assert all(image.shape == (32, 32, 3) and image.dtype == np.uint8 for image in drawn)
    assert np.array_equal(drawn[0], drawn[2]) and not np.array_equal(drawn[0], drawn[1])
    assert np.array_equal(predictor.generate_images(["1", "0"], seed=0)[0], drawn[0])  # whatever is drawn beside it
    assert predictor.generate_images(["1"] * 3, seed=4).shape == (3, 32, 32, 3)
    with pytest.raises(UserError, match=r"rows\[1\].*unknown class '7'"):
        predictor.predict(["1", "7"])
    assert predictor.predict(["7", "1"], on_bad_rows="skip")[0] is None
    with pytest.raises(UserError, match="gives no probabilities"):
        predictor.predict_proba(["1"])
    (tmp_path / "classes.txt").write_text("1\n0\n1\n")
    (tmp_path / "classes.csv").write_text("label,seed\n1,0\n0,1\n1,2\n")
    found = find("adversarial").prediction_file(predictor, [tmp_path / "classes.txt"], ".png")
    assert found == find("adversarial").prediction_file(predictor, [tmp_path / "classes.csv"], ".png")
    with Image.open(io.BytesIO(found)) as grid:
        assert grid.size == (96, 32) and np.array_equal(np.asarray(grid)[:, :32], drawn[0])


def test_images_are_drawn_over_http(whole: Run) -> None:
    import base64

    from PIL import Image

    predictor = load(whole.path)
    answer = predict_what(predictor)
    right, wrong, bad = answer([example(predictor), "7", {"label": "1", "seed": -1}])
    assert right["label"] == "0" and right["seed"] == 0
    with Image.open(io.BytesIO(base64.b64decode(right["image"].partition(",")[2]))) as image:
        assert np.array_equal(np.asarray(image), predictor.generate_images(["0"], seed=0)[0])
    assert isinstance(wrong, UserError) and "unknown class '7'" in wrong.what
    assert isinstance(bad, UserError) and bad.where == "seed"


# ---------------------------------------------------------------- resumed


def words(images: Path, out: str) -> list[str]:
    sets = SETTINGS | {"model.width": 2, "model.noise": 8}
    return ["train", str(images), "--task", "adversarial", "--preset", "sagan-32", "--device", "cpu", "--progress",
            "none", "--out", out, *(f"--set={name}={value}" for name, value in sets.items())]  # fmt: skip


def test_a_run_in_parts_equals_a_run_at_once_bit_for_bit(images: Path, tmp_path: Path, nursery: Nursery) -> None:
    expect(nursery, words(images, "whole"), tmp_path, 0)
    killed = -signal.SIGKILL
    expect(nursery, words(images, "run"), tmp_path, killed, "kill@step:10")  # the generator's phase of the fifth step
    assert steps_of(tmp_path / "run") == [4]
    expect(nursery, resume_words("run"), tmp_path, killed, "kill@before-rename:1")  # in the middle of a save
    assert steps_of(tmp_path / "run") == [4]
    expect(nursery, resume_words("run"), tmp_path, 130, "int@step:13")  # asked to stop, which saves
    expect(nursery, resume_words("run"), tmp_path, 0)
    assert differing(tmp_path / "whole", tmp_path / "run") == []
    assert not list((tmp_path / "run").rglob(".tmp-*")) and not list((tmp_path / "run").rglob("*.part"))
    trained(images, tmp_path / "other", training__seed=1)  # control: another seed, other weights
    assert "checkpoints/step-000012/model.safetensors" in differing(tmp_path / "whole", tmp_path / "other")


def test_going_on_with_other_settings_or_images_is_refused(images: Path, tmp_path: Path, nursery: Nursery) -> None:
    expect(nursery, words(images, "run"), tmp_path, -signal.SIGKILL, "kill@step:20")
    run, kept = tmp_path / "run", (tmp_path / "run" / "config.yaml").read_text()
    for name, value, said in (("batch_size", 16, "batch_size is 16, was 8"), ("width", 4, "width is 4, was 2"),
                              ("discriminator_lr_scale", 1.0, "discriminator_lr_scale is 1.0, was 4.0")):  # fmt: skip
        change(run, name, value)
        with pytest.raises(UserError, match=re.escape(said)):
            resume(run, quiet=True)
        (run / "config.yaml").write_text(kept)
    pixels = np.load(run / "data" / "pixels.npy")
    np.save(run / "data" / "pixels.npy", pixels[::-1].copy())
    with pytest.raises(UserError, match="the prepared data is damaged|the data is not what it was"):
        resume(run, quiet=True)
    np.save(run / "data" / "pixels.npy", pixels)
    assert resume(run, quiet=True).facts["status"] == "done"


# ---------------------------------------------------------------- a step


def engine_for(net: torch.nn.Module, objective: Adversarial | None = None, **settings: Any) -> TrainingEngine:
    chosen = {"optimizer": AdamW(lr=1e-4, weight_decay=0.0, betas=(0.0, 0.9)), "schedule": Constant(warmup=0.0),
              "grad_clip": None, "precision": "fp32"} | settings  # fmt: skip
    return TrainingEngine(net, objective or Adversarial(), Training(**chosen), Plan(100))


def batch_of(images: torch.Tensor, labels: torch.Tensor) -> Batch:
    return Batch((images,), labels, torch.arange(len(labels)))


def test_a_loss_that_is_not_finite_ends_the_run_and_changes_no_weight(images: Path, tmp_path: Path) -> None:
    faults.arm("nan-loss@step:11")  # the discriminator's phase of the sixth step
    try:
        with pytest.raises(Diverged, match="step 6: the discriminator loss is not finite") as error:
            trained(images, tmp_path / "run")
    finally:
        faults.arm("")
    assert "the last checkpoint is intact" in str(error.value.details)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000004"]
    engine = engine_for(TINY.build(seed=0))
    before = [p.detach().clone() for p in engine.parameters]
    step_result = engine.step(0, [batch_of(torch.full((4, 3, 32, 32), torch.nan), torch.zeros(4, dtype=torch.long))])
    assert not engine.finite(step_result) and set(step_result.losses) == {"discriminator"}  # the generator had no turn
    assert all(torch.equal(a, b) for a, b in zip(before, engine.parameters, strict=True))


def test_each_phase_moves_its_own_net_and_the_mean_follows_the_generator() -> None:
    net = TINY.replace(classes=2).build(seed=0)
    engine = engine_for(net, ema=0.9)
    start = {name: p.detach().clone() for name, p in net.named_parameters()}
    assert engine.mean is not None and all(name.startswith("generator.") for name in engine.mean)
    mean = {name: p.clone() for name, p in engine.mean.items()}
    step_result = engine.step(0, [batch_of(torch.rand(4, 3, 32, 32) * 2 - 1, torch.tensor([0, 1, 0, 1]))])
    moved = {name for name, p in net.named_parameters() if not torch.equal(p, start[name])}
    assert {"generator.start.weight", "discriminator.out.weight", "generator.start.u"} <= moved
    assert all(p.grad is None for p in net.parameters())
    for name, p in engine.mean.items():  # the first step counts nine elevenths
        assert torch.equal(p, torch.lerp(mean[name], dict(net.named_parameters())[name], 1 - 2 / 11))
    assert step_result.step == 1 and set(step_result.losses) == {"discriminator", "generator"}
    assert all(
        np.isfinite(float(value)) for value in (step_result.loss, step_result.norm, *step_result.losses.values())
    )
    rates = [group["lr"] for optimizer in engine.optimizers for group in optimizer.param_groups]
    betas = [group["betas"] for optimizer in engine.optimizers for group in optimizer.param_groups]
    assert (
        set(rates[: len(rates) // 2]) == {4e-4} and set(rates[len(rates) // 2 :]) == {1e-4} and step_result.lr == 1e-4
    )
    assert set(betas) == {(0.0, 0.9)}


def test_a_phase_leaves_the_other_net_alone() -> None:
    """Only one of the two phases of a step: what the other one trains must not move by a bit."""
    batch = batch_of(torch.rand(4, 3, 32, 32) * 2 - 1, torch.tensor([0, 1, 0, 1]))
    for keep, still in ((0, "generator."), (1, "discriminator.")):
        net = TINY.replace(classes=2).build(seed=0)
        engine = engine_for(net)
        learning = {name: p.detach().clone() for name, p in net.named_parameters() if p.requires_grad}
        engine.phases = engine.phases[keep : keep + 1]
        engine.step(0, [batch])
        moved = {name for name, p in net.named_parameters() if p.requires_grad and not torch.equal(p, learning[name])}
        assert moved and not any(name.startswith(still) for name in moved)


def test_the_discriminator_learns_to_tell_bright_from_made() -> None:
    net = TINY.replace(classes=2).build(seed=0)
    engine = engine_for(net, Adversarial(discriminator_lr_scale=40.0))
    batch = batch_of(torch.full((8, 3, 32, 32), 0.9), torch.arange(8) % 2)
    losses = [float(engine.step(step, [batch]).losses["discriminator"]) for step in range(15)]
    assert losses[-1] < 0.5 * losses[0]
    with torch.no_grad():
        real = net.discriminate(batch.inputs[0], batch.targets).mean()
        fake = net.discriminate(net.generate(torch.randn(8, 8), batch.targets), batch.targets).mean()
    assert real > fake + 1


def test_drawn_images_come_nearer_to_real_ones(images: Path, tmp_path: Path) -> None:
    run = trained(images, tmp_path / "run", training__steps=100, training__eval_every=20, training__save_every=100,
                  training__optimizer__lr=1e-3)  # fmt: skip
    found = [row["eval"]["fid"] for row in run.history if "eval" in row]
    assert len(found) == 5 and run.metrics["fid"] < 0.4 * found[0]
    floor = run.evaluation["baselines"]["strong"]["metrics"]["fid"]
    assert floor < 0.5 * run.metrics["fid"]  # and a hundred steps do not reach images themselves


# ---------------------------------------------------------------- what is refused, what is read


def test_what_cannot_be_trained_is_refused(images: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="gpt2-tiny is a Model, which draws no images; use sagan-32"):
        trained(images, tmp_path / "a", "gpt2-tiny")
    with pytest.raises(UserError, match="did you mean 'training.steps'"):
        trained(images, tmp_path / "a", training__step=3)
    for name in ("batch_size", "micro_batch_size"):
        with pytest.raises(UserError, match=f"{name} 1 is below 2"):
            trained(images, tmp_path / "a", **{f"training__{name}": 1})
    with pytest.raises(UserError, match="the losses of Adversarial cannot be compiled"):
        trained(images, tmp_path / "a", training__compile=True)
    with pytest.raises(UserError, match="add --set data.images.size=32"):
        trained(images, tmp_path / "a", data__images__size=64)
    with pytest.raises(UserError, match="discriminator_lr_scale 0.0 is not a factor"):
        trained(images, tmp_path / "a", objective__discriminator_lr_scale=0.0)
    (tmp_path / "table.csv").write_text("a,label\n" + "".join(f"{n},{n % 2}\n" for n in range(40)))
    with pytest.raises(UserError, match="label does not fit"):
        trained(tmp_path / "table.csv", tmp_path / "a")
    assert not (tmp_path / "a").exists()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "letter.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        trained(images, tmp_path / "b")


def test_images_come_from_class_folders_and_idx_files_alike(images: Path, tmp_path: Path) -> None:
    pixels, labels = pictures()
    folders = write_folders(tmp_path / "set", pixels, labels)
    task = find("adversarial")
    settings = task.default_data(TINY)
    found = {name: prepare([source], task="adversarial", settings=settings, cache=tmp_path / name)
             for name, source in (("folders", folders), ("idx", images))}  # fmt: skip
    assert [each.preprocess.labels for each in found.values()] == [("kind-0", "kind-1"), ("0", "1")]
    stored = {name: each.train.arrays for name, each in found.items()}  # type: ignore[attr-defined]
    by_class = np.argsort(labels, kind="stable")
    assert np.array_equal(stored["folders"]["pixels"], stored["idx"]["pixels"][by_class])
    batch = found["idx"].train.batch(np.array([3, 0]), Order.of(found["idx"].train, 8, 0).at(0)[1])
    kept = found["idx"].train.rows[[3, 0]]  # type: ignore[attr-defined]
    assert batch.inputs[0].shape == (2, 3, 32, 32) and batch.targets.tolist() == labels[kept].tolist()
    # As they are: nothing is flipped, shifted or recoloured, or the generator would learn to draw that.
    assert np.abs((batch.inputs[0].numpy() + 1) * 127.5 - stored["idx"]["pixels"][kept]).max() < 1e-3
    gray = prepare([write_idx(tmp_path / "gray", pixels[..., 0], labels)], task="adversarial", settings=settings,
                   cache=tmp_path / "4")  # fmt: skip
    assert gray.train.batch(np.array([0])).inputs[0].shape == (1, 1, 32, 32)


def test_gray_images_of_one_class_are_drawn(tmp_path: Path) -> None:
    pixels, labels = pictures()
    source = write_folders(tmp_path / "set", pixels[..., 0], np.zeros_like(labels))
    table = tmp_path / "table.csv"
    table.write_text("image,label\n" + "".join(f"{path},kind-0\n" for path in sorted(source.rglob("*.png"))))
    run = trained(table, tmp_path / "run", training__steps=2, training__eval_every=2)
    predictor = load(run.path)
    assert predictor.spec == TINY.replace(classes=1, colours=1)
    assert predictor.generate_images(["kind-0"] * 2).shape == (2, 32, 32)


def test_the_size_of_images_is_the_preset_s_and_without_one_the_settings() -> None:
    task = find("adversarial")
    assert task.default_data(preset("sagan-64")).images.size == 64  # type: ignore[arg-type]
    assert task.default_data(None).images.size == 32
    sizes = [Sizes(parts=["image"], image=size, classes=2) for size in (32, 64, 128)]
    assert [task.default_preset(size, gpu=True) for size in sizes] == ["sagan-32", "sagan-64", "sagan-128"]


@pytest.mark.quick
def test_a_grid_puts_image_n_at_row_and_column() -> None:
    images = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.ones((1, 3, 2, 3), np.uint8) + 1
    grid = tiled(images, 2)
    assert grid.shape == (6, 6, 3)
    assert [int(grid[2 * (n // 2), 3 * (n % 2), 0]) for n in range(6)] == [1, 2, 3, 4, 5, 0]
    assert tiled(images[:, :1], 2).shape == (6, 6)
