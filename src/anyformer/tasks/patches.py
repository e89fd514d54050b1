"""Masked image modelling: a vision model reconstructs masked patches (SimMIM, BEiT, MAE), without labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.core.model import Model
from anyformer.data.columns.look import Facts
from anyformer.data.datasets.rows import RowExamples
from anyformer.data.decision import Decision, Input, name_of
from anyformer.data.examples import Examples
from anyformer.data.frame import Frame
from anyformer.data.given_rows import given_rows, report_bad
from anyformer.data.images.decode_all import normalise
from anyformer.data.images.preprocessing import ImageSteps
from anyformer.data.new_rows import parse_table
from anyformer.data.prepare_rows import examples_for
from anyformer.data.prepared import Prepared
from anyformer.data.settings import Data, ImageSettings
from anyformer.data.sizes import Sizes
from anyformer.data.targets import SelfSupervised
from anyformer.embeds import Patches
from anyformer.embeds.patches import cut, paste
from anyformer.errors import UserError
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.baseline_rows import RawRows, sample_rows
from anyformer.heads import PixelHead
from anyformer.log import silence
from anyformer.objectives import Batch, MaskedPatches, Objective
from anyformer.objectives.draw import EVALUATION
from anyformer.objectives.masked_patches import FLAT, patch_errors, spread
from anyformer.safe_files import scratch_folder
from anyformer.slots import Network
from anyformer.tasks.adversarial import png_file, tiled
from anyformer.tasks.evaluator import sort_back
from anyformer.tasks.habits import FINE_TUNE, TrainingDefaults
from anyformer.tasks.network import embedding, require_model, size_for, unfit
from anyformer.tasks.row_task import RowTask
from anyformer.tasks.target_look import Match, TargetLook
from anyformer.tasks.trained_model import TrainedModel, preprocess_of

if TYPE_CHECKING:
    from anyformer.tasks.evaluator import Evaluator

SHOWN = 8  # images of a picture: each original, masked, and reconstructed
COMPONENTS, MOST_ROWS = 64, 2000  # baseline: principal components, and training images that they are fitted to


class PatchesTask(RowTask):
    """A vision model that reconstructs masked patches; `--from` then fine-tunes a classifier from it."""

    name = "patches"
    title = "masked image model"
    verb = "rebuilds hidden patches"
    objective = MaskedPatches
    draws_anew = True
    needs = ("PIL",)
    has_target = False
    max_eval_rows = 2048
    own_suffixes = (".png",)
    reads = "a masked image model reads images"
    unread = "only images are read"

    # ------------------------------------------------------------ data

    def default_data(self, network: Network | None) -> Data:
        """Augmentation by shifts and flips only: the model should learn the true colours."""
        return Data(images=ImageSettings(randaugment=0))

    def match(self, seen: TargetLook, *, asked: bool) -> Match | None:
        """The labels of class folders are ignored."""
        return Match("one", "labels are not looked at") if asked and seen.images else None

    def choose_inputs(self, seen: TargetLook) -> tuple[list[Input], list[Input]]:
        return seen.images, [column for column in seen.inputs if column not in seen.images]

    def decide_without_target(
        self, frame: Frame, facts: Mapping[str, Facts], settings: Data, *, asked: bool
    ) -> Decision | None:
        from anyformer.tasks.decide import refuse_named

        if not asked:
            return None
        images = [name for name in frame.names if facts[name].column.is_image]
        if len(images) != 1:
            what = f"{len(images)} columns of images" if images else "no column of images"
            raise UserError(what, where=name_of(frame), fix="give a folder of images, or name one with --inputs")
        others = [name for name in frame.names if name not in images]
        refuse_named(settings, others, self.reads)
        inputs = tuple(Input(name, facts[name].kind, facts[name]) for name in images)
        return Decision(self, (), inputs, dropped=tuple((name, self.unread) for name in others))

    def target_problems(self, frame: Frame, decision: Decision) -> list[tuple[str, np.ndarray]]:
        return []

    def fit_target(
        self, frame: Frame, decision: Decision, settings: Data, labels: Sequence[str] | None
    ) -> SelfSupervised:
        return SelfSupervised(names=tuple(column.name for column in decision.inputs))

    # ------------------------------------------------------------ the model

    def default_preset(self, sizes: Sizes, *, gpu: bool) -> str:
        return f"vit-{size_for(gpu)}"

    def fit_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        made = require_model(spec, name, self, sizes)
        if not isinstance(made.embed, Patches):
            raise unfit(name, "does not read patches of images", "vit-mini")
        embed = embedding(made, name, sizes)
        assert isinstance(embed, Patches)
        values = embed.channels * embed.cell[0] * embed.cell[1]
        return made.replace(embed=embed.replace(masked=True), head=PixelHead(values=values))

    def adapt_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        return self.fit_network(spec, name, sizes)

    def fit_objective(self, objective: Objective, spec: Network) -> Objective:
        assert isinstance(objective, MaskedPatches) and isinstance(spec, Model) and isinstance(spec.embed, Patches)
        return objective.replace(patch=spec.embed.cell)

    def habit(self, sizes: Sizes, *, start: bool) -> TrainingDefaults:
        if start:
            return FINE_TUNE
        return TrainingDefaults(epochs=100, batch_size=64, lr=1e-3, weight_decay=0.05, gpu_batch_size=256, gpu_lr=1e-3)

    def write_sample(self, model: nn.Module, data: Prepared, *, seed: int) -> bytes | None:
        """Held-out images: each original, with masked patches in grey, and reconstructed."""
        held = data.valid if data.valid is not None else data.train
        assert isinstance(held, RowExamples)
        return png_file(show_rebuilt(model, held, np.arange(min(SHOWN, len(held)))))

    def next_command(self, run: Path) -> str:
        return f"anyformer train labelled.csv --target label --from {run}"

    # ------------------------------------------------------------ evaluation

    def answer(
        self, evaluator: Evaluator, model: nn.Module, examples: Examples, rows: np.ndarray, *, decode: bool
    ) -> Answers:
        """The error of each image: the mean over its masked patches."""
        assert isinstance(examples, RowExamples) and isinstance(evaluator.objective, MaskedPatches)
        losses, order = [], []
        for batch, out in evaluator.passes(model, examples, rows):
            losses.append(evaluator.objective.row_losses(out, batch).double().cpu().numpy())
            order.append(batch.rows.numpy())
        errors = sort_back(losses, order)
        truth = HiddenImages(examples, rows, evaluator.objective)
        return Answers(self.name, truth, errors, losses=errors, examples=examples)

    def compute_metrics(self, answers: Answers) -> dict[str, float]:
        return {"loss": float(answers.losses.mean())} if answers.losses is not None and len(answers.losses) else {}

    def main_metric(self, *, multi: bool = False, labels: Sequence[str] = ()) -> str:
        return "loss"

    # ------------------------------------------------------------ baselines

    def truth(self, examples: Examples) -> Any:
        return None

    def trivial_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows
    ) -> tuple[str, dict[str, float]]:
        """Predict the mean of the targets, which is zero."""
        errors = [patch_errors(torch.zeros_like(batch.targets), batch.targets) for batch in answers.truth.batches()]
        return "a patch of its own mean", self.metrics(score_errors(self.name, errors, answers.truth))

    def strong_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, *, seed: int = 0
    ) -> tuple[str, dict[str, float]]:
        """The principal components of the training images, fitted to the visible patches."""
        if train.images is None or len(train.images) < 2:
            return "no training images", {}
        some = train.images[sample_rows(len(train.images), MOST_ROWS, seed)]
        components = Components.fit(answers.truth.normalised(some))
        errors = [patch_errors(components.rebuild(batch, answers.truth.objective), batch.targets)
                  for batch in answers.truth.batches()]  # fmt: skip
        return f"{len(components.axes)} principal components", self.metrics(
            score_errors(self.name, errors, answers.truth)
        )

    def strong_in_time(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, seconds: float | None
    ) -> tuple[str, dict[str, float]]:
        """It samples the training images itself."""
        return self.strong_baseline(truth, answers, train, test)

    # ------------------------------------------------------------ the report and new images

    def facts(self, answers: Answers) -> dict[str, Any]:
        return {"rows": len(answers.truth)}

    def describe(self, answers: Answers, row: int) -> dict[str, Any]:
        return {}

    def predictions(self, answers: Answers) -> list[Any]:
        """The reconstruction error of each image: high for images unlike the training data."""
        return [round(float(error), 6) for error in answers.predicted]

    def prediction_file(self, predictor: TrainedModel, files: Sequence[Path], suffix: str) -> bytes:
        """The first images: each original, masked, and reconstructed."""
        with scratch_folder() as cache:
            examples = new_images(predictor, files, cache)
            return png_file(show_rebuilt(predictor.model, examples, examples.rows))


def new_images(predictor: TrainedModel, files: Sequence[Path], cache: Path) -> RowExamples:
    """The first images of some files or folders, as many as a picture shows."""
    from anyformer.tasks.prepare import read_new_rows

    preprocess = preprocess_of(predictor)
    rows = given_rows(list(files), preprocess)
    frame = rows if isinstance(rows, Frame) else read_new_rows(rows, preprocess, Data(), cache)[0]
    new = parse_table(frame.take(np.arange(min(SHOWN, len(frame)))), preprocess)
    examples, counts = examples_for(new.frame, preprocess, None, None, images=predictor.images)
    report_bad(counts.unread | new.bad, "error", silence)
    return examples


@dataclass(frozen=True)
class HiddenImages:
    """Images with masked patches, as in evaluation, for baselines and pictures."""

    examples: RowExamples
    rows: np.ndarray
    objective: MaskedPatches

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self, size: int = 128) -> Iterator[Batch]:
        """Batches in the order of the rows."""
        for start in range(0, len(self.rows), size):
            batch = self.examples.batch(self.rows[start : start + size])
            yield self.objective.corrupt(batch, EVALUATION, self.examples)

    @property
    def steps(self) -> ImageSteps:
        return self.examples.images or ImageSteps(scale=None, mean=None)

    def normalised(self, images: np.ndarray) -> Tensor:
        """Raw images (N,H,W,C) normalised as model inputs, (N,C,H,W)."""
        return torch.from_numpy(normalise(np.moveaxis(images, -1, 1), self.steps))


def score_errors(task: str, errors: list[Tensor], truth: HiddenImages) -> Answers:
    """Patch errors (B,N) of batches as answers: the mean over the masked patches of each image."""
    hidden = torch.cat([~torch.isnan(batch.targets[..., 0]) for batch in truth.batches()])
    rows = (torch.cat(errors).sum(1) / hidden.sum(1)).double().numpy()
    return Answers(task, truth, rows, losses=rows)


@dataclass(frozen=True)
class Components:
    """Principal components of images: mean (P,), axes (K,P) scaled by their standard deviation, and noise."""

    mean: Tensor
    axes: Tensor
    noise: float

    @classmethod
    def fit(cls, images: Tensor) -> Components:
        """Fit to images (N,C,H,W)."""
        flat = images.flatten(1).double()
        mean = flat.mean(0)
        _, values, axes = torch.linalg.svd(flat - mean, full_matrices=False)
        kept = min(COMPONENTS, max(1, len(flat) // 2), len(values))
        variances = values.square() / len(flat)
        left = float(variances[kept:].sum() / flat.shape[1])
        return cls(mean, variances[:kept].sqrt()[:, None] * axes[:kept], max(left, 1e-6))

    def rebuild(self, batch: Batch, objective: MaskedPatches) -> Tensor:
        """Reconstruct every patch (B,N,values): the most likely image given the visible patches."""
        pixels, hidden = batch.inputs
        seen = ~spread(hidden, pixels.shape[2:], objective.cell).expand_as(pixels).flatten(1)
        found = []
        for image, there in zip(pixels.flatten(1).double(), seen, strict=True):
            axes = self.axes[:, there]  # (K, visible pixels)
            scores = torch.linalg.solve(
                axes @ axes.T + self.noise * torch.eye(len(axes), dtype=axes.dtype), axes @ (image - self.mean)[there]
            )
            found.append(self.mean + scores @ self.axes)
        rebuilt = objective.targets(torch.stack(found).reshape(pixels.shape).float())
        asked = ~torch.isnan(batch.targets)
        # For normalised patches with correlation r, the best prediction is r times the reconstruction. The correlation
        # is taken with the targets, in the baseline's favour.
        share = (rebuilt[asked] * batch.targets[asked]).mean().clamp(0, 1) if objective.normalise else 1.0
        return rebuilt * share


@torch.no_grad()
def show_rebuilt(model: Any, examples: RowExamples, chosen: np.ndarray) -> np.ndarray:
    """A picture of three rows of images: originals, with masked patches in grey, and reconstructed."""
    objective, device = MaskedPatches(patch=model.spec.embed.cell), next(model.parameters()).device
    images = HiddenImages(examples, chosen, objective)
    (batch,) = images.batches(len(images))
    pixels = images.examples.batch(images.rows).inputs[0]
    was_training = model.training
    rebuilt = model.eval()(*batch.to(device).inputs).logits.float().cpu()
    model.train(was_training)
    patches, hidden = cut(pixels, objective.cell), batch.inputs[1][..., None]
    if objective.normalise:  # the model does not predict a patch's mean and deviation: use the true ones
        mean, variance = patches.mean(-1, keepdim=True), patches.var(-1, keepdim=True, unbiased=False)
        rebuilt = rebuilt * (variance + FLAT).sqrt() + mean
    grid = (pixels.shape[2] // objective.cell[0], pixels.shape[3] // objective.cell[1])
    rows = [patches, patches.masked_fill(hidden, 0.0), torch.where(hidden, rebuilt, patches)]
    shown = torch.cat([paste(row, grid, objective.cell) for row in rows])
    return tiled(to_bytes(shown, images.steps), len(images))


def to_bytes(pixels: Tensor, steps: ImageSteps) -> np.ndarray:
    """Undo the normalisation of model inputs (N,C,H,W): pixels from 0 to 255."""
    raw = pixels.numpy()
    if steps.mean is not None and steps.std is not None:
        raw = raw * np.asarray(steps.std).reshape(1, -1, 1, 1) + np.asarray(steps.mean).reshape(1, -1, 1, 1)
    return np.clip(raw / (steps.scale or 1.0), 0, 255).round().astype(np.uint8)
