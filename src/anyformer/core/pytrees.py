"""What a pass takes and gives as trees of tensors, as `torch.export` and sharded training ask for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from torch.utils import _pytree as pytree


def as_tuple(given: Any) -> tuple[Any, ...]:
    """One value, or several as a tuple already, as a tuple."""
    return given if isinstance(given, tuple) else (given,)


def register(kind: Any, facts: Sequence[str] = ()) -> None:
    """Make a dataclass a node whose fields are its children, all but `facts`, which belong to its kind."""
    names = tuple(field.name for field in dataclasses.fields(kind) if field.name not in facts)

    def flatten(one: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(one, name) for name in names], tuple(getattr(one, name) for name in facts)

    def flatten_with_keys(one: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        children, known = flatten(one)
        return [(pytree.GetAttrKey(name), child) for name, child in zip(names, children, strict=True)], known

    def unflatten(children: Iterable[Any], known: Sequence[Any]) -> Any:
        return kind(**dict(zip(names, children, strict=True)), **dict(zip(facts, known, strict=True)))

    pytree.register_pytree_node(
        kind, flatten, unflatten, serialized_type_name=f"{kind.__module__}.{kind.__name__}",
        to_dumpable_context=list, from_dumpable_context=as_tuples, flatten_with_keys_fn=flatten_with_keys,
    )  # fmt: skip


def as_tuples(known: Any) -> Any:
    """Lists, as JSON gives them back, as the tuples they were."""
    return tuple(as_tuples(one) for one in known) if isinstance(known, list) else known
