"""Column importance: the score of a fitted model with that column's cells set to missing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anyformer.data.frame import Frame
from anyformer.safe_files import scratch_folder


@dataclass(frozen=True)
class Ablation:
    """`whole` is the score with all columns, `without` the score without each; prints as a table."""

    whole: float
    without: dict[str, float]

    def __str__(self) -> str:
        width = max(len(name) for name in ("all columns", *(f"without {name}" for name in self.without)))
        lines = [f"{'all columns':<{width}}  {self.whole:.3f}"]
        for name, score in sorted(self.without.items(), key=lambda item: item[1]):
            lines.append(f"{f'without {name}':<{width}}  {score:.3f}  {score - self.whole:+.3f}")
        return "\n".join(lines)


def ablate(estimator: Any, source: Frame | list[Path], y: Any) -> Ablation:
    """Score a fitted estimator with all columns, then without each of its input columns."""
    import pyarrow as pa

    preprocess = estimator.predictor_.preprocess
    frame = source if isinstance(source, Frame) else read(source, preprocess)
    without = {}
    for column in preprocess.columns or ():
        at = frame.names.index(column.name)
        kind = frame.table.schema.field(at)
        empty = frame.table.set_column(at, kind, pa.nulls(len(frame), kind.type))
        without[column.name] = estimator.score(replace(frame, table=empty), y)
    return Ablation(estimator.score(frame, y), without)


def read(files: list[Path], preprocess: Any) -> Frame:
    """The rows of files in memory."""
    from anyformer.data.settings import Data
    from anyformer.tasks.prepare import read_new_rows

    with scratch_folder() as cache:
        frame, _ = read_new_rows(files, preprocess, Data(), cache)
        return replace(frame, table=frame.table.take(list(range(len(frame)))))
