"""Options and arguments shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[Path, typer.Argument(help="A folder of anyformer or Hugging Face.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda[:N] or mps.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16, float16; as on disk if not given.")]
Quantise = Annotated[str | None, typer.Option(help="int8: weights in a quarter of the memory.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="The result only, no messages.")]
