"""Folders of classes and pairs of IDX files, read as tables with columns image and label."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from anyformer.data.files.idx import IdxHeader, idx_head, read_idx
from anyformer.data.files.named_files import table_in, table_naming
from anyformer.data.files.open_text import HEAD, import_pyarrow, looks_like, present, show_path
from anyformer.data.files.path_kinds import IMAGES
from anyformer.data.files.side_folders import SIDES, any_file, classes_in, find_side_folders
from anyformer.data.frame import Frame, Source
from anyformer.errors import UserError

SUFFIXES = frozenset(IMAGES)
LAYOUT = "make one folder a class, with its images inside; or give a CSV with columns image and label"
ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".xz", ".bz2", ".7z", ".rar")
UNNAMED = "name is not UTF-8"
Row = tuple[str, str, str]  # image, label, split or ""


def read_pictures(paths: Sequence[str | Path]) -> Frame:
    """Folders with one sub-folder per class (also below train, valid and test), or IDX files, as a table."""
    import_pyarrow()
    import pyarrow as pa

    rows: list[Row] = []
    sources: list[Source] = []
    skipped: dict[str, int] = {}
    remarks: list[str] = []
    files = [Path(path) for path in paths if not Path(path).is_dir()]
    if files:
        found, origin = idx_table(files)
        rows, sources = rows + found, sources + origin
    for folder in (Path(path) for path in paths if Path(path).is_dir()):
        inside = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
        idx = [path for path in inside if idx_named(path)]
        if idx:
            found, origin = idx_table(idx)
        else:
            found, origin, said = class_folders(folder, skipped)
            remarks += said
        rows, sources = rows + found, sources + origin
    labels = sorted({label for _, label, _ in rows})
    if len(labels) < 2:
        where = show_path(Path(paths[0])) if paths else "images"
        what = f"only one class ({labels[0][:60]})" if labels else "no images"
        raise UserError(what, where=where, fix=table_or(paths, LAYOUT))
    columns = {"image": pa.array([row[0] for row in rows]), "label": pa.array([row[1] for row in rows])}
    if any(side for _, _, side in rows):
        columns["split"] = pa.array([side or "train" for _, _, side in rows])
    return Frame(pa.table(columns), tuple(sources), skipped, remarks=tuple(remarks))


def table_or(paths: Sequence[str | Path], fix: str) -> str:
    """The fix for a folder without classes: the table in it, which may name its files, else another layout."""
    folders = [Path(path) for path in paths if Path(path).is_dir()]
    tables = [table for folder in folders if (table := table_in(folder) or table_naming(folder)) is not None]
    return f"give the table that names its files: {show_path(tables[0])}" if tables else fix


# ---------------------------------------------------------------- folders


def class_folders(root: Path, skipped: dict[str, int]) -> tuple[list[Row], list[Source], tuple[str, ...]]:
    """Every image in the class folders of a folder, and notes on others; files without an image suffix are counted."""
    root = unwrap_folder(root)
    inner = folders_in(root)
    refuse_other_layouts(root, inner)
    sides = find_side_folders(root, inner, folders_in, lambda folder: any_file(folder, is_image))
    rows: list[Row] = []
    empty: list[str] = []
    size, mark = 0, hashlib.sha256()
    for above, side in sides.above:
        for kind in classes_in(above, folders_in) if above != root else folders_in(above):
            before = len(rows)
            for path in images_below(kind, skipped):
                rows.append((str(path), kind.name, side))
                size += path.stat().st_size if path.is_file() else 0
                mark.update(f"{path.relative_to(root).as_posix()}\0{size}\0".encode("utf-8", "surrogateescape"))
            if len(rows) == before:
                empty.append(kind.name)
        loose = sum(is_image(path) for path in above.iterdir())
        if loose:
            skipped["outside the class folders"] = skipped.get("outside the class folders", 0) + loose
    loose = skipped.get("outside the class folders", 0)
    if not rows:
        unnamed = skipped.get(UNNAMED, 0)
        if unnamed:
            raise UserError(f"the names of all {unnamed:,} files in it, or of their folders, are not UTF-8",
                            where=show_path(root), fix="rename them")  # fmt: skip
        what = f"{loose:,} images but no class folders with images" if loose else "no images"
        archives = sorted(path.name for path in root.iterdir() if path.suffix in ARCHIVES)
        raise UserError(
            what,
            where=show_path(root),
            fix=f"unpack {archives[0][:60]} first" if archives else table_or([root], LAYOUT),
        )
    notes = tuple(f"class folder {name} is empty" for name in empty)
    source = Source(root.name, str(root), len(rows), size, mark.hexdigest(), "image", 1, notes)
    return rows, [source], sides.notes


def unwrap_folder(root: Path) -> Path:
    """The folder itself, or its only sub-folder if that has the classes."""
    inner = folders_in(root)
    if len(inner) == 1 and not any(map(is_image, root.iterdir())) and len(folders_in(inner[0])) > 1:
        return inner[0]
    return root


def folders_in(folder: Path) -> list[Path]:
    """The sub-folders of a folder, hidden ones excluded; files, of which there may be a million, are not checked."""
    with os.scandir(folder) as entries:
        found = [Path(each.path) for each in entries if each.is_dir() and not each.name.startswith(".")]
    return sorted(path for path in found if not is_image(path))


def is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def images_below(folder: Path, skipped: dict[str, int]) -> Iterator[Path]:
    """Images of one class sorted by name, at any depth."""
    for above, inner, names in os.walk(folder):
        odd = [name for name in inner if is_image(Path(name))]  # a folder called x.png cannot be a class
        inner[:] = sorted(name for name in inner if not name.startswith(".") and name not in odd)
        for name in sorted(names + odd):
            path = Path(above) / name
            if not unicode(str(path)):
                skipped[UNNAMED] = skipped.get(UNNAMED, 0) + 1
            elif is_image(path):
                yield path
            elif not name.startswith("."):
                reason = f"no image by name ({path.suffix.lower()[:10] or 'no suffix'})"
                skipped[reason] = skipped.get(reason, 0) + 1


def unicode(name: str) -> bool:
    """Whether a name can be encoded as UTF-8, as tables require."""
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def refuse_other_layouts(root: Path, inner: list[Path]) -> None:
    names = {path.name for path in inner}
    if {"Annotations", "JPEGImages"} <= names:
        what = "holds boxes as Pascal VOC writes them, and no folder a class"
        raise UserError(what, where=show_path(root), fix=f"say --task detect; for classification {LAYOUT}")


# ---------------------------------------------------------------- IDX


def idx_named(path: Path) -> bool:
    return "idx" in path.name.lower() and "ubyte" in path.name.lower()


def idx_table(files: Sequence[Path]) -> tuple[list[Row], list[Source]]:
    """Images and labels of IDX files matched by name; a file named t10k or test is the test split."""
    heads: dict[Path, IdxHeader] = {}
    for path in files:
        head = idx_head(present(path))
        if head is None:
            with path.open("rb") as file:
                guess = looks_like(file.read(HEAD))
            if "archive" in guess:
                raise UserError(f"{guess}, not a folder of images", where=show_path(path), fix="unpack it first")
            raise UserError("neither a folder of images nor an IDX file", where=show_path(path), fix=LAYOUT)
        heads[path] = head
    images = [path for path, head in heads.items() if len(head.shape) > 2]
    labels = {pair_name(path): path for path, head in heads.items() if len(head.shape) == 1}
    if not images:
        raise UserError("labels but no images", where=show_path(files[0]), fix="give the IDX file of images too")
    rows: list[Row] = []
    sources = []
    for path in images:
        beside = labels.get(pair_name(path))
        if beside is None and len(images) == len(labels) == 1:
            beside = next(iter(labels.values()))
        if beside is None:
            raise UserError("no labels for it", where=show_path(path), fix="give the IDX file of labels beside it")
        pixels, classes = read_idx(path), read_idx(beside)
        if len(pixels) != len(classes):
            what = f"{len(pixels):,} images but {len(classes):,} labels in {beside.name}"
            raise UserError(what, where=show_path(path), fix="download both again")
        if not pixels.size:
            raise UserError("no images in it", where=show_path(path), fix="download it again")
        side = side_of(path)
        rows += [(f"{path}#{number}", str(label), side) for number, label in enumerate(classes.tolist())]
        packed = heads[path].packed
        digest = hashlib.sha256(np_bytes(pixels) + np_bytes(classes)).hexdigest()
        notes = ("IDX", packed) if packed else ("IDX",)
        sources.append(Source(path.name, str(path), len(pixels), path.stat().st_size, digest, "image", 1, notes))
    if len({side for _, _, side in rows}) == 1:
        rows = [(image, label, "") for image, label, _ in rows]
    return rows, sources


def np_bytes(array: object) -> bytes:
    return memoryview(array).tobytes()  # type: ignore[arg-type]


def pair_name(path: Path) -> str:
    """The common name of matching image and label files."""
    name = path.name.lower().removesuffix(".gz").removesuffix(".xz").removesuffix(".bz2").removesuffix(".zst")
    return (
        name.replace("images", "")
        .replace("labels", "")
        .replace("idx3", "idx")
        .replace("idx1", "idx")
        .replace("idx4", "idx")
    )


def side_of(path: Path) -> str:
    name = path.name.lower()
    return next((side for word, side in SIDES.items() if name.startswith(word)), "train")


def unlabelled_images(paths: Sequence[Path]) -> list[str] | None:
    """The names of unlabelled images: files, a folder of them, or IDX alone.

    None if they have labels, or are no images.
    """
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
