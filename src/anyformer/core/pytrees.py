"""Inputs and outputs of a pass as pytrees of tensors, as `torch.export` and sharded training require."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from torch.utils import _pytree as pytree


def as_tuple(given: Any) -> tuple[Any, ...]:
    """Wrap a value in a tuple, unless it is one already."""
    return given if isinstance(given, tuple) else (given,)


def register(kind: Any, static: Sequence[str] = ()) -> None:
    """Register a dataclass as a pytree node whose fields are its children, except the `static` ones (its metadata)."""
    names = tuple(field.name for field in dataclasses.fields(kind) if field.name not in static)

    def flatten(one: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(one, name) for name in names], tuple(getattr(one, name) for name in static)

    def flatten_with_keys(one: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        children, known = flatten(one)
        return [(pytree.GetAttrKey(name), child) for name, child in zip(names, children, strict=True)], known

    def unflatten(children: Iterable[Any], known: Sequence[Any]) -> Any:
        return kind(**dict(zip(names, children, strict=True)), **dict(zip(static, known, strict=True)))

    pytree.register_pytree_node(
        kind, flatten, unflatten, serialized_type_name=f"{kind.__module__}.{kind.__name__}",
        to_dumpable_context=list, from_dumpable_context=as_tuples, flatten_with_keys_fn=flatten_with_keys,
    )  # fmt: skip


def as_tuples(known: Any) -> Any:
    """Turn lists, as JSON returns them, back into tuples."""
    return tuple(as_tuples(one) for one in known) if isinstance(known, list) else known
