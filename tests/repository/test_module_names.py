"""One rule for the names of modules: a spec `X` builds an `XModule`, unless torch's own module is enough."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from tests.repository.source import modules

SUFFIX = "Module"
Classes = dict[str, list[ast.ClassDef]]


def classes_in(sources: Iterable[str]) -> Classes:
    """Every class at the top of a file, by name; two files may use one name."""
    found: Classes = {}
    for source in sources:
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def ancestors(name: str, classes: Classes) -> set[str]:
    """A class and all it comes from; `nn.Module` is "Module"."""
    found, waiting = set(), [name]
    while waiting:
        if (one := waiting.pop()) not in found:
            found.add(one)
            bases = [base for node in classes.get(one, ()) for base in node.bases]
            plain = [base.value if isinstance(base, ast.Subscript) else base for base in bases]
            waiting += [base.attr for base in plain if isinstance(base, ast.Attribute)]
            waiting += [base.id for base in plain if isinstance(base, ast.Name)]
    return found


def misnamed(classes: Classes) -> list[str]:
    """One sentence for each module that is not called after a spec that builds it."""
    above = {name: ancestors(name, classes) for name in classes}
    specs = {name for name in classes if "Spec" in above[name]}
    own = {name for name in classes if "Module" in above[name]}
    wrong = []
    for spec in sorted(specs):
        for method in [statement for node in classes[spec] for statement in node.body]:
            if not isinstance(method, ast.FunctionDef) or method.name != "build":
                continue
            made = {node.id for node in ast.walk(method) if isinstance(node, ast.Name)} & own
            allowed = {f"{one}{SUFFIX}" for one in specs}  # its own, or that of another spec it is a form of
            wrong += [f"{spec}.build makes {one}: call it {spec}{SUFFIX}" for one in sorted(made)
                      if not above[one] & allowed]  # fmt: skip
    names = {name for name in own if name.endswith(SUFFIX) and name != SUFFIX}
    wrong += [f"{name} is called after no spec" for name in sorted(names) if name.removesuffix(SUFFIX) not in specs]
    return wrong


def test_a_spec_builds_the_module_called_after_it() -> None:
    classes = classes_in(path.read_text(encoding="utf-8") for path in modules().values())
    assert sum(name.endswith(SUFFIX) for name in classes) > 40
    assert not misnamed(classes), "\n".join(misnamed(classes))


def test_control_other_names_are_seen() -> None:
    spec = "class Spec: pass\nclass Mean(Spec):\n    def build(self, width): return MeanModule(self)\n"
    right = f"{spec}class MeanModule(nn.Module): pass"
    assert misnamed(classes_in([right])) == []
    assert misnamed(classes_in([right.replace("MeanModule", "Averaging")])) == [
        "Mean.build makes Averaging: call it MeanModule"
    ]
    assert misnamed(classes_in([f"{right}\nclass LooseModule(nn.Module): pass"])) == [
        "LooseModule is called after no spec"
    ]
