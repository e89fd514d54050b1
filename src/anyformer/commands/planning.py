"""The verb `plan`: what a model costs, before anything is allocated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anyformer.commands.words import configure_messages, note, write
from anyformer.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from anyformer.planning.devices import DeviceCeilings
    from anyformer.slots import Network


def plan(
    source: Annotated[
        str | None,
        typer.Argument(metavar="NAME|FOLDER|RUN|FILE", help="A preset, a model folder, a run, or data to train on."),
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Rows of a step; a run's own if not given, else 1.")] = None,
    length: Annotated[int | None, typer.Option(min=1, help="Tokens of a text; all that fit, if not given.")] = None,
    device: Annotated[str, typer.Option(help="h200, a100, l4, laptop or cpu.")] = "h200",
    processes: Annotated[int, typer.Option(min=1, help="Split a step over so many devices.")] = 1,
    flops: Annotated[
        float | None, typer.Option(help="A budget: the best size and tokens for it, by published laws.")
    ] = None,
    tokens: Annotated[float | None, typer.Option(help="Tokens of the whole training, for hours and cost.")] = None,
    price: Annotated[float | None, typer.Option(min=0, help="Dollars an hour of one device.")] = None,
    sweep: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Train small models on this text and fit a law of your own.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="Time for --sweep; 10 if not given.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where --sweep keeps its runs; runs/sweep-NAME if not given.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the ceilings of this machine and plan for it.")
    ] = False,
    explain: Annotated[
        str | None, typer.Option(help="parameters, flops, memory, cache, time or split: figures and rule.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with everything and a roofline.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="The result only, no messages.")] = False,
) -> None:
    """Plan before you train: parameters, FLOPs, memory, time and cost; nothing is allocated.

    \b
    Example:
      anyformer plan gpt2 --batch 32 --length 1024
      anyformer plan llama3-8b --device a100 --processes 8 --tokens 1e11
      anyformer plan --flops 1e18
      anyformer plan --sweep book.txt --minutes 10
    """
    configure_messages(quiet)
    if sweep is not None:
        if source is not None or html is not None or explain is not None:
            raise UserError("a sweep plans no other model", where="--sweep", fix="give it alone, with --minutes")
        run_sweep(sweep, out, 10.0 if minutes is None else minutes, flops, as_json=as_json, quiet=quiet)
        return
    if minutes is not None or out is not None:
        raise UserError("has no effect without --sweep", where="--minutes" if out is None else "--out",
                        fix="add --sweep FILE")  # fmt: skip
    if source is None and flops is None:
        raise UserError("there is nothing to plan", where="plan", fix="give a preset, a folder or --flops 1e18")
    from anyformer.planning.scaling import LAWS
    from anyformer.planning.text import budget_text, plan_text
    from anyformer.planning.text import explain as explain_part

    optima = [] if flops is None else [law.optimum(flops) for law in LAWS.values()]
    if source is None:
        if html is not None or explain is not None:
            raise UserError("a budget alone has no model to show", where="plan", fix="name a model too")
        write(json.dumps({"scaling": [law_facts(one) for one in optima]}) if as_json else budget_text(optima))
        return
    from anyformer.planning.model_plan import plan as make_plan

    spec, name, own_batch = find_model(source, quiet=quiet)
    found = make_plan(
        spec, batch=batch or own_batch or 1, length=length, device=ceilings(device, measure=measure),
        processes=processes, train_tokens=tokens, price=price, name=name,
    )  # fmt: skip
    if html is not None:
        from anyformer.planning.page import write_page

        write_page(found, html, optima)
        if not quiet:
            note(f"wrote {html}")
    if as_json:
        write(json.dumps(found.to_dict() | ({"scaling": [law_facts(one) for one in optima]} if optima else {})))
    elif explain is not None:
        write(explain_part(found, explain))
    elif html is None or not quiet:
        write("\n".join([plan_text(found), *([budget_text(optima)] if optima else [])]))


def run_sweep(
    source: Path, out: Path | None, minutes: float, flops: float | None, *, as_json: bool, quiet: bool
) -> None:  # fmt: skip
    """Small models on a text of one's own, the law that they follow, and what it says of a budget."""
    from anyformer.lab.sweep import sweep, sweep_text

    folder = out or Path("runs") / f"sweep-{source.stem}"
    found = sweep(source, folder, minutes=minutes, say=(lambda line: None) if quiet else note)
    write(json.dumps(found.to_dict(flops)) if as_json else sweep_text(found, flops))


def law_facts(one: Any) -> dict[str, Any]:
    """A law's answer as JSON."""
    return {"law": one.law, "flops": one.flops, "parameters": one.parameters, "tokens": one.tokens, "loss": one.loss}


def ceilings(device: str, *, measure: bool) -> str | DeviceCeilings:
    """The device by name, or this machine as it is measured."""
    if not measure:
        return device
    import torch

    from anyformer.planning.measure import measure_ceilings

    return measure_ceilings("cuda" if torch.cuda.is_available() else "cpu")


def find_model(source: str, *, quiet: bool = False) -> tuple[Network, str, int | None]:
    """The spec of what was named, what to call it, and the batch that it is trained with where that is known."""
    from anyformer.presets import PRESETS, preset

    path = Path(source)
    if source in PRESETS:
        return preset(source), source, None
    if (path / "run.json").is_file():
        from anyformer.training.run.folder import RunFolder

        config = RunFolder.open(path).config()
        return config.model, path.name, config.training.batch_size
    if path.is_dir() and any((path / name).is_file() for name in ("config.json", "anyformer.json")):
        from anyformer.planning.sources import spec_in

        return spec_in(path), path.name, None
    if path.exists():
        return from_data(path, quiet=quiet)
    raise UserError(f"{source!r} is neither a preset nor a path", where="plan", fix=did_you_mean(source, PRESETS))


def from_data(path: Path, *, quiet: bool) -> tuple[Network, str, int | None]:
    """The model that `train` would choose for data."""
    from anyformer.commands.asking import AskOptions
    from anyformer.slots import Network
    from anyformer.training.setup.dry_run import rehearse

    request = AskOptions(device="cpu").request([path])
    try:
        facts = rehearse(request, (lambda line: None) if quiet else note, timed=False)
    except UserError as error:
        raise request.placed(error) from None
    settings = facts["settings"]
    return Network.from_dict(settings["model"]), path.name, settings["training"].get("batch_size")
