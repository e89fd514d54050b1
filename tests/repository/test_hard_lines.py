"""Lines that are not crossed in src/, read from the syntax tree. Each has a control: made-up source that crosses it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

import pytest

from tests.repository.source import dotted, full_names, modules

Finder = Callable[[ast.Module], Iterator[tuple[int, str]]]

CODE_IN_DATA = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
NEVER_CALLED = {
    "torch.load",
    "yaml.load",
    "yaml.load_all",
    "yaml.full_load",
    "yaml.full_load_all",
    "yaml.unsafe_load",
    "yaml.unsafe_load_all",
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "builtins.eval",
    "builtins.exec",
}


def hasattr_decides(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """A path chosen by probing is a hidden protocol; put the question into the slot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "hasattr":
            yield node.lineno, "hasattr"


def kwargs_passed_on(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """A typo in a name that is passed on unseen surfaces at the bottom of the stack, or never."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or not function.args.kwarg:
            continue
        own = function.args.kwarg.arg
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            for keyword in call.keywords:
                if keyword.arg is None and any(
                    isinstance(n, ast.Name) and n.id == own for n in ast.walk(keyword.value)
                ):
                    yield call.lineno, f"**{own} passed on"


def environment_read(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Behaviour that is not in the settings is not in the record either."""
    names = full_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            name = dotted(node, names)
            if name in {"os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv"}:
                yield node.lineno, name


def printed(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The library logs under the name anyformer; only the command line speaks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "print":
            yield node.lineno, "print"


def code_from_data(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Model folders and data are untrusted: nothing in them may become code."""
    names = full_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in CODE_IN_DATA:
                    yield node.lineno, f"import {alias.name}"
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").partition(".")[0] in CODE_IN_DATA:
                yield node.lineno, f"from {node.module}"
        elif isinstance(node, ast.Name | ast.Attribute):
            name = dotted(node, names)
            # `network.eval()` is fine; the builtin is a bare name.
            bare = isinstance(node, ast.Name) and name in {"eval", "exec", "__import__"}
            if bare or name in NEVER_CALLED or name.rpartition(".")[2] == "trust_remote_code":
                yield node.lineno, name
        elif isinstance(node, ast.arg) and node.arg == "trust_remote_code":
            yield node.lineno, node.arg
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg in {"allow_pickle", "shell", "trust_remote_code"} and not off:
                    yield node.lineno, f"{keyword.arg}={ast.unparse(keyword.value)}"
        elif isinstance(node, ast.Dict):
            for key in node.keys:
                if isinstance(key, ast.Constant) and key.value in {"allow_pickle", "trust_remote_code"}:
                    yield node.lineno, f"{key.value!r} in a dict"


def compiled_elsewhere(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Compiled code is loaded from disk: `kernels.compile` alone makes it, in a folder that only its owner writes."""
    names = full_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            name = dotted(node, names)
            if name in {"torch.compile", "torch.jit.script", "torch.utils.cpp_extension", "triton.jit"}:
                yield node.lineno, name


# rule -> (finder, modules it does not bind). Spec checks every name itself before it hands the settings to a dataclass.
# Torch and Triton are told by the environment alone where compiled code is kept; it changes no result.
# The last rule has no exempt module, and must not get one.
RULES: dict[str, tuple[Finder, set[str]]] = {
    "no hasattr": (hasattr_decides, set()),
    "no **kwargs passed on": (kwargs_passed_on, {"anyformer.spec"}),
    "no environment variable below the command line": (
        environment_read,
        {"anyformer.cli", "anyformer.kernels.compile_cache"},
    ),
    "no compiled code but by kernels.compile": (
        compiled_elsewhere,
        {"anyformer.kernels.compile", "anyformer.kernels.triton"},
    ),
    "no print": (printed, set()),
    "no code from data": (code_from_data, set()),
}

CROSSED = {
    "no hasattr": ["if hasattr(x, 'y'): pass", "probe = hasattr"],
    "no **kwargs passed on": [
        "def f(**kwargs):\n    return g(**kwargs)",
        "def f(a, **rest):\n    def inner():\n        return g(1, **rest)\n    return inner",
        "class A:\n    def __init__(self, **extra):\n        super().__init__(**extra)",
        "f = lambda **kw: g(**kw)",
        "def f(**kw):\n    return g(**{k: v for k, v in kw.items()})",
    ],
    "no environment variable below the command line": [
        "import os\nos.environ['A']",
        "import os\nos.environ.get('A')",
        "import os\nos.getenv('A')",
        "from os import environ\nenviron['A']",
        "from os import getenv as g\ng('A')",
        "import os as system\nsystem.getenv('A')",
    ],
    "no compiled code but by kernels.compile": [
        "import torch\ntorch.compile(f)",
        "from torch import compile as make\nmake(f)",
        "from torch.utils import cpp_extension\ncpp_extension.load('x', [])",
        "import triton\n@triton.jit\ndef f(): pass",
    ],
    "no print": ["print('hello')", "import sys\nprint('hello', file=sys.stderr)", "say = print"],
    "no code from data": [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "import joblib",
        "from dill import load",
        "import torch\ntorch.load('x', weights_only=True)",
        "import torch as t\nt.load('x')",
        "from torch import load\nload('x')",
        "from torch import load as fetch\nfetch('x')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import numpy as np\nnp.load('x', allow_pickle=flag)",
        "options = {'allow_pickle': True}",
        "import yaml\nyaml.load(text, Loader=yaml.SafeLoader)",
        "from yaml import unsafe_load\nunsafe_load(text)",
        "eval('1')",
        "exec('1')",
        "run = eval",
        "import builtins\nbuiltins.exec('1')",
        "Model.from_pretrained('x', trust_remote_code=True)",
        "def f(trust_remote_code=False): pass",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import os\nos.system('ls')",
    ],
}

KEPT = {
    "no hasattr": ["getattr(x, 'y')"],
    "no **kwargs passed on": [
        "def f(**settings):\n    return dict(settings)",
        "def f(options):\n    return g(**options)",
    ],
    "no environment variable below the command line": ["import os\nos.path.join('a', 'b')\nos.replace('a', 'b')"],
    "no compiled code but by kernels.compile": [
        "import re\nre.compile('x')",
        "import torch\ntorch.compiler.disable(f)",
    ],
    "no print": ["console.print('x')", "import logging\nlogging.getLogger('anyformer').info('x')"],
    "no code from data": [
        "network.eval()",
        "import yaml\nyaml.safe_load(text)",
        "import numpy as np\nnp.load('x')\nnp.load('x', allow_pickle=False)",
        "import json\njson.load(file)",
        "import subprocess\nsubprocess.run(['ls'])",
    ],
}


@pytest.mark.parametrize("rule", RULES)
def test_the_line_holds_in_every_module(rule):
    finder, exempt = RULES[rule]
    found = [
        f"{module}:{line} {what}"
        for module, path in modules().items()
        if module not in exempt
        for line, what in finder(ast.parse(path.read_text()))
    ]
    assert not found, f"{rule} ({finder.__doc__}):\n" + "\n".join(found)


@pytest.mark.parametrize("rule, source", [(rule, source) for rule, sources in CROSSED.items() for source in sources])
def test_control_crossing_is_seen(rule, source):
    assert list(RULES[rule][0](ast.parse(source)))


@pytest.mark.parametrize("rule, source", [(rule, source) for rule, sources in KEPT.items() for source in sources])
def test_control_harmless_code_is_not(rule, source):
    assert not list(RULES[rule][0](ast.parse(source)))


def test_the_scan_against_code_from_data_has_no_exempt_module():
    assert RULES["no code from data"][1] == set()
