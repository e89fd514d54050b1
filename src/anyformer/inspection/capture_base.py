"""The common base of captures and .look files: sites and their tokens, exact weights, and figures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from anyformer.errors import UserError
from anyformer.safe_files import replace_file, writing

if TYPE_CHECKING:
    from anyformer.inspection.answer import Query, ViewAnswer
    from anyformer.inspection.axis import Token, TokenAxis
    from anyformer.inspection.given import NetworkInputs
    from anyformer.inspection.lens import Lens
    from anyformer.inspection.site import Site

ALL = slice(None)


class CaptureBase(ABC):
    """Sites, tokens and weights of one pass, wherever they come from."""

    axes: dict[str, TokenAxis]
    sites: tuple[Site, ...]
    given: NetworkInputs

    @property
    @abstractmethod
    def title(self) -> str:
        """A short description of the model."""

    @property
    @abstractmethod
    def modality(self) -> str:
        """text, image, table, pair (an encoder-decoder) or other."""

    @property
    @abstractmethod
    def batch(self) -> int:
        """Rows of the input."""

    @abstractmethod
    def weights(self, site: int, *, rows: slice = ALL, row: int | None = None) -> Tensor:
        """The attention weights (H,t,S) of a site for some queries, in float32."""

    @abstractmethod
    def rollout(self) -> Tensor:
        """Attention rollout through all layers (T,S)."""

    @abstractmethod
    def lens(self, top: int = 10) -> Lens:
        """The logit lens: the head's predictions after each layer."""

    @abstractmethod
    def names(self, ids: Iterable[int], kind: str) -> dict[int, str]:
        """Names of token or class ids."""

    # ------------------------------------------------------------ sites

    def site(self, index: int) -> Site:
        if not 0 <= index < len(self.sites):
            raise UserError(f"site {index} is out of range", where="look", fix=f"use 0 to {len(self.sites) - 1}")
        return self.sites[index]

    def find_site(self, layer: int, *, kind: str = "self", stack: str | None = None) -> Site:
        """The site of a layer counted from 0; for an encoder-decoder the decoder's unless `stack` is given."""
        stacks = [stack] if stack is not None else ["", "decoder", "encoder", "first", "second"]
        for one in stacks:
            for site in self.sites:
                here = site.stack == one and site.layer == layer
                if here and (site.kind == kind or (kind, site.kind) == ("self", "other")):
                    return site
        raise UserError(f"there is no {kind} attention in layer {layer}", where="look",
                        fix="layers are " + ", ".join(sorted({str(site.layer) for site in self.sites})))  # fmt: skip

    def row_tokens(self, site: Site) -> tuple[Token, ...]:
        """The tokens that label a site's rows: in cross-attention the output tokens of the steps, if there are any."""
        axis = self.axes[site.queries]
        return axis.written if site.kind == "cross" and axis.written else axis.tokens

    def attention(
        self, layer: int, head: int | None = None, *, rows: slice = ALL, kind: str = "self", stack: str | None = None
    ) -> Tensor:
        """Exact weights in float32: (H,t,S), or (t,S) of one head. Layers and heads are counted from 0."""
        site = self.find_site(layer, kind=kind, stack=stack)
        found = self.weights(site.index, rows=rows)
        if head is None:
            return found
        if not 0 <= head < site.heads:
            raise UserError(f"head {head} is out of range", where=site.label, fix=f"use 0 to {site.heads - 1}")
        return found[head]

    # ------------------------------------------------------------ pages and pictures

    @property
    @abstractmethod
    def start(self) -> Query:
        """The cell selected when its page opens."""

    @abstractmethod
    def answer(self, view: str, query: Query | None = None) -> ViewAnswer:
        """A view's answer for the page: facts and arrays."""

    @abstractmethod
    def page_parts(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The manifest and the answers of a page."""

    def png(
        self, path: str | Path, view: str = "map", *, layer: int | None = None, head: int | None = None,
        query: int | None = None, site: int | None = None, scale: str = "sqrt", zoom: float = 2.0,
    ) -> Path:  # fmt: skip
        """Write one view as PNG, with `zoom` pixels per unit; see `inspection.figure` for the list of views.

        Layers, heads, queries and sites are counted from 0.
        """
        from anyformer.inspection.figure import draw

        if not 0.5 <= zoom <= 8:
            raise UserError(f"zoom {zoom} is not between 0.5 and 8", where="picture", fix="use 2")
        drawing = draw(self, view, layer=layer, head=head, query=query, site=site, scale=scale)
        return write_file(path, drawing.png(zoom=zoom))

    def svg(
        self, path: str | Path, view: str = "map", *, layer: int | None = None, head: int | None = None,
        query: int | None = None, site: int | None = None, scale: str = "sqrt",
    ) -> Path:  # fmt: skip
        """Write one view as SVG, like `png`."""
        from anyformer.inspection.figure import draw

        drawing = draw(self, view, layer=layer, head=head, query=query, site=site, scale=scale)
        return write_file(path, drawing.svg())

    def html(self, path: str | Path | None = None) -> str:
        """The page as a self-contained HTML file, which opens from disk."""
        from anyformer.inspection.page import exported_page

        text = exported_page(*self.page_parts())
        if path is not None:
            write_file(path, text)
        return text

    def _repr_html_(self) -> str:
        from anyformer.inspection.page import framed_page

        return framed_page(self.html())

    @abstractmethod
    def show(self, port: int = 0, *, open_browser: bool = True) -> Any:
        """Serve the page on loopback until stopped; returns the running server."""


def write_file(path: str | Path, data: str | bytes) -> Path:
    """Write a file atomically."""
    place = Path(path)
    if not place.absolute().parent.is_dir():
        raise UserError("the folder is not there", where=str(place.parent), fix="make it first")
    with writing(place):
        replace_file(place, data)
    return place
