"""Columns of audio recordings, decoded once into one long array of samples."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from anyformer.data.audio.clips import augment_clips, clip_spectra, decode_clips, decode_new_clips, loudness, waves
from anyformer.data.columns.base import Decoded, FileColumn
from anyformer.data.columns.files import recognise_files
from anyformer.data.columns.modality import Encoding, Modality, ModalityInputs
from anyformer.data.columns.values import shown
from anyformer.data.files.audio_folders import unlabelled_clips
from anyformer.data.files.data_urls import SOUNDS_SAID, example_sound, sound_bytes
from anyformer.data.files.example_files import tone
from anyformer.data.habit import TrainingDefaults
from anyformer.embeds.frames import Frames
from anyformer.embeds.mel import bands
from anyformer.errors import UserError
from anyformer.log import Log
from anyformer.positions import Grid
from anyformer.slots import Embed

if TYPE_CHECKING:
    from anyformer.data.columns.look import Facts, Scan
    from anyformer.data.datasets.arrays import Arrays
    from anyformer.data.datasets.rows import RowExamples
    from anyformer.data.examples import Draw
    from anyformer.data.frame import Frame
    from anyformer.data.prepared import StartModelConstraints
    from anyformer.data.preprocess import Preprocess
    from anyformer.data.settings import Data
    from anyformer.data.sizes import Sizes

ENDINGS = (".wav", ".flac", ".ogg", ".mp3")
SAMPLES_ALONE = "give the path or the bytes of a WAV file: samples alone do not say how many there are a second"


class AudioModality(Modality):
    """The samples of a row's audio file."""

    name: ClassVar[str] = "audio"
    rank: ClassVar[int] = 40
    embeds: ClassVar[tuple[type[Embed], ...]] = (Frames,)
    presets: ClassVar[tuple[str, ...]] = ("sound-mini", "sound-small")
    plural: ClassVar[str] = "sound"
    habit: ClassVar[TrainingDefaults | None] = TrainingDefaults(
        epochs=40, batch_size=32, lr=1e-3, weight_decay=0.05, gpu_batch_size=128, gpu_lr=1e-3
    )
    settings: ClassVar[str] = "data.audio"
    smoothed: ClassVar[bool] = True

    columns: tuple[Audio, ...]

    def encode(self, work: Encoding, preprocess: Preprocess) -> Preprocess:
        if work.train is None:  # training files were decoded before their rows were split
            for column in self.columns:
                there, unread = decode_new_clips(
                    work.frame, column.name, work.arrays, rate=column.sample_rate or 1, most=column.samples or 1
                )
                work.arrays.put("seen", there)
                work.counts.unread |= unread
        return preprocess

    def inputs(self, examples: RowExamples, at: np.ndarray, chosen: np.ndarray, draw: Draw | None) -> ModalityInputs:
        """Audio (B, samples) and its lengths in samples, augmented with a draw."""
        (column,) = self.columns
        clips, lengths = waves(examples.arrays, at, column.samples or 1)
        if draw is not None and examples.settings is not None:
            clips = augment_clips(clips, lengths, chosen, draw, examples.settings.audio)
        return ModalityInputs((clips, lengths))

    def sizes(self) -> dict[str, Any]:
        (column,) = self.columns
        return {
            "sample_rate": column.sample_rate,
            "samples": column.samples,
            "loudness": [column.mean, column.deviation],
        }

    @classmethod
    def embed(cls, own: Embed | None, sizes: Sizes) -> Embed:
        """An embedding of spectra for these clips; a patch as high as the preset's spectrum gets the data's height."""
        embed = own if isinstance(own, Frames) else Frames(sample_rate=16000, cls=False)
        mels, (high, wide), (down, along) = bands(sizes.sample_rate), embed.cell, embed.apart
        whole = high == embed.mels
        reach, step = round(embed.window * sizes.sample_rate), max(1, round(embed.hop * sizes.sample_rate))
        frames = 1 + max(0, -((reach - sizes.samples) // step))  # rounded up, so that the last samples are included
        mean, std = sizes.loudness or (embed.mean, embed.std)
        return embed.replace(
            sample_rate=sizes.sample_rate, mels=mels, frames=max(wide, frames), mean=mean, std=std,
            patch=(mels if whole else min(high, mels), wide), stride=(mels if whole else min(down, mels), along),
            position=Grid() if isinstance(embed.position, Grid) else embed.position,
        )  # fmt: skip

    def features(self, examples: RowExamples, frame: Frame) -> dict[str, Any]:
        """Mean and deviation of each band of the spectrum."""
        (column,) = self.columns
        return {"numbers": clip_spectra(examples.arrays, examples.rows, column.sample_rate or 1)}


class Audio(FileColumn):
    """A recording: the path of a file. The last two are the log-mel powers of the training clips."""

    kind: ClassVar[str] = "audio"
    noun: ClassVar[str] = "a recording"
    plural: ClassVar[str] = "recordings"
    modality: ClassVar[type[Modality]] = AudioModality
    rank: ClassVar[int] = 40
    can_be_typed: ClassVar[bool] = False
    unreadable: ClassVar[str] = "the recording cannot be read"
    file_unit: ClassVar[str | None] = "clip"

    sample_rate: int | None = None
    samples: int | None = None  # of the longest clip
    mean: float = 0.0
    deviation: float = 1.0

    @classmethod
    def recognise(cls, seen: Scan) -> Facts | None:
        return recognise_files(seen, cls, ENDINGS)

    @classmethod
    def decode(
        cls, frame: Frame, name: str, settings: Data, arrays: Arrays, *, given: StartModelConstraints, log: Log
    ) -> Decoded:
        found = decode_clips(frame, name, settings.audio, arrays, bad=settings.bad, log=log)
        column = cls(name=name, sample_rate=found.rate, samples=found.samples)
        return Decoded(column, found.there, found.broken, found.same, found.first)

    def settle(self, decoded: Decoded, arrays: Arrays, kept: np.ndarray, train: np.ndarray) -> Audio:
        mean, deviation = loudness(arrays, kept[train], self.sample_rate or 1)
        arrays.put("sounded", kept)
        return self.replace(mean=mean, deviation=deviation)

    def parse_value(self, value: Any) -> str | bytes:
        """A path, or the contents of an audio file."""
        if isinstance(value, str | os.PathLike):
            return os.fspath(value)
        if isinstance(value, bytes | bytearray):
            return bytes(value)
        raise UserError(f"{shown(value)} is not a recording", where=self.name, fix=SAMPLES_ALONE)

    @classmethod
    def files_in(cls, paths: Sequence[Path]) -> list[str] | None:
        return unlabelled_clips(paths)

    @property
    def request_noun(self) -> str:
        return f"{self.noun} as {SOUNDS_SAID}"

    def from_request(self, value: Any) -> bytes:
        return sound_bytes(value, self.name)

    def example(self) -> str:
        return example_sound(self.sample_rate or 16_000)

    def worth_looking_at(self) -> bytes:
        return tone(self.sample_rate or 16_000)
