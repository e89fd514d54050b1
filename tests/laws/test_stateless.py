"""A mixer whose module has no state (it gives None) decodes to what one full pass gives, however it is decoded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyformer import (
    Attention,
    Mixer,
    Model,
    Recurrent,
    Relative,
    Rope,
    Sinusoid,
    UserError,
    checks,
    compiled,
    quantise,
)
from anyformer.core.block import BlockModule
from anyformer.core.state import LayerState
from anyformer.engine.engine import Engine
from anyformer.generation import Generation, generate
from anyformer.generation.cache.eager_store import EagerStore
from anyformer.generation.cache.open_store import open_serving_store
from tests.generation.engines import job, told, turns
from tests.generation.schedules import run, worst
from tests.laws import test_cache as cache_laws
from tests.laws.broken import Wrapping
from tests.laws.nets import EXACT, build, gap, language, pair, tokens
from tests.laws.parts import every, mixers

GIVEN = tokens(3, 6)
MASK = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]).bool()
NEW = 7


class Stateless(Wrapping):
    """Another mixer, which keeps nothing between passes."""

    @property
    def takes_rules(self) -> bool:  # type: ignore[override]
        return self.inner.takes_rules

    @property
    def looks_at_memory(self) -> bool:  # type: ignore[override]
        return self.inner.looks_at_memory

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.inner.exact

    def around(self, module: nn.Module) -> nn.Module:
        return WithoutState(module)


class WithoutState(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, context: Any, state: Any, tables: Any) -> Tensor:
        assert state is None
        return self.inner(x, context, None, tables)

    def state(self, batch: int, limit: int | None) -> None:
        return None


def spec(mixer: Mixer | None = None, **settings: Any) -> Model:
    return language(mixer=Stateless(inner=Attention(heads=4) if mixer is None else mixer), **settings)


def forgetting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controls: nothing is kept for such a mixer, so that it sees the newest tokens only."""
    monkeypatch.setattr(BlockModule, "state", lambda block, batch, limit: LayerState(None))


def pick(logits: Tensor) -> Tensor:
    return logits[:, -1].argmax(-1, keepdim=True)


@torch.no_grad()
def written_by_full_passes(net: Any, given: Tensor, new: int = NEW, **options: Any) -> Tensor:
    """The most probable tokens, each from one pass over the whole text so far."""
    for _ in range(new):
        given = torch.cat([given, pick(net(given, **options).logits)], 1)
    return given


@pytest.mark.parametrize("mixer", mixers(causal=True))
def test_the_laws_of_decoding_hold_without_a_state(mixer: Mixer) -> None:
    stateless = Stateless(inner=mixer)
    for cuts in ("prefill-5", "chunks"):
        cache_laws.test_pieces_equal_the_full_pass(stateless, cache_laws.CUTS[cuts], None)
    cache_laws.test_pieces_equal_the_full_pass(stateless, cache_laws.CUTS["from-nothing"], cache_laws.LENGTH)
    cache_laws.test_every_mixer_decodes_padded_prompts_and_documents(stateless)
    cache_laws.test_every_mixer_reorders_its_rows_and_takes_tokens_back(stateless)


@pytest.mark.parametrize("relative", every(Relative))
def test_relative_positions_are_those_of_the_whole_text(relative: Relative) -> None:
    cache_laws.test_relative_positions_go_on_where_they_were(relative, Stateless(inner=Attention(heads=4)))


def test_layers_with_and_without_a_state_decode_side_by_side() -> None:
    blocks = tuple(spec(mixer).stack.block for mixer in (None, Recurrent("gru")))
    plain = language().stack.block
    mixed = language(position=Sinusoid())
    mixed = mixed.replace(stack=mixed.stack.replace(depth=3, block=(blocks[0], plain, blocks[1])))
    assert cache_laws.error(mixed, cache_laws.CUTS["chunks"]) < EXACT


def test_forgetting_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of every law above."""
    assert checks.cache(build(spec()))
    forgetting(monkeypatch)
    assert cache_laws.error(spec(), cache_laws.CUTS["prefill-5"]) > 1e-3
    assert not checks.cache(build(spec()))


@pytest.mark.parametrize("relative", [None, Rope()], ids=["none", "rope"])
def test_texts_are_those_of_full_passes(relative: Relative | None, monkeypatch: pytest.MonkeyPatch) -> None:
    net = build(spec(**({} if relative is None else {"relative": relative})))
    wanted = written_by_full_passes(net, GIVEN)
    greedy = Generation(max_new_tokens=NEW)
    assert torch.equal(generate(net, GIVEN, settings=greedy).ids, wanted)
    padded = generate(net, GIVEN, MASK, settings=greedy).new
    for row in range(3):
        alone = written_by_full_passes(net, GIVEN[row : row + 1, MASK[row]])
        assert torch.equal(padded[row], alone[0, -NEW:])
    drafted = generate(net, GIVEN[:1], settings=greedy, draft=build(language(depth=1)))
    assert torch.equal(drafted.ids, wanted[:1])
    chunked = Generation(max_new_tokens=NEW, prefill_chunk_size=2)
    assert torch.equal(generate(net, GIVEN, settings=chunked).ids, wanted)
    forgetting(monkeypatch)
    assert not torch.equal(generate(net, GIVEN, settings=greedy).ids, wanted)


def test_beams_are_those_of_a_mixer_with_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrapped mixer with its own state is the reference; the weights are the same."""
    net, known = build(spec()), build(language())
    known.load_state_dict({name.replace("inner.", ""): value for name, value in net.state_dict().items()})
    beams = Generation(max_new_tokens=NEW, num_beams=3, num_return_sequences=2)
    wanted, found = (generate(each, GIVEN, MASK, settings=beams) for each in (known, net))
    assert torch.equal(found.ids, wanted.ids) and gap(found.scores, wanted.scores) < EXACT
    forgetting(monkeypatch)
    assert not torch.equal(generate(net, GIVEN, MASK, settings=beams).ids, wanted.ids)


def test_an_encoder_decoder_writes_what_full_passes_write() -> None:
    net = build(pair(mixer=Stateless(inner=Attention(heads=4))))
    found = generate(net, GIVEN, settings=Generation(max_new_tokens=NEW, decoder_start_token_id=1))
    text = torch.ones(3, 1, dtype=torch.long)
    for _ in range(NEW):
        text = torch.cat([text, pick(net(GIVEN, text).logits)], 1)
    assert torch.equal(found.new, text[:, 1:])


def test_rows_come_and_go() -> None:
    net = build(spec())
    for seed in range(3):
        rows = open_serving_store(net, capacity=4, limit=40)
        assert isinstance(rows, EagerStore) and worst(net, run(rows, net, seed)) < EXACT


def test_the_engine_writes_what_full_passes_write() -> None:
    net = build(spec(relative=Rope()))
    prompts = [GIVEN[row, MASK[row]].tolist() for row in range(3)] * 2
    works = [job(prompt, new=3 + number) for number, prompt in enumerate(prompts)]
    engine = Engine(open_serving_store(net, capacity=3, limit=64), chunk=4)
    for work in works:
        engine.submit(work)
    turns(engine)
    for number, (work, prompt) in enumerate(zip(works, prompts, strict=True)):
        assert (
            told(work).tokens
            == written_by_full_passes(net, torch.tensor([prompt]), 3 + number)[0, len(prompt) :].tolist()
        )


def test_eight_bits_decode_too_and_compiled_code_is_refused() -> None:
    net = build(spec(), torch.float32)
    with pytest.raises(UserError, match="static cache"):
        compiled(net)
    small = quantise(net)
    assert checks.cache(small)
    assert torch.equal(
        generate(small, GIVEN, settings=Generation(max_new_tokens=NEW)).ids, written_by_full_passes(small, GIVEN)
    )


def test_a_mask_between_tokens_is_refused_where_earlier_rows_of_it_are_not_known() -> None:
    net, rule = build(spec()), torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    assert gap(net(GIVEN, mask=rule).logits, net(GIVEN).logits) < EXACT
    state = net.state(3)
    net(GIVEN, mask=rule, state=state)
    with pytest.raises(UserError, match="without a decoding state"):
        net(GIVEN[:, :1], mask=torch.ones(1, 1, 1, 7, dtype=torch.bool), state=state)


def test_a_mixer_that_reads_ids_is_given_all_of_them() -> None:
    """Ids are known of every token: a mixer may look for the last place of the same word."""
    seen: list[Tensor] = []

    class Watching(Stateless):
        def around(self, module: nn.Module) -> nn.Module:
            return Keeping(module)

    class Keeping(WithoutState):
        def forward(self, x: Tensor, context: Any, state: Any, tables: Any) -> Tensor:
            seen.append(context.tokens)
            return super().forward(x, context, state, tables)

    net = build(language(mixer=Watching(inner=Attention(heads=4)), depth=1))
    state = net.state(3)
    for part in (GIVEN[:, :4], GIVEN[:, 4:5], GIVEN[:, 5:]):
        net(part, state=state)
    assert [ids.shape[1] for ids in seen] == [4, 5, 6] and torch.equal(seen[-1], GIVEN)
