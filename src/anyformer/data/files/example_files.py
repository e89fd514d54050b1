"""An example image and audio clip for inspection, if none was given."""

from __future__ import annotations

import io
import math
import struct
import wave
from typing import Any


def picture() -> Any:
    """A bright square on a gradient, 64 by 64 pixels."""
    import numpy as np

    from anyformer.data.images.decoding import pillow

    pixels = np.full((64, 64, 3), 40, np.uint8)
    pixels[...] += np.arange(64, dtype=np.uint8)[None, :, None]
    pixels[20:44, 12:36] = (220, 180, 60)
    return pillow().fromarray(pixels)


def tone(rate: int) -> bytes:
    """Half a second of a decaying sine, as a WAV file."""
    pitch, count = rate / 20, rate // 2
    loudness = (math.exp(-4 * i / count) * math.sin(2 * math.pi * pitch * i / rate) for i in range(count))
    sink = io.BytesIO()
    with wave.open(sink, "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(b"".join(struct.pack("<h", round(20_000 * x)) for x in loudness))
    return sink.getvalue()
