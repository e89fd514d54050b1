"""The command `settings`."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from anyformer.commands.words import write


def settings(
    path: Annotated[str, typer.Argument(help="A section or a setting, e.g. training.optimizer; all if left out.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list of {path, part, type, default, ...}.")] = False,
) -> None:
    """List every setting with its type, its default and what it does; --set and a settings file take these paths.

    \b
    Example:
      anyformer settings
      anyformer settings training.optimizer
      anyformer settings model.stack.block.mixer --json
    """
    from anyformer.training.setup.settings_list import list_settings, settings_table

    found = list_settings(path)
    if as_json:
        write(json.dumps([dataclasses.asdict(setting) for setting in found], indent=2))
        return
    write("\n".join(settings_table(found)))
