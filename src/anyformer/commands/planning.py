"""The command `plan`: the cost of a model, before anything is allocated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anyformer.commands.words import configure_messages, note, write
from anyformer.errors import UserError
from anyformer.log import silence

if TYPE_CHECKING:
    from anyformer.planning.devices import DeviceCeilings


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

    if source is None:
        if html is not None or explain is not None:
            raise UserError("a budget alone has no model to show", where="plan", fix="name a model too")
        optima = [law.optimum(flops) for law in LAWS.values()] if flops is not None else []
        write(json.dumps({"scaling": [law_facts(one) for one in optima]}) if as_json else budget_text(optima))
        return
    from anyformer.planning.costs import decodes
    from anyformer.training.setup.planned_source import plan as make_plan

    found = make_plan(
        source, batch=batch, length=length, device=ceilings(device, measure=measure), processes=processes,
        train_tokens=tokens, price=price, log=silence if quiet else note,
    )  # fmt: skip
    # The scaling laws are those of language models; a run has its own budget.
    budget = found.train_flops if flops is None and decodes(found.spec) else flops
    optima = [law.optimum(budget) for law in LAWS.values()] if budget else []
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
    """Train small models on the user's text, fit a scaling law, and apply it to a budget."""
    from anyformer.lab.sweep import sweep, sweep_text

    folder = out or Path("runs") / f"sweep-{source.stem}"
    found = sweep(source, folder, minutes=minutes, log=silence if quiet else note)
    write(json.dumps(found.to_dict(flops)) if as_json else sweep_text(found, flops))


def law_facts(one: Any) -> dict[str, Any]:
    """The result of a scaling law as JSON-compatible values."""
    return {"law": one.law, "flops": one.flops, "parameters": one.parameters, "tokens": one.tokens, "loss": one.loss}


def ceilings(device: str, *, measure: bool) -> str | DeviceCeilings:
    """Peak rates of a named device, or measured on this machine."""
    if not measure:
        return device
    import torch

    from anyformer.planning.measure import measure_ceilings

    return measure_ceilings("cuda" if torch.cuda.is_available() else "cpu")
