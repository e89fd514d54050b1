"""The command `lab`: re-run the claims of the lectures."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from anyformer.commands.words import configure_messages, note, write
from anyformer.errors import UserError
from anyformer.log import silence

lab = typer.Typer(
    rich_markup_mode=None,
    help="Re-run the claims of the lectures: what was quoted, what is measured here, and a verdict.",
    no_args_is_help=True,
)

Folder = Annotated[Path, typer.Option("--out", help="Where results, plots and the report are kept.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="The result only, no progress.")]
Full = Annotated[bool, typer.Option("--full", help="The fuller form: more seeds and sizes, better on a GPU.")]
HOME = Path("runs/lab")


@lab.command("list")
def list_claims(as_json: AsJson = False) -> None:
    """List every claim with its lecture, the figure quoted and what it costs to re-run."""
    from anyformer.lab.catalogue import all_claims
    from anyformer.lab.text import list_text

    every = all_claims().values()
    if as_json:
        facts = ("name", "lecture", "claim", "source", "quoted", "method", "cost")
        write(json.dumps([{fact: getattr(claim, fact) for fact in facts} for claim in every]))
    else:
        write(list_text(every))


@lab.command("run")
def run_claims(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Claims; see `lab list`.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every claim.")] = False,
    full: Full = False,
    out: Folder = HOME,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Re-run claims and say what holds; what was measured before is kept and not measured again.

    \b
    Example:
      anyformer lab run permutation softmax-scale
      anyformer lab run --all
    """
    configure_messages(quiet)
    if bool(names) == every:
        raise UserError("name claims, or give --all", where="lab run", fix="`anyformer lab list` shows every name")
    from anyformer.lab.catalogue import all_claims, find_claim
    from anyformer.lab.plot import draw
    from anyformer.lab.runner import run_claim
    from anyformer.lab.text import finding_text
    from anyformer.safe_files import replace_file

    workers = 1 if full else os.cpu_count() or 1  # each case of the full form uses all cores, or the GPU, alone
    chosen = list(all_claims().values()) if every else [find_claim(name) for name in names or ()]
    found = []
    for claim in chosen:
        run = run_claim(claim, out, full=full, workers=workers, log=silence if quiet else note)
        found.append(run.to_dict())
        for number, plot in enumerate(run.finding.plots, 1):
            path = out / f"{claim.name}-{number}.svg"
            replace_file(path, draw(plot))
            if not quiet:
                note(f"wrote {path}")
        if not as_json:
            write(finding_text(run) + "\n")
    if as_json:
        write(json.dumps({"claims": found}))


@lab.command("report")
def report(full: Full = False, out: Folder = HOME, quiet: Quiet = False) -> None:
    """Write one self-contained page with every claim that was run into the folder."""
    configure_messages(quiet)
    from anyformer.lab.catalogue import all_claims
    from anyformer.lab.page import report_page
    from anyformer.lab.runner import finished_runs
    from anyformer.safe_files import replace_file

    runs, missing = finished_runs(all_claims().values(), out, full=full)
    if not runs:
        raise UserError(f"no claim was run in {out}", where="lab report", fix="anyformer lab run --all")
    path = out / "report.html"
    replace_file(path, report_page(runs, missing))
    note(f"{len(runs)} claims, {len(missing)} not run yet")
    write(str(path))
