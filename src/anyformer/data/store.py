"""Prepared data in one sealed folder: arrays, frame, preprocessing, tokenizer. It is reopened bit for bit."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.answer_spans import AnswerSpan
from anyformer.data.datasets.arrays import Arrays, save_array
from anyformer.data.datasets.blocks import token_facts
from anyformer.data.datasets.question_windows import QuestionWindows
from anyformer.data.datasets.rows import RowExamples
from anyformer.data.frame import Frame, Source
from anyformer.data.images.preprocessing import FILE as IMAGES
from anyformer.data.images.preprocessing import ImageSteps
from anyformer.data.prepared import Prepared
from anyformer.data.preprocess import FILE, Preprocess
from anyformer.data.settings import Data
from anyformer.data.splits import SIDES
from anyformer.data.targets import SelfSupervised
from anyformer.data.tokenizers.tokenizer import Tokenizer, open_tokenizer
from anyformer.errors import UserError
from anyformer.objectives.token_facts import TokenFacts
from anyformer.safe_files import digest

FRAME = "frame.arrow"
KIND = "rows"


def save_frame(frame: Frame, folder: Path) -> dict[str, Any]:
    """Save a frame's table beside the arrays; returns the rest, to be saved among the facts."""
    import pyarrow as pa

    with pa.OSFile(str(folder / FRAME), "wb") as file, pa.ipc.new_file(file, frame.table.schema) as writer:
        writer.write_table(frame.table, max_chunksize=65536)
    if frame.numbers is not None:
        save_array(folder / "places.npy", frame.numbers)
    return {"sources": [vars(source) | {"notes": list(source.notes)} for source in frame.sources]}


def open_frame(arrays: Arrays) -> Frame:
    """The frame saved beside the arrays, memory-mapped."""
    import pyarrow as pa

    table = pa.ipc.open_file(pa.memory_map(str(arrays.folder / FRAME))).read_all()
    sources = tuple(
        Source(**{**source, "notes": tuple(source["notes"])}) for source in arrays.facts["frame"]["sources"]
    )
    return Frame(table, sources, numbers=np.array(arrays["places"]) if "places" in arrays else None)


def fingerprint(arrays: Arrays, preprocess: Preprocess, tokenizer: Tokenizer | None) -> str:
    """A hash of everything that training depends on: the arrays, what was fitted, and the tokenizer."""
    mark = hashlib.sha256(preprocess.to_json().encode())
    mark.update(b"" if tokenizer is None else tokenizer.sha256.encode())
    for name in arrays:
        mark.update(f"{name} {digest(arrays.folder / f'{name}.npy')}".encode())
    return mark.hexdigest()


def seal(
    arrays: Arrays, frame: Frame, preprocess: Preprocess, tokenizer: Tokenizer | None, images: ImageSteps | None,
    facts: dict[str, Any], notes: list[str], settings: Data,
) -> None:  # fmt: skip
    """Save everything but the arrays and seal the folder."""
    folder = arrays.folder
    preprocess.save(folder / FILE)
    if tokenizer is not None:
        tokenizer.save(folder)
    if images is not None:
        images.save(folder)
    kept = {"kind": KIND, "frame": save_frame(frame, folder), "facts": facts, "notes": notes}
    arrays.close(kept | {"settings": settings.to_dict()})


def read_prepared(arrays: Arrays) -> Prepared | None:
    """The prepared data in a sealed folder, None if it has something else."""
    folder, facts = arrays.folder, arrays.facts
    if facts.get("kind") == "detection":
        from anyformer.data.datasets.prepare_detection import opened_detection

        return opened_detection(arrays)
    if facts.get("kind") == "series":
        from anyformer.data.datasets.prepare_series import opened_series

        return opened_series(arrays)
    if facts.get("kind") != KIND:
        return None
    try:
        preprocess = Preprocess.read(folder / FILE)
        tokenizer = open_tokenizer(folder) if (folder / "tokenizer_config.json").is_file() else None
        images = ImageSteps.read(folder / IMAGES) if (folder / IMAGES).is_file() else None
        frame = open_frame(arrays)
        settings = Data.from_dict(facts["settings"])
        return assemble(arrays, frame, preprocess, tokenizer, images, settings, facts["facts"], facts["notes"])
    except (UserError, KeyError, TypeError, ValueError, OSError):
        return None


def assemble(
    arrays: Arrays, frame: Frame, preprocess: Preprocess, tokenizer: Tokenizer | None, images: ImageSteps | None,
    settings: Data, facts: dict[str, Any], notes: list[str],
) -> Prepared:  # fmt: skip
    """The three splits over one folder of arrays; a split without rows is None."""
    side = arrays["side"]
    pad, known = pad_of(tokenizer), facts_for(preprocess, tokenizer)
    sides = [
        RowExamples(
            arrays,
            frame,
            preprocess,
            np.flatnonzero(side == number),
            pad=pad,
            images=images,
            settings=settings,
            facts=known,
        )
        for number in range(len(SIDES))
    ]
    train, valid, test = (examples if len(examples) else None for examples in sides)
    assert train is not None
    if isinstance(preprocess.target, AnswerSpan):  # trained by windows, evaluated by questions
        return Prepared(preprocess.task, QuestionWindows(train), valid, test, preprocess, tokenizer, images, facts,
                        list(notes))  # fmt: skip
    return Prepared(preprocess.task, train, valid, test, preprocess, tokenizer, images, facts, list(notes))


def facts_for(preprocess: Preprocess, tokenizer: Tokenizer | None) -> TokenFacts | None:
    """Facts on the tokens, if an objective masks them."""
    hides = isinstance(preprocess.target, SelfSupervised) and bool(preprocess.texts)
    return token_facts(tokenizer, tokenizer.size, pad_of(tokenizer)) if hides and tokenizer is not None else None


def pad_of(tokenizer: Tokenizer | None) -> int:
    """The padding token."""
    ids = () if tokenizer is None else (tokenizer.pad, tokenizer.eos)
    return next((number for number in ids if number is not None), 0)
