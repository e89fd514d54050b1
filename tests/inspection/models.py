"""Small models of each kind, with random weights and real tokenizers, for looking into."""

from __future__ import annotations

import csv
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import anyformer
from anyformer import LM, Attention, Block, Cross, Learned, Model, Patches, Pooled, Rope, Seq2Seq, Stack, Tokens
from anyformer.checkpoints.folder import Opened
from anyformer.data.images.preprocessing import ImageSteps
from anyformer.data.tokenizers.tokenizer import train_tokenizer
from anyformer.generation import Generation
from anyformer.inference.predictor import Predictor

TEXT = "An old dog and a young boy"
TEXTS = ["An old dog and a young boy walk to the river.", "She prefers cats to dogs, and he prefers the old boy.",
         "The young dog sees a boy and an old cat by the river.", "Ein alter Hund und ein kleiner Junge."]  # fmt: skip


@lru_cache
def words(kind: str = "bpe") -> Any:
    return train_tokenizer(TEXTS * 4, kind, 320)


def gpt(depth: int = 2, heads: int = 4, width: int = 32, kv_heads: int | None = None) -> Predictor:
    """A decoder with rotary positions."""
    block = Block(mixer=Attention(heads=heads, kv_heads=kv_heads), relative=Rope())
    stack = Stack(width=width, depth=depth, causal=True, block=block)
    spec = Model(embed=Tokens(vocab=words().size), stack=stack, head=LM(tied=True))
    return Predictor(Opened(spec, spec.build(seed=0)), tokenizer=words(), defaults=Generation(max_new_tokens=8))


def bert() -> Predictor:
    """An encoder with a classifier of three classes."""
    stack = Stack(width=32, depth=2, block=Block(mixer=Attention(heads=4), place="post"))
    embed = Tokens(vocab=words().size, position=Learned(length=64))
    spec = Model(embed=embed, stack=stack, head=Pooled(classes=3), init="bert")
    return Predictor(Opened(spec, spec.build(seed=1)), tokenizer=words(), labels=["bad", "fair", "good"])


def t5() -> Predictor:
    """An encoder-decoder."""
    size = words().size
    encoder = Model(embed=Tokens(vocab=size), stack=Stack(width=32, depth=2, block=Block(mixer=Attention(heads=4))))
    block = Block(mixer=Attention(heads=4), cross=Cross(heads=4))
    decoder = Model(embed=Tokens(vocab=size), stack=Stack(width=32, depth=2, causal=True, block=block))
    spec = Seq2Seq(encoder=encoder, decoder=decoder, head=LM(tied=True), share="table")
    defaults = Generation(decoder_start_token_id=0, max_new_tokens=8)
    return Predictor(Opened(spec, spec.build(seed=2)), tokenizer=words(), defaults=defaults)


PAIRS = {"two": "zwei", "three": "drei", "six": "sechs", "eight": "acht"}


def translator() -> Predictor:
    """An encoder-decoder whose weights are set so that step t reads source token t and writes its translation.

    The first 32 channels are one-hot words, the last 16 one-hot positions; cross-attention compares the positions and
    copies the words, and the head turns each word into its pair.
    """
    known = train_tokenizer([" ".join([*PAIRS, *PAIRS.values()])], "word", 32,
                            special={"unk": "<unk>", "bos": "<s>", "eos": "</s>"}, add_eos=True)  # fmt: skip
    embed = Tokens(vocab=known.size, position=Learned(length=16))
    encoder = Model(embed=embed, stack=Stack(width=48, depth=1, block=Block(mixer=Attention(heads=1))))
    block = Block(mixer=Attention(heads=1), cross=Cross(heads=1))
    decoder = Model(embed=embed, stack=Stack(width=48, depth=1, causal=True, block=block))
    spec = Seq2Seq(encoder=encoder, decoder=decoder, head=LM(tied=False))
    network = spec.build(seed=0).eval()
    state = {name: torch.zeros_like(value) for name, value in network.state_dict().items()}
    for name in state:
        if name.endswith(("before.weight", "final.weight")):
            state[name] += 1.0
    for side in ("encoder", "decoder"):
        state[f"{side}.embed.table.weight"][:, : known.size] = 4 * torch.eye(known.size)
        state[f"{side}.embed.position.table.weight"][:, 32:] = 4 * torch.eye(16)
    cross = "decoder.stack.blocks.0.cross"
    state[f"{cross}.q.weight"][32:, 32:] = 2 * torch.eye(16)
    state[f"{cross}.kv.weight"][:48][32:, 32:] = 2 * torch.eye(16)
    state[f"{cross}.kv.weight"][48:][:32, :32] = torch.eye(32)
    state[f"{cross}.out.weight"][:32, :32] = 9 * torch.eye(32)
    written = {known.encode(one)[0]: known.encode(other)[0] for one, other in PAIRS.items()} | {known.eos: known.eos}
    head = next(name for name in state if name.startswith("head.") and name.endswith("weight"))
    for one, other in written.items():
        state[head][other, one] = 1.0
    network.load_state_dict(state)
    defaults = Generation(decoder_start_token_id=known.bos, eos_token_id=known.eos, max_new_tokens=8)
    return Predictor(Opened(spec, network), tokenizer=known, defaults=defaults)


def vit(registers: int = 0) -> Predictor:
    """An image classifier over 3 by 4 patches of 4 pixels."""
    embed = Patches(size=(12, 16), patch=4, registers=registers)
    spec = Model(embed=embed, stack=Stack(width=32, depth=2, block=Block(mixer=Attention(heads=4))),
                 head=Pooled(classes=3))  # fmt: skip
    steps = ImageSteps(size=(12, 16))
    return Predictor(Opened(spec, spec.build(seed=3)), labels=["cat", "dog", "bird"], images=steps)


def image() -> np.ndarray:
    """A picture with a bright square, (24, 32, 3)."""
    pixels = np.full((24, 32, 3), 40, np.uint8)
    pixels[6:14, 8:20] = (220, 180, 60)
    pixels[..., 2] += np.arange(32, dtype=np.uint8)[None] * 3
    return pixels


ROW = {"age": 41.0, "income": 2.5, "city": "Bern", "pet": "dog"}


@lru_cache
def table_file() -> Path:
    """A table with two numbers, two categories and a yes or no that follows from age and city."""
    generator = np.random.default_rng(0)
    path = Path(tempfile.mkdtemp()) / "people.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*ROW, "buys"])
        for _ in range(200):
            age, income = round(float(generator.uniform(18, 80)), 1), round(float(generator.normal(3, 1)), 2)
            city, pet = str(generator.choice(["Bern", "Oslo", "Rome"])), str(generator.choice(["dog", "cat"]))
            writer.writerow([age, income, city, pet, "yes" if age + 20 * (city == "Rome") > 50 else "no"])
    return path


@lru_cache
def table_run() -> Path:
    """A short training on the table."""
    out = Path(tempfile.mkdtemp()) / "run"
    anyformer.train(
        table_file(),
        model="ft-transformer-tiny",
        target="buys",
        steps=30,
        out=out,
        device="cpu",
        quiet=True,
        settings={"training.save_every": 10, "training.eval_every": 10},
    )
    return out


def ft() -> Predictor:
    """An FT-Transformer, trained for a moment on a table of people."""
    return anyformer.load(table_run())


def inputs(kind: str) -> Any:
    """What a model of that kind is looked at with."""
    return {"gpt": TEXT, "bert": TEXT, "t5": TEXT, "translator": " ".join(PAIRS), "vit": image(), "ft": ROW}[kind]


def predictor(kind: str) -> Predictor:
    torch.manual_seed(0)
    return {"gpt": gpt, "bert": bert, "t5": t5, "translator": translator, "vit": vit, "ft": ft}[kind]()


KINDS = ("gpt", "bert", "t5", "vit", "ft")
