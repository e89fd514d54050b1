"""Images and audio in requests as data URLs; nothing is ever fetched.

All limits are checked before decoding: bytes by their number, pixels and samples by the file's header.
"""

from __future__ import annotations

import base64
import binascii
import io
import wave
from pathlib import Path
from typing import Any

from anyformer.data.audio.decoding import is_wav
from anyformer.data.images.decoding import Unreadable, open_image
from anyformer.errors import UserError

MOST_BYTES = 3 * 2**20  # of one file, after base64 decoding
MOST_PIXELS = 2**24  # 4096 x 4096
MOST_SAMPLES = 2**25  # of all channels: six minutes of stereo at 44.1 kHz
FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP", "image/gif": "GIF", "image/bmp": "BMP"}
SOUNDS = {"audio/wav": "WAV", "audio/x-wav": "WAV", "audio/wave": "WAV", "audio/flac": "FLAC"}
PICTURES_SAID = "data:image/png;base64,... (png, jpeg, webp, gif or bmp)"
SOUNDS_SAID = "data:audio/wav;base64,... (wav or flac)"


def picture_bytes(value: Any, where: str) -> bytes:
    """The contents of an image's data URL: a known format, complete, and not too large."""
    kind, data = unpack_data_url(value, where, FORMATS, PICTURES_SAID)
    try:
        with open_image(data, Path(), [FORMATS[kind]]) as image:
            if image.size[0] * image.size[1] > MOST_PIXELS:
                raise Unreadable(f"{image.size[0]:,} x {image.size[1]:,} pixels are more than {MOST_PIXELS:,}")
            image.load()  # only the first of several frames
    except Unreadable as error:
        raise UserError(f"the image cannot be read ({error})", where=where, fix=f"send {PICTURES_SAID}") from None
    return data


def picture(data: bytes) -> Any:
    """The pillow image of contents that `picture_bytes` has accepted."""
    with open_image(data, Path()) as image:
        image.load()
        return image.copy()


def sound_bytes(value: Any, where: str) -> bytes:
    """The contents of an audio file's data URL, not too large."""
    kind, data = unpack_data_url(value, where, SOUNDS, SOUNDS_SAID)
    if SOUNDS[kind] != "WAV":  # a WAV file has no more samples than bytes
        check_samples(data, where)
    elif not is_wav(data):
        raise UserError("is not a WAV recording", where=where, fix=f"send {SOUNDS_SAID}")
    return data


def check_samples(data: bytes, where: str) -> None:
    """Check the length of compressed audio: silence of any length fits into a small file."""
    try:
        import soundfile
    except (ImportError, OSError):
        raise UserError("only WAV can be read without the package soundfile", where=where, fix="send a WAV") from None
    try:
        head = soundfile.info(io.BytesIO(data))
    except (soundfile.SoundFileError, OSError, RuntimeError, ValueError):
        raise UserError("the recording cannot be read", where=where, fix=f"send {SOUNDS_SAID}") from None
    if head.frames * head.channels > MOST_SAMPLES:
        raise UserError(f"the recording holds {head.frames * head.channels:,} samples", where=where,
                        fix=f"send at most {MOST_SAMPLES:,}")  # fmt: skip


def example_picture() -> str:
    """A gray square as a data URL."""
    from anyformer.data.images.decoding import pillow

    sink = io.BytesIO()
    pillow().new("L", (8, 8), 128).save(sink, "PNG")
    return f"data:image/png;base64,{base64.b64encode(sink.getvalue()).decode()}"


def example_sound(rate: int) -> str:
    """A moment of silence as a data URL."""
    sink = io.BytesIO()
    with wave.open(sink, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(bytes(64))
    return f"data:audio/wav;base64,{base64.b64encode(sink.getvalue()).decode()}"


def unpack_data_url(value: Any, where: str, kinds: dict[str, str], said: str) -> tuple[str, bytes]:
    """Media type and bytes of a data URL."""
    if not isinstance(value, str) or not value.startswith("data:"):
        what = "an address is not followed" if isinstance(value, str) and "://" in value[:20] else "is not a data URL"
        raise UserError(what, where=where, fix=f"send {said}")
    head, comma, packed = value.partition(",")
    kind, _, how = head.removeprefix("data:").partition(";")
    if not comma or how != "base64" or kind.lower() not in kinds:
        raise UserError(f"the data URL begins with {head[:40]!r}", where=where, fix=f"send {said}")
    if len(packed) > (MOST_BYTES + 2) // 3 * 4:
        raise UserError(f"{len(packed) * 3 // 4:,} bytes are too many", where=where, fix=f"send at most {MOST_BYTES:,}")
    try:
        data = base64.b64decode(packed, validate=True)
    except (binascii.Error, ValueError):
        raise UserError("what follows the comma is not base64", where=where, fix=f"send {said}") from None
    if not data:
        raise UserError("the data URL is empty", where=where, fix=f"send {said}")
    return kind.lower(), data
