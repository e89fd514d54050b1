"""Training two nets against each other: repeatable, gone on with to the bit, ended by what is not finite."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anyformer import UserError, faults, load
from anyformer.errors import Diverged
from anyformer.nets.sagan import SAGAN
from anyformer.training.adversarial import AdversarialRun, draw_images, tiled, train_sagan
from anyformer.training.duel import Adversarial, Duel
from anyformer.training.image_set import read_images

TINY = SAGAN(size=32, attention=16, width=2, noise=8)
SETTINGS = {"steps": 12, "batch_size": 8, "save_every": 4, "sample_every": 6, "ema": 0.9}


def pictures() -> tuple[np.ndarray, np.ndarray]:
    """Bright and dark images of 8 x 8."""
    draw, labels = np.random.default_rng(0), np.arange(24) % 2
    levels = np.where(labels, 200, 50)[:, None, None, None]
    return np.clip(draw.normal(levels, 20, (24, 8, 8, 3)), 0, 255).astype(np.uint8), labels


def trained(out: Path, **changes: Any) -> AdversarialRun:
    return train_sagan(pictures(), TINY, out=out, device="cpu", **(SETTINGS | changes))


def differing(one: Path, other: Path) -> list[str]:
    """Files of two runs that must be equal byte for byte, and are not."""
    names = {"metrics.jsonl"}
    for run in (one, other):
        found = [*(run / "checkpoints").rglob("*.safetensors"), *(run / "samples").glob("*")]
        names |= {str(path.relative_to(run)) for path in found}
    return [name for name in sorted(names) if not (one / name).is_file() or not (other / name).is_file()
            or (one / name).read_bytes() != (other / name).read_bytes()]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run at once."""
    return trained(tmp_path_factory.mktemp("whole") / "run").path


def test_a_run_writes_losses_grids_and_checkpoints_that_open_alone(whole: Path) -> None:
    from PIL import Image

    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [10, 12]
    assert set(rows[0]) == {"step", "discriminator_loss", "generator_loss", "real_score", "fake_score"}
    assert sorted(path.name for path in (whole / "samples").iterdir()) == ["step-000006.png", "step-000012.png"]
    with Image.open(whole / "samples" / "step-000012.png") as grid:
        assert grid.size == (8 * 32, 2 * 32) and grid.mode == "RGB"
    assert sorted(path.name for path in (whole / "checkpoints").iterdir()) == ["step-000008", "step-000012"]
    opened = load(whole / "checkpoints" / "step-000012")
    assert opened.labels == ["0", "1"] and opened.spec == TINY.replace(classes=2)
    run = trained(whole)  # there is nothing left to do: the same nets come back
    labels = torch.arange(10) % 2
    assert np.array_equal(draw_images(run.net, labels, seed=5), draw_images(opened.model, labels, seed=5))
    assert not np.array_equal(draw_images(run.net, labels, seed=5), draw_images(run.net, labels, seed=6))


def test_a_run_in_parts_equals_a_run_at_once_bit_for_bit(whole: Path, tmp_path: Path) -> None:
    for steps in (5, 8, 12):
        trained(tmp_path / "parts", steps=steps)
    extra = {"samples/step-000005.png", "samples/step-000008.png"}
    assert set(differing(whole, tmp_path / "parts")) - extra <= {"metrics.jsonl"}
    last = [(run / "metrics.jsonl").read_text().splitlines()[-1] for run in (whole, tmp_path / "parts")]
    assert last[0] == last[1]
    trained(tmp_path / "other", seed=1)  # control: another seed, other weights
    assert "checkpoints/step-000012/model.safetensors" in differing(whole, tmp_path / "other")


CHILD = """
import sys; sys.path.insert(0, {root!r})
import torch; torch.set_num_threads(1)
from pathlib import Path
from anyformer import faults
from tests.training.test_adversarial import trained
faults.arm({fault!r})
trained(Path({out!r}))
"""


def test_a_process_killed_in_the_middle_of_a_save_loses_nothing(whole: Path, tmp_path: Path) -> None:
    root, out = str(Path(__file__).parents[2]), tmp_path / "killed"
    code = CHILD.format(root=root, fault="kill@before-rename:2", out=str(out))
    child = subprocess.run([sys.executable, "-c", code], timeout=100, capture_output=True, text=True)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert [path.name for path in (out / "checkpoints").glob("step-*")] == ["step-000004"]
    trained(out)
    assert differing(whole, out) == []
    assert not list(out.rglob(".tmp-*")) and not list(out.rglob("*.part"))


def test_a_loss_that_is_not_finite_ends_the_run_and_changes_no_weight(tmp_path: Path) -> None:
    faults.arm("nan-loss@step:11")  # the discriminator's turn of the sixth step
    try:
        with pytest.raises(Diverged, match="discriminator: the loss is nan at step 6; .*the last checkpoint is whole"):
            trained(tmp_path / "run")
    finally:
        faults.arm("")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000004"]
    net = TINY.build(seed=0)
    duel = Duel(net, Adversarial())
    before = [p.detach().clone() for p in duel.discriminator]
    with pytest.raises(Diverged):
        duel.step(0, torch.full((4, 3, 32, 32), torch.nan), torch.zeros(4, dtype=torch.long))
    assert all(torch.equal(a, b) for a, b in zip(before, duel.discriminator, strict=True))


def test_each_turn_moves_its_own_net_and_the_mean_follows() -> None:
    net = TINY.replace(classes=2).build(seed=0)
    duel = Duel(net, Adversarial(ema=0.9))
    start = {name: p.detach().clone() for name, p in net.named_parameters()}
    mean = {name: p.clone() for name, p in duel.mean.named_parameters()}
    row = duel.step(0, torch.rand(4, 3, 32, 32) * 2 - 1, torch.tensor([0, 1, 0, 1]))
    moved = {name for name, p in net.named_parameters() if not torch.equal(p, start[name])}
    assert {"generator.start.weight", "discriminator.out.weight", "generator.start.u"} <= moved
    assert all(p.grad is None for p in net.parameters())
    for name, p in duel.mean.named_parameters():  # the first step counts nine tenths
        wanted = torch.lerp(mean[name], dict(net.generator.named_parameters())[name], 0.9)
        assert torch.equal(p, wanted)
    assert row["step"] == 1 and all(np.isfinite(value) for value in row.values())
    rates = [group["lr"] for optimizer in duel.optimizers for group in optimizer.param_groups]
    betas = [group["betas"] for optimizer in duel.optimizers for group in optimizer.param_groups]
    assert rates == [1e-4, 4e-4] and betas == [(0.0, 0.9)] * 2


def test_the_discriminator_learns_to_tell_bright_from_made() -> None:
    net = TINY.replace(classes=2).build(seed=0)
    duel = Duel(net, Adversarial(discriminator_lr=4e-3))
    images, labels = torch.full((8, 3, 32, 32), 0.9), torch.arange(8) % 2
    rows = [duel.step(step, images, labels) for step in range(15)]
    assert rows[-1]["discriminator_loss"] < 0.5 * rows[0]["discriminator_loss"]
    assert rows[-1]["real_score"] > rows[-1]["fake_score"] + 1


def test_going_on_with_other_settings_or_images_is_refused(whole: Path) -> None:
    with pytest.raises(UserError, match="batch_size is 4, was 8"):
        trained(whole, batch_size=4)
    with pytest.raises(UserError, match="width is 4, was 2"):
        train_sagan(pictures(), TINY.replace(width=4), out=whole, device="cpu", **SETTINGS)
    pixels, labels = pictures()
    with pytest.raises(UserError, match="the images are others"):
        train_sagan((pixels[::-1].copy(), labels), TINY, out=whole, device="cpu", **SETTINGS)
    assert (whole / "checkpoints" / "step-000012").is_dir()


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="gpt2-tiny is no SAGAN"):
        train_sagan(pictures(), "gpt2-tiny", out=tmp_path / "a")
    with pytest.raises(UserError, match="did you mean 'steps'"):
        train_sagan(pictures(), TINY, out=tmp_path / "a", step=3)
    with pytest.raises(UserError, match="batch_size 1 is below 2"):
        trained(tmp_path / "a", batch_size=1)
    assert not (tmp_path / "a").exists()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "letter.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        trained(tmp_path / "b")
    with pytest.raises(UserError, match="arrays of shapes"):
        train_sagan((np.zeros((3, 4)), np.zeros(3)), TINY, out=tmp_path / "c")


def test_images_come_from_class_folders_idx_files_and_arrays_alike(tmp_path: Path) -> None:
    from PIL import Image

    pixels, labels = pictures()
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        (tmp_path / "set" / f"kind-{label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "set" / f"kind-{label}" / f"{number:02}.png")
    (tmp_path / "idx").mkdir()
    for name, array in (("images-idx4", pixels), ("labels-idx1", labels.astype(np.uint8))):
        head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        (tmp_path / "idx" / f"train-{name}-ubyte").write_bytes(head + array.tobytes())
    folder = read_images(tmp_path / "set", 16, tmp_path / "1")
    idx = read_images([tmp_path / "idx"], 16, tmp_path / "2")
    given = read_images((pixels, labels), 16, tmp_path / "3")
    assert folder.names == ["kind-0", "kind-1"] and idx.names == given.names == ["0", "1"]
    assert np.array_equal(idx.pixels, given.pixels) and np.array_equal(idx.labels, given.labels)
    assert idx.fingerprint == given.fingerprint != folder.fingerprint
    by_class = np.argsort(labels, kind="stable")
    assert np.array_equal(folder.pixels, given.pixels[by_class]) and np.array_equal(folder.labels, labels[by_class])
    images, kinds = given.batch(np.array([3, 0]))
    assert images.shape == (2, 3, 16, 16) and images.abs().max() <= 1 and kinds.tolist() == [1, 0]
    assert np.abs((images.numpy() + 1) * 127.5 - given.pixels[[3, 0]]).max() < 1e-3
    gray = read_images((pixels[..., 0], labels), 32, tmp_path / "4")
    assert gray.colours == 1 and gray.pixels.shape == (24, 1, 32, 32)


@pytest.mark.quick
def test_a_grid_puts_image_n_at_row_and_column() -> None:
    images = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.ones((1, 3, 2, 3), np.uint8) + 1
    grid = tiled(images, 2)
    assert grid.shape == (6, 6, 3)
    assert [int(grid[2 * (n // 2), 3 * (n % 2), 0]) for n in range(6)] == [1, 2, 3, 4, 5, 0]
    assert tiled(images[:, :1], 2).shape == (6, 6)
