"""Decoding settings: a model folder's defaults, overridden by a call's."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from anyformer.checkpoints.folder import Opened
from anyformer.generation import Generation
from anyformer.safe_files import inside, read_json

GENERATION_FILE = "generation_config.json"


def decoding_defaults(folder: Path, opened: Opened) -> Generation:
    """The decoding settings of a folder: its generation_config.json, or in older folders its config.json."""
    path = inside(folder, GENERATION_FILE)
    return Generation.from_hf(dict(opened.config) | (read_json(path) if path.is_file() else {}))


def changed_settings(settings: Generation) -> dict[str, Any]:
    """The settings that differ from their default."""
    plain = Generation()
    return {f.name: value for f in fields(settings) if (value := getattr(settings, f.name)) != getattr(plain, f.name)}


def with_settings(defaults: Generation, settings: dict[str, Any]) -> Generation:
    """The folder's settings with the caller's on top; num_beams above 1 switches off the folder's do_sample."""
    kept = changed_settings(defaults)
    if settings.get("num_beams", 1) > 1 and "do_sample" not in settings:
        kept.pop("do_sample", None)
    if settings.get("num_beams", 1) > 1:
        kept.pop("prompt_lookup_num_tokens", None)
    if "max_new_tokens" in settings:
        kept.pop("max_length", None)
    return Generation.from_settings(kept | settings)
