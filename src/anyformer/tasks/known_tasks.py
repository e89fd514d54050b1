"""The registered tasks: every one that has been imported, here or in a module of your own."""

from __future__ import annotations

from typing import Any

from anyformer.own_parts import UnknownPart
from anyformer.tasks.base import Task


def all_tasks() -> list[Task]:
    """Every task that has been imported, in the order of their definition."""
    kinds: list[Any] = subclasses(Task)  # type: ignore[type-abstract]
    return [kind() for kind in kinds if kind.name]


def subclasses(kind: type[Task]) -> list[type[Task]]:
    """All subclasses of a class, each before its own subclasses."""
    found: list[type[Task]] = []
    for each in kind.__subclasses__():
        found += [each, *subclasses(each)]
    return list(dict.fromkeys(found))  # a class with two bases is listed once


def title_of(name: str) -> str:
    """A task's title; an unknown task is called by its name."""
    return next((task.title for task in all_tasks() if task.name == name), name)


def find(name: str) -> Task:
    """The task of that name or alias."""
    for task in all_tasks():
        if name == task.name or name in task.other_names:
            return task
    names = [task.name for task in all_tasks()]
    raise UnknownPart.named(name, f"unknown task {name!r}", names, where="--task")
