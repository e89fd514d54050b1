"""A frame into arrays, by what was fitted on the training rows: the same for training and for new rows."""

from __future__ import annotations

import numpy as np

from anyformer.data.columns.modality import Encoding
from anyformer.data.columns.parsed import Parsed
from anyformer.data.counts import ColumnCounts
from anyformer.data.datasets.arrays import Arrays
from anyformer.data.frame import Frame
from anyformer.data.images.preprocessing import ImageSteps
from anyformer.data.preprocess import Preprocess
from anyformer.data.targets import Encoded
from anyformer.data.tokenizers.tokenizer import Tokenizer


def encode(
    frame: Frame,
    preprocess: Preprocess,
    tokenizer: Tokenizer | None,
    arrays: Arrays,
    *,
    train: np.ndarray | None,
    parsed: Parsed | None = None,
    images: ImageSteps | None = None,
) -> tuple[Preprocess, ColumnCounts]:
    """Write the inputs of every row; `train` are the rows that may still decide the length of text, None for new rows.

    Gives the preprocessing with the length filled in, and what was cut, unknown and missing.
    """
    counts = ColumnCounts(len(frame))
    work = Encoding(frame, arrays, counts, parsed or Parsed(frame), tokenizer, images, train)
    for modality in reversed(preprocess.modalities):  # text last: reports name the columns of a table first
        preprocess = modality.encode(work, preprocess)
    return preprocess, counts


def encode_target(frame: Frame, preprocess: Preprocess) -> Encoded | None:
    """The targets of the rows, None where the frame has not all of their columns."""
    target = preprocess.target
    if target is None or not set(target.names) <= set(frame.names):
        return None
    return target.encode(frame)
