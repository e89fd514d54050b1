"""Audio files named by a column: decoded once and concatenated into one array."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from anyformer.data.audio.decoding import AudioHeader, Recording, look_at, read_sound, resample, resampled_length
from anyformer.data.columns.cells import texts
from anyformer.data.datasets.arrays import Arrays
from anyformer.data.examples import Draw
from anyformer.data.frame import Frame
from anyformer.data.settings import AudioSettings
from anyformer.embeds.mel import bands, log_mel
from anyformer.errors import UserError
from anyformer.log import Log

NAME = "samples"
LOUDEST = 32767  # samples are stored as 16-bit integers
LONGEST = 10.24  # default maximum length in seconds
CLIPS = 200  # training clips used to estimate the loudness


@dataclass
class Clips:
    """The decoded audio of a column."""

    rate: int
    samples: int  # of the longest clip
    there: np.ndarray  # (N,): decoded
    broken: np.ndarray  # (N,): named, but unreadable
    same: np.ndarray  # (N,): equal numbers for equal samples
    first: str = ""  # the first unreadable file, and why


def decode_clips(
    frame: Frame, column: str, settings: AudioSettings, arrays: Arrays, *, log: Log, bad: Literal["skip", "error"]
) -> Clips:
    """Decode every audio file into `arrays["samples"]`, at the most frequent sample rate."""
    folder = frame.folder
    heads: list[tuple[Path, AudioHeader] | None] = []
    broken, first = np.zeros(len(frame), bool), ""
    for row, name in enumerate(texts(frame.column(column))):
        try:
            heads.append((folder / name, look_at(folder / name)) if name else None)
        except UserError as error:
            if bad == "error":
                raise place_error(error, frame, row) from None
            broken[row], first = True, first or place_error(error, frame, row).line
            heads.append(None)
    known = [entry[1] for entry in heads if entry is not None]
    if not known:
        raise UserError("no recording can be read" if first else "no recording is named", where=column,
                        fix=f"the first is {first}"[:220] if first else "give WAV files")  # fmt: skip
    rate, most = shape(known, settings)
    lengths = [0 if entry is None else stored_length(entry[1], rate, most) for entry in heads]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    room = arrays.room(NAME, (int(starts[-1]),), np.int16)
    marks: list[str] = []
    for row, entry in enumerate(heads):
        if entry is None:
            marks.append("")
            continue
        try:
            stored = clip_of(*entry, rate, most)
        except UserError as error:
            if bad == "error":
                raise place_error(error, frame, row) from None
            broken[row], first = True, first or place_error(error, frame, row).line
            stored = np.zeros(lengths[row], np.int16)
        room[starts[row] : starts[row + 1]] = stored
        marks.append(hashlib.sha256(stored.tobytes()).hexdigest())
    del room
    arrays.put(f"{NAME}_starts", starts)
    there = np.array([entry is not None for entry in heads]) & ~broken
    log_clips(known, rate, most, log)
    same = np.unique(np.array(marks), return_inverse=True)[1].reshape(-1)
    return Clips(rate, most, there, broken, same, first)


def decode_new_clips(
    frame: Frame, column: str, arrays: Arrays, *, rate: int, most: int
) -> tuple[np.ndarray, dict[int, UserError]]:
    """Decode audio for a model with a known sample rate: which rows have one, and the errors of unreadable ones."""
    folder = frame.folder
    clips, starts = arrays.growing(NAME, np.int16), [0]
    there = np.zeros(len(frame), bool)
    unread: dict[int, UserError] = {}
    for row, cell in enumerate(frame.column(column).to_pylist()):
        stored = np.zeros(0, np.int16)
        if cell:
            recording = cell if isinstance(cell, bytes) else folder / cell
            try:
                stored = clip_of(recording, look_at(recording), rate, most)
                there[row] = True
            except UserError as error:
                named = "the recording" if isinstance(cell, bytes) else f"{cell[-120:]!r}"
                unread[row] = UserError(f"{named} {error.what}", where=column, fix=error.fix)
        clips.add(stored)
        starts.append(starts[-1] + len(stored))
    clips.close()
    arrays.put(f"{NAME}_starts", np.array(starts, np.int64))
    return there, unread


def clip_of(recording: Recording, head: AudioHeader, rate: int, most: int) -> np.ndarray:
    """An audio file as stored: at the given sample rate, at most `most` samples, in 16 bits."""
    wave, own = read_sound(recording, head)
    stored = np.zeros(stored_length(head, rate, most), np.int16)
    wave = resample(wave, own, rate)[: len(stored)]
    stored[: len(wave)] = np.clip(np.round(wave * LOUDEST), -LOUDEST, LOUDEST)
    return stored


def stored_length(head: AudioHeader, rate: int, most: int) -> int:
    """Number of stored samples of a clip."""
    return min(most, resampled_length(head.samples, head.rate, rate))


def place_error(error: UserError, frame: Frame, row: int) -> UserError:
    """The error of an audio file, with the row that names it."""
    return UserError(error.what, where=f"{frame.place(row)} ({error.where})", fix=error.fix)


def shape(heads: list[AudioHeader], settings: AudioSettings) -> tuple[int, int]:
    """Sample rate, and number of samples of the longest clip."""
    rate = settings.sample_rate or Counter(head.rate for head in heads).most_common(1)[0][0]
    seconds = np.array([head.samples / head.rate for head in heads])
    usual = min(float(seconds.max()), 1.5 * float(np.quantile(seconds, 0.95)), LONGEST)
    return rate, max(1, round((settings.seconds or usual) * rate))


def log_clips(heads: list[AudioHeader], rate: int, most: int, log: Log) -> None:
    """Log what was resampled, mixed down or cut."""
    seconds = sum(head.samples / head.rate for head in heads)
    other = sum(head.rate != rate for head in heads)
    mixed = sum(head.channels > 1 for head in heads)
    cut = sum(resampled_length(head.samples, head.rate, rate) > most for head in heads)
    notes = [f"{other:,} resampled"] * bool(other) + [f"{mixed:,} of several channels, mixed"] * bool(mixed)
    notes += [f"{cut:,} cut at {most / rate:.2f} s"] * bool(cut)
    log(f"{len(heads):,} clips, {seconds:,.1f} s in all, {rate:,} samples a second" + "".join(f"; {n}" for n in notes))


def loudness(arrays: Arrays, rows: np.ndarray, rate: int) -> tuple[float, float]:
    """Mean and standard deviation of the log-mel powers of some training clips, for normalisation."""
    count, total, squares = 0, 0.0, 0.0
    for row in rows[:: max(1, len(rows) // CLIPS)][:CLIPS].tolist():
        found = spectra(arrays, row, rate)
        count, total, squares = count + found.numel(), total + float(found.sum()), squares + float(found.square().sum())
    if not count:
        return 0.0, 1.0
    mean = total / count
    return mean, max(1e-3, (max(0.0, squares / count - mean**2)) ** 0.5)


def spectra(arrays: Arrays, clip: int, rate: int) -> torch.Tensor:
    """The log-mel powers (bands, F) of one clip; F is 0 if it is shorter than a window."""
    window, hop = max(2, round(0.025 * rate)), max(1, round(0.010 * rate))
    starts = arrays[f"{NAME}_starts"]
    wave = torch.from_numpy(arrays[NAME][starts[clip] : starts[clip + 1]].astype(np.float32) / LOUDEST)
    if len(wave) < window:
        return torch.zeros(bands(rate), 0, dtype=torch.float64)
    return log_mel(wave[None], sample_rate=rate, mels=bands(rate), window=window, hop=hop)[0].double()


def clip_spectra(arrays: Arrays, at: np.ndarray, rate: int) -> np.ndarray:
    """Mean and standard deviation of each band over a clip, (N, 2 bands), as features of baselines; nan if empty."""
    kept = arrays["sounded"][at] if "sounded" in arrays else at
    rows = []
    for clip in kept.tolist():
        found = spectra(arrays, clip, rate)
        found = found if found.shape[1] else found.new_full((len(found), 1), torch.nan)
        rows.append(torch.cat([found.mean(1), found.std(1, correction=0)]).numpy())
    return np.stack(rows)


def waves(arrays: Arrays, at: np.ndarray, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Clips (B, samples) padded with silence, and their lengths in samples."""
    kept = arrays["sounded"][at] if "sounded" in arrays else at
    starts, flat = arrays[f"{NAME}_starts"], arrays[NAME]
    found = np.zeros((len(at), samples), np.float32)
    lengths = np.zeros(len(at), np.int64)
    for row, clip in enumerate(kept.tolist()):
        piece = flat[starts[clip] : starts[clip + 1]]
        found[row, : len(piece)] = piece.astype(np.float32) / LOUDEST
        lengths[row] = len(piece)
    return torch.from_numpy(found), torch.from_numpy(lengths)


def augment_clips(
    sound: torch.Tensor, lengths: torch.Tensor, rows: np.ndarray, draw: Draw, settings: AudioSettings
) -> torch.Tensor:
    """Shift each clip in time and change its volume a little, determined by the row and the epoch alone."""
    found = sound.clone()
    for at, row in enumerate(rows.tolist()):
        generator = draw.generator(row)
        length = int(lengths[at])
        shift = int(generator.integers(-1 - int(settings.shift * length), 1 + int(settings.shift * length) + 1))
        loud = 10 ** (generator.uniform(-settings.gain, settings.gain) / 20)
        piece = torch.roll(sound[at, :length], shift)
        if shift > 0:
            piece[:shift] = 0
        elif shift < 0:
            piece[shift:] = 0
        found[at, :length] = piece * loud
    return found
