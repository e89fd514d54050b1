"""Two-way name tables: one row per module, with our name, theirs (the family's), and a reversible operation.

Rows match full names and are one-to-one, so their order does not matter; import and export use the same rows. `{i}` is
a layer number, the same on both sides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from anyformer.checkpoints.operations import SAME, Operation
from anyformer.checkpoints.tensors import Entry
from anyformer.errors import UserError, nearest


@dataclass(frozen=True)
class Row:
    """A module (or a single parameter) of ours, and the one or several of theirs that it corresponds to."""

    ours: str
    theirs: str | tuple[str, ...]
    operation: Operation = SAME
    optional: bool = False  # may be missing in the file, then zeros

    @property
    def names(self) -> tuple[str, ...]:
        return (self.theirs,) if isinstance(self.theirs, str) else self.theirs


def rows(*table: tuple[Any, ...]) -> tuple[Row, ...]:
    """Rows from tuples (ours, theirs[, operation[, optional]]), checked one-to-one."""
    made = tuple(Row(*entry) for entry in table)
    for names in ([row.ours for row in made], [name for row in made for name in row.names]):
        twice = sorted(name for name, times in Counter(names).items() if times > 1)
        assert not twice, f"named by two rows: {twice}"
    return made


def under(prefix: str, body: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """The same entries with a prefix on their names, as for the body of a model with a head."""
    for ours, theirs, *rest in body:
        names = tuple(prefix + name for name in theirs) if isinstance(theirs, tuple) else prefix + theirs
        yield ours, names, *rest


@dataclass(frozen=True)
class NamePair:
    """One of our parameters and the tensors that make it up."""

    ours: str
    theirs: tuple[str, ...]
    operation: Operation
    owner: nn.Module  # the parent of the parameter's module, which knows head counts and sizes
    optional: bool = False

    def present(self, entries: Mapping[str, Entry]) -> tuple[str, ...]:
        """The names to read: all, or the existing ones if any one is enough; none for a missing optional row."""
        found = tuple(name for name in self.theirs if name in entries)
        if self.optional and not found:
            return ()
        return found if found and self.operation.any_part else self.theirs


def pair_up(model: nn.Module, table: Sequence[Row]) -> list[NamePair]:
    """Every parameter of the model with its row; each must have exactly one."""
    by_name = {row.ours: row for row in table}
    pairs = []
    for name, _ in model.named_parameters():
        matches = [(by_name[ours], layer, rest) for ours, layer, rest in spellings(name) if ours in by_name]
        if len(matches) != 1:
            raise UserError(
                f"{name} is named by {len(matches)} rows of the family's table", fix="this is a bug in the family"
            )
        row, layer, rest = matches[0]
        theirs = tuple(t.replace("{i}", layer) + rest for t in row.names)
        module_path = row.ours.replace("{i}", layer)
        # A row names a module (the parameter's name is `rest`) or a parameter itself; the owner is its parent.
        owner = model.get_submodule(module_path.rpartition(".")[0])
        pairs.append(NamePair(name, theirs, row.operation, owner, row.optional))
    return pairs


def spellings(name: str) -> Iterator[tuple[str, str, str]]:
    """The row names that may match a parameter: any one number as `{i}`, with or without its last word; and the rest.

    >>> list(spellings("blocks.3.norm.weight"))[1:3]
    [('blocks.{i}.norm.weight', '3', ''), ('blocks.3.norm', '', '.weight')]
    """
    for rest in ("", ".weight", ".bias"):
        if name.endswith(rest):
            words = name.removesuffix(rest).split(".")
            yield ".".join(words), "", rest
            for at, word in enumerate(words):
                if word.isdecimal():
                    yield ".".join([*words[:at], "{i}", *words[at + 1 :]]), word, rest


HINTS, HINTED = 8, 1000  # suggest the nearest name for at most this many names, among at most this many (quadratic)
LISTED = 200  # problems listed


def check(
    model: nn.Module,
    table: Sequence[Row],
    entries: Mapping[str, Entry],
    *,
    ignore: Callable[[str], bool] = lambda name: False,
    where: str = "",
) -> None:
    """Check that the files have exactly the tensors the model needs, with their shapes; all problems are listed.

    The model may be on `meta`, so that mismatches are found before memory is allocated.
    """
    pairs = pair_up(model, table)
    parameters = dict(model.named_parameters())
    used = {name for pair in pairs for name in pair.theirs}
    missing = [name for pair in pairs for name in pair.present(entries) if name not in entries]
    unexpected = [name for name in entries if name not in used and not ignore(name)]
    problems = [
        f"{what} {name}{hint(name, others[:HINTED]) if i < HINTS else ''}"
        for what, names, others in (("missing", missing, unexpected), ("unexpected", unexpected, missing))
        for i, name in enumerate(names)
    ]
    for pair in pairs:
        present = pair.present(entries)
        if all(name in entries for name in present):
            wanted = pair.operation.shapes(tuple(parameters[pair.ours].shape), pair.owner)
            for name, shape in zip(pair.theirs, wanted, strict=True):
                if name not in present:
                    continue
                entry = entries[name]
                if entry.shape != shape:
                    problems.append(f"{name} has shape {entry.shape}, expected {shape}")
                elif not entry.dtype.is_floating_point:
                    problems.append(f"{name} has type {entry.dtype}, expected floating point")
    if problems:
        raise UserError(
            f"{len(problems)} tensors do not fit: {problems[0]}",
            where=where,
            fix="see the list",
            details=problems[:LISTED] + ([f"and {len(problems) - LISTED:,} more"] if problems[LISTED:] else []),
        )


def fill(model: nn.Module, table: Sequence[Row], entries: Mapping[str, Entry]) -> None:
    """Copy every tensor, already checked by `check`, into the model's storage."""
    parameters = dict(model.named_parameters())
    for pair in pair_up(model, table):
        place(parameters[pair.ours], pair, [entries[name] for name in pair.present(entries)])


def place(parameter: nn.Parameter, pair: NamePair, entries: Sequence[Entry]) -> None:
    """Fill a parameter with as few copies as the layouts allow."""
    if not entries and pair.theirs:
        parameter.data.zero_()
        return
    parts = [entry.view() for entry in entries]
    made = pair.operation.pull(parts, pair.owner)
    in_file = {part.untyped_storage().data_ptr() for part in parts}
    if made.untyped_storage().data_ptr() in in_file or (made.dtype, made.device) != (parameter.dtype, parameter.device):
        parameter.data.copy_(made)
    else:  # the operation has already made a new tensor
        parameter.data = made.contiguous()
    del parts, made
    for entry in entries:
        entry.done()


def export(model: nn.Module, table: Sequence[Row]) -> dict[str, Tensor]:
    """The model's tensors by the family's names."""
    parameters = dict(model.named_parameters())
    named: dict[str, Tensor] = {}
    for pair in pair_up(model, table):
        parts = pair.operation.push(parameters[pair.ours].detach(), pair.owner)
        named |= dict(zip(pair.theirs, parts, strict=True))
    return named


def hint(name: str, others: Sequence[str]) -> str:
    near = nearest(name, others) if others else None
    return f" (there is {near})" if near else ""
