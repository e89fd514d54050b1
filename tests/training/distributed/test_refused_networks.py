"""Networks whose weights cannot lie in parts are refused before a process is started."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from torch import nn

import anyformer
from anyformer import LM, Alibi, Attention, Block, Buckets, Electra, Model, Replaced, Stack, Tokens, UserError
from anyformer.data.settings import Data
from anyformer.mixers.plain import Plain
from anyformer.nets.batch_norm import BatchNorm
from anyformer.objectives import Adversarial, Causal, Objective, ReplacedByGenerator
from anyformer.slots import Network, Relative
from anyformer.training.distributed.parallel import check_processes
from anyformer.training.distributed.sharded import check_shardable
from anyformer.training.distributed.tensor import check_split
from anyformer.training.distributed.world import World
from anyformer.training.freezing import Gradual
from anyformer.training.lora import LoRA
from anyformer.training.optim import Muon
from anyformer.training.settings import Config, Training

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "many-machines.md"


def electra() -> Network:
    return Electra(discriminator=anyformer.preset("electra-small-tiny").replace(head=Replaced()))


def configured(model: Network, objective: Objective, **training: object) -> Config:
    settings = Training(batch_size=2).replace(**training)
    return Config(task="", data=Data(), model=model, objective=objective, training=settings)


# Of each line of the page's table the settings; a language model but for ELECTRA.
ROWS = {
    "fp16": [configured(anyformer.preset("gpt2-tiny"), Causal(), precision="fp16")],
    "Muon": [configured(anyformer.preset("gpt2-tiny"), Causal(), optimizer=Muon()),
             configured(anyformer.preset("gpt2-tiny"), Causal(), lora=LoRA()),
             configured(anyformer.preset("gpt2-tiny"), Causal(), unfreeze=Gradual())],
    "ELECTRA": [configured(electra(), ReplacedByGenerator(), precision="fp32")],
    "adversarial": [configured(anyformer.preset("gpt2-tiny"), Adversarial(), precision="fp32")],
}  # fmt: skip


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "tensor"])
@pytest.mark.parametrize("name", ROWS)
def test_the_page_says_what_is_rejected(name: str, kind: str) -> None:
    (line,) = re.findall(rf"^\| {name}.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    said = [cell.strip() for cell in line.strip("|").split("|")][1:]
    is_rejected = {"yes": False, "rejected": True}[said[["ddp", "fsdp", "tensor"].index(kind)].partition(",")[0]]
    for config in ROWS[name]:
        here = config.replace(training=config.training.replace(parallel=kind))
        if is_rejected:
            with pytest.raises(UserError, match="; (use|train) "):
                check_processes(here, World(size=2))
        else:
            check_processes(here, World(size=2))
        check_processes(here, World())  # one process may do all of it


def test_electra_is_cut_where_the_heads_of_its_generator_divide() -> None:
    config = configured(electra().replace(share=0.5), ReplacedByGenerator(), precision="fp32", parallel="tensor")
    check_processes(config, World(size=2))
    with pytest.raises(UserError, match="heads 1 is not divisible by 2 processes"):
        check_processes(config.replace(model=electra()), World(size=2))


def test_batch_norm_is_refused_and_electra_is_not() -> None:
    check_shardable(electra().build(device="meta"))
    with pytest.raises(UserError, match="batch norm keeps running statistics"):
        check_shardable(nn.Sequential(BatchNorm(4)))


def test_learned_positions_that_another_mixer_shares_are_refused() -> None:
    """Their gradient would be a part from one layer and whole from the other; ALiBi has none."""

    def mixed(relative: Relative) -> nn.Module:
        blocks = tuple(Block(mixer=mixer, relative=relative) for mixer in (Attention(heads=2), Plain()))
        stack = Stack(width=8, depth=2, block=blocks)
        return Model(embed=Tokens(vocab=9), stack=stack, head=LM()).build(device="meta")

    with pytest.raises(UserError, match="attention shares learned positions with PlainModule"):
        check_split(mixed(Buckets(buckets=8, distance=16)), 2)
    check_split(mixed(Alibi()), 2)
