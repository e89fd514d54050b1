"""Generic code asks the task: outside `tasks/` no name of a task is compared, and no class of one chooses a path."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from anyformer.commands.asking import TASKS
from anyformer.tasks import Task, all_tasks
from anyformer.tasks.known_tasks import subclasses
from tests.repository.source import modules

NAMES = {task.name for task in all_tasks()}
CLASSES = {kind.__name__ for kind in subclasses(Task)} | {"Task", "RowTask"}
# Hugging Face's names of heads happen to be words for tasks too; an estimator says which task it trains.
OTHER_WORDS = ("anyformer.families", "anyformer.heads")


def comparisons(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and word of every comparison with a task's name: ==, in (...), keys of a dictionary, cases, isinstance."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
            parts += [item for part in parts if isinstance(part, ast.Tuple | ast.List | ast.Set) for item in part.elts]
            yield from ((node.lineno, part.value) for part in parts if is_name(part))
        elif (table := looked_up(node)) is not None:
            yield from ((node.lineno, key.value) for key in table.keys if is_name(key))
        elif isinstance(node, ast.MatchValue) and is_name(node.value):
            yield node.value.lineno, node.value.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            kinds = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
            yield from ((node.lineno, kind) for kind in kinds & CLASSES)


def looked_up(node: ast.AST) -> ast.Dict | None:
    """A dictionary that something is chosen from: subscripted, asked by `get`, or kept as a constant."""
    if isinstance(node, ast.Subscript):
        held = node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        held = node.func.value
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        names = [target for target in ast.walk(node) if isinstance(target, ast.Name) and target.id.isupper()]
        held = node.value if names else None
    else:
        return None
    return held if isinstance(held, ast.Dict) else None


def is_name(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value in NAMES


def test_no_task_is_compared_outside_tasks() -> None:
    found = [
        f"{name}:{line} compares {word!r}"
        for name, path in modules().items()
        if not name.startswith(("anyformer.tasks", *OTHER_WORDS))
        for line, word in comparisons(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found, "\n".join(found)


def test_the_command_line_names_every_task() -> None:
    assert {task.name for task in all_tasks() if type(task).__module__.startswith("anyformer.")} <= set(
        re.findall(r"[\w-]+", TASKS)
    )


def test_control_every_way_to_compare_is_seen() -> None:
    for source in (
        'if task == "classify": pass',
        'if "lm" != self.task: pass',
        'if task in ("regress", "tag"): pass',
        'use = {"detect": 1}[task]',
        'use = {"detect": 1}.get(task)',
        'HABITS = {"lm": 1}',
        'match task:\n    case "forecast": pass',
        "if isinstance(task, TranslateTask): pass",
    ):
        assert list(comparisons(ast.parse(source))), source
    assert not list(comparisons(ast.parse('prepare(task="classify"); name = "lm"; {"word": w, "tag": t}')))


def test_there_are_the_tasks_that_the_command_line_promises() -> None:
    assert {"lm", "classify", "regress", "tag", "translate", "qa", "forecast", "detect"} <= NAMES
    assert all(task.title and task.verb and task.objective for task in all_tasks())
