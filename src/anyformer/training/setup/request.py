"""The user's request, before the data is read: files, flags, a settings file, `--set`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyformer.data.settings import Data
from anyformer.errors import UserError, did_you_mean
from anyformer.objectives import Distill, Objective
from anyformer.objectives.teachable import Teachable
from anyformer.safe_files import check_output_name
from anyformer.slots import Network
from anyformer.spec import Spec, children, fields_of, replace_in
from anyformer.tasks import all_tasks, find
from anyformer.training.settings import Training
from anyformer.training.setup.setting_paths import is_setting, owners_of, suggestion

LISTS = ("data.target", "data.inputs", "data.types", "data.split.valid_file", "data.split.test_file",
         "training.freeze", "training.lora.targets", "training.lora.trained")  # fmt: skip


@dataclass
class Request:
    """One requested training. `settings` are dotted paths: {"training.save_every": 10, "model.stack.depth": 8}.

    Errors that can be found without the data are raised here, before a file is opened.
    """

    source: Any  # a list of paths, or data in Python
    task: str | None = None
    preset: str | Network | None = None  # a name, or a user's network
    start: Path | None = None
    pretrain: str | None = None  # the task of a pretraining stage
    out: Path | None = None
    device: str = "auto"
    settings: dict[str, Any] = field(default_factory=dict)
    command: str = ""  # the equivalent command line
    places: dict[str, str] = field(default_factory=dict)  # where a setting was written: run.yaml:4
    lenient: bool = (
        False  # settings that this data has no use for are left in peace: an estimator keeps its own for all
    )

    def __post_init__(self) -> None:
        for name in LISTS:  # one name may stand for a list of one
            if isinstance(self.settings.get(name), str):
                self.settings[name] = (self.settings[name],)
        try:
            self.check()
        except UserError as error:
            raise self.placed(error) from None

    @property
    def teacher(self) -> Path | None:
        """The teacher's model folder or run, for distillation."""
        named = self.settings.get("objective.teacher")
        return Path(named) if isinstance(named, str) and named else None

    def check(self) -> None:
        """Reject unknown names, invalid values and an output folder that cannot be written."""
        task = None if self.task is None else find(self.task)
        if task is not None and task.needs_teacher and self.teacher is None:
            raise UserError(f"{task.title} needs a teacher", where="--task", fix="add --teacher FOLDER")
        for path in self.settings:
            if not is_setting(path):
                raise UserError("no such setting", where=path[:100], fix=suggestion(path))
        for path in LISTS:
            names = self.settings.get(path)
            twice = [name for name in names if list(names).count(name) > 1] if isinstance(names, tuple | list) else []
            if twice:
                raise UserError(f"{twice[0]!r} is given twice", where=path, fix="name it once")
        if task is not None and not task.has_target and self.settings.get("data.target"):
            raise UserError(f"a {task.title} has no target", where="data.target",
                            fix="leave it out, or say --task classify")  # fmt: skip
        self.data()
        replace_paths(Training(), self.section("training"), "training")
        self.check_objective()
        if self.preset is not None:
            self.check_preset(self.preset)
        if self.out is not None:
            check_place(self.out)
        for path in self.source if isinstance(self.source, list) else ():
            if isinstance(path, Path):
                check_name(path)

    def check_objective(self) -> None:
        """The objective's settings must fit the task, or some task if none is given."""
        wanted = self.section("objective")
        tasks = [find(self.task)] if self.task else all_tasks()
        if any(task.needs_teacher for task in tasks):
            tasks = all_tasks()
        problems: list[UserError] = []
        for task in tasks if wanted else ():
            try:
                replace_paths(self.taught(task.objective()), wanted, "objective")
                return
            except UserError as error:
                problems.append(error)
        if problems:  # an invalid value is more helpful than a setting that only another task has
            raise min(problems, key=lambda error: " has no '" in error.what)

    def taught(self, objective: Objective) -> Objective:
        """The task's objective, wrapped for distillation if there is a teacher."""
        if self.teacher is None or not isinstance(objective, Teachable):
            return objective
        return Distill(student=objective)

    def check_preset(self, given: Any) -> None:
        from anyformer.presets import PRESETS

        if not isinstance(given, str | Network):
            raise UserError(f"{type(given).__name__} is neither a name nor the spec of a network", where="preset",
                            fix="give a name of anyformer.preset_names(), or Model(...)")  # fmt: skip
        if isinstance(given, str) and given not in PRESETS:
            fix = did_you_mean(given, PRESETS)
            raise UserError(f"unknown preset {given[:80]!r}", where="--preset",
                            fix=fix if "did you mean" in fix else "see: anyformer presets")  # fmt: skip
        if self.start is not None:
            raise UserError("both --preset and --from are given", where="--preset", fix="give one of them")
        early = ("stack", "encoder", "decoder", "init")
        inner = {path: value for path, value in self.section("model").items() if path.startswith(early)}
        replace_paths(self.network(), inner, "model")

    def network(self) -> Network:
        """The requested network, before it is adapted to the data."""
        from anyformer.presets import preset

        assert self.preset is not None
        return preset(self.preset) if isinstance(self.preset, str) else self.preset

    def section(self, name: str) -> dict[str, Any]:
        """The settings of one section, without its prefix."""
        return {path.partition(".")[2]: value for path, value in self.settings.items() if path.startswith(f"{name}.")}

    def data(self, default: Data | None = None) -> Data:
        """The data settings, on top of the task's defaults."""
        return replace_paths(default or Data(), self.section("data"), "data")

    def placed(self, error: UserError) -> UserError:
        """Add the file and line of the setting that the error is about, if it came from a file."""
        if type(error) is not UserError:
            return error
        fits = [path for path in self.places if error.where == path or error.where.startswith((f"{path}.", f"{path}["))]
        if not fits:
            return error
        place = self.places[max(fits, key=len)]
        return UserError(error.what, where=f"{place} {error.where}", fix=error.fix, details=error.details)


def replace_paths(spec: Spec, changes: Mapping[str, Any], where: str) -> Any:
    """Replace values at dotted paths of a spec; errors name the full path of the wrong setting."""
    if not changes:
        return spec
    try:
        return replace_in(spec, changes)
    except UserError as error:
        culprit = first_wrong(spec, changes)
        path, first = culprit if culprit is not None else ("", error)
        raise explain_error(first, spec, changes, where, path) from None


def first_wrong(spec: Spec, changes: Mapping[str, Any]) -> tuple[str, UserError] | None:
    """The first change that is invalid together with those before it."""
    so_far: dict[str, Any] = {}
    for path, value in changes.items():
        so_far[path] = value
        try:
            replace_in(spec, so_far)
        except UserError as error:
            return path, error
    return None


def explain_error(error: UserError, spec: Spec, changes: Mapping[str, Any], section: str, path: str) -> UserError:
    """Rewrite a spec's error in terms of setting paths, and suggest the part that has a missing setting."""
    if not path:
        return error if error.where.startswith(section) else error.inside(section)
    whole = f"{section}.{path}"
    if "has no setting" not in error.what or not is_setting(whole):
        return UserError(error.what, where=whole, fix=error.fix, details=error.details)
    part, _, named = error.what.replace(" has no settings inside", "").partition(" has no setting ")
    steps = path.split(".")
    lacking = next((at for at, step in enumerate(steps) if repr(step.partition("[")[0]) == named), len(steps) - 1)
    place = ".".join(steps[: lacking + 1])  # the path up to the first missing name
    value = {path: changes[path]} if lacking == len(steps) - 1 else {}
    return UserError(f"{part} has no {steps[lacking]!r}", where=whole, fix=way_to_have(spec, value, section, place))


def way_to_have(spec: Spec, changes: Mapping[str, Any], section: str, path: str) -> str:
    """Suggest how to get a setting that the part at its path lacks: another path, or another part that fits there."""
    parent, _, name = path.rpartition(".")
    elsewhere = list(places_of(spec, name))
    inside = next((place for place in elsewhere if place.startswith(f"{parent}.")), None)
    if inside is not None:
        return f"did you mean '{section}.{inside}'?"
    owners = owners_of(f"{section}.{path}")
    # The data determines embedding and head, so another part there would not fit.
    if parent not in ("", "embed", "head"):
        for owner in owners:
            with suppress(UserError):
                replace_in(spec, {parent: {"type": owner}, **changes})
                return f"set {section}.{parent}={owner} first"
    if elsewhere:
        return f"did you mean '{section}.{elsewhere[0]}'?"
    return f"it belongs to {' and '.join(owners[:3])}"


def places_of(spec: Spec, name: str, above: str = "") -> Iterator[str]:
    """The paths of every setting of this name in a tree."""
    if name in fields_of(type(spec)):
        yield f"{above}{name}"
    for field_name in fields_of(type(spec)):
        for inner, child in children(field_name, getattr(spec, field_name)):
            yield from places_of(child, name, f"{above}{inner}.")


def check_name(path: Path) -> None:
    """Reject a file name that cannot be opened; whether the file exists is checked when it is read."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it holds a NUL"
        shown = str(path).replace("\0", "?")
        shown = shown if len(shown) <= 120 else f"{shown[:117]}..."
        raise UserError(f"the file cannot be opened ({why})", where=shown, fix="check the name") from None


def check_place(path: Path) -> None:
    """Reject an output folder that could not be created."""
    check_output_name(path, "--out")
    above = next((parent for parent in (path.parent, *path.parent.parents) if parent.exists()), None)
    if above is not None and not above.is_dir():
        raise UserError(
            f"{above} is a file, so no folder can be in it", where=f"--out {path}", fix="give another --out"
        )
    if above is not None and not os.access(above, os.W_OK):
        raise UserError(f"{above} may not be written to", where=f"--out {path}", fix="give another --out")
