"""Every public name says what it is, and every example in a docstring runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest

import anyformer

MODULES = sorted(
    name for _, name, _ in pkgutil.walk_packages(anyformer.__path__, "anyformer.") if "__main__" not in name
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    for test in finder.find(module, name):
        if test.examples:
            out: list[str] = []
            failed = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=out.append).failed
            assert not failed, "".join(out)


def test_every_public_name_has_a_docstring() -> None:
    bare = [
        name for name in anyformer.__all__ if name != "__version__" and not inspect.getdoc(getattr(anyformer, name))
    ]
    assert not bare


def test_a_wrong_example_is_noticed() -> None:
    test = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert doctest.DocTestRunner().run(test, out=lambda text: None).failed == 1
