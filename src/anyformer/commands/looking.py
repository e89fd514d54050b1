"""The command `look`: inspect a model on a page, in a file, or in the terminal."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anyformer.commands.options import Device, Folder, Quiet
from anyformer.commands.words import configure_messages, note, write
from anyformer.errors import UserError

if TYPE_CHECKING:
    from anyformer.inference.predictor import Predictor
    from anyformer.inspection.capture import Capture

WAIT = 0.25  # polling interval for a run without a checkpoint yet, in seconds
WAITING_LINE = 15.0  # seconds between two log lines about it


def look(
    folder: Folder,
    given: Annotated[
        str | None,
        typer.Argument(metavar="INPUT", help='A text, an image file, or a row as JSON: {"age": 41}; - reads stdin.'),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="What an encoder-decoder writes; its own text if not given.")
    ] = None,
    beside: Annotated[str | None, typer.Option("--with", help="A second input, to compare.")] = None,
    with_model: Annotated[Path | None, typer.Option(help="A second model or run, to compare.")] = None,
    view: Annotated[str | None, typer.Option(help="The view to open, or to draw with --png and --svg.")] = None,
    layer: Annotated[int | None, typer.Option(min=0, help="A layer, counted from 0.")] = None,
    head: Annotated[int | None, typer.Option(min=0, help="A head, counted from 0.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the page as one file instead of serving it.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write one picture.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Write one picture as vectors.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write a .look file, which opens without the model.")] = None,
    terminal: Annotated[bool, typer.Option("--terminal", help="Draw the map of one head here.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address, open nothing.")] = False,
    budget: Annotated[str, typer.Option(help="Most memory that the capture may use.")] = "1GB",
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="What the capture holds, as one JSON object.")] = False,
    quiet: Quiet = False,
) -> None:
    """Look inside a model: attention, step by step, what each layer knows, and what happens without a head.

    \b
    Example:
      anyformer look runs/demo "def add(a, b):"
      anyformer look FOLDER cat.png --html cat.html
      anyformer look FOLDER "She prefers cats to dogs" --terminal --layer 3 --head 5
    """
    configure_messages(quiet)
    if folder.suffix == ".look":
        from anyformer.inspection.bundle import Saved

        shown: Any = Saved.open(folder)
    else:
        shown = captured(folder, given, target, device, budget)
        if beside is not None or with_model is not None:
            other = captured(with_model or folder, given if beside is None else beside, target, device, budget)
            shown.compare(other)
    if not written(shown, view, layer, head, html, png, svg, save, terminal, as_json):
        view = view or ("training" if is_training(folder) else None)
        serve_page(shown, view, layer, head, port, open_browser=not no_browser and not quiet)


def is_training(folder: Path) -> bool:
    """Whether it is a run in progress."""
    from anyformer.training.run.history import RUN, open_run

    return (folder / RUN).is_file() and open_run(folder).status.startswith("running")


def await_checkpoint(folder: Path) -> None:
    """Wait for the first checkpoint of a run in progress; if it ends without one, the loader raises the error."""
    from anyformer.checkpoints import store
    from anyformer.training.run.history import open_run

    said = 0.0
    while is_training(folder) and store.latest(folder / "checkpoints") is None:
        if time.monotonic() - said > WAITING_LINE:
            run = open_run(folder)
            total = "" if run.number("total") is None else f" of {run.number('total'):,.0f}"
            note(f"waiting  {folder.name} trains, step {run.step or 0:,.0f}{total}: the page opens at its first "
                 "checkpoint (--set training.save_every=100 writes them sooner; Ctrl-C ends the wait)")  # fmt: skip
            said = time.monotonic()
        time.sleep(WAIT)


def captured(folder: Path, given: str | None, target: str | None, device: str, budget: str) -> Capture:
    """Run the model of a folder once on the input."""
    import anyformer
    from anyformer.inspection.capture import look as capture

    await_checkpoint(folder)
    predictor = anyformer.load(folder, device=device)
    found = capture(predictor, inputs_from(given, predictor), target=target, budget=budget, name=folder.name)
    found.run = folder if (folder / "run.json").is_file() else None
    return found


def inputs_from(given: str | None, predictor: Predictor) -> Any:
    """Convert the input to model inputs: a row as JSON, a file's path, or a text."""
    from anyformer.inspection.given import is_pair_of_towers

    if given == "-":
        given = sys.stdin.read().rstrip("\n")
    columns = () if predictor.preprocess is None else predictor.preprocess.columns or ()
    if predictor.tokenizer is None and predictor.images is None and not columns:
        return ids_from(given)
    if given is None:
        return None  # an example
    compares = is_pair_of_towers(predictor)
    if (columns or compares) and given.lstrip().startswith(("{", "[")):
        try:
            return json.loads(given)
        except ValueError as wrong:
            raise UserError(
                f"the row is not JSON: {wrong}", where="INPUT", fix='write {"column": value, ...}'
            ) from None
    if len(columns) > 1 and not Path(given).is_file():
        names = ", ".join(column.name for column in columns[:6])
        raise UserError(f"this model reads the columns {names}", where="INPUT",
                        fix='give a row as JSON, {"column": value, ...}, or a file')  # fmt: skip
    if predictor.images is not None and not columns and not compares and not Path(given).is_file():
        raise UserError("no such image", where=given, fix="give the path of an image file")
    return Path(given) if len(columns) > 1 or (compares and Path(given).is_file()) else given


def ids_from(given: str | None) -> Any:
    """Parse token ids, for a model folder without a tokenizer."""
    import torch

    words = (given or "").replace(",", " ").split()
    if not words or not all(word.isdecimal() and len(word) < 10 for word in words):
        raise UserError("the folder has no tokenizer", where="INPUT",
                        fix='give token ids, as "5 17 9", or add tokenizer.json')  # fmt: skip
    return torch.tensor([[int(word) for word in words]])


def written(
    shown: Any, view: str | None, layer: int | None, head: int | None, html: Path | None, png: Path | None,
    svg: Path | None, save: Path | None, terminal: bool, as_json: bool,
) -> bool:  # fmt: skip
    """Handle output other than the page; returns whether there was any."""
    if html is not None:
        shown.html(html)
        note(f"wrote    {html}")
    for path, draw in ((png, shown.png), (svg, shown.svg)):
        if path is not None:
            draw(path, view or "map", layer=layer, head=head)
            note(f"wrote    {path}")
    if save is not None:
        shown.save(save)
        note(f"wrote    {save}")
    if terminal:
        from anyformer.inspection.terminal_map import draw_map

        write(draw_map(shown, site_for(shown, layer), head or 0))
    if as_json:
        from anyformer.inspection.answer import finite
        from anyformer.inspection.bundle import Saved
        from anyformer.inspection.manifest import manifest_of

        held = shown.manifest if isinstance(shown, Saved) else manifest_of(shown)
        write(json.dumps(finite(held), ensure_ascii=False))
    return terminal or as_json or any(path is not None for path in (html, png, svg, save))


def site_for(shown: Any, layer: int | None) -> int:
    """The attention site of a layer number; 0 if no layer is given or the model has no attention maps."""
    return shown.find_site(layer).index if shown.sites and layer else 0


def serve_page(
    shown: Any, view: str | None, layer: int | None, head: int | None, port: int, *, open_browser: bool
) -> None:
    """Serve the page until Ctrl-C."""
    standing = shown.show(port, open_browser=False)
    chosen = {"view": view, "site": site_for(shown, layer) or None, "head": head or None}
    query = "&".join(f"{name}={value}" for name, value in chosen.items() if value is not None)
    address = f"{standing.url}#{query}" if query else standing.url  # the page stores its selection in the fragment
    note(f"look     {shown.title}")
    note(f"page     {address}   (Ctrl-C ends it)")
    if open_browser:
        import webbrowser

        webbrowser.open(address)
    standing.wait()  # until Ctrl-C
    note("ended")
