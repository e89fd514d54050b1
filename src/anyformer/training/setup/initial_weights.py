"""The initial weights of a run: of the model given by `--from`, or fitted in closed form to the training rows.

They are stored in the run's folder, so that a resumed run needs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from anyformer.checkpoints import store, tensors
from anyformer.checkpoints.surgery import spread_layers
from anyformer.core.model import Model, Seq2Seq
from anyformer.data.prepared import Prepared
from anyformer.embeds import Joint
from anyformer.errors import UserError
from anyformer.inference.predictor import Predictor
from anyformer.log import Log
from anyformer.nets.electra import DISCRIMINATOR, Electra
from anyformer.safe_files import digest
from anyformer.slots import Embed, Network
from anyformer.tasks import find
from anyformer.training.distributed.parts import copy_into
from anyformer.training.run.folder import RunFolder
from anyformer.training.settings import Config

Fit = Callable[[list[str]], dict[str, Tensor]]  # parameter names -> values for some of them, from the training rows
START_FILE = "start.safetensors"


def save_start_weights(
    folder: RunFolder, start: Predictor, spec: Network, source: Path, log: Log, fit: Fit | None = None
) -> dict[str, str]:
    """Copy the weights of `start` into the run's folder, so that the source folder is not needed again.

    They are matched by name and shape; others are fitted by `fit` or newly initialised. A shallower network takes
    evenly spaced layers from the first to the last. Returns their entry of run.json: path, hash and model type.
    """
    kept, fresh = shared_weights(start.model, spec)
    kept |= {} if fit is None else fit(fresh)
    fresh = [name for name in fresh if name not in kept]
    path = folder.path / START_FILE
    with store.writing(path, sum(t.numel() * t.element_size() for t in kept.values())):
        tensors.write(path, kept)
        store.flush(path)
    shown = f" ({', '.join(fresh[:3])}{' ...' if len(fresh) > 3 else ''})" if fresh else ""
    log(f"weights  from {source}; {len(fresh)} tensors start anew{shown}")
    family = start.opened.family
    return {
        "path": str(source.resolve()), "sha256": digest(path), "model_type": "" if family is None else family.model_type
    }  # fmt: skip


def save_fitted_weights(folder: RunFolder, config: Config, prepared: Prepared, log: Log) -> None:
    """Save the weights fitted to the training rows, if any, so that every process of a run starts from the same."""
    names = [name for name, _ in config.model.build(device="meta").named_parameters()]
    fitted = fit_weights(config, prepared, log, names)
    if fitted:
        path = folder.path / START_FILE
        tensors.write(path, fitted)
        store.flush(path)
        folder.update(start={"sha256": digest(path)}, fitted=True)


def fit_weights(config: Config, prepared: Prepared, log: Log, fresh: list[str]) -> dict[str, Tensor]:
    """The `fresh` weights that the task can fit to the training rows; its notes are logged if any are used."""
    notes: list[str] = []
    found = find(config.task).fit_weights(config.model, prepared, notes.append)
    used = {name: value for name, value in found.items() if name in fresh}
    for line in notes if used else ():
        log(line)
    return used


def shared_weights(model: nn.Module, spec: Network) -> tuple[dict[str, Tensor], list[str]]:
    """The trained weights that fit `spec` by name and shape, and the names of its remaining weights."""
    wanted = dict(spec.build(device="meta").named_parameters())
    trained = spread_layers(dict(model.named_parameters()), wanted)
    parts, before = part_paths(spec), part_paths(model.spec)  # type: ignore[arg-type]
    kept = {}
    for name, parameter in wanted.items():
        found = counterpart(part_names(name, parts, before), trained)
        if found is not None and found.shape == parameter.shape:
            kept[name] = found.detach()
    return kept, [name for name in wanted if name not in kept]


def part_paths(spec: Network) -> dict[str, Embed]:
    """The path of each embedding that makes tokens of a row: one, or the parts of a joint sequence."""
    reader = spec.encoder if isinstance(spec, Seq2Seq) else spec
    if not isinstance(reader, Model | Electra):
        return {}
    path = "encoder.embed" if isinstance(spec, Seq2Seq) else "embed"
    if not isinstance(reader.embed, Joint):
        return {path: reader.embed}
    return {f"{path}.parts.{i}": part for i, part in enumerate(reader.embed.parts)}


def part_names(name: str, wanted: Mapping[str, Embed], trained: Mapping[str, Embed]) -> tuple[str, ...]:
    """The names that a weight may have where the embedding that it belongs to stands alone, or among other parts.

    One whose embedding is not there has none, whatever weights bear its own name.
    """
    own = next((path for path in wanted if name.startswith(f"{path}.")), None)
    if own is None or not trained or len(wanted) == len(trained) == 1:
        return (name,)
    found = next((path for path, part in trained.items() if type(part) is type(wanted[own])), None)
    renamed = () if found is None else (found + name.removeprefix(own),)
    return (*renamed, name) if len(wanted) == 1 else renamed  # the norm of all parts goes to the one that is left


def counterpart(names: Sequence[str], trained: Mapping[str, Tensor]) -> Tensor | None:
    """The trained parameter that corresponds to these names; None if there is none.

    An encoder's body corresponds to that of an ELECTRA discriminator, the pooler of a pair head to a classifier's, and
    a head of words to the same head among several.
    """
    for name in names:
        body = () if name.startswith("head.") else (f"{DISCRIMINATOR}{name}", name.removeprefix(DISCRIMINATOR))
        heads = (name.replace("head.dense.", "head.pair.dense."), name.replace("head.words.", "head."))
        for each in (name, *body, *heads):
            if each in trained:
                return trained[each]
    return None


def load_start_weights(model: nn.Module, folder: RunFolder) -> None:
    """Copy the start weights in a run's folder into its network."""
    path, facts = folder.path / START_FILE, folder.facts.get("start") or {}
    if not path.is_file() or digest(path) != facts.get("sha256"):
        what = "damaged" if path.is_file() else "not there"
        raise UserError(f"the weights to start from are {what}", where=str(path), fix="train again")
    found = tensors.read_header(path)
    for name, parameter in model.named_parameters():
        if name in found:
            copy_into(parameter, found[name].read())
