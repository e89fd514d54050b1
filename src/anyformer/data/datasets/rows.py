"""Rows of a frame as batches: any mixture of text, table and image columns, stored in arrays on disk."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from anyformer.data.columns.cells import texts
from anyformer.data.counts import UNKNOWN
from anyformer.data.datasets.arrays import Arrays
from anyformer.data.examples import Draw, Examples
from anyformer.data.frame import Frame
from anyformer.data.images.preprocessing import ImageSteps
from anyformer.data.mixing import MixedRows, mix_rows
from anyformer.data.preprocess import Preprocess
from anyformer.data.targets import TaskAnswer
from anyformer.objectives.batch import Batch
from anyformer.objectives.objective import IGNORED
from anyformer.objectives.token_facts import TokenFacts

if TYPE_CHECKING:
    from anyformer.data.settings import Data


class RowExamples(Examples):
    """One split of the rows. `rows` are their indices in the arrays and the frame, which all splits share."""

    def __init__(
        self,
        arrays: Arrays,
        frame: Frame,
        preprocess: Preprocess,
        rows: np.ndarray,
        *,
        pad: int = 0,
        images: ImageSteps | None = None,
        settings: Data | None = None,
        facts: TokenFacts | None = None,
    ) -> None:
        self.arrays, self.preprocess = arrays, preprocess
        self.known: Frame | None = frame
        self.rows, self.pad = np.asarray(rows, np.int64), pad
        self.images, self.settings = images, settings  # the settings contain the augmentation
        self.facts = facts  # facts on the tokens, for masking objectives
        self.modalities = preprocess.modalities

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: np.ndarray) -> RowExamples:
        return RowExamples(self.arrays, self.frame, self.preprocess, self.rows[rows], pad=self.pad, images=self.images,
                           settings=self.settings, facts=self.facts)  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        """Pickle for another process: arrays are mapped again there, rather than sent."""
        state = {name: value for name, value in self.__dict__.items() if name != "lengths"}
        arrays = Arrays(Path(self.arrays.folder))
        arrays.facts = self.arrays.facts
        on_disk = "frame" in arrays.facts
        return state | {"arrays": arrays, "known": None if on_disk else self.known}

    @property
    def frame(self) -> Frame:
        """The original rows of all splits."""
        if self.known is None:
            from anyformer.data.store import open_frame

            self.known = open_frame(self.arrays)
        return self.known

    # ------------------------------------------------------------ batches

    def batch(self, rows: Sequence[int] | np.ndarray, draw: Draw | None = None) -> Batch:
        """These rows as a batch, padded on the right to the longest."""
        chosen = np.asarray(rows, np.int64)
        at = self.rows[chosen]
        if self.preprocess.writes_text:
            inputs, named, targets = self.pair(at, chosen, draw)
        elif "begins" in self.arrays:
            inputs, named = self.inputs(at, chosen, draw)
            targets = self.tags(at, named["mask"])
        else:
            inputs, named = self.inputs(at, chosen, draw)
            targets = self.targets(at)
        return Batch(inputs, targets, torch.from_numpy(chosen.copy()), named)

    def inputs(self, at: np.ndarray, chosen: np.ndarray, draw: Draw | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The model's inputs: those of the only modality, or a tuple with one entry per modality."""
        made = [modality.inputs(self, at, chosen, draw) for modality in self.modalities]
        if len(made) == 1:
            return made[0].inputs, made[0].named
        joint = tuple(one.inputs[0] if len(one.inputs) == 1 else one.inputs for one in made)
        return joint, {"mask": tuple(one.mask for one in made)}

    def padded(self, name: str, at: np.ndarray, fill: int) -> tuple[Tensor, Tensor]:
        """Rows of different lengths as (B, T), and a mask that is True for tokens and False for padding."""
        starts = self.arrays[f"{name}_starts"]
        begin = starts[at]
        length = starts[at + 1] - begin
        span = np.arange(max(1, int(length.max(initial=0))))
        mask = span < length[:, None]
        flat = self.arrays[name]
        found = np.full(mask.shape, fill, np.int64)
        if mask.any():
            found[mask] = flat[(begin[:, None] + span)[mask]]
        return torch.from_numpy(found), torch.from_numpy(mask)

    def targets(self, at: np.ndarray) -> Tensor:
        """Class ids or numbers; rows without a target are ignored by the loss."""
        if "targets" not in self.arrays:  # new rows: placeholders in the shape of the targets
            assert self.preprocess.target is not None
            return torch.from_numpy(self.preprocess.target.absent(len(at)))
        found = torch.from_numpy(np.array(self.arrays["targets"][at]))
        return found if found.is_floating_point() else found.masked_fill(found == UNKNOWN, IGNORED)

    def pair(
        self, at: np.ndarray, chosen: np.ndarray, draw: Draw | None
    ) -> tuple[tuple[Any, ...], dict[str, Any], Tensor]:
        """The encoder's input, the decoder's input (shifted right), and the targets."""
        inputs, named = self.inputs(at, chosen, draw)
        source, mask = inputs if len(inputs) > 1 else inputs[0], named.get("mask")
        start = torch.full((len(at), 1), self.preprocess.start or 0)
        if "answers" not in self.arrays:
            seen = torch.ones_like(start, dtype=torch.bool)
            return (source, start), {"source_mask": mask, "target_mask": seen}, torch.full_like(start, IGNORED)
        written, there = self.padded("answers", at, self.pad)
        before = torch.cat([start, written[:, :-1]], 1)
        targets = written.masked_fill(~there, IGNORED)
        return (source, before), {"source_mask": mask, "target_mask": there}, targets

    def tags(self, at: np.ndarray, mask: Tensor) -> Tensor:
        """A tag at the first token of each word (B, T), within the mask."""
        targets = torch.full(mask.shape, IGNORED)
        if "tags" in self.arrays:
            begins, there = self.padded("begins", at, 0)
            starts = self.arrays["begins_starts"]
            tags = self.arrays["tags"]
            rows = np.repeat(np.arange(len(at)), there.sum(1).numpy())
            found = [tags[starts[row] : starts[row + 1]] for row in at.tolist()]
            values = np.concatenate(found) if found else np.zeros(0, np.int64)
            targets[torch.from_numpy(rows), begins[there]] = torch.from_numpy(values.astype(np.int64))
        return targets

    @property
    def tasks(self) -> list[str] | None:
        """The task of each row, if a column of a text-to-text table names it."""
        target = self.preprocess.target
        if not isinstance(target, TaskAnswer) or target.task not in self.frame.names:
            return None
        return texts(self.frame.take(self.rows).column(target.task))

    @property
    def mixed(self) -> MixedRows | None:
        tasks = self.tasks
        return None if tasks is None or self.settings is None else mix_rows(tasks, self.settings.mixture)

    # ------------------------------------------------------------ display

    def begins(self, row: int) -> np.ndarray:
        """The position of each word's first token in a sentence, without words that were cut off."""
        at = int(self.rows[row])
        starts = self.arrays["begins_starts"]
        return np.array(self.arrays["begins"][starts[at] : starts[at + 1]])

    def cut(self, row: int) -> bool:
        """Whether a row's text was truncated."""
        return "cut" in self.arrays and bool(self.arrays["cut"][int(self.rows[row])])

    def place(self, row: int) -> str:
        """The location of a row in its file; in a folder of images, the image's own path."""
        at = int(self.rows[row])
        unit = self.frame.sources[0].unit if self.frame.sources else None
        for column in self.preprocess.columns or ():
            if unit is not None and column.file_unit == unit and column.name in self.frame.names:
                return str(self.frame.column(column.name)[at].as_py())
        return self.frame.place(at)

    def cells(self, row: int) -> dict[str, Any]:
        """All cells of a row as in the file."""
        return self.frame.cells(int(self.rows[row]))

    def shown(self, row: int, most: int = 200) -> str:
        """A row's inputs as short text."""
        cells = self.cells(row)
        columns = self.preprocess.columns or ()
        said = []
        for column in columns:
            text = " ".join(column.show(cells.get(column.name)).split())
            said.append(text if len(columns) == 1 else f"{column.name}={text}")
        line = ", ".join(said)
        return line if len(line) <= most else line[: most - 3] + "..."

    @cached_property
    def lengths(self) -> np.ndarray | None:
        """Number of tokens of each row; None if all rows are equal."""
        if "tokens_starts" not in self.arrays:
            return None
        starts = self.arrays["tokens_starts"]
        return np.asarray(starts[self.rows + 1] - starts[self.rows])
