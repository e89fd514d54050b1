""".look files: the answers of a capture in one file that opens without its model.

A safetensors file. Its metadata has the manifest (layers, tokens, prediction, trust, statistics of heads) and the list
of answers as JSON; its tensors are the gzipped answers of every view for an exported page, and as many float32 maps as
fit. A file may be untrusted: sizes, types, names and shapes are validated before use, and nothing in it is executed.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor

from anyformer.amounts import decimal_bytes
from anyformer.errors import UserError
from anyformer.inspection.answer import SELECTION, Query, ViewAnswer, finite
from anyformer.inspection.axis import Token, TokenAxis
from anyformer.inspection.budget import bytes_of
from anyformer.inspection.capture_base import CaptureBase, write_file
from anyformer.inspection.given import NetworkInputs
from anyformer.inspection.prediction import PossibleAnswer
from anyformer.inspection.site import Site
from anyformer.inspection.trust import Trust, TrustCheck
from anyformer.safe_files import MOST_VALUES, open_regular, replacing, short, writing

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture
    from anyformer.inspection.lens import Lens
    from anyformer.inspection.server import LookServer

FORMAT = "anyformer.look.1"
MAPS = "64MB"  # of float32 maps in a file
MOST_BYTES = 2**30  # of a whole file
MOST_HEADER = 32 * 2**20  # bytes of names, metadata and manifest
MOST_TENSORS = 100_000
MOST_ANSWER = 256 * 2**20  # bytes of one answer when it is unpacked
DEEPEST = 40  # nesting of any JSON in a file
TYPES = {"F32": np.float32, "U8": np.uint8, "I32": np.int32, "I64": np.int64}
LENS_PARTS = {"ids": "I32", "logprobs": "F32", "chosen": "I32", "chosen_logprobs": "F32", "ranks": "I32",
              "divergence": "F32", "entropy": "F32", "values": "F32"}  # fmt: skip


# ---------------------------------------------------------------- writing


@torch.no_grad()
def save(capture: Capture, path: str | Path, *, maps: str | int = MAPS) -> Path:
    """Write a .look file with as many float32 maps as fit into `maps`, first layers first."""
    from anyformer.inspection.page import held_answers

    place = Path(path)
    if not place.absolute().parent.is_dir():
        raise UserError("the folder is not there", where=str(place.parent), fix="make it first")
    answers = held_answers(capture)
    arrays: dict[str, np.ndarray] = {}
    for i, entry in enumerate(answers):
        arrays[f"answer.{i}"] = np.frombuffer(base64.b64decode(entry["data"]), np.uint8)
    listed = [{name: entry[name] for name in ("view", "reads", "params")} for entry in answers]
    arrays |= map_arrays(capture, bytes_of(maps))
    if capture.given.pixels is not None:
        arrays["pixels"] = np.ascontiguousarray(capture.given.pixels, np.uint8)
    metadata = {"format": FORMAT, "manifest": as_text(manifest_for_file(capture, arrays)), "answers": as_text(listed)}
    size = sum(array.nbytes for array in arrays.values())
    if size > MOST_BYTES:
        raise UserError(f"the file would have {decimal_bytes(size)}", where=place.name, fix="look at fewer tokens")
    with writing(place, size), replacing(place) as part:
        save_file(arrays, str(part), metadata)
    return place


def as_text(value: Any) -> str:
    return json.dumps(finite(value), ensure_ascii=False)


def manifest_for_file(capture: Capture, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The page's manifest with extras for Python readers of the file; the lens is added to the arrays."""
    from anyformer.inspection.lens import why_no_lens
    from anyformer.inspection.manifest import manifest_of, trust_of_page

    more: dict[str, Any] = {"heads": capture.heads(), "trust": trust_of_page(capture), "batch": capture.batch}
    if why_no_lens(capture.model) is None:
        found = capture.lens(top=12)
        for name, kind in LENS_PARTS.items():
            value = getattr(found, name)
            if value is not None:
                arrays[f"lens.{name}"] = np.ascontiguousarray(value.cpu().numpy(), TYPES[kind])
        names = capture.names(sorted(set(found.ids.flatten().tolist())), found.kind) if found.kind != "numbers" else {}
        more["lens"] = {
            "kind": found.kind, "layers": found.layers, "error": found.error, "normed": found.normed,
            "has_norm": found.has_norm, "names": {str(number): name for number, name in names.items()},
        }  # fmt: skip
    return manifest_of(capture) | more


def map_arrays(capture: Capture, room: int) -> dict[str, np.ndarray]:
    """Whole maps and the rollout, as far as they fit."""
    found: dict[str, np.ndarray] = {}
    for site in capture.sites:
        size = site.heads * len(capture.axes[site.queries]) * len(capture.axes[site.keys]) * 4
        if size <= min(room, capture.budget):
            found[f"weights.{site.index}"] = np.ascontiguousarray(capture.weights(site.index).numpy(), np.float32)
            room -= size
    try:
        shares = capture.rollout().float().numpy()
    except UserError:  # no rollout for mixers without weights, or for streams with co-attention
        return found
    if shares.nbytes <= room:
        found["rollout"] = np.ascontiguousarray(shares)
    return found


# ---------------------------------------------------------------- reading


def bad_file(path: Path, what: str) -> UserError:
    return UserError(f"not a .look file of anyformer ({what})", where=path.name, fix="save it again, with capture.save")


def read_look(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Metadata and arrays of a file, with validated sizes and types; anything invalid is a UserError."""
    try:
        with open_regular(path) as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror})", where=path.name, fix="give a .look file") from None
    if len(data) > MOST_BYTES:
        raise bad_file(path, f"more than {MOST_BYTES:,} bytes")
    if len(data) < 8:
        raise bad_file(path, "too short")
    (length,) = struct.unpack("<Q", data[:8])
    if length > min(MOST_HEADER, len(data) - 8):
        raise bad_file(path, f"a header of {length:,} bytes")
    header = read_json_text(path, data[8 : 8 + length].decode("utf-8", "replace"), dict)
    metadata = header.pop("__metadata__", {})
    if not is_texts(metadata) or metadata.get("format") != FORMAT:
        raise bad_file(path, "another format")
    if len(header) > MOST_TENSORS:
        raise bad_file(path, f"{len(header):,} tensors")
    body = memoryview(data)[8 + length :]
    return metadata, {name: one_array(path, name, entry, body) for name, entry in header.items()}


def one_array(path: Path, name: str, entry: Any, body: memoryview) -> np.ndarray:
    """A read-only view of a tensor in the file."""
    if not isinstance(entry, dict) or entry.get("dtype") not in TYPES:
        raise bad_file(path, f"{name[:40]} has an unknown type")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not is_sizes(shape) or len(shape) > 8 or not is_sizes(offsets) or len(offsets) != 2:
        raise bad_file(path, f"{name[:40]} has no shape")
    kind = np.dtype(TYPES[entry["dtype"]])
    if offsets[1] > len(body) or offsets[1] - offsets[0] != math.prod(shape) * kind.itemsize:
        raise bad_file(path, f"{name[:40]} lies outside of the file")
    return np.frombuffer(body[offsets[0] : offsets[1]], kind).reshape(shape)


def is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int and 0 <= one < 2**48 for one in value)


def is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def read_json_text(path: Path, text: str, kind: type) -> Any:
    """JSON of bounded size and depth, whose outermost value is a `kind`."""
    if text.count(",") + text.count("[") + text.count("{") > MOST_VALUES:
        raise bad_file(path, f"more than {MOST_VALUES:,} values")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad_file(path, f"broken JSON: {short(error)}") from None
    if not isinstance(found, kind) or is_deep(found):
        raise bad_file(path, "JSON of another form")
    return found


def is_deep(value: Any) -> bool:
    """Whether JSON is nested too deeply for recursive code."""
    level = [value]
    for _ in range(DEEPEST):
        level = [item for one in level if isinstance(one, list | dict)
                 for item in (one.values() if isinstance(one, dict) else one)]  # fmt: skip
        if not level:
            return False
    return True


def unpacked(path: Path, data: bytes) -> bytes:
    """A gzipped answer, of bounded size."""
    reader = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        found = reader.decompress(data, MOST_ANSWER)
    except zlib.error as error:
        raise bad_file(path, f"an answer that is broken: {short(error)}") from None
    if reader.unconsumed_tail or not reader.eof:
        raise bad_file(path, "an answer that is too large or cut off")
    return found


class Saved(CaptureBase):
    """A .look file with the interface of a capture; an error for what it does not hold. `Saved.open("x.look")`."""

    def __init__(self, path: Path, metadata: Mapping[str, str], arrays: dict[str, np.ndarray]) -> None:
        self.path, self.arrays = path, arrays
        self.manifest: dict[str, Any] = read_json_text(path, metadata.get("manifest", ""), dict)
        self.answers: list[dict[str, Any]] = read_json_text(path, metadata.get("answers", ""), list)
        try:
            self.about = str(self.manifest["title"])[:400], str(self.manifest["kind"])
            self.axes = {name: read_axis(one) for name, one in self.manifest["axes"].items()}
            self.sites = tuple(read_site(i, one, self.axes) for i, one in enumerate(self.manifest["sites"]))
            self.given = NetworkInputs((), pixels=self.read_pixels(), text=str(self.manifest["input"]))
            site, head, query, key = (int(self.manifest["start"][name]) for name in SELECTION)
            self.begins = Query(site, head, query, key)
            for i, entry in enumerate(self.answers):
                check_answer(entry, arrays[f"answer.{i}"])
            self.check_shapes()
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise bad_file(path, f"{type(error).__name__}: {short(error)}") from None

    @classmethod
    def open(cls, path: str | Path) -> Saved:
        """Open a .look file."""
        place = Path(path)
        if not place.is_file():
            raise UserError("no such file", where=str(place), fix="give a .look file")
        return cls(place, *read_look(place))

    def __repr__(self) -> str:
        return f"Saved({self.title}, {self.given.text[:40]!r})"

    def read_pixels(self) -> np.ndarray | None:
        pixels = self.arrays.get("pixels")
        if pixels is not None and (pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8):
            raise ValueError("pixels are not an image")
        return pixels

    def check_shapes(self) -> None:
        """Validate that maps match their axes, and that the parts of a lens agree in shape."""
        for site in self.sites:
            found = self.arrays.get(f"weights.{site.index}")
            if found is not None and (found.shape != self.map_shape(site) or found.dtype != np.float32):
                raise ValueError(f"the map of {site.label} has another shape than its tokens")
        lens = self.manifest.get("lens")
        if lens is not None:
            shape = self.arrays["lens.ids"].shape
            if len(shape) != 3 or len(lens["layers"]) != shape[0] or not is_texts(lens["names"]):
                raise ValueError("the lens has another shape than its layers")
            for name in ("logprobs", "chosen_logprobs", "ranks", "divergence", "entropy"):
                if self.arrays[f"lens.{name}"].shape[:2] != shape[:2]:
                    raise ValueError(f"the {name} of the lens have another shape")

    def map_shape(self, site: Site) -> tuple[int, int, int]:
        return site.heads, len(self.axes[site.queries]), len(self.axes[site.keys])

    @property
    def title(self) -> str:
        """A short description of the model."""
        return self.about[0]

    @property
    def modality(self) -> str:
        """The kind of input."""
        return self.about[1]

    @property
    def batch(self) -> int:
        """A file holds one row."""
        return 1

    def lacks(self, what: str) -> UserError:
        return UserError(f"this file does not hold {what}", where=self.path.name, fix="look with the model itself")

    # ------------------------------------------------------------ maps

    def weights(self, site: int, *, rows: slice = slice(None), row: int | None = None) -> Tensor:
        """The attention weights (H,t,S) of a site for some queries."""
        found = self.arrays.get(f"weights.{self.site(site).index}")
        if found is None or row not in (None, 0):
            raise self.lacks(f"the map of {self.sites[site].label}" + (f" for row {row}" if row else ""))
        return torch.from_numpy(found[:, rows].copy())

    def inputs_of(self, site: int) -> None:
        """None: queries and keys are not in the file."""
        return

    def rollout(self) -> Tensor:
        """Attention rollout with the mean of the heads and a residual of 0.5."""
        found = self.arrays.get("rollout")
        if found is None:
            raise self.lacks("a rollout")
        return torch.from_numpy(found.copy()).double()

    # ------------------------------------------------------------ answers

    def answer(self, view: str, query: Query | None = None) -> ViewAnswer:
        """A view's answer, if the file holds one for this query."""
        query = Query() if query is None else query
        wanted = {name: str(getattr(query, name)) for name in SELECTION} | dict(query.options)
        held = False
        for i, entry in enumerate(self.answers):
            if entry["view"] != view:
                continue
            held = True
            if all(wanted.get(name) == entry["params"].get(name) for name in (*entry["reads"], *entry["params"])):
                data = unpacked(self.path, self.arrays[f"answer.{i}"].tobytes())
                try:
                    return ViewAnswer.from_bytes(data)
                except Exception as error:  # of safetensors or JSON, in an untrusted answer
                    raise bad_file(self.path, f"an answer that is broken: {short(error)}") from None
        raise self.lacks(f"this cell of the view {view[:40]!r}" if held else f"the view {view[:40]!r}")

    def steps(self, layer: int, head: int, query: int, *, kind: str = "self", stack: str | None = None) -> ViewAnswer:
        """The steps of one head for one token, as for the page."""
        return self.answer("steps", Query(self.find_site(layer, kind=kind, stack=stack).index, head, query))

    def lens(self, top: int = 10) -> Lens:
        """The logit lens, at most the top 12."""
        from anyformer.inspection.lens import Lens

        about = self.manifest.get("lens")
        if about is None:
            raise self.lacks("a lens")
        parts: dict[str, Any] = {
            name: torch.from_numpy(self.arrays[f"lens.{name}"].copy()) if f"lens.{name}" in self.arrays else None
            for name in LENS_PARTS
        }
        parts |= {name: parts[name][..., :top] for name in ("ids", "logprobs")}
        return Lens(
            kind=about["kind"], layers=tuple(map(str, about["layers"])), error=float(about["error"] or 0.0),
            normed=bool(about["normed"]), has_norm=bool(about["has_norm"]), **parts,
        )  # fmt: skip

    def names(self, ids: Iterable[int], kind: str) -> dict[int, str]:
        """Names of ids in the lens."""
        names = self.manifest.get("lens", {}).get("names", {})
        return {number: names.get(str(number), f"#{number}") for number in ids}

    def heads(self) -> list[dict[str, Any]]:
        """A table of statistics, one row per head."""
        found: list[dict[str, Any]] = self.manifest.get("heads", [])
        return found

    def prediction(self) -> list[PossibleAnswer]:
        """The model's predictions, best first."""
        names = {one.name for one in fields(PossibleAnswer)}
        return [PossibleAnswer(**{name: one[name] for name in names}) for one in self.manifest.get("prediction", [])]

    @cached_property
    def trust(self) -> Trust:
        """How well the capture agrees with its model."""
        checks = self.manifest.get("trust", {}).get("checks", [])
        return Trust(tuple(read_check(one) for one in checks))

    # ------------------------------------------------------------ pages and pictures

    @property
    def start(self) -> Query:
        """The cell selected when its page opens."""
        return self.begins

    def page_parts(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The manifest and the answers of the file."""
        answers = [entry | {"data": base64.b64encode(self.arrays[f"answer.{i}"].tobytes()).decode("ascii")}
                   for i, entry in enumerate(self.answers)]  # fmt: skip
        return self.manifest, answers

    def show(self, port: int = 0, *, open_browser: bool = True) -> LookServer:
        """Serve the page on loopback until stopped; returns the running server."""
        from anyformer.inspection.saved_app import serve_saved

        return serve_saved(self.html(), port, open_browser=open_browser)

    def save(self, path: str | Path) -> Path:
        """Copy the file."""
        return write_file(path, self.path.read_bytes())


# ---------------------------------------------------------------- parsing a manifest


def read_axis(given: Any) -> TokenAxis:
    tokens, written = (
        tuple(Token(str(one["text"]), str(one.get("kind", "word")), one.get("id"), str(one.get("note", "")),
                    None if one.get("segment") is None else int(one["segment"])) for one in given.get(part, ()))
        for part in ("tokens", "written")
    )  # fmt: skip
    if written and len(written) != len(tokens):
        raise ValueError("other tokens are written than read")
    grid, first = given.get("grid"), given.get("first", 0)
    if grid is not None:
        rows, columns = grid
        if type(rows) is not int or type(columns) is not int or type(first) is not int or min(rows, columns, first) < 0:
            raise ValueError("a grid that is none")
        if first + rows * columns > len(tokens):
            raise ValueError("a grid larger than its tokens")
        grid = (rows, columns)
    return TokenAxis(str(given["name"]), tokens, grid, first if grid is not None else 0, written)


def read_site(index: int, given: Any, axes: Mapping[str, TokenAxis]) -> Site:
    kinds = {"int": int, "str": str, "bool": bool}
    values = {one.name: given[one.name] for one in fields(Site)}
    for one in fields(Site):
        if type(values[one.name]) is not kinds[str(one.type)]:
            raise TypeError(f"{one.name} of a layer is not an {one.type}")
    found = Site(**values)
    if found.index != index or found.queries not in axes or found.keys not in axes or not 1 <= found.heads <= 65_536:
        raise ValueError(f"layer {index} does not fit its tokens")
    return found


def read_check(given: Any) -> TrustCheck:
    """One check; null stands for nan."""
    value = math.nan if given["value"] is None else float(given["value"])
    return TrustCheck(str(given["name"]), value, float(given["tolerance"]))


def check_answer(entry: Any, data: np.ndarray) -> None:
    listed = isinstance(entry["reads"], list) and all(isinstance(name, str) for name in entry["reads"])
    if not isinstance(entry["view"], str) or not is_texts(entry["params"]) or not listed or data.dtype != np.uint8:
        raise TypeError("an answer that is none")
