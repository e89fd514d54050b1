"""Splitting into training, validation and test rows: a pure function of the rows' contents and the seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from anyformer.data.columns.cells import factorize
from anyformer.data.columns.convert import days
from anyformer.data.columns.look import look
from anyformer.data.columns.parsed import Parsed
from anyformer.data.columns.written import numbers_written
from anyformer.data.decision import Decision, Input, name_of
from anyformer.data.frame import Frame
from anyformer.data.settings import Split
from anyformer.errors import UserError, did_you_mean

TRAIN, VALID, TEST = 0, 1, 2
SIDES = ("train", "valid", "test")
FREE = -1  # a row whose split is still to be drawn
SPELLED = {
    "train": TRAIN, "training": TRAIN, "tr": TRAIN, "trn": TRAIN, "fit": TRAIN,
    "valid": VALID, "validation": VALID, "val": VALID, "dev": VALID, "development": VALID, "eval": VALID,
    "test": TEST, "testing": TEST, "tst": TEST, "holdout": TEST,
}  # fmt: skip
ENOUGH = 4  # rows from which on at least one is held out


@dataclass
class Sides:
    """The split of every row, with notes on it."""

    side: np.ndarray  # (N,) int8
    duplicates: int = 0  # rows whose inputs equal those of another row
    notes: list[str] = field(default_factory=list)
    stratified: bool = False  # whether each split has the same class frequencies
    by_file: str = ""  # which splits are given by files, if any
    draws_valid: bool = False  # whether a given split lacks validation rows

    def rows(self, side: int) -> np.ndarray:
        """The rows of one split, in the order of the file."""
        return np.flatnonzero(self.side == side)


def split(
    frame: Frame,
    decision: Decision,
    settings: Split,
    seed: int,
    *,
    fixed: np.ndarray | None = None,
    same: np.ndarray | None = None,
    parsed: Parsed | None = None,
) -> Sides:
    """Split the rows. `fixed` has the split of rows assigned by file; `same` is equal for rows with equal files."""
    same = equal_rows(frame, decision.inputs, parsed or Parsed(frame), same)
    found = Sides(np.full(len(frame), TRAIN, np.int8), int(len(same) - 1 - same.max(initial=-1)))
    side = np.full(len(frame), FREE, np.int8) if fixed is None else fixed.copy()
    given = fixed is not None or settings.column is not None
    if settings.column is not None:
        free = side == FREE
        side[free] = read_sides(frame, settings.column)[free]
    open_rows = np.flatnonzero((side == FREE) | (side == TRAIN)) if given else np.arange(len(frame))
    # Given splits are kept; only a missing validation split is drawn, since training needs one.
    shares = (settings.valid, settings.test)
    if given:
        shares = (0.0 if (side == VALID).any() else settings.valid, 0.0)
    found.draws_valid = given and shares[0] > 0
    if fixed is not None:
        found.by_file = "test by file, valid drawn from the rest" if shares[0] else "by file"
    side[open_rows] = TRAIN
    classes = None if settings.group is not None or not settings.stratify else decision.task.strata(frame, decision)
    found.stratified = classes is not None
    if len(open_rows) and any(shares):
        if settings.time is not None:
            drawn = by_time(frame, settings.time, open_rows, same, shares, found.notes)
        else:
            units = same[open_rows]
            if settings.group is not None:
                units = join_groups(factorize(frame.column(settings.group))[0][open_rows], units)
            drawn = by_lot(units, None if classes is None else classes[open_rows], shares, seed)
            if settings.group is not None and len(np.unique(units)) < 1 + sum(share > 0 for share in shares):
                raise UserError(
                    f"{settings.group} has too few groups to split ({len(np.unique(units))})", where="--group",
                    fix="give --valid FILE, or leave --group out",
                )  # fmt: skip
        side[open_rows] = drawn
    found.side = side.astype(np.int8)
    shared = crossing(found.side, same)
    if shared and (given or settings.time is not None):
        which = "row has" if shared == 1 else "rows have"
        found.notes.append(f"{shared:,} held-out {which} the same inputs as a training row: scores flatter")
    enough(frame, decision, found)
    return found


def equal_rows(frame: Frame, inputs: Sequence[Input], parsed: Parsed, known: np.ndarray | None = None) -> np.ndarray:
    """Numbers (N,), equal for rows with equal input cells and equal `known` numbers (of files)."""
    mark = np.zeros(len(frame), np.uint64)
    draw = np.random.default_rng(0)
    for column in [*inputs, None]:
        codes = known if column is None else column.column.marks(parsed, column.name, column.facts.form)
        if codes is not None:
            odd = draw.integers(2**63, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
            mark = (mark ^ (codes.astype(np.uint64) + np.uint64(1))) * odd
            mark ^= mark >> np.uint64(29)
    return np.unique(mark, return_inverse=True)[1].reshape(-1)


def join_groups(groups: np.ndarray, same: np.ndarray) -> np.ndarray:
    """The connected components of rows linked by group or by equal inputs."""
    groups = np.unique(np.where(groups < 0, len(groups) + np.arange(len(groups)), groups), return_inverse=True)[1]
    same = np.unique(same, return_inverse=True)[1]
    unit = np.arange(len(groups))
    while True:
        before = unit
        for key in (groups.reshape(-1), same.reshape(-1)):
            least = np.full(int(key.max(initial=-1)) + 1, len(unit))
            np.minimum.at(least, key, unit)
            unit = least[key]
        if np.array_equal(before, unit):
            return unit


def by_lot(units: np.ndarray, classes: np.ndarray | None, shares: tuple[float, float], seed: int) -> np.ndarray:
    """A random split by whole units, stratified by class, with every class in training."""
    units = compact(units)
    sizes = np.bincount(units)
    first = np.zeros(len(sizes), np.int64)
    first[units[::-1]] = np.arange(len(units))[::-1]
    classes = np.zeros(len(units), np.int64) if classes is None else classes
    kinds, of_unit = np.unique(classes[first], return_inverse=True)
    totals = np.bincount(of_unit, sizes, len(kinds)).astype(np.int64)
    quota = quotas(totals, len(units), shares)
    order = np.random.default_rng((seed, 0)).permutation(len(sizes))
    side = np.full(len(sizes), TRAIN, np.int8)
    left = quota.tolist()  # [split][class]: rows still to be assigned
    waiting = int(quota.sum())
    for unit, kind, size in zip(order.tolist(), of_unit[order].tolist(), sizes[order].tolist(), strict=True):
        if waiting == 0:
            break
        for to in (VALID, TEST):
            if size <= left[to - 1][kind]:
                left[to - 1][kind] -= size
                waiting -= size
                side[unit] = to
                break
    for to in (VALID, TEST):  # units too large for any quota: take the smallest, if others remain in training
        if shares[to - 1] > 0 and not (side == to).any():
            spare = [u for u in np.argsort(sizes, kind="stable").tolist() if side[u] == TRAIN]
            spare = [u for u in spare if sizes[u] < totals[of_unit[u]]]
            if len(spare) > 1 and len(units) >= ENOUGH:
                side[spare[0]] = to
    return side[units]


def compact(numbers: np.ndarray) -> np.ndarray:
    """The numbers relabelled from 0 without gaps, in order."""
    if len(numbers) and numbers.min() == 0 and (np.bincount(numbers) > 0).all():
        return numbers
    return np.unique(numbers, return_inverse=True)[1].reshape(-1)


def quotas(totals: np.ndarray, rows: int, shares: tuple[float, float]) -> np.ndarray:
    """Rows of each class for validation and test (2, classes): by largest remainder, at least one left for training."""
    found = np.zeros((2, len(totals)), np.int64)
    left = totals - 1
    for number, share in enumerate(shares):
        if share <= 0:
            continue
        exact = totals * share
        wanted = max(round(rows * share), 1 if rows >= ENOUGH else 0)
        base = np.minimum(np.floor(exact).astype(np.int64), left)
        rest = np.where(left > base, exact - base, -1.0)
        for kind in np.argsort(-rest, kind="stable")[: max(0, wanted - int(base.sum()))].tolist():
            if rest[kind] >= 0:
                base[kind] += 1
        found[number] = base
        left = left - base
    return found


def by_time(
    frame: Frame, name: str, rows: np.ndarray, same: np.ndarray, shares: tuple[float, float], notes: list[str]
) -> np.ndarray:
    """The earliest rows are for training, then validation, then test; rows with equal inputs count as the latest."""
    facts = look(Frame(frame.table.select([name])), {})[name]
    if facts.column.is_time:
        moments = days(frame.column(name), facts.form or None)
        when = np.where(np.isnat(moments), np.nan, moments.astype("datetime64[s]").astype(np.int64).astype(np.float64))
    else:
        when = numbers_written(frame.column(name), facts.form if facts.column.is_number else "")
    if not np.isfinite(when).any():
        raise UserError(f"{name} holds neither dates nor numbers", where="--time", fix="name a column of dates")
    lost = int((~np.isfinite(when)).sum())
    if lost:
        notes.append(f"{lost:,} rows without {name} count as the earliest")
    when = np.where(np.isfinite(when), when, -np.inf)[rows]
    units = np.unique(same[rows], return_inverse=True)[1].reshape(-1)
    latest = np.full(int(units.max()) + 1, -np.inf)
    np.maximum.at(latest, units, when)
    order = np.lexsort((np.arange(len(rows)), units, latest[units]))
    counts = [max(round(len(rows) * share), 1 if len(rows) >= ENOUGH else 0) if share > 0 else 0 for share in shares]
    side = np.full(len(rows), TRAIN, np.int8)
    stop = len(rows) - counts[1]
    side[order[stop:]] = TEST
    side[order[stop - counts[0] : stop]] = VALID
    # A unit across a boundary goes to the later split as a whole.
    last = np.zeros(len(latest), np.int8)
    np.maximum.at(last, units, side)
    return last[units]


def read_sides(frame: Frame, name: str) -> np.ndarray:
    """The splits given by a column, in any spelling."""
    codes, words = factorize(frame.column(name))
    table = []
    for code, word in enumerate(words):
        if word.strip().lower() not in SPELLED:
            row = int(np.flatnonzero(codes == code)[0])
            raise UserError(
                f"{word[:40]!r} in column {name} is not a side of a split", where=frame.place(row),
                fix=did_you_mean(word.strip().lower(), SIDES),
            )  # fmt: skip
        table.append(SPELLED[word.strip().lower()])
    if (codes < 0).any():
        row = int(np.flatnonzero(codes < 0)[0])
        raise UserError(f"column {name} is empty", where=frame.place(row), fix="write train, valid or test")
    return np.array([*table, FREE], np.int8)[codes]


def crossing(side: np.ndarray, same: np.ndarray) -> int:
    """The number of held-out rows with the inputs of a training row."""
    trained = np.zeros(int(same.max(initial=-1)) + 1, bool)
    trained[same[side == TRAIN]] = True
    return int((trained[same] & (side != TRAIN)).sum())


def enough(frame: Frame, decision: Decision, sides: Sides) -> None:
    """Reject a training split that nothing can be learned from."""
    train = sides.rows(TRAIN)
    counts = ", ".join(f"{name} {int((sides.side == number).sum()):,}" for number, name in enumerate(SIDES))
    if len(train) < 2:
        raise UserError(f"too few rows to train on ({counts})", where=name_of(frame), fix="give more rows")
    decision.task.check_training_rows(frame, decision, train, counts)
