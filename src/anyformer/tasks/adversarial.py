"""Image generation: a generator trained against a discriminator draws images of the classes of its training data."""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.data.decision import Decision, Input
from anyformer.data.examples import Examples
from anyformer.data.files.tables import frame_of
from anyformer.data.frame import Frame
from anyformer.data.gather import gather, origin_of
from anyformer.data.given_rows import OnBadRows, by_row, is_files, report_bad, take_rows
from anyformer.data.habit import TrainingDefaults
from anyformer.data.images.preprocessing import pillow
from anyformer.data.prepared import Prepared
from anyformer.data.preprocess import Preprocess
from anyformer.data.settings import Data, ImageSettings
from anyformer.data.sizes import Sizes
from anyformer.data.targets import Classes
from anyformer.errors import UserError, did_you_mean
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.baseline_rows import RawRows
from anyformer.evaluation.image_scores import FeatureNetwork, RandomFeatures, features_of, frechet_distance
from anyformer.log import Log
from anyformer.nets.sagan import LAYOUTS, SAGAN, SAGANModule
from anyformer.objectives import Adversarial as AdversarialLoss
from anyformer.safe_files import scratch_folder
from anyformer.slots import Network
from anyformer.tasks.classify import ClassifyTask
from anyformer.tasks.network import unfit
from anyformer.tasks.row_task import RowTask
from anyformer.tasks.target_look import Match, TargetLook
from anyformer.tasks.trained_model import TrainedModel, preprocess_of

if TYPE_CHECKING:
    from anyformer.tasks.evaluator import Evaluator

logger = logging.getLogger("anyformer")
SIZE = 32  # image size if neither the data settings nor a preset give one
COLUMNS, ROWS = 8, 10  # of a grid of samples, one row per class
LABEL, SEED = "label", "seed"  # fields of a request


class AdversarialTask(RowTask):
    """Images of given classes, generated from noise; evaluated by the feature distance to held-out images."""

    name = "adversarial"
    smaller_is_better = ("fid",)
    title = "image generation"
    verb = "draws images"
    objective = AdversarialLoss
    draws_anew = True
    needs = ("PIL",)
    max_eval_rows = 2048
    own_suffixes = (".png",)
    reads = "the images"
    unread = "only images are drawn"

    # ------------------------------------------------------------ data

    def default_data(self, network: Network | None) -> Data:
        """Images of the network's size without augmentation: the generator would learn to draw augmented images."""
        size = network.size if isinstance(network, SAGAN) else SIZE
        return Data(images=ImageSettings(size=size, flip=False, crop=0.0, randaugment=0))

    def match(self, seen: TargetLook, *, asked: bool) -> Match | None:
        """Never detected by itself: such data is more often meant for a classifier."""
        if not asked or seen.several or not seen.images:
            return None
        found = ClassifyTask().match(seen, asked=True)
        return found if found is not None and found.form == "one" else None

    def choose_inputs(self, seen: TargetLook) -> tuple[list[Input], list[Input]]:
        return seen.images, [column for column in seen.inputs if column not in seen.images]

    def strata(self, frame: Frame, decision: Decision) -> np.ndarray | None:
        return ClassifyTask().strata(frame, decision)

    def fit_target(self, frame: Frame, decision: Decision, settings: Data, labels: Sequence[str] | None) -> Classes:
        return Classes.fit(frame, decision.target, "one", labels)

    # ------------------------------------------------------------ the model

    def default_preset(self, sizes: Sizes, *, gpu: bool) -> str:
        size = sizes.image if sizes.image in LAYOUTS else SIZE
        return f"sagan-{size}" if gpu or size != SIZE else f"sagan-{size}-tiny"

    def fit_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        """A generator and a discriminator for the data's classes and colour channels."""
        if not isinstance(spec, SAGAN):
            raise unfit(name, f"is a {type(spec).__name__}, which draws no images", "sagan-32, sagan-64 or sagan-128")
        if sizes.image != spec.size:
            what = f"the preset {name} draws images of {spec.size} x {spec.size}, the data's are {sizes.image}"
            raise UserError(what, where="--preset", fix=f"add --set data.images.size={spec.size}")
        return spec.replace(classes=sizes.classes, colours=sizes.channels)

    def habit(self, sizes: Sizes, *, start: bool) -> TrainingDefaults:
        """Defaults of 1805.08318: Adam without momentum, constant lr, full precision, no gradient clipping."""
        settings = {"optimizer.betas": (0.0, 0.9), "schedule": {"type": "Constant", "warmup": 0.0}, "ema": 0.999,
                    "grad_clip": None, "precision": "fp32", "eval_rows": 256}  # fmt: skip
        return TrainingDefaults(
            epochs=100, batch_size=64, lr=1e-4, weight_decay=0.0, gpu_batch_size=64, gpu_lr=1e-4, settings=settings
        )

    def write_sample(self, model: nn.Module, data: Prepared, *, seed: int) -> bytes | None:
        """Images from fixed noise, one row per class."""
        assert isinstance(model, SAGANModule)
        labels = torch.arange(min(ROWS, model.spec.classes)).repeat_interleave(COLUMNS)
        return png_file(tiled(draw_images(model, labels, seed=seed), COLUMNS))

    def next_command(self, run: Path) -> str:
        return f"anyformer predict {run} classes.txt -o images.png"

    # ------------------------------------------------------------ evaluation

    def answer(
        self, evaluator: Evaluator, model: nn.Module, examples: Examples, rows: np.ndarray, *, decode: bool
    ) -> Answers:
        """As many generated images as real ones, of the same classes, and the discriminator's scores of both."""
        assert isinstance(model, SAGANModule)
        device, real, kinds, scores = next(model.parameters()).device, [], [], []
        for start in range(0, len(rows), evaluator.batch_size):
            batch = examples.batch(rows[start : start + evaluator.batch_size])
            real.append(to_pixels(batch.inputs[0]))
            kinds.append(batch.targets)
            with evaluator.autocast:
                scores.append(model.discriminate(batch.inputs[0].to(device), batch.targets.to(device)).float().cpu())
        labels, truth = torch.cat(kinds), np.concatenate(real)
        with evaluator.autocast:
            drawn = draw_images(model, labels, seed=0, batch_size=evaluator.batch_size)
            of_drawn = discriminator_scores(model, drawn, labels, evaluator.batch_size)
        network = RandomFeatures(model.spec.colours)
        return Answers(
            self.name, Pictures(truth, labels.numpy(), network), Pictures(drawn, labels.numpy(), network),
            labels=list(evaluator.preprocess.labels or ()), examples=examples,
            extra={"real_score": float(torch.cat(scores).mean()), "fake_score": float(of_drawn.mean())},
        )  # fmt: skip

    def compute_metrics(self, answers: Answers) -> dict[str, float]:
        return {"fid": frechet_distance(answers.truth.features(), answers.predicted.features())}

    def main_metric(self, *, multi: bool = False, labels: Sequence[str] = ()) -> str:
        return "fid"

    def notes(self, answers: Answers) -> list[str]:
        return [f"FID of {len(answers.predicted):,} drawn and {len(answers.truth):,} held-out images, by "
                f"{answers.truth.network.name}: not to be compared with published figures"]  # fmt: skip

    # ------------------------------------------------------------ baselines

    def trivial_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows
    ) -> tuple[str, dict[str, float]]:
        """One image per class, the pixel mean of its training images."""
        name = "the mean image of each class"
        if train.images is None or not len(answers.truth):
            return name, {}
        kinds = np.asarray(truth)
        means = {kind: np.rint(train.images[kinds == kind].mean(0)) for kind in np.unique(kinds)}
        overall = np.rint(train.images.mean(0))
        drawn = np.stack([means.get(kind, overall) for kind in answers.truth.classes]).astype(np.uint8)
        return name, self.compute_metrics(beside(answers, drawn))

    def strong_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, *, seed: int = 0
    ) -> tuple[str, dict[str, float]]:
        """A floor: no generator comes closer than real images do."""
        name = "copies of training images"
        if train.images is None or not len(answers.truth):
            return name, {}
        # With the classes of the held-out images: otherwise a small sample would be far off by its class frequencies
        # alone.
        draw, kinds, wanted = np.random.default_rng(seed), np.asarray(truth), answers.truth.classes
        chosen = np.zeros(len(wanted), np.int64)
        for kind in np.unique(wanted):
            known = draw.permutation(np.flatnonzero(kinds == kind) if (kinds == kind).any() else len(kinds))
            chosen[wanted == kind] = np.resize(known, int((wanted == kind).sum()))
        return name, self.compute_metrics(beside(answers, train.images[chosen]))

    def strong_in_time(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, seconds: float | None
    ) -> tuple[str, dict[str, float]]:
        """Nothing is trained: fewer training images would save no time."""
        return self.strong_baseline(truth, answers, train, test)

    # ------------------------------------------------------------ new images

    def predict(
        self, predictor: TrainedModel, source: Any, *, batch_size: int = 1, on_bad_rows: OnBadRows = "error"
    ) -> list[Any] | None:
        """An image (H,W,3), or (H,W) in grayscale, with values from 0 to 255, for each requested class."""
        found: list[Any] = []
        for label, seed in read_requests(source, preprocess_of(predictor), on_bad_rows):
            found.append(None if label is None else drawn_image(predictor, label, seed))
        return found

    def prediction_table(
        self,
        predictor: TrainedModel,
        files: Sequence[Path],
        settings: Data,
        *,
        batch_size: int,
        on_bad_rows: OnBadRows,
        log: Log,
    ) -> Any | None:
        """One row per image, as a data URL."""
        import pyarrow as pa

        preprocess = preprocess_of(predictor)
        asked = read_requests(list(files), preprocess, on_bad_rows)
        rows = [(label, seed) for label, seed in asked if label is not None]
        images = [data_url(drawn_image(predictor, label, seed)) for label, seed in rows]
        names = [(preprocess.labels or ())[label] for label, _ in rows]
        return pa.table({LABEL: names, SEED: [seed for _, seed in rows], "image": images})

    def prediction_file(self, predictor: TrainedModel, files: Sequence[Path], suffix: str) -> bytes:
        """All images as one grid."""
        images = np.stack([channels_first(image) for image in self.predict(predictor, list(files)) or ()])
        return png_file(tiled(images, min(COLUMNS, len(images))))

    def parse_request(self, row: Any, preprocess: Preprocess) -> Any | None:
        return parse_row(row, preprocess)

    def answer_requests(self, rows: Sequence[Any], predictor: TrainedModel, *, batch_size: int) -> list[Any] | None:
        labels = preprocess_of(predictor).labels or ()
        return [{LABEL: labels[label], SEED: seed, "image": data_url(drawn_image(predictor, label, seed))}
                for label, seed in rows]  # fmt: skip

    def network_inputs(self, predictor: TrainedModel, source: Any) -> tuple[Tensor, ...] | None:
        preprocess = preprocess_of(predictor)
        asked = [(0, 0)] if source is None else read_requests(as_rows(source), preprocess, "error")
        rows = [(label, seed) for label, seed in asked if label is not None]
        assert isinstance(predictor.model, SAGANModule)
        noise = [noise_of(predictor.model, 1, seed) for _, seed in rows]
        labels = torch.tensor([label for label, _ in rows])
        return torch.cat(noise).to(predictor.device), labels.to(predictor.device)

    def describe_request(self, preprocess: Preprocess) -> str:
        return f'a class, bare or as {{"{LABEL}": ..., "{SEED}": 0}}'

    def example_request(self, preprocess: Preprocess) -> Any | None:
        return {LABEL: (preprocess.labels or ("",))[0], SEED: 0}


@dataclass
class Pictures:
    """Images (N,C,H,W) in 0 to 255 with their classes (N,), and the network whose features they are compared by."""

    pixels: np.ndarray
    classes: np.ndarray
    network: FeatureNetwork

    def __len__(self) -> int:
        return len(self.pixels)

    def features(self) -> Tensor:
        """Features (N,F); a single image is repeated, for a set without variance."""
        pixels = self.pixels if len(self) > 1 else np.repeat(self.pixels, 2, 0)
        return features_of(pixels, self.network)[0]


def beside(answers: Answers, images: np.ndarray) -> Answers:
    """Answers with other images (N,H,W,C) in place of the generated ones."""
    truth = answers.truth
    return Answers(answers.task, truth, Pictures(np.moveaxis(images, -1, 1), truth.classes, truth.network))


# ---------------------------------------------------------------- drawing


@torch.inference_mode()
def draw_images(net: SAGANModule, labels: Tensor, *, seed: int = 0, batch_size: int = 100) -> np.ndarray:
    """Images (N,C,H,W) with values from 0 to 255, one per label; the same for the same seed on every device."""
    device = next(net.parameters()).device
    noise = noise_of(net, len(labels), seed)
    parts = zip(noise.split(batch_size), labels.split(batch_size), strict=True)
    return np.concatenate([to_pixels(net.generate(z.to(device), kinds.to(device))) for z, kinds in parts])


def noise_of(net: SAGANModule, rows: int, seed: int) -> Tensor:
    """Noise (rows,Z), drawn on the CPU so that a seed gives the same image everywhere."""
    return torch.randn(rows, net.spec.noise, generator=torch.Generator().manual_seed(seed))


def discriminator_scores(net: SAGANModule, pixels: np.ndarray, labels: Tensor, batch_size: int) -> Tensor:
    """The discriminator's scores (N,) of images with values from 0 to 255."""
    device, found = next(net.parameters()).device, []
    for part, kinds in zip(torch.from_numpy(pixels).split(batch_size), labels.split(batch_size), strict=True):
        found.append(net.discriminate(part.to(device).float() / 127.5 - 1, kinds.to(device)).float().cpu())
    return torch.cat(found)


def to_pixels(images: Tensor) -> np.ndarray:
    """Convert images in [-1, 1] to pixels from 0 to 255."""
    return ((images.float() + 1) * 127.5).round().to(torch.uint8).cpu().numpy()


def tiled(images: np.ndarray, columns: int) -> np.ndarray:
    """Arrange images (N,C,H,W) in a grid (rows * H, columns * W[, C]).

    >>> tiled(np.zeros((6, 3, 4, 5), np.uint8), 3).shape
    (8, 15, 3)
    """
    count, colours, high, wide = images.shape
    rows = -(-count // columns)
    room = np.zeros((rows * columns, colours, high, wide), np.uint8)
    room[:count] = images
    grid = room.reshape(rows, columns, colours, high, wide).transpose(0, 3, 1, 4, 2)
    whole = grid.reshape(rows * high, columns * wide, colours)
    return whole[..., 0] if colours == 1 else whole


def png_file(image: np.ndarray) -> bytes:
    """Encode an image (H,W) or (H,W,3) as PNG."""
    made = io.BytesIO()
    pillow().fromarray(image).save(made, format="PNG")
    return made.getvalue()


def data_url(image: np.ndarray) -> str:
    return "data:image/png;base64," + base64.b64encode(png_file(image)).decode("ascii")


def channels_first(image: np.ndarray) -> np.ndarray:
    return image[None] if image.ndim == 2 else np.moveaxis(image, -1, 0)


def drawn_image(predictor: TrainedModel, label: int, seed: int) -> np.ndarray:
    """One image of a class, (H,W,3) or (H,W); a seed's image does not depend on the rest of the request."""
    assert isinstance(predictor.model, SAGANModule)
    return tiled(draw_images(predictor.model, torch.tensor([label]), seed=seed), 1)


# ---------------------------------------------------------------- what to draw


def as_rows(source: Any) -> Any:
    """Wrap a single class in a list."""
    return [source] if isinstance(source, str) and not Path(source).is_file() else source


def read_requests(source: Any, preprocess: Preprocess, on_bad_rows: OnBadRows) -> list[tuple[int | None, int]]:
    """The class and the seed of each row, by default the row number; class None for a row that is skipped."""
    rows = take_rows(source)
    if isinstance(rows, Mapping):
        rows = by_row(rows)
    if is_files(rows):
        rows = read_files(rows)
    if isinstance(rows, Frame):
        rows = rows.table.to_pylist() if len(rows.names) > 1 else rows.column(rows.names[0]).to_pylist()
    found: list[tuple[int | None, int]] = []
    bad: dict[int, UserError] = {}
    for number, row in enumerate(rows):
        try:
            found.append(parse_row(row, preprocess, seed=number))
        except UserError as error:
            bad[number] = error.inside(f"rows[{number}]")
            found.append((None, number))
    report_bad(bad, on_bad_rows, logger.warning)
    if not found:
        raise UserError("no rows given", where="rows", fix="name at least one class")
    return found


def read_files(paths: Sequence[Path]) -> Frame:
    """Text files with one class per line, or tables with a class column."""
    if origin_of(paths, "text") == "text":
        lines = [line.strip() for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
        return frame_of({LABEL: [line for line in lines if line]})
    with scratch_folder() as folder:
        return gather(list(paths), "table", Data(), folder).frame


def parse_row(row: Any, preprocess: Preprocess, *, seed: int = 0) -> tuple[int, int]:
    """The class index that a row asks for, and its seed."""
    if isinstance(row, Mapping):
        names = (LABEL, *(preprocess.target.names if preprocess.target is not None else ()))
        label = next((row[name] for name in names if name in row), None)
        said = row.get(SEED)
        seed = seed if said is None else int(said) if isinstance(said, str) and said.isdecimal() else said
    else:
        label = row
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise UserError(f"{str(seed)[:40]!r} is not a seed", where=SEED, fix="give a whole number from 0 on")
    labels = preprocess.labels or ()
    if label is None and len(labels) == 1:
        label = labels[0]
    if label is None or str(label) not in labels:
        raise UserError(f"unknown class {str(label)[:40]!r}", where=LABEL, fix=did_you_mean(str(label), labels))
    return labels.index(str(label)), seed
