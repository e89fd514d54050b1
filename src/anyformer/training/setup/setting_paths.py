"""Setting paths such as `training.batch_size` and `model.stack.depth`: which exist, and suggestions for typos."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from anyformer.core.model import Model, Seq2Seq
from anyformer.core.streams import Streams
from anyformer.data.settings import Data
from anyformer.errors import did_you_mean, nearest, one_edit
from anyformer.nets.sagan import SAGAN
from anyformer.other_names import setting_called
from anyformer.spec import Spec, fields_of, slots_in, subclasses
from anyformer.tasks import all_tasks
from anyformer.training.settings import Training

SECTIONS = ("data", "model", "objective", "training")
WHOLE_SECTIONS = {
    "data": "name one of its settings, such as data.tokenizer.max_length=256",
    "model": "name a model by --preset, or one of its settings, such as model.stack.depth=4",
    "objective": "name one of its settings, such as objective.label_smoothing=0.1",
    "training": "name one of its settings, such as training.batch_size=16",
}
DEEPEST = 6  # nesting depth that is listed


def roots(section: str) -> list[type[Spec]]:
    """The parts a section may hold."""
    if section == "model":
        return [Model, Seq2Seq, Streams, SAGAN]
    if section == "objective":
        return [task.objective for task in all_tasks()]
    known: dict[str, list[type[Spec]]] = {"data": [Data], "training": [Training]}
    return known.get(section, [])


def inside(kinds: Iterable[type[Spec]], name: str) -> list[type[Spec]] | None:
    """The parts that the setting `name` of any of these parts may hold; None where none of them has it."""
    owners = [kind for kind in kinds if name in fields_of(kind)]
    if not owners:
        return None
    return parts_of(slot for kind in owners for slot in slots_in(fields_of(kind)[name]))


def parts_of(slots: Iterable[type[Spec]]) -> list[type[Spec]]:
    """Every concrete part that fits some slots, each once."""
    found = [part for slot in slots for part in (slot, *subclasses(slot)) if not part.abstract]
    return list(dict.fromkeys(found))


def is_setting(path: str) -> bool:
    """Whether any combination of parts has this setting.

    >>> is_setting("training.optimizer.momentum"), is_setting("training.momentum")
    (True, False)
    """
    section, _, rest = path.partition(".")
    kinds = roots(section)
    if not kinds or not rest:
        return False
    for step in rest.split("."):
        found = inside(kinds, re.sub(r"\[-?\d+\]$", "", step))
        if found is None:
            return False
        kinds = found
    return True


def owners_of(path: str) -> list[str]:
    """Names of the parts that have the setting at the end of a path."""
    section, *steps = path.split(".")
    kinds = roots(section)
    for step in steps[:-1]:
        kinds = inside(kinds, re.sub(r"\[-?\d+\]$", "", step)) or []
    return [kind.__name__ for kind in kinds if steps[-1] in fields_of(kind)]


@lru_cache(maxsize=1)
def setting_paths() -> tuple[str, ...]:
    """Every setting by its full path, shallow ones first; recursive parts are listed once."""
    found: dict[str, None] = {}
    for section in SECTIONS:
        for path in below(roots(section), section, ()):
            found[path] = None
    return tuple(sorted(found, key=lambda path: (path.count("."), path)))


def below(kinds: Iterable[type[Spec]], path: str, seen: tuple[type[Spec], ...]) -> Iterator[str]:
    for kind in kinds:
        if kind in seen or path.count(".") >= DEEPEST:
            continue
        for name, annotated in fields_of(kind).items():
            yield f"{path}.{name}"
            yield from below(parts_of(slots_in(annotated)), f"{path}.{name}", (*seen, kind))


def suggestion(path: str) -> str:
    """The fix for a misspelt path: the setting it most likely meant.

    >>> suggestion("training.bach"), suggestion("batch"), suggestion("trainig.steps")
    ("did you mean 'training.batch_size'?", "did you mean 'training.batch_size'?", "did you mean 'training.steps'?")
    >>> suggestion("data.words.kind")
    "did you mean 'data.tokenizer.kind'?"
    """
    if path.strip(".") in SECTIONS:
        return WHOLE_SECTIONS[path.strip(".")]
    known = setting_paths()
    parent, _, last = path.rpartition(".")
    last = last.lower()
    near = next((name for name in known if one_edit(path, name)), None) or setting_called(path.lower())
    renamed = f"{setting_called(parent)}.{last}"
    near = renamed if near is None and renamed in known else near
    if near is None:  # the setting's name without its section, or in another one
        same = [name for name in known if name.rpartition(".")[2] == last]
        near = (nearest(path, same) or same[0]) if same else None
    names = [name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == parent]
    if near is None and names:  # only the last name is wrong
        inside = nearest(last, names)
        return f"did you mean '{parent}.{inside}'?" if inside is not None else did_you_mean(last, names)
    near = near or nearest(path, known)
    return f"did you mean {near!r}?" if near is not None else "they begin with data., model., objective. or training."
