"""Versions of stored results: a hash of the code that measured them.

The code is a claim's `measure` and everything that it uses, transitively, of its own file and of the rest of the lab.
Comments, docstrings and formatting do not count, nor do the cases, which every result records, nor verdicts and plots,
which are recomputed from the results; nor does the rest of the library, whose changes must not change what a part
computes.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from importlib.util import find_spec
from pathlib import Path

from anyformer.lab.claim import Claim

LAB = "anyformer.lab."
MEASURE = "measure"  # the name of a claim's function


def fingerprint(claim: Claim) -> str:
    """A short hash of the measuring code: results of different versions are not mixed."""
    name = str(getattr(claim.measure, "__name__", MEASURE))
    code = measuring_code(Path(inspect.getfile(claim.measure)), name)
    return hashlib.sha256("".join(code[at] for at in sorted(code)).encode()).hexdigest()[:12]


def measuring_code(start: Path, name: str = MEASURE) -> dict[tuple[str, str], str]:
    """The code of a name and of all its dependencies within the lab, by (file name, name)."""
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
    """The top-level definitions and imports of a file, by name."""
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
    """The file and the name of a definition imported from the lab; None for other nodes.

    claim.py is excluded: its data structures do not affect results.
    """
    if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(LAB):
        return None
    spec = find_spec(str(node.module))
    if spec is None or spec.origin is None or node.module == f"{LAB}claim":
        return None
    return Path(spec.origin), next(alias.name for alias in node.names if (alias.asname or alias.name) == name)


def names_in(node: ast.stmt) -> list[str]:
    """Every name in the code."""
    return [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]


def code_of(node: ast.stmt, name: str) -> str:
    """The code without comments and docstrings; for an import, only the given name."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        kept = [alias for alias in node.names if name in (alias.asname, alias.name.partition(".")[0])]
        return f"{getattr(node, 'module', '')} {[(alias.name, alias.asname) for alias in kept]}"
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(inner) is not None:
            inner.body = inner.body[1:]
    return ast.unparse(node)
