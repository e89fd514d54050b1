"""Files of tensors that are gathered one at a time: byte for byte those that safetensors writes."""

from __future__ import annotations

from pathlib import Path

import torch

from anyformer.checkpoints import tensors


def some() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {
        "b.weight": torch.randn(5, 3, generator=draw),
        "a.weight": torch.randn(7, generator=draw).bfloat16(),
        "step": torch.tensor(3.0),
        "ä": torch.arange(4),
        "half": torch.randn(2, 2, generator=draw).half(),
        "wide": torch.randn(3, generator=draw).double(),
        "flag": torch.tensor([True, False, True]),
        "empty": torch.empty(0, 4),
        "turned": torch.randn(4, 6, generator=draw).T,
    }


def test_the_file_is_that_of_the_library(tmp_path: Path) -> None:
    asked: list[str] = []
    found = some()
    names = {id(value): name for name, value in found.items()}

    def gather(tensor: torch.Tensor) -> torch.Tensor:
        asked.append(names[id(tensor)])
        return tensor

    tensors.write(tmp_path / "library", found)
    tensors.write_one_by_one(tmp_path / "ours", found, gather)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "library").read_bytes()
    assert asked == tensors.file_order(found)  # what the other processes count on
    for name, entry in tensors.read_header(tmp_path / "ours").items():
        assert torch.equal(entry.read(), found[name])


def test_control_another_value_is_another_file(tmp_path: Path) -> None:
    tensors.write(tmp_path / "library", some())
    tensors.write_one_by_one(tmp_path / "ours", some() | {"step": torch.tensor(4.0)}, lambda tensor: tensor)
    assert (tmp_path / "ours").read_bytes() != (tmp_path / "library").read_bytes()
