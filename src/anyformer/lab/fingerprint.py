"""What a kept result belongs to: the code that measured it.

That is a claim's `measure` and whatever it uses of its own file and of the rest of the lab, however far. Comments,
sentences and layout do not count, nor do the cases, which every result names, nor the verdict and the pictures, which
are made anew of the results; nor does the rest of the library, whose changes must not change what a part computes.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from importlib.util import find_spec
from pathlib import Path

from anyformer.lab.claim import Claim

LAB = "anyformer.lab."
MEASURE = "measure"  # what a claim calls it


def fingerprint(claim: Claim) -> str:
    """A short hash of the code that measures: results of another version of it are not mixed with today's."""
    name = str(getattr(claim.measure, "__name__", MEASURE))
    code = measuring_code(Path(inspect.getfile(claim.measure)), name)
    return hashlib.sha256("".join(code[at] for at in sorted(code)).encode()).hexdigest()[:12]


def measuring_code(start: Path, name: str = MEASURE) -> dict[tuple[str, str], str]:
    """The code of a name of a file and of all that it uses of the lab, by the file's name and its own."""
    found: dict[tuple[str, str], str] = {}
    files: dict[Path, dict[str, ast.stmt]] = {}
    waiting = [(start, name)]
    while waiting:
        path, wanted = waiting.pop()
        if path not in files:
            files[path] = names_of(path)
        node = files[path].get(wanted)
        if node is None or (path.name, wanted) in found:
            continue
        lab_file = file_of(node, wanted)
        if lab_file is not None:
            waiting.append(lab_file)
            continue
        found[path.name, wanted] = code_of(node, wanted)
        waiting += [(path, used) for used in names_in(node)]
    return found


def names_of(path: Path) -> dict[str, ast.stmt]:
    """What a file defines or imports at its top level, by name."""
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0]: node for alias in node.names}
        else:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
            found |= {name.id: node for target in targets for name in ast.walk(target)
                      if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}  # fmt: skip
    return found


def file_of(node: ast.stmt, name: str) -> tuple[Path, str] | None:
    """Where a name that is imported from the lab is defined, and what it is called there.

    What a claim and a result are (claim.py) says nothing of a figure.
    """
    if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(LAB):
        return None
    spec = find_spec(str(node.module))
    if spec is None or spec.origin is None or node.module == f"{LAB}claim":
        return None
    return Path(spec.origin), next(alias.name for alias in node.names if (alias.asname or alias.name) == name)


def names_in(node: ast.stmt) -> list[str]:
    """Every name that code reads."""
    return [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]


def code_of(node: ast.stmt, name: str) -> str:
    """Code without comments and documentation; of an import the one name."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        kept = [alias for alias in node.names if name in (alias.asname, alias.name.partition(".")[0])]
        return f"{getattr(node, 'module', '')} {[(alias.name, alias.asname) for alias in kept]}"
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(inner) is not None:
            inner.body = inner.body[1:]
    return ast.unparse(node)
