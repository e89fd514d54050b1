"""The field's own words: what a user or a reader of the code meets is called as the field calls it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.repository.source import modules

# Words of messages, help and docstrings, each with what is said in its place.
PHRASES = {
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bis not a share\b": "is outside [0, 1)",
    r"\bno \w+ is called\b": "unknown preset 'x'",
    r"(?<![Tt]here )\b(is|are) no (number|list|file|size|probability|object|picture|JSON|UTF-8)": "is not a",
    r"\bnothing says which token\b": "decoder_start_token_id is not set",
    r"\bscores? (no )?words\b": "a language-model head, logits",
    r"\b[Gg]o(es)? on with\b": "resume, continue",
    r"\bwrit(es|ing) ahead\b": "draft model, draft tokens",
    r"\bin company\b": "in a batch",
    r"\b(lower|higher) the rate\b": "the learning rate",
    r"\bcheckpoint stands\b": "is intact",
    r"\bis (to be predicted|meant) is not said\b": "no target column given",
    r"\btold once\b": "reported once per host",
}  # fmt: skip

# Names of classes, functions, parameters and attributes.
NAMES = {
    "Moment": "StepResult", "Standing": "BestCheckpoint", "Habit": "TrainingDefaults", "Given": "StartModelConstraints",
    "Evaluated": "EvaluationResult", "Measured": "TrialTimes", "Pace": "Throughput", "Brief": "InMemorySession",
    "FollowedRunFolder": "ReadOnlyRunFolder", "Reminded": "FixedContextRecurrent", "Past": "HyenaState",
    "Walk": "CarriedState", "Doubling": "UpBlock", "Halving": "DownBlock", "let_go": "unlock",
    "last_words": "on_abort", "told_once": "report_once_per_host", "let_first_tell": "wait_before_exit",
    "set_rate": "set_lr", "answers_some": "supports_token_subset", "reads_some": "reads_token_subset",
    "learning_rate": "lr",
}  # fmt: skip


def strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every piece of text in the code: messages, help and docstrings; what an f-string computes is left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name that is defined: of a class, a function, a parameter, a field."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr


def dialect(source: str) -> list[str]:
    """One line for each home-made word, with the field's."""
    tree = ast.parse(source)
    found = [
        f"{line}: {match[0]!r} in {text[:60]!r}: say {instead!r}"
        for line, text in strings(tree) for pattern, instead in PHRASES.items()
        if (match := re.search(pattern, text)) is not None
    ]  # fmt: skip
    return found + [f"{line}: {name}: say {NAMES[name]}" for line, name in names(tree) if name in NAMES]


def test_the_package_speaks_the_fields_words() -> None:
    found = [
        f"{module}:{line}" for module, path in modules().items() for line in dialect(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        'raise UserError("not YAML", fix="mend the line")',
        'raise UserError(f"dropout {p} is not a share below 1")',
        'raise UserError(f"{port} is no number")',
        'raise UserError(f"no preset is called {name!r}")',
        'def f():\n    """Refuse a head that scores no words."""',
        "class Moment:\n    step: int",
        "def set_rate(optimizers, rate): ...",
        "def f(learning_rate): ...",
        "self.last_words = 1",
    ],
)
def test_control_a_home_made_word_is_seen(source: str) -> None:
    assert len(dialect(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        'raise UserError("not YAML", fix="fix the line")',
        'raise UserError("there is no file to write, and the run is no longer there")',
        'say("recommended; the moment a run ends")',
        "class StepResult:\n    lr: float",
        "x = learning_rate.Moment",
    ],
)
def test_control_the_fields_words_pass(source: str) -> None:
    assert not dialect(source)
