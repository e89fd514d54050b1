"""Every mixer and feed drops into the presets by one name: trains a step, is saved, opens, generates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import anyformer
from anyformer import Feed, Mixer, NoRelative, Seq2Seq, Spec, UserError, preset, replace_in
from anyformer.checkpoints.folder import save_foreign, save_own
from anyformer.generation import Generation, generate
from tests.laws.nets import gap, inputs, tokens
from tests.laws.parts import examples, ours

TEXT, BOTH_WAYS, IMAGES, PAIRS = "gpt2-tiny", "bert-base-tiny", "vit-b16-tiny", "translator-mini"


def one_each(slot: type[Spec]) -> list[Any]:
    return [pytest.param(spec, id=name) for part in ours(slot) for name, spec in list(examples(part).items())[:1]]


def with_part(name: str, part: Spec, side: str = "") -> Any:
    """The preset with this part in every block."""
    slot = "mixer" if isinstance(part, Mixer) else "feed"
    changes: dict[str, Any] = {f"{side}stack.block.{slot}": part}
    if isinstance(part, Mixer) and not part.takes_relative:
        changes[f"{side}stack.block.relative"] = NoRelative()
    return replace_in(preset(name), changes)


def step(net: Any, loss_of: Any) -> None:
    """One step downhill changes weights and the loss."""
    net.train()
    torch.manual_seed(0)
    loss = loss_of(net)
    loss.backward()
    assert loss.isfinite()
    before = loss.item()
    torch.optim.SGD(net.parameters(), lr=0.05).step()
    torch.manual_seed(0)
    assert loss_of(net).item() < before


def words(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def greedily(logits_of: Any, ids: Tensor, count: int) -> Tensor:
    """The likeliest next token again and again, each by a full pass over all of the text."""
    length = ids.shape[1]
    for _ in range(count):
        ids = torch.cat([ids, logits_of(ids)[:, -1:].argmax(-1)], 1)
    return ids[:, length:]


def opened(net: Any, folder: Path, *given: Any) -> Any:
    """The network through a folder and back answers the same."""
    net.eval()
    save_own(folder, net.spec, net)
    again = anyformer.load(folder).model
    with torch.no_grad():
        assert gap(again(*given).hidden, net(*given).hidden) == 0.0
    return again


@pytest.mark.parametrize("part", one_each(Mixer) + one_each(Feed))
def test_a_language_model_of_it_learns_is_saved_and_writes(part: Any, tmp_path: Path) -> None:
    if isinstance(part, Mixer) and (part.needs_grid or not part.causal_form or part.looks_at_memory):
        return refused_or_elsewhere(part)
    net = with_part(TEXT, part).build(seed=0)
    text = tokens(3, 12, vocab=512)
    step(net, lambda net: words(net(text[:, :-1]).logits, text[:, 1:]))
    net = opened(net, tmp_path / "own", text)
    written = generate(net, text[:, :5], settings=Generation(max_new_tokens=6, num_beams=1)).new
    assert torch.equal(written, greedily(lambda ids: net(ids).logits, text[:, :5], 6))
    assert generate(net, text[:, :5], settings=Generation(max_new_tokens=6, num_beams=3)).new.shape[0] == 3
    if type(part).__name__ not in ("Attention", "MLP"):  # no published format of plain stacks describes it
        with pytest.raises(UserError):
            save_foreign(tmp_path / "theirs", net.spec, net)


def refused_or_elsewhere(part: Mixer) -> None:
    """What cannot be a language model alone says so when it is made, unless it only lacks something to look at."""
    if part.looks_at_memory:
        net = with_part(TEXT, part).build(seed=0)
        with pytest.raises(UserError, match="nothing to look at"):
            net(tokens(2, 5, vocab=512))
        return
    with pytest.raises(UserError, match="needs rows and columns|has no causal form"):
        with_part(TEXT, part)


@pytest.mark.parametrize("part", one_each(Mixer) + one_each(Feed))
def test_a_reader_of_it_learns_and_is_saved(part: Any, tmp_path: Path) -> None:
    if isinstance(part, Mixer) and part.needs_grid:
        with pytest.raises(UserError, match="needs rows and columns"):
            with_part(BOTH_WAYS, part)
        return
    if isinstance(part, Mixer) and part.looks_at_memory:
        return  # an encoder has nothing to look at; pairs are below
    net = with_part(BOTH_WAYS, part).build(seed=0)
    text = tokens(3, 12, vocab=512)
    step(net, lambda net: (net(text).hidden - 1).square().mean())
    opened(net, tmp_path / "own", text)


@pytest.mark.parametrize("part", one_each(Mixer) + one_each(Feed))
def test_a_vision_model_of_it_learns_and_is_saved(part: Any, tmp_path: Path) -> None:
    if isinstance(part, Mixer) and part.looks_at_memory:
        return
    net = with_part(IMAGES, part).build(seed=0)
    (pixels,) = inputs(net.spec.embed, batch=4, dtype=torch.float32)
    kinds = torch.arange(4) % 10
    step(net, lambda net: F.cross_entropy(net(pixels).logits, kinds))
    opened(net, tmp_path / "own", pixels)


@pytest.mark.parametrize("part", one_each(Mixer) + one_each(Feed))
def test_an_encoder_decoder_of_it_learns_is_saved_and_writes(part: Any, tmp_path: Path) -> None:
    if isinstance(part, Mixer) and part.needs_grid:
        return
    spec = preset(PAIRS)
    assert isinstance(spec, Seq2Seq)
    if not (isinstance(part, Mixer) and part.looks_at_memory):
        spec = spec.replace(encoder=with_part(PAIRS, part, "encoder.").encoder)
    if not isinstance(part, Mixer) or part.causal_form:
        spec = spec.replace(decoder=with_part(PAIRS, part, "decoder.").decoder)
    net = spec.build(seed=0)
    source, target = tokens(3, 9, vocab=512), tokens(3, 7, seed=1, vocab=512)
    step(net, lambda net: words(net(source, target[:, :-1]).logits, target[:, 1:]))
    net = opened(net, tmp_path / "own", source, target)
    settings = Generation(max_new_tokens=5, decoder_start_token_id=1)
    start = torch.ones(3, 1, dtype=torch.long)
    written = greedily(lambda ids: net(source, ids).logits, start, 5)
    assert torch.equal(generate(net, source, settings=settings).new, written)
