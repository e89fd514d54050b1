"""The base of all estimators: parameters, training, saving without pickle, and pickling without code."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from anyformer.data.columns.kinds import only_modality
from anyformer.errors import UserError
from anyformer.estimators.learn import learn, open_files, save_files
from anyformer.evaluation.answers import Answers
from anyformer.extras import install_command
from anyformer.inference.opening import load
from anyformer.inference.predict import answer
from anyformer.inference.predictor import Predictor
from anyformer.safe_files import inside, read_json, short
from anyformer.slots import Position
from anyformer.spec import Spec, plain, subclasses
from anyformer.training.setup.request import Request

NEEDED = "scikit-learn 1.6 or newer is not installed"

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:  # the classes can be imported; creating one raises an error that says what to install

    class BaseEstimator:  # type: ignore[no-redef]
        """Placeholder for scikit-learn's."""

        def __new__(cls, *args: Any, **params: Any) -> Any:
            raise UserError(NEEDED, where=cls.__name__, fix=install_command("sklearn"))

    class ClassifierMixin:  # type: ignore[no-redef]
        """Placeholder for scikit-learn's."""

    class RegressorMixin:  # type: ignore[no-redef]
        """Placeholder for scikit-learn's."""

    check_is_fitted = validate_data = None

__all__ = ["BaseEstimator", "ClassifierMixin", "Estimator", "RegressorMixin", "check_is_fitted", "validate_data"]

FILE = "estimator.json"
BATCH = 256  # rows per prediction batch


class Estimator(BaseEstimator):
    """Parameters of every estimator; all but `preset` by name.

    `steps` or `epochs`, and `minutes`, limit the training; `batch_size` and `lr` are its rows per step and learning
    rate;
        `valid` is the fraction of rows held out to select the best weights. `position`, `norm` and `mixer` replace that
    part of the preset's blocks, by name ("Rope", "RMSNorm") or as a part (`anyformer.Attention(heads=2)`); `settings`
        are dotted paths to everything else: {"model.stack.depth": 2, "training.class_weights": "balanced"}. `start` is
        a
        model folder to fine-tune. `random_state` None is 0: two fits are equal. `keep` is a folder in which every fit
        saves its run.
    """

    task: ClassVar[str] = "classify"
    stacks: ClassVar[tuple[str, ...]] = ("stack",)  # paths of the stacks in the network's spec
    numeric_target: ClassVar[bool] = False
    kinds: ClassVar[tuple[str, ...]] = ()  # supported column kinds; empty: all
    other: ClassVar[str] = "MixedClassifier"  # the estimator for columns of other kinds

    def __init__(
        self,
        preset: str | None = None,
        *,
        steps: int | None = None,
        epochs: float | None = None,
        minutes: float | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        valid: float = 0.1,
        position: str | Spec | None = None,
        norm: str | Spec | None = None,
        mixer: str | Spec | None = None,
        settings: Mapping[str, Any] | None = None,
        start: str | Path | None = None,
        random_state: Any = None,
        device: str = "cpu",
        keep: str | Path | None = None,
        quiet: bool = True,
    ) -> None:
        self.preset = preset
        self.steps = steps
        self.epochs = epochs
        self.minutes = minutes
        self.batch_size = batch_size
        self.lr = lr
        self.valid = valid
        self.position = position
        self.norm = norm
        self.mixer = mixer
        self.settings = settings
        self.start = start
        self.random_state = random_state
        self.device = device
        self.keep = keep
        self.quiet = quiet

    # ------------------------------------------------------------ training

    def _learn(self, source: Any, targets: tuple[str, ...], asked: Mapping[str, Any]) -> None:
        """Train on a frame or files; `asked` are the settings derived from X, overridden by the user's."""
        given = dict(self.settings or {})
        types = (*asked.get("data.types", ()), *given.get("data.types", ()))
        chosen: dict[str, Any] = {
            "data.split.test": 0.0,
            "data.split.valid": float(self.valid),
            "training.seed": self._seed(),
        }
        if targets:
            chosen["data.target"] = targets
        named = {"training.steps": self.steps, "training.epochs": self.epochs, "training.minutes": self.minutes,
                 "training.batch_size": self.batch_size, "training.optimizer.lr": self.lr}  # fmt: skip
        chosen |= {path: simple(value) for path, value in named.items() if value is not None}
        chosen |= self._parts() | dict(asked) | given | ({"data.types": types} if types else {})
        request = Request(
            source, task=self.task, preset=self.preset, start=None if self.start is None else Path(self.start),
            device=self.device, settings=chosen, command=f"{type(self).__name__}.fit(...)",
            lenient=True,
        )  # fmt: skip
        keep = None if self.keep is None else Path(self.keep)
        found = learn(request, keep, quiet=bool(self.quiet), check=self._check_columns)
        self.predictor_: Predictor = found.predictor
        self.history_: list[dict[str, Any]] = found.history
        self.n_iter_: int = found.steps
        self.run_ = found.run
        preprocess = found.predictor.preprocess
        target = None if preprocess is None else preprocess.target
        self.target_: list[str] = list(target.names) if target is not None else []
        self._note_columns(found.facts)

    def _seed(self) -> int:
        """The seed of a fit."""
        if self.random_state is None or isinstance(self.random_state, int | np.integer):
            return int(self.random_state or 0)
        from sklearn.utils import check_random_state

        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _parts(self) -> dict[str, Any]:
        """The individually chosen parts of the model, as settings."""
        found = {}
        for name, part in (("norm", self.norm), ("mixer", self.mixer), ("relative", self.position)):
            if part is None:
                continue
            if name == "relative" and is_absolute(part):
                for stack in self.stacks:
                    found[f"model.{stack.replace('stack', 'embed')}.position"] = part
            else:
                for stack in self.stacks:
                    found[f"model.{stack}.block.{name}"] = part
        return found

    def _check_columns(self, facts: dict[str, Any]) -> None:
        """Reject columns of a kind that this estimator does not support."""
        for name, column in facts.get("columns", {}).items():
            if self.kinds and column["kind"] not in self.kinds:
                raise UserError(
                    f"the column {name!r} holds {column['kind']}, which {type(self).__name__} does not read",
                    where="X", fix=f"use {self.other}, or settings={{'data.types': ['{name}=skip']}}",
                )  # fmt: skip

    def _note_columns(self, facts: dict[str, Any]) -> None:
        """Record the columns of a file, which only training has read."""
        if getattr(self, "n_features_in_", None) is None and "columns" in facts:
            names = [name for name in (*facts["columns"], *facts["dropped"]) if name not in self.target_]
            self.feature_names_in_ = np.array(names, dtype=object)
            self.n_features_in_ = len(names)

    # ------------------------------------------------------------ answers

    def _answers(self, source: Any) -> Answers:
        """Predictions for rows of a frame or of files."""
        predictor = self.predictor_
        preprocess = predictor.preprocess
        alone = None if preprocess is None else only_modality(preprocess.parts)
        if alone is not None and alone.in_double and predictor.device.type == "cpu":
            predictor = to_double(predictor)
        return answer(predictor, source, batch_size=BATCH)

    # ------------------------------------------------------------ saving

    def save(self, folder: str | Path) -> Path:
        """Save a model folder that `load`, `anyformer.load` and the command line can open; plain files, no pickle."""
        check_is_fitted(self, "predictor_")
        path = self.predictor_.save(folder)
        facts = {"type": type(self).__name__, "params": plain_params(self.get_params(deep=False))} | self._facts()
        (path / FILE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu") -> Any:
        """The estimator that `save` wrote."""
        facts = read_json(inside(Path(folder), FILE))
        kind = str(facts.get("type"))[:40]
        if kind != cls.__name__:
            raise UserError(f"the folder holds a {kind}", where=str(folder), fix=f"use {kind}.load")
        made = cls()
        try:
            made.set_params(**facts["params"], device=device)
            made.predictor_ = load(folder, device=device)
            made.history_, made.run_ = [], None
            made.n_iter_, made.target_ = int(facts["steps"]), [str(name) for name in facts["target"]]
            made._put_facts(facts)
        except UserError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"not as it was written ({short(error)})", where=FILE, fix="copy it again") from None
        return made

    def _facts(self) -> dict[str, Any]:
        """The state of a fitted estimator besides its model, as JSON-compatible values."""
        names = getattr(self, "feature_names_in_", None)
        return {"steps": self.n_iter_, "target": self.target_, "features": getattr(self, "n_features_in_", None),
                "names": None if names is None else list(names)}  # fmt: skip

    def _put_facts(self, facts: Mapping[str, Any]) -> None:
        if facts["features"] is not None:
            self.n_features_in_ = facts["features"]
        if facts["names"] is not None:
            self.feature_names_in_ = np.array(facts["names"], dtype=object)

    def __getstate__(self) -> dict[str, Any]:
        """Parameters and arrays unchanged; the model as the bytes of its folder."""
        state: dict[str, Any] = dict(super().__getstate__())
        found = state.pop("predictor_", None)
        if found is not None:
            state["_files"] = save_files(found)
            state["run_"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        files = state.pop("_files", None)
        super().__setstate__(state)
        if files is not None:
            self.predictor_ = open_files(files, self.device)

    def __sklearn_is_fitted__(self) -> bool:
        return "predictor_" in vars(self)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # missing cells are supported
        return tags


def is_absolute(part: str | Spec) -> bool:
    """Whether a position encoding is added to the embedding rather than used inside attention."""
    if isinstance(part, str):
        return part in {kind.__name__ for kind in subclasses(Position)}
    return isinstance(part, Position)


def to_double(predictor: Predictor) -> Predictor:
    """Convert the model to float64, so that a row's prediction does not depend on the other rows of its batch."""
    model = copy.deepcopy(predictor.model).double()
    return replace(predictor, opened=replace(predictor.opened, model=model))


def simple(value: Any) -> Any:
    """A numpy scalar, as from a search over an array of values, as a Python number."""
    return value.item() if isinstance(value, np.generic) else value


def plain_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as JSON-compatible values, without `keep` and `device`, which belong to one machine."""
    found = {name: plain(simple(value)) for name, value in params.items() if name not in ("keep", "device")}
    found["start"] = None if params["start"] is None else str(params["start"])
    if params["settings"] is not None:
        found["settings"] = {path: plain(simple(value)) for path, value in params["settings"].items()}
    if not isinstance(found["random_state"], int):
        found["random_state"] = None
    return found
