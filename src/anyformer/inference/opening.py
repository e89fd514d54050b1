"""`anyformer.load`: open a folder as a `Predictor`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from anyformer.checkpoints.adapters import base_of, is_adapter, open_adapted
from anyformer.checkpoints.folder import Opened, open_folder
from anyformer.data.calibration import read_calibration
from anyformer.data.images.preprocessing import ImageSteps
from anyformer.data.tokenizers.tokenizer import open_tokenizer
from anyformer.errors import UserError
from anyformer.families.timm_vit import MODEL_TYPE as TIMM
from anyformer.inference.decoding_settings import decoding_defaults
from anyformer.inference.devices import pick_device
from anyformer.inference.folder_task import preprocess_of
from anyformer.inference.predictor import Predictor
from anyformer.inference.saving import IMAGES_FILE, LABELS_FILE
from anyformer.safe_files import inside, read_json

if TYPE_CHECKING:
    from anyformer.data.preprocess import Preprocess


def load(
    folder: str | Path,
    *,
    head: str | None = None,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    adapter: str | Path | None = None,
) -> Predictor:
    """Open a run (its best checkpoint), an anyformer or a Hugging Face folder; downloads nothing, runs no folder code.

    `head` opens a Hugging Face folder with another head ("bare": none). `device` is auto, cpu, cuda[:N] or mps.
    `adapter` is a LoRA folder, from a run here or from peft, to merge into the weights; given as `folder` itself, it
    is loaded with its base model.
    """
    path, place = Path(folder), pick_device(device)
    if adapter is not None:
        return add_adapter(load(path, head=head, device=device, dtype=dtype), Path(adapter))
    if path.is_dir() and is_adapter(path):
        return add_adapter(load(base_of(path), head=head, device=device, dtype=dtype), path)
    if not (path / "run.json").is_file():
        return open_predictor(path, head, place, dtype)
    from anyformer.training.run.folder import RunFolder, explaining_unknown

    with explaining_unknown(path):
        best = best_of(path)
        found = open_predictor(best, head, place, dtype)
        found.objective = RunFolder(path).config().objective
        return found.calibrated(read_calibration(path, best.name))


def open_predictor(path: Path, head: str | None, place: torch.device, dtype: torch.dtype | None) -> Predictor:
    """A model folder: the model with its tokenizer, labels, preprocessing and decoding settings."""
    opened = open_folder(path, head=head, device=place, dtype=dtype)
    labels, preprocess = read_labels(path)
    labels = opened.labels if labels is None and preprocess is None else labels
    tokenizer = open_tokenizer(path)
    return Predictor(
        opened,
        tokenizer=tokenizer,
        labels=labels,
        images=image_steps(path, opened),
        defaults=decoding_defaults(path, opened),
        preprocess=preprocess_of(opened, tokenizer) if preprocess is None else preprocess,
    )


def image_steps(path: Path, opened: Opened) -> ImageSteps | None:
    """Image preprocessing, from preprocessor_config.json or timm's config.json."""
    images = inside(path, IMAGES_FILE)
    if images.is_file():
        return ImageSteps.from_dict(read_json(images))
    said = opened.config.get("pretrained_cfg")
    if opened.family is None or opened.family.model_type != TIMM or not isinstance(said, dict):
        return None
    return ImageSteps.of_timm(said, "config.json: pretrained_cfg")


def read_labels(path: Path) -> tuple[list[str] | None, Preprocess | None]:
    """A folder's class names, and its preprocessing if the model was trained here on columns."""
    kept = inside(path, LABELS_FILE)
    found = read_json(kept) if kept.is_file() else {}
    if found.get("type") == "Preprocess":
        from anyformer.data.preprocess import Preprocess
        from anyformer.tasks import find

        preprocess = Preprocess.read(kept)
        find(preprocess.task)
        return None if preprocess.labels is None else list(preprocess.labels), preprocess
    names = found.get("labels")
    return [str(name) for name in names] if isinstance(names, list) else None, None


def add_adapter(base: Predictor, folder: Path) -> Predictor:
    """A model with a LoRA adapter merged, and the adapter's own labels and columns."""
    if not folder.is_dir() or not is_adapter(folder):
        raise UserError("no adapter found", where=str(folder), fix="give a folder with adapter_config.json")
    labels, preprocess = read_labels(folder)
    made = replace(base, opened=open_adapted(base.opened, folder))
    return made if preprocess is None else replace(made, labels=labels, preprocess=preprocess)


def best_of(folder: Path) -> Path:
    """The best checkpoint of a run's folder; any other folder is returned unchanged."""
    if not (folder / "run.json").is_file():
        return folder
    from anyformer.training.run.folder import RunFolder  # only runs need it

    return RunFolder.open(folder).best()
