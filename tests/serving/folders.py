"""Model folders to serve: small, made here from a seed, with real tokenizers, in seconds."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import anyformer
from anyformer.checkpoints.folder import Opened
from anyformer.core.model import Model
from anyformer.data.tokenizers.tokenizer import train_tokenizer
from anyformer.inference.predictor import Predictor
from tests.cli import made
from tests.cli.trying import done, standing_in

CONTEXT = 256  # tokens gpt2-tiny can place
LONG = 4096
VOCAB = 320
TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}: {{ message['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


def sentences(count: int = 600, seed: int = 0) -> list[str]:
    """A small grammar with something to choose at every word."""
    rng = random.Random(seed)
    said = ["said", "thought", "wrote", "sang"]
    return [f"The {rng.choice(made.GOOD)} {rng.choice(made.THINGS)} was {rng.choice(made.BAD)}, "
            f"{rng.choice(said)} the {rng.choice(made.THINGS)}." for _ in range(count)]  # fmt: skip


def writer(folder: Path, *, spec: Model | None = None, steps: int = 60) -> Path:
    """A language model that has seen the grammar for a moment: its texts vary, and no choice is a tie."""
    tokenizer = train_tokenizer(sentences(), "bpe", VOCAB)
    spec = spec or anyformer.preset("gpt2-tiny")
    spec = dataclasses.replace(spec, embed=dataclasses.replace(spec.embed, vocab=tokenizer.size))
    model = spec.build(seed=0)
    stream = tokenizer.encode("\n".join(sentences()))  # no end tokens: texts are as long as they were asked for
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    chance = random.Random(0)
    for _ in range(steps):
        starts = [chance.randrange(len(stream) - 65) for _ in range(8)]
        ids = torch.tensor([stream[at : at + 65] for at in starts])
        logits = model(ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return Predictor(Opened(spec, model.eval()), tokenizer=tokenizer).save(folder)


def talker(folder: Path) -> Path:
    """The same with a chat template."""
    path = writer(folder)
    (path / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return path


def patient(folder: Path) -> Path:
    """A writer of up to LONG tokens, so that a text nobody reads any more would keep its row for many seconds."""
    spec = anyformer.preset("gpt2-tiny")
    embed = dataclasses.replace(spec.embed, position=dataclasses.replace(spec.embed.position, length=LONG))
    return writer(folder, spec=dataclasses.replace(spec, embed=embed), steps=20)


def trained(folder: Path, make: Callable[[Path], Any], *words: str) -> Path:
    """A run of the command line on a small data set."""
    folder.mkdir(parents=True)
    data = make(folder)
    paths = data if isinstance(data, list) else [data]
    with standing_in(folder):
        done("train", *(path.name for path in paths), *words, "--out", "run", "--quiet", "--progress", "none")
    return folder / "run"


def classifier(folder: Path) -> Path:
    """Good and bad reviews."""
    return trained(folder, made.reviews, "--target", "label", "--steps", "20")


def tagger(folder: Path) -> Path:
    """Names and places."""
    return trained(folder, made.tagged, "--steps", "20")


def table(folder: Path) -> Path:
    """Flowers by their sizes and colour."""
    return trained(folder, made.flowers, "--target", "kind", "--steps", "20")


def pictures(folder: Path) -> Path:
    """Stripes down or across."""
    return trained(folder, made.photos, "--steps", "10", "--set", "data.images.randaugment=0")


def translator(folder: Path) -> Path:
    """Numbers from English to German: an encoder-decoder."""
    return trained(folder, made.pairs, "--steps", "30")


KINDS: dict[str, Callable[[Path], Path]] = {
    "writer": writer,
    "talker": talker,
    "patient": patient,
    "classifier": classifier,
    "tagger": tagger,
    "table": table,
    "pictures": pictures,
    "translator": translator,
}


class Folders:
    """Each kind is made once, when first asked for."""

    def __init__(self, base: Path) -> None:
        self.base, self.made = base, dict[str, Path]()

    def __getitem__(self, kind: str) -> Path:
        if kind not in self.made:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)  # the fastest for these sizes, and sums come out the same everywhere
            self.made[kind] = KINDS[kind](self.base / kind)
            torch.set_num_threads(threads)
        return self.made[kind]
