"""What is said where an optional package is missing: each case in a forked process that cannot import the package.

Run as `python -m tests.cli.without_packages FOLDER [--installed]`; one JSON object on stdout, a message a case. With
`--installed` nothing is hidden, which is the control.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import anyformer
import anyformer.training.train  # here, and not again in every fork; it imports no optional package
from anyformer.cli import main

HIDE = "--installed" not in sys.argv


def verb(*words: str) -> Callable[[], None]:
    """A command line, whose error is that of the case."""

    def call() -> None:
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            main(list(words))
        raise RuntimeError("\n".join(line for line in said.getvalue().splitlines() if line.startswith("error:")))

    return call


def onnx(folder: str = "onnx") -> None:
    from anyformer.checkpoints.folder import Opened
    from anyformer.inference.predictor import Predictor

    spec = anyformer.preset("bert-base-tiny")
    Predictor(Opened(spec, spec.build())).export(folder, to="onnx")


def marian() -> None:
    from anyformer.data.tokenizers.backends import sentencepiece_model

    sentencepiece_model({"source.spm": b""}, "source.spm")


def grammar() -> None:
    from anyformer.data.tokenizers.tokenizer import train_tokenizer
    from anyformer.generation.grammar import grammar_vocabulary

    grammar_vocabulary(train_tokenizer(["some words"], "byte", 300))


def matching() -> None:
    from anyformer.objectives.matching import assign

    assign(torch.zeros(1, 2, 2), [1])


def template() -> None:
    from anyformer.serving.chat_template import FolderTemplate

    FolderTemplate("{{ messages }}", {}).close()


def flac() -> None:
    from anyformer.data.audio.decoding import with_soundfile

    with_soundfile(Path("a.flac"))


def picture() -> None:
    from anyformer.data.images.preprocessing import load_image

    load_image(Path("a.png"))


SERVE = verb("serve", "nowhere")
CASES: dict[str, tuple[str, Callable[[], object]]] = {
    "spec from YAML": ("yaml", lambda: anyformer.Spec.from_yaml("type: Model")),
    "spec to YAML": ("yaml", lambda: anyformer.preset("gpt2-tiny").to_yaml()),
    "train in Python": ("yaml", lambda: anyformer.train("book.txt", start="nowhere")),
    "train --set": ("yaml", verb("train", "book.txt", "--set", "training.steps=0")),
    "train": ("yaml", verb("train", "book.txt", "--from", "nowhere")),
    "check run.yaml": ("yaml", verb("check", "run.yaml")),
    "train a table": ("pyarrow", verb("train", "rows.csv", "--target", "none")),
    "train a table in Python": ("pyarrow", lambda: anyformer.train("rows.csv", target="none")),
    "train on pictures": ("PIL", verb("train", "pictures")),
    "a picture": ("PIL", picture),
    "train on recordings": ("soundfile", verb("train", "recordings")),
    "a recording": ("soundfile", flac),
    "train a detector": ("scipy", verb("train", "pictures", "--task", "detect")),
    "matching": ("scipy", matching),
    "an estimator": ("sklearn", lambda: anyformer.TextClassifier(steps=0).fit(["a"], [0])),
    "demo": ("rich", verb("demo", "--steps", "1", "--device", "nowhere")),
    "serve without starlette": ("starlette", SERVE),
    "serve without uvicorn": ("uvicorn", SERVE),
    "serve without httptools": ("httptools", SERVE),
    "serve without pydantic": ("pydantic", SERVE),
    "serve without jinja2": ("jinja2", SERVE),
    "serve without prometheus_client": ("prometheus_client", SERVE),
    "a chat template": ("jinja2", template),
    "a grammar": ("llguidance", grammar),
    "ONNX": ("onnx", lambda: onnx("new/onnx")),
    "ONNX by script": ("onnxscript", lambda: onnx("new/onnx")),
    "Marian's tokenizer": ("sentencepiece", marian),
}


def hide(module: str) -> None:
    """Make a package impossible to import in this process; typer's own imports are left to it."""
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        del sys.modules[name]
    sys.modules[module] = None  # type: ignore[assignment]


def told(module: str, call: Callable[[], object]) -> str:
    """What a call says in a process of its own, without the module."""
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reads)
        if HIDE:
            hide(module)
        try:
            call()
            said = "no error"
        except RuntimeError as error:
            said = str(error)
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writes, said.encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


def messages() -> dict[str, str]:
    """What each case says. Where nothing is hidden, cases of one call say the same: it is made once."""
    said: dict[tuple[str, Callable[[], object]], str] = {}
    for module, call in CASES.values():
        about = (module if HIDE else "", call)
        if about not in said:
            said[about] = told(module, call)
    return {name: said[module if HIDE else "", call] for name, (module, call) in CASES.items()}


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    sys.stdout.write(json.dumps(messages()))
