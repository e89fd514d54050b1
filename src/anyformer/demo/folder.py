"""The model folder the demo leaves behind, and the lines that use it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn

from anyformer.core.model import Model
from anyformer.errors import UserError

FOLDER = Path("runs/demo")
FILES = ("anyformer.json", "model.safetensors", "tokenizer.json")


def check_folder(folder: Path) -> None:
    """Refuse, before any work, to write among files that are not a model's."""
    if folder.is_file():
        raise UserError(f"{folder} is a file", where="--out", fix="name a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / FILES[0]).exists():
        raise UserError(f"{folder} holds other files", where="--out", fix="name a new or empty folder")


def save(folder: Path, spec: Model, net: nn.Module, tokenizer: Tokenizer) -> None:
    """Spec, weights and tokenizer: everything another program needs to use the model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILES[0]).write_text(spec.to_json(), encoding="utf-8")
    save_file({name: value.detach().cpu().contiguous() for name, value in net.state_dict().items()}, folder / FILES[1])
    tokenizer.save(str(folder / FILES[2]))


def program(name: str) -> str:
    """How to call a program that stands beside this Python, as short as it works from here."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        return name
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def commands(folder: Path, seed: int) -> list[str]:
    """Lines for the shell."""
    anyformer = program("anyformer")
    return [
        f"{anyformer} generate {shlex.quote(folder.as_posix())} '    def' --temperature 0.6 --max-new-tokens 60",
        f"{anyformer} demo --seconds 30 --seed {seed + 1}",
        f"{anyformer} presets",
    ]


def snippet(folder: Path) -> list[str]:
    """Lines for Python: open the model again, with nothing of the demo."""
    return [
        "import anyformer",
        f"model = anyformer.load({folder.as_posix()!r})",
        'print(model.generate("class", max_new_tokens=40, temperature=0.6, seed=1))',
    ]
