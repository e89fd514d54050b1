"""The library's user-facing error: what is wrong, where, and the smallest fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Exit codes of the command line, the same for every command.
DONE, OUR_BUG, USER_ERROR, DIVERGED, RESOURCES, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 4, 130, 143


class UserError(ValueError):
    """An error in user input; its first line alone says what, where and how to fix it.

    >>> str(UserError("width 770 is not divisible by heads 12", where="model.stack", fix="use width 768"))
    'model.stack: width 770 is not divisible by heads 12; use width 768'
    """

    exit_code = USER_ERROR

    def __init__(self, what: str, *, where: str = "", fix: str = "", details: Iterable[str] = ()) -> None:
        self.what, self.where, self.fix, self.details = clipped(what), clipped(where), clipped(fix), tuple(details)
        super().__init__(self.line)

    @property
    def line(self) -> str:
        """The whole message on one line."""
        place = f"{self.where}: " if self.where else ""
        remedy = f"; {self.fix}" if self.fix else ""
        return f"{place}{self.what}{remedy}"

    def inside(self, where: str) -> UserError:
        """The same error with an outer level prepended to its path, for nested settings."""
        path = f"{where}.{self.where}" if self.where else where
        return type(self)(self.what, where=path.replace(".[", "["), fix=self.fix, details=self.details)


LONGEST = 300  # characters of each part: a message may quote a file, and a file may hold anything


def clipped(text: str) -> str:
    """The text on one line, with its middle elided if too long.

    >>> len(clipped("x" * 10_000)) <= LONGEST
    True
    """
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 4 :]}"
    return " ".join(text.splitlines())


class UnfitNetwork(UserError):
    """A preset, or a model to start from, that a task cannot train."""


class Diverged(UserError):
    """Training met a value that is not finite; the weights were not updated with it."""

    exit_code = DIVERGED


class NoRoom(UserError):
    """Out of disk space or memory."""

    exit_code = RESOURCES


class Stopped(UserError):
    """A run was asked to stop, and has saved its state."""

    exit_code = INTERRUPTED

    def __init__(self, what: str, *, code: int = INTERRUPTED) -> None:
        super().__init__(what)
        self.exit_code = code


class AlreadyReported(Exception):
    """Another process of the same training has reported the error; this one exits silently with the same code."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"reported by another process (exit code {exit_code})")
        self.exit_code = exit_code


def check_range(
    part: str, name: str, value: float | None, least: float, most: float | None = None, *, fix: str
) -> None:
    """Raise an error for a number outside the inclusive bounds, naming its setting; None passes.

    >>> check_range("Stack", "depth", -1, 0, fix="use 4")
    Traceback (most recent call last):
    anyformer.errors.UserError: Stack.depth: depth -1 is below 0; use 4
    """
    if value is not None and value < least:
        raise UserError(f"{name} {value} is below {least}", where=f"{part}.{name}", fix=fix)
    if value is not None and most is not None and value > most:
        raise UserError(f"{name} {value} is above {most}", where=f"{part}.{name}", fix=fix)


def check_at_least(part: str, name: str, value: float | None, least: float, *, fix: str) -> None:
    """Raise an error for a number below its minimum, naming its setting; None passes.

    >>> check_at_least("Attention", "heads", 0, 1, fix="use 8")
    Traceback (most recent call last):
    anyformer.errors.UserError: Attention.heads: heads 0 is below 1; use 8
    """
    check_range(part, name, value, least, fix=fix)


def check_fraction(
    part: str, name: str, value: float | None, *, zero: bool = True, one: bool = False, fix: str
) -> None:
    """Raise an error for a number outside 0 to 1, naming its setting; `zero` and `one`: whether these are allowed.

    >>> check_fraction("MLP", "dropout", 2, fix="use 0.1")
    Traceback (most recent call last):
    anyformer.errors.UserError: MLP.dropout: dropout 2 is outside [0, 1); use 0.1
    """
    if value is None or (0 < value < 1) or (zero and value == 0) or (one and value == 1):
        return
    interval = f"{'[' if zero else '('}0, 1{']' if one else ')'}"
    raise UserError(f"{name} {value} is outside {interval}", where=f"{part}.{name}", fix=fix)


MOST = 12  # names listed if none is near


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice most likely meant by `name`, or None.

    >>> nearest("detph", ["depth", "width"])
    'depth'
    """
    known = list(choices)
    slip = [choice for choice in known if one_edit(name, choice)]
    if slip:
        return slip[0]
    by_lower = {choice.lower(): choice for choice in known}
    match = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[match[0]] if match else None


def one_edit(a: str, b: str) -> bool:
    """Whether two words differ by one insertion, deletion, substitution or transposition.

    >>> one_edit("detph", "depth"), one_edit("dpth", "depth"), one_edit("dt", "depth")
    (True, True, False)
    """
    a, b = a.lower(), b.lower()
    if abs(len(a) - len(b)) > 1:
        return False
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    rest_a, rest_b = a[start:], b[start:]
    if len(a) != len(b):
        longer, shorter = (rest_a, rest_b) if len(a) > len(b) else (rest_b, rest_a)
        return longer[1:] == shorter
    return rest_a[1:] == rest_b[1:] or (rest_a[:2] == rest_b[1::-1] and rest_a[2:] == rest_b[2:])


def told_apart(name: str, near: str) -> str:
    """A hint at the first differing character if it is not ASCII, for look-alikes.

    >>> told_apart("age", "\u0430ge"), told_apart("age", "Age")
    (' (its character 1 is U+0430)', '')
    """
    at = next((i for i, (x, y) in enumerate(zip(name, near, strict=False)) if x != y), min(len(name), len(near)))
    letter = near[at : at + 1]
    return f" (its character {at + 1} is U+{ord(letter):04X})" if letter and not letter.isascii() else ""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """A hint for an error: the nearest name, or all names if none is near."""
    known = sorted(set(choices))
    near = nearest(name, known)
    if near is not None:
        return f"did you mean {near!r}{told_apart(name, near)}?"
    if not known:
        return "nothing is allowed here"
    shown = ", ".join(repr(choice) for choice in known[:MOST])
    return f"expected one of {shown}" + (f" and {len(known) - MOST} more" if len(known) > MOST else "")
