"""Pictures that nobody has labelled yet, for a model that reads pictures: files, a folder of them, or IDX alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anyformer.data.files.idx import idx_head
from anyformer.data.files.image_folders import folders_in, images_below, is_image


def unlabelled(paths: Sequence[Path]) -> list[str] | None:
    """Every picture of these paths by its name; None where labels come with them, or where they are no pictures."""
    found: list[str] = []
    for path in paths:
        if path.is_dir():
            if any(any(images_below(folder, {})) for folder in folders_in(path)):
                return None  # class folders
            inside = [str(image) for image in images_below(path, {})]
        elif is_image(path):
            inside = [str(path)]
        else:
            head = idx_head(path) if path.is_file() else None
            inside = [f"{path}#{number}" for number in range(head.shape[0])] if head and len(head.shape) > 2 else []
        if not inside:
            return None
        found += inside
    return found or None
