"""An exported page of a model as large as the demo's is small enough to be sent around."""

from __future__ import annotations

import argparse
import inspect
import textwrap

import anyformer
from anyformer import LM, Attention, Block, Model, Rope, Stack, Tokens
from anyformer.checkpoints.folder import Opened
from anyformer.data.tokenizers.tokenizer import train_tokenizer
from anyformer.inference.predictor import Predictor

TEXT = "def add(self, key, value):\n    self.data[key] = value"
MOST = 3_000_000  # bytes


def test_the_page_of_the_demos_model_is_below_three_megabytes():
    source = [part for module in (argparse, inspect, textwrap) for part in inspect.getsource(module).split("\n\n")]
    words = train_tokenizer(source, "bpe", 3072)
    block = Block(mixer=Attention(heads=4), relative=Rope())
    spec = Model(
        embed=Tokens(vocab=3072), stack=Stack(width=128, depth=4, causal=True, block=block), head=LM(tied=True)
    )
    predictor = Predictor(Opened(spec, spec.build(seed=0)), tokenizer=words)
    capture = anyformer.look(predictor, TEXT)
    assert words.size == 3072 and len(capture.sites) == 4 and len(capture.axes[""]) > 15
    page = capture.html()
    assert len(page.encode()) < MOST
    longer = anyformer.look(predictor, TEXT * 8)  # control: the size is that of what the page holds
    assert len(longer.html().encode()) > len(page.encode()) + 100_000
