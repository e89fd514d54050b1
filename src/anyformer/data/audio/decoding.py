"""Audio decoding: WAV files natively, other formats through soundfile; mono, at the requested sample rate.

WAV and resampling are implemented here: serving has neither soundfile nor scipy, and a header is checked before its
samples are read.
"""

from __future__ import annotations

import io
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
import torch.nn.functional as F

from anyformer.errors import UserError
from anyformer.extras import install_command

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
ZEROS = 6  # zero crossings of the sinc on each side
MOST_PHASES = 2000  # phases of a resampling filter; rates with more are interpolated linearly
WHOLE = 0xFFFFFFFF  # the size written by programs that do not know it yet


@dataclass(frozen=True)
class AudioHeader:
    """The header of an audio file."""

    rate: int
    channels: int
    samples: int  # per channel
    kind: int = PCM
    bits: int = 16
    start: int = 0  # byte of the first sample


Recording = Path | bytes  # a path, or the contents of a file
PACKED = (b"fLaC", b"OggS", b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")  # magic bytes of FLAC, Ogg and MP3


def look_at(recording: Recording) -> AudioHeader:
    """Sample rate, channels and length of an audio file, without reading its samples."""
    if not is_wav(recording):
        return with_soundfile(recording)[1]
    try:
        with stream_of(recording) as file:
            return wav_head(file, name_of(recording))
    except OSError as error:
        raise UserError(f"cannot be opened: {error.strerror or error}", where=name_of(recording), fix="check the path"
                        ) from None  # fmt: skip


def read_sound(recording: Recording, head: AudioHeader | None = None) -> tuple[np.ndarray, int]:
    """Samples (N,) in [-1, 1], the mean of all channels, and the sample rate."""
    head = look_at(recording) if head is None else head
    if not is_wav(recording):
        found = with_soundfile(recording)[0]
    else:
        with stream_of(recording) as file:
            file.seek(head.start)
            raw = file.read(head.samples * head.channels * head.bits // 8)
        found = decode_samples(raw, head).reshape(-1, head.channels)
    wave = found.mean(1, dtype=np.float32) if found.shape[1] > 1 else found[:, 0]
    if not np.isfinite(wave).all():
        raise UserError(
            "holds samples that are not numbers", where=name_of(recording), fix="record or convert it again"
        )
    return wave, head.rate


def is_wav(recording: Recording) -> bool:
    """Whether it is decoded natively: by the file's name, or by the magic bytes of contents."""
    if isinstance(recording, bytes):
        return not recording.startswith(PACKED)
    return recording.suffix.lower() in (".wav", ".wave", "")


def stream_of(recording: Recording) -> BinaryIO:
    return io.BytesIO(recording) if isinstance(recording, bytes) else recording.open("rb")


def name_of(recording: Recording) -> str:
    return "" if isinstance(recording, bytes) else recording.name


# ---------------------------------------------------------------- WAV


def wav_head(file: BinaryIO, name: str) -> AudioHeader:
    """Walk the chunks of a RIFF file up to its samples."""

    def bad(what: str, fix: str = "record or convert it again") -> UserError:
        return UserError(what, where=name, fix=fix)

    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    start = file.read(12)
    if not size:
        raise bad("the file is empty")
    if len(start) < 12 or start[:4] != b"RIFF" or start[8:] != b"WAVE":
        raise bad("is not a WAV recording", "give WAV files, or name it by what it is")
    form: tuple[int, int, int, int] | None = None
    while len(piece := file.read(8)) == 8:
        chunk, length = piece[:4], struct.unpack("<I", piece[4:])[0]
        if chunk == b"fmt ":
            form = wav_format(file.read(length), bad)
        elif chunk == b"data":
            if form is None:
                raise bad("its samples come before their format")
            kind, channels, rate, bits = form
            there = size - file.tell()
            if length not in (0, WHOLE) and length > there:
                raise bad(f"is cut off: {there:,} of {length:,} bytes of sound are there")
            samples = (there if length in (0, WHOLE) else length) // (channels * bits // 8)
            if not samples:
                raise bad("holds no samples")
            return AudioHeader(rate, channels, samples, kind, bits, file.tell())
        else:
            file.seek(length + length % 2, 1)
    raise bad("holds no samples")


def wav_format(raw: bytes, bad: object) -> tuple[int, int, int, int]:
    """Format, channels, sample rate and bits; compressed or inconsistent ones are rejected."""
    assert callable(bad)
    if len(raw) < 16:
        raise bad("its format is cut off")
    kind, channels, rate, _, block, bits = struct.unpack("<HHIIHH", raw[:16])
    if kind == EXTENSIBLE and len(raw) >= 26:
        kind = struct.unpack("<H", raw[24:26])[0]
    known = {PCM: (8, 16, 24, 32), FLOAT: (32, 64)}
    if kind not in known or bits not in known[kind]:
        raise bad(f"is stored in form {kind} with {bits} bits", "convert it to PCM of 16 bits")
    if not 1 <= channels <= 64 or not 1 <= rate <= 1_000_000 or block != channels * bits // 8:
        raise bad(f"says {channels} channels, {rate} samples a second, {block} bytes a sample")
    return kind, channels, rate, bits


def decode_samples(raw: bytes, head: AudioHeader) -> np.ndarray:
    """Stored samples as float32; integers are scaled to [-1, 1]."""
    if head.kind == FLOAT:
        return np.frombuffer(raw, "<f4" if head.bits == 32 else "<f8").astype(np.float32)
    if head.bits == 8:
        return (np.frombuffer(raw, np.uint8).astype(np.float32) - 128) / 128
    if head.bits == 24:
        bytes_ = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        whole = np.zeros((len(bytes_), 4), np.uint8)
        whole[:, 1:] = bytes_  # the low byte stays 0, so that the sign bit is in its place
        return whole.view("<i4")[:, 0].astype(np.float32) / 2.0**31
    return np.frombuffer(raw, f"<i{head.bits // 8}").astype(np.float32) / 2.0 ** (head.bits - 1)


def with_soundfile(recording: Recording) -> tuple[np.ndarray, AudioHeader]:
    """FLAC, Ogg and MP3, through the optional soundfile package."""
    name = name_of(recording)
    try:
        import soundfile
    except (ImportError, OSError):
        raise UserError("only WAV can be read without the package soundfile", where=name,
                        fix=f"{install_command('soundfile')}, or convert it to WAV") from None  # fmt: skip
    try:
        with stream_of(recording) as file:
            found, rate = soundfile.read(file, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError, RuntimeError) as error:
        raise UserError(f"cannot be read: {str(error)[:100]}", where=name, fix="convert it to WAV") from None
    if not len(found):
        raise UserError("holds no samples", where=name, fix="record or convert it again")
    return found, AudioHeader(int(rate), found.shape[1], len(found))


# ---------------------------------------------------------------- another rate


def resampled_length(samples: int, old: int, new: int) -> int:
    """Number of samples of a clip at another sample rate."""
    return -(-samples * new // old)


def resample(wave: np.ndarray, old: int, new: int) -> np.ndarray:
    """Resample by a sinc windowed by a squared cosine, with one filter for each phase of the ratio."""
    if old == new or not len(wave):
        return wave
    count = resampled_length(len(wave), old, new)
    shared = math.gcd(old, new)
    down, up = old // shared, new // shared
    if up > MOST_PHASES:
        return np.interp(np.arange(count) * (old / new), np.arange(len(wave)), wave).astype(np.float32)
    cut = 0.99 * min(down, up)  # cutoff just below the lower Nyquist frequency, in units of both rates
    reach = math.ceil(ZEROS * down / cut)
    at = (
        torch.arange(-reach, reach + down, dtype=torch.float64) / down
        - torch.arange(up, dtype=torch.float64)[:, None] / up
    )
    turns = (at * cut).clamp(-ZEROS, ZEROS)
    kernel = torch.special.sinc(turns) * (turns * (math.pi / 2 / ZEROS)).cos().square() * (cut / down)  # (up,width)
    padded = F.pad(torch.from_numpy(wave)[None], (reach, reach + down))
    found = F.conv1d(padded[None], kernel.float()[:, None], stride=down)  # (1,up,steps)
    return found[0].T.reshape(-1)[:count].numpy()
