"""User-defined parts, tasks and column kinds, which are registered by importing their module.

`--import MODULE` on the command line and packages with an entry point in the group `anyformer.parts` are imported
before any work; in Python an `import` does the same. Opening a folder never imports code: the user must name the
module.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Sequence

from anyformer.errors import UserError, did_you_mean

GROUP = "anyformer.parts"
OPTION = "--import"
HINT = " (a part of your own needs --import MODULE)"


def take_imports(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line into the words without `--import MODULE`, which may be anywhere, and the modules.

    >>> take_imports(["train", "--import", "mine", "a.csv", "--import=yours"])
    (['train', 'a.csv'], ['mine', 'yours'])
    """
    rest: list[str] = []
    modules: list[str] = []
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        if name != OPTION:
            rest.append(word)
            continue
        module = value if equals else next(left, "")
        if not module or module.startswith("-"):
            raise UserError("no module is named", where=OPTION, fix="write --import mymodule")
        modules.append(module)
    return rest, modules


def import_modules(names: Sequence[str]) -> None:
    """Import the user's modules, found as by `python -m`: in the working directory, or installed."""
    here = os.getcwd()
    if names and here not in sys.path:
        sys.path.insert(0, here)
    for name in names:
        import_module(name, where=f"{OPTION} {name}")


def import_installed() -> None:
    """Import the parts of installed packages, by their entry points."""
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP):
        import_module(entry.value.partition(":")[0], where=f"the entry point {entry.name!r} of {GROUP}")


def import_module(name: str, *, where: str) -> None:
    """Import one module; any failure is a one-line UserError."""
    if name.endswith(".py") or "/" in name:
        fix = f"write {OPTION} {os.path.basename(name).removesuffix('.py')}, from the folder it lies in"
        raise UserError("a module is named, not a file", where=where, fix=fix)
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        what = f"module {missing!r}" + ("" if missing == name else f", which {name} imports,") + " not found"
        raise UserError(what, where=where, fix="run it from the folder the module lies in, or install it") from None
    except UserError:
        raise
    except Exception as error:  # a user's module may raise anything
        what = f"the module cannot be imported: {type(error).__name__}: {error}"
        raise UserError(what, where=where, fix="fix the module") from error


def modules_outside(kinds: Sequence[type]) -> list[str]:
    """The modules of user-defined classes, without `__main__`, which cannot be imported by name."""
    found = {kind.__module__ for kind in kinds}
    return sorted(name for name in found if name.partition(".")[0] != "anyformer" and name != "__main__")


class UnknownPart(UserError):
    """An unknown part or task; hints at the nearest name, and at --import for one's own."""

    @classmethod
    def named(cls, name: str, what: str, known: Iterable[str], *, where: str) -> UnknownPart:
        """The error for an unknown name."""
        return cls(what, where=where, fix=did_you_mean(name, known) + HINT)

    def of_run(self, modules: Sequence[str]) -> UnknownPart:
        """The same error for a run that lists the modules it needs."""
        missing = [name for name in modules if name not in sys.modules]
        if not missing:
            return self
        fix = f"add {' '.join(f'{OPTION} {name}' for name in missing)}, or import it in Python"
        return UnknownPart(self.what, where=self.where, fix=fix, details=self.details)
