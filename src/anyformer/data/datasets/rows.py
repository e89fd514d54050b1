"""Rows of a frame as batches: any mixture of text, table and image columns over arrays on disk."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from anyformer.data.columns.fitted import Sentence, Sound
from anyformer.data.datasets.arrays import Arrays
from anyformer.data.examples import Draw, Examples
from anyformer.data.frame import Frame
from anyformer.data.images.preprocessing import ImageSteps
from anyformer.data.preprocess import Preprocess
from anyformer.objectives.batch import Batch
from anyformer.objectives.objective import IGNORED

if TYPE_CHECKING:
    from anyformer.data.settings import AudioSettings, ImageSettings


class RowExamples(Examples):
    """One side of the rows. `rows` are their numbers in the arrays and the frame, which all sides share."""

    def __init__(
        self,
        arrays: Arrays,
        frame: Frame,
        preprocess: Preprocess,
        rows: np.ndarray,
        *,
        pad: int = 0,
        images: ImageSteps | None = None,
        pictures: ImageSettings | None = None,
    ) -> None:
        self.arrays, self.preprocess = arrays, preprocess
        self.known: Frame | None = frame
        self.rows, self.pad = np.asarray(rows, np.int64), pad
        self.images, self.pictures = images, pictures
        self.sounds: AudioSettings | None = None  # how clips vary in training

    def __len__(self) -> int:
        return len(self.rows)

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: arrays are mapped again there, rather than sent."""
        state = {name: value for name, value in self.__dict__.items() if name != "lengths"}
        arrays = Arrays(Path(self.arrays.folder))
        arrays.facts = self.arrays.facts
        on_disk = "frame" in arrays.facts
        return state | {"arrays": arrays, "known": None if on_disk else self.known}

    @property
    def frame(self) -> Frame:
        """The rows of all sides as they stand in their files."""
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
            inputs, named, targets = self.pair(at)
        elif self.preprocess.of(Sentence):
            inputs, named, targets = self.sentence(at)
        else:
            inputs, named = self.inputs(at, chosen, draw)
            targets = self.targets(at)
        return Batch(inputs, targets, torch.from_numpy(chosen.copy()), named)

    def inputs(self, at: np.ndarray, chosen: np.ndarray, draw: Draw | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The model's inputs: one part as it is, several as one entry each."""
        parts: list[Any] = []
        masks: list[Tensor | None] = []
        named: dict[str, Any] = {}
        for part in self.preprocess.parts:
            if part == "text":
                tokens, mask = self.padded("tokens", at, self.pad)
                parts.append((tokens,))
                masks.append(mask)
                if "second" in self.arrays:
                    second = torch.from_numpy(self.arrays["second"][at].astype(np.int64))
                    named["segments"] = (torch.arange(tokens.shape[1]) >= second[:, None]).long() * mask
            elif part == "table":
                parts.append(self.table(at))
                masks.append(None)
            elif part == "sound":
                parts.append(self.clips(at, chosen, draw))
                masks.append(None)
            else:
                pixels, seen = self.pixels(at, chosen, draw)
                parts.append((pixels,))
                masks.append(seen)
        if len(parts) == 1:
            return parts[0], named | ({"mask": masks[0]} if self.preprocess.parts == ("text",) else {})
        return tuple(part[0] if len(part) == 1 else part for part in parts), {"mask": tuple(masks)}

    def padded(self, name: str, at: np.ndarray, fill: int) -> tuple[Tensor, Tensor]:
        """Rows of unlike lengths as (B, T), and a mask that is True where there is something."""
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

    def table(self, at: np.ndarray) -> tuple[Tensor | None, Tensor | None]:
        """Numbers (B, F) and categories (B, K), None where there are no such columns."""
        numbers = torch.from_numpy(self.arrays["numbers"][at]) if "numbers" in self.arrays else None
        ids = torch.from_numpy(self.arrays["categories"][at].astype(np.int64)) if "categories" in self.arrays else None
        return numbers, ids

    def pixels(self, at: np.ndarray, chosen: np.ndarray, draw: Draw | None) -> tuple[Tensor, Tensor]:
        """Normalised pixels (B, C, H, W), augmented with a draw, and which rows have an image."""
        kept = self.arrays["pictured"][at] if "pictured" in self.arrays else at
        stored = self.arrays["pixels"][kept]
        from anyformer.data.images.decode_all import normalised

        if draw is not None and self.pictures is not None:
            from anyformer.data.images.augmentation import augmented_batch

            stored = augmented_batch(stored, self.pictures, draw, chosen)
        pixels = torch.from_numpy(normalised(stored, self.images or ImageSteps(scale=None, mean=None)))
        seen = self.arrays["seen"][at] if "seen" in self.arrays else np.ones(len(at), bool)
        return pixels, torch.from_numpy(np.array(seen, dtype=bool))

    def clips(self, at: np.ndarray, chosen: np.ndarray, draw: Draw | None) -> tuple[Tensor, Tensor]:
        """Recordings (B, samples) and the samples of each, varied with a draw."""
        from anyformer.data.audio.column import varied, waves

        sound, lengths = waves(self.arrays, at, self.preprocess.of(Sound)[0].samples)
        if draw is not None and self.sounds is not None:
            sound = varied(sound, lengths, chosen, draw, self.sounds)
        return sound, lengths

    def targets(self, at: np.ndarray) -> Tensor:
        """Class numbers, or numbers; rows without a target do not count."""
        if "targets" not in self.arrays:  # new rows: nothing to compare with, in the shape of what is answered
            assert self.preprocess.target is not None
            return torch.from_numpy(self.preprocess.target.absent(len(at)))
        return torch.from_numpy(np.array(self.arrays["targets"][at]))

    def pair(self, at: np.ndarray) -> tuple[tuple[Any, ...], dict[str, Any], Tensor]:
        """A text to read, the text to write one token late, and what is to be written."""
        source, mask = self.padded("tokens", at, self.pad)
        start = torch.full((len(at), 1), self.preprocess.start or 0)
        if "answers" not in self.arrays:
            seen = torch.ones_like(start, dtype=torch.bool)
            return (source, start), {"source_mask": mask, "target_mask": seen}, torch.full_like(start, IGNORED)
        written, there = self.padded("answers", at, self.pad)
        before = torch.cat([start, written[:, :-1]], 1)
        targets = written.masked_fill(~there, IGNORED)
        return (source, before), {"source_mask": mask, "target_mask": there}, targets

    def sentence(self, at: np.ndarray) -> tuple[tuple[Any, ...], dict[str, Any], Tensor]:
        """The parts of words, and a tag where a word begins."""
        tokens, mask = self.padded("tokens", at, self.pad)
        targets = torch.full(tokens.shape, IGNORED)
        if "tags" in self.arrays:
            begins, there = self.padded("begins", at, 0)
            starts = self.arrays["begins_starts"]
            tags = self.arrays["tags"]
            rows = np.repeat(np.arange(len(at)), there.sum(1).numpy())
            found = [tags[starts[row] : starts[row + 1]] for row in at.tolist()]
            values = np.concatenate(found) if found else np.zeros(0, np.int64)
            targets[torch.from_numpy(rows), begins[there]] = torch.from_numpy(values.astype(np.int64))
        return (tokens,), {"mask": mask}, targets

    # ------------------------------------------------------------ for people

    def begins(self, row: int) -> np.ndarray:
        """Where each word of a sentence begins among its tokens; words cut off are not there."""
        at = int(self.rows[row])
        starts = self.arrays["begins_starts"]
        return np.array(self.arrays["begins"][starts[at] : starts[at + 1]])

    def cut(self, row: int) -> bool:
        """Whether a row's text was longer than the model takes."""
        return "cut" in self.arrays and bool(self.arrays["cut"][int(self.rows[row])])

    def place(self, row: int) -> str:
        """Where a row stands in its file; of a folder of pictures, the picture's own path."""
        at = int(self.rows[row])
        for unit, column in (("image", "image"), ("clip", "sound")):
            if self.frame.sources and self.frame.sources[0].unit == unit and column in self.frame.names:
                return str(self.frame.column(column)[at].as_py())
        return self.frame.place(at)

    def cells(self, row: int) -> dict[str, Any]:
        """A row as it stands in the file, all of its columns."""
        return self.frame.cells(int(self.rows[row]))

    def shown(self, row: int, most: int = 200) -> str:
        """A row's inputs as short text."""
        cells = self.cells(row)
        names = [column.name for column in self.preprocess.columns or ()]
        said = []
        for name in names:
            value = cells.get(name)
            text = " ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
            text = " ".join(text.split())
            said.append(text if len(names) == 1 else f"{name}={text}")
        line = ", ".join(said)
        return line if len(line) <= most else line[: most - 3] + "..."

    @cached_property
    def lengths(self) -> np.ndarray | None:
        """Tokens of each row, None where all rows are alike."""
        if "tokens_starts" not in self.arrays:
            return None
        starts = self.arrays["tokens_starts"]
        return np.asarray(starts[self.rows + 1] - starts[self.rows])
