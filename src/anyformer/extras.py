"""Optional packages: the extra of anyformer that installs each, and the error if one is missing."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

from anyformer.errors import UserError


class Package(NamedTuple):
    """An optional dependency."""

    package: str  # its name for pip
    extra: str  # the extra of anyformer that installs it


# By import name. For a package in several extras, the most common one is given.
OPTIONAL_PACKAGES = {
    "typer": Package("typer", "cli"),
    "rich": Package("rich", "cli"),
    "yaml": Package("pyyaml", "cli"),
    "pyarrow": Package("pyarrow", "train"),
    "PIL": Package("pillow", "train"),
    "soundfile": Package("soundfile", "train"),
    "sacrebleu": Package("sacrebleu", "train"),
    "sklearn": Package("scikit-learn", "train"),
    "scipy": Package("scipy", "train"),
    "starlette": Package("starlette", "serve"),
    "uvicorn": Package("uvicorn", "serve"),
    "httptools": Package("httptools", "serve"),
    "pydantic": Package("pydantic", "serve"),
    "jinja2": Package("jinja2", "serve"),
    "llguidance": Package("llguidance", "serve"),
    "prometheus_client": Package("prometheus_client", "serve"),
    "onnx": Package("onnx", "onnx"),
    "onnxscript": Package("onnxscript", "onnx"),
    "onnxruntime": Package("onnxruntime", "onnx"),
    "sentencepiece": Package("sentencepiece", "sentencepiece"),
}


def is_installed(module: str) -> bool:
    """Whether a module can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None


def install_command(module: str) -> str:
    """The command that installs a missing module.

    >>> install_command("PIL")
    "pip install 'anyformer[train]'"
    """
    return f"pip install 'anyformer[{OPTIONAL_PACKAGES[module].extra}]'"


def require(module: str, purpose: str, *, where: str = "", or_else: str = "") -> None:
    """Raise an error if an optional package is missing, before any work.

    `purpose` begins the sentence, with its verb: "pictures need", "Marian's tokenizer needs".
    """
    if not is_installed(module):
        raise missing(module, purpose, where=where, or_else=or_else)


def missing(module: str, purpose: str = "this needs", *, where: str = "", or_else: str = "") -> UserError:
    """The error for a missing package: what needs it, and which extra installs it.

    >>> str(missing("yaml", "settings in YAML need"))
    "settings in YAML need the package pyyaml, which is not installed; pip install 'anyformer[cli]'"
    """
    what = f"{purpose} the package {OPTIONAL_PACKAGES[module].package}, which is not installed"
    return UserError(what, where=where, fix=install_command(module) + (f", or {or_else}" if or_else else ""))


def explain_import(error: ModuleNotFoundError) -> UserError | None:
    """The `missing` error for a failed import; None if no extra of anyformer installs the module."""
    module = (error.name or "").partition(".")[0]
    return missing(module) if module in OPTIONAL_PACKAGES else None
