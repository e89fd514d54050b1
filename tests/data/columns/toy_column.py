"""A kind of column from outside the library, in one file: places on earth, "48.21,16.37" (latitude, longitude).

A place is a point on the unit sphere, so that longitudes 179 and -179 are neighbours, and a token of its own in the
network. Nothing else in the library knows of it: importing this file is enough.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.core.context import Context, lay_out
from anyformer.data.columns.base import Column, ColumnValues
from anyformer.data.columns.cells import texts
from anyformer.data.columns.modality import Modality
from anyformer.slots import Embed

if TYPE_CHECKING:
    import pyarrow as pa

    from anyformer.data.columns.look import Facts, Scan
    from anyformer.data.columns.parsed import Parsed
    from anyformer.data.sizes import Sizes

WRITTEN = re.compile(r"^\s*[+-]?\d{1,2}(?:\.\d+)?\s*,\s*[+-]?\d{1,3}(?:\.\d+)?\s*$")
SURE = r"^\s*[+-]?\d{1,2}\.\d+\s*,\s*[+-]?\d{1,3}\.\d+\s*$"  # without points it may be a number like 1,234


class Places(Embed):
    """A token for each place of a row: its point on the sphere through a matrix of the column's own."""

    count: int

    def build(self, width: int) -> nn.Module:
        return PlacesModule(self.count, width)


class PlacesModule(nn.Module):
    """Points (B, K, 3) to tokens (B, K, D); a place that is not there has a vector of its own."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.count = count
        self.columns = nn.ModuleList(nn.Linear(3, width) for _ in range(count))
        self.absent = nn.Parameter(torch.zeros(count, width))

    def layout(
        self, points: Tensor, *, mask: Any = None, positions: Any = None, documents: Any = None, segments: Any = None,
        state: Any = None,
    ) -> Context:  # fmt: skip
        return lay_out(points.shape[0], self.count, points.device, mask=mask, positions=positions, documents=documents,
                       segments=segments, state=state)  # fmt: skip

    def forward(self, points: Tensor, *, context: Context) -> Tensor:
        missing = points.isnan().any(-1)  # (B,K)
        known = points.nan_to_num(0.0)
        tokens = torch.stack([linear(known[:, at]) for at, linear in enumerate(self.columns)], 1)  # (B,K,D)
        return torch.where(missing[..., None], self.absent, tokens)


class PlaceModality(Modality):
    """The places of a row, kept as one array (N, K, 3)."""

    name: ClassVar[str] = "place"
    embeds: ClassVar[tuple[type[Embed], ...]] = (Places,)

    def sizes(self) -> dict[str, Any]:
        return {"places": len(self.columns)}

    @classmethod
    def embed(cls, own: Embed | None, sizes: Sizes) -> Embed:
        return Places(count=sizes.more["places"])


class Place(Column):
    """A place on earth; `centre` is the middle of the training rows, for an example."""

    kind: ClassVar[str] = "place"
    noun: ClassVar[str] = "a place like 48.21,16.37"
    modality: ClassVar[type[Modality]] = PlaceModality

    centre: tuple[float, ...] | None = None

    @classmethod
    def recognise(cls, seen: Scan) -> Facts | None:
        if seen.holds != "words" or not seen.all_match(SURE):
            return None
        places = degrees(seen.few.to_pylist())
        if np.isnan(places).any():
            return None
        (south, west), (north, east) = places.min(0), places.max(0)
        return seen.made(cls.kind, f"places from {south:g} to {north:g} north, {west:g} to {east:g} east")

    @classmethod
    def read(cls, cells: pa.ChunkedArray, form: str = "") -> ColumnValues:
        return degrees(texts(cells))

    @classmethod
    def marks(cls, parsed: Parsed, name: str, form: str) -> np.ndarray | None:
        latitude, longitude = np.nan_to_num(np.round(parsed.values(cls, name) * 1e5), nan=-1.0).astype(np.int64).T
        return latitude * 2**32 + longitude

    @classmethod
    def fit(cls, name: str, values: ColumnValues, settings: Any, *, seed: int = 0, form: str = "") -> Place:
        known = values[~np.isnan(values[:, 0])]
        return cls(name=name, centre=tuple(known.mean(0).round(4).tolist()) if len(known) else None)

    def encode(self, values: ColumnValues) -> np.ndarray:
        latitude, longitude = np.radians(values).T
        ring = np.cos(latitude)
        points = [ring * np.cos(longitude), ring * np.sin(longitude), np.sin(latitude)]
        return np.stack(points, 1).astype(np.float32)  # (N,3)

    def parse_value(self, value: Any) -> str:
        if not isinstance(value, str) or np.isnan(degrees([value])).any():
            raise self.wrong(value)
        return value

    def example(self) -> str:
        latitude, longitude = self.centre or (48.21, 16.37)
        return f"{latitude},{longitude}"


def degrees(written: list[str]) -> np.ndarray:
    """Latitude and longitude (N, 2), nan where a text is no place."""
    found = np.full((len(written), 2), np.nan)
    for row, text in enumerate(written):
        if WRITTEN.match(text):
            latitude, longitude = map(float, text.split(","))
            if abs(latitude) <= 90 and abs(longitude) <= 180:
                found[row] = latitude, longitude
    return found
