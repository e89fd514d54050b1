"""Turn pickled weights (pytorch_model.bin, *.pt, *.pth) of a model folder into model.safetensors, once.

    python recipes/bin_to_safetensors.py FOLDER [FILE ...]

A pickle can run code when it is opened. This script asks torch for tensors only (weights_only=True), which refuses
most of that but has been broken before: run it on files you trust, in a place where you would run them. The library
itself opens safetensors only.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


def tensors_in(data: Any, path: str = "") -> dict[str, torch.Tensor]:
    """Every tensor of nested dictionaries; a lone outer level such as {"model": ...} is taken off."""
    if isinstance(data, torch.Tensor):
        return {path: data}
    if not isinstance(data, dict):
        return {}
    for outer in ("state_dict", "model", "module"):
        if isinstance(data.get(outer), dict):
            return tensors_in(data[outer])
    found: dict[str, torch.Tensor] = {}
    for name, value in data.items():
        found |= tensors_in(value, f"{path}.{name}" if path else str(name))
    return found


def files_of(folder: Path) -> list[Path]:
    """The pickled weights of a folder: shards named by an index, or every file that looks like weights."""
    index = folder / "pytorch_model.bin.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        return [folder / Path(name).name for name in names]
    return sorted(p for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth") and "training_args" not in p.name)


def convert(folder: Path, files: list[Path], target: Path | None = None) -> Path:
    """Write model.safetensors into `target`, or the folder itself; tensors that share memory are cloned."""
    found: dict[str, torch.Tensor] = {}
    for file in files:
        found |= tensors_in(torch.load(file, map_location="cpu", weights_only=True))
    if not found:
        raise SystemExit(f"error: no tensors in {', '.join(f.name for f in files) or folder}; name the file to read")
    path = (target or folder) / "model.safetensors"
    if path.exists():
        raise SystemExit(f"error: {path} is already there; remove it first")
    save_file({name: tensor.clone().contiguous() for name, tensor in found.items()}, str(path), {"format": "pt"})
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    if not options.folder.is_dir():
        raise SystemExit(f"error: {options.folder} is not a folder")
    path = convert(options.folder, options.files or files_of(options.folder))
    sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
