"""Families: the public checkpoint formats that can be opened and written, each as data."""

from __future__ import annotations

from anyformer.families import gpt2, llama
from anyformer.families.family import Family

FAMILIES: dict[str, Family] = {
    family.model_type: family for module in (gpt2, llama) for family in module.FAMILIES
}  # fmt: skip

__all__ = ["FAMILIES", "Family"]
