"""Rows side by side give what each gives alone: every causal part, every position, whatever comes and goes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer import (
    LM,
    Attention,
    Convolution,
    Cross,
    Experts,
    Hyena,
    Local,
    Mixer,
    Model,
    NoRelative,
    Recurrent,
    Rope,
    Seq2Seq,
    Sinusoid,
    UserError,
    preset,
)
from anyformer.core.join_states import Records, join_records
from anyformer.core.state import State
from anyformer.core.static_cache import StaticCache, StaticState
from anyformer.generation import Generation, generate
from anyformer.generation.batch_sampler import BatchSampler
from anyformer.generation.cache import static_store
from anyformer.generation.cache.eager_store import EagerStore
from anyformer.generation.cache.open_store import open_serving_store
from anyformer.generation.cache.slots import common_prefix
from anyformer.generation.cache.static_store import PATIENCE, StaticStore
from anyformer.generation.cache.store import SequenceStore
from anyformer.generation.prompts import supports_static_cache
from anyformer.generation.runners import cuda_graphs
from tests.generation.nets import POSITIONS, build, decoder, pair
from tests.generation.schedules import lone_store, run, worst
from tests.laws.nets import EXACT, block, language, model
from tests.laws.nets import build as fill
from tests.laws.parts import mixers, named

PLACED = [one for one in mixers(causal=True) if one.values[0].has_static_cache and not one.values[0].looks_at_memory]
every_position = pytest.mark.parametrize("position", POSITIONS)


def around(mixer: Mixer, position: str = "none") -> Model | Seq2Seq:
    """A language model of this part; one that looks at a memory gets an encoder to look at."""
    absolute, relative = POSITIONS[position]
    settings: dict[str, Any] = {"mixer": mixer, "position": absolute}
    if mixer.takes_relative:
        settings["relative"] = relative
    if not mixer.looks_at_memory:
        return language(**settings)
    encoder = model(causal=False, position=absolute)
    return Seq2Seq(encoder=encoder, decoder=model(**settings), head=LM(), share="table")


def fits(mixer: Mixer, position: str) -> bool:
    """Whether this part takes these positions: rope wants pairs of channels, and some parts have none to turn."""
    relative = POSITIONS[position][1]
    if isinstance(relative, NoRelative):
        return True
    return mixer.takes_relative and not (isinstance(relative, Rope) and mixer.sizes(16).channels % 2)


def check(rows: SequenceStore, net: Any, seed: int, **how: Any) -> None:
    texts = run(rows, net, seed, **how)
    assert len(texts) > 2 and worst(net, texts) < EXACT


# ---------------------------------------------------------------- every part


@pytest.mark.parametrize("mixer", mixers(causal=True))
def test_joined_rows_give_what_each_gives_alone(mixer: Mixer) -> None:
    for seed, position in enumerate(POSITIONS):
        if fits(mixer, position):
            net = fill(around(mixer, position))
            check(EagerStore(net, capacity=4, limit=40), net, seed, moves=20)


@every_position
@pytest.mark.parametrize("mixer", PLACED)
def test_a_static_cache_gives_what_each_sequence_gives_alone(
    mixer: Mixer, position: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fits(mixer, position):
        net, seed = fill(around(mixer, position)), list(POSITIONS).index(position)
        check(StaticStore(net, capacity=4, limit=40), net, seed, moves=20)
        check(StaticStore(net, capacity=4, limit=40, recorded=True), net, seed, moves=20)
        monkeypatch.setattr(static_store, "SHORT", 0)  # prompts that are not next to each other are copied
        check(StaticStore(net, capacity=4, limit=40), net, seed, moves=20)


@every_position
@pytest.mark.parametrize("strict", [False, True], ids=["loose", "strict"])
@pytest.mark.parametrize("window", [None, 4], ids=["whole", "window"])
def test_encoder_decoders_in_fixed_places(position: str, strict: bool, window: int | None) -> None:
    net = build(pair(*POSITIONS[position], window=window, kv_heads=2), dtype=torch.float64)
    rows = open_serving_store(net, capacity=5, limit=40, strict=strict)
    assert isinstance(rows, StaticStore)
    check(rows, net, list(POSITIONS).index(position), moves=40)


def test_a_step_that_cannot_be_recorded_is_called_with_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*given: object) -> None:
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    monkeypatch.setattr(cuda_graphs, "capture_step", fails)
    net = fill(around(Attention(heads=4), "rope"))
    with caplog.at_level("WARNING"):
        check(StaticStore(net, capacity=1, limit=40, recorded=True), net, 3, moves=20)
    assert [record.message for record in caplog.records] == [
        "decoding steps are not recorded: operation not permitted when stream is capturing"
    ]


HYBRIDS = {
    "lstm-attention": language(stack={}, mixer=Attention(heads=4)).replace(
        stack=language().stack.replace(block=(block(mixer=Recurrent("lstm")), block()))
    ),
    "hyena-local": language(position=Sinusoid()).replace(
        stack=language().stack.replace(block=(block(mixer=Hyena(longest=8)), block(mixer=Local(heads=4, window=3))))
    ),
}


@pytest.mark.parametrize("name", HYBRIDS)
def test_hybrids_are_joined(name: str) -> None:
    net = fill(HYBRIDS[name])
    rows = open_serving_store(net, capacity=4, limit=40)
    assert isinstance(rows, EagerStore)
    check(rows, net, 3, moves=60)


def test_an_encoder_decoder_of_convolutions_is_joined() -> None:
    part = model(mixer=Convolution(3))
    looking = part.stack.replace(block=block(mixer=Convolution(3), cross=Cross(heads=4)))
    spec = Seq2Seq(encoder=model(causal=False), decoder=part.replace(stack=looking), head=LM(), share="table")
    net = fill(spec)
    rows = open_serving_store(net, capacity=4, limit=40)
    assert isinstance(rows, EagerStore)
    check(rows, net, 1, moves=60)


ROLLING = [Attention(heads=4, window=5), Local(heads=4, window=5), Convolution(3), Hyena(longest=16), Recurrent("gru")]


@pytest.mark.parametrize("mixer", ROLLING, ids=lambda mixer: type(mixer).__name__)
def test_long_texts_roll_through_their_windows(mixer: Mixer) -> None:
    """Longer than the blocks in which records are dropped and buffers grow."""
    net = fill(language(mixer=mixer, position=Sinusoid()))
    check(EagerStore(net, capacity=3, limit=400), net, 2, moves=30, longest=150)
    if mixer.has_static_cache:
        check(StaticStore(net, capacity=3, limit=400), net, 2, moves=30, longest=150)
        check(StaticStore(net, capacity=3, limit=400, recorded=True), net, 2, moves=30, longest=150)


# ---------------------------------------------------------------- tokens, and the settings of each row


WAYS = [
    Generation(max_new_tokens=6),
    Generation(max_new_tokens=6, do_sample=True, temperature=1.3, seed=5),
    Generation(max_new_tokens=6, do_sample=True, top_k=5, top_p=0.9, seed=6, repetition_penalty=1.4),
]


@pytest.mark.parametrize("kind", ["slots", "joined"])
def test_greedy_and_seeded_tokens_are_those_of_generate(kind: str) -> None:
    spec = decoder(*POSITIONS["rope"]) if kind == "slots" else language(mixer=Recurrent("gru"))
    net = build(spec)
    rows = open_serving_store(net, capacity=3)
    prompts = [[1, 2, 3, 4, 5, 6], [7], [1, 2, 9]]
    sampler, states, numbers, last = BatchSampler(spec.embed.vocabulary[0]), [], [], []
    for prompt, way in zip(prompts, WAYS, strict=True):
        row, known = rows.add(prompt)
        hidden = rows.extend({row: prompt[known:]})[0]
        seed = way.seed if isinstance(way.seed, int) else 0
        states.append(sampler.add(way, prompt, seed))
        numbers.append(row)
        last.append(rows.logits(hidden[-1:])[0])
    scores, found = torch.stack(last), []
    for _ in range(6):
        found.append(sampler.sample(states, scores).tokens)
        scores = rows.step(numbers, found[-1])
    for key, (prompt, way) in enumerate(zip(prompts, WAYS, strict=True)):
        alone = generate(net, torch.tensor([prompt]), settings=way).new[0].tolist()
        assert [int(tokens[key]) for tokens in found] == alone


# ---------------------------------------------------------------- controls


def test_a_wrong_column_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    net = fill(language(mixer=Attention(heads=4)))
    plain = StaticCache.update

    def one_too_far(self: StaticCache, k: Tensor, v: Tensor, window: int | None = None) -> tuple[Tensor, Tensor]:
        if isinstance(self.at, Tensor):
            self.at = (self.at + 1).clamp(max=self.span - 1)
        return plain(self, k, v, window)

    monkeypatch.setattr(StaticCache, "update", one_too_far)
    assert worst(net, run(StaticStore(net, capacity=4, limit=40), net, 0)) > 1e-3


def test_a_joint_reading_that_forgets_what_stood_before_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    net = fill(language(mixer=Attention(heads=4)))
    plain = static_store.copy_rows
    monkeypatch.setattr(static_store, "copy_rows", lambda layer, rows, cached, *more: plain(layer, rows, 0, *more))
    monkeypatch.setattr(static_store, "SHORT", 0)  # what is not next to each other is copied
    assert worst(net, run(StaticStore(net, capacity=4, limit=40), net, 0)) > 1e-3


def test_a_forgotten_mask_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    net = fill(language(mixer=Attention(heads=4)))
    with monkeypatch.context() as patch:  # columns behind a row's own taken for text
        plain = StaticState.__init__
        patch.setattr(StaticState, "__init__", lambda self, *a, **k: plain(self, *a, **{**k, "gaps": False}))
        assert worst(net, run(StaticStore(net, capacity=4, limit=40), net, 0)) > 1e-3

    def blind(states: list[State]) -> Records:  # padding taken for text
        return join_records(states)._replace(mask=None)

    monkeypatch.setattr("anyformer.core.state.join_records", blind)
    assert worst(net, run(EagerStore(net, capacity=4, limit=40), net, 0)) > 1e-3


# ---------------------------------------------------------------- strict


def decoded(rows: SequenceStore, prompts: list[list[int]], cuts: list[int], new: int = 3) -> list[Tensor]:
    """Scores of every text, its prompt read in pieces."""
    numbers, found = [], []
    for i, prompt in enumerate(prompts):
        row, at = rows.add(prompt, scope=str(i % 3))
        size = cuts[i % len(cuts)]
        while at < len(prompt):
            hidden = rows.extend({row: prompt[at : at + size]})[0]
            at += size
        numbers.append(row)
        found.append([rows.logits(hidden[-1:])[0]])
    for _ in range(new):
        scores = rows.step(numbers, torch.stack([text[-1].argmax() for text in found]))
        for text, one in zip(found, scores, strict=True):
            text.append(one)
    return [torch.stack(text) for text in found]


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama3-8b-tiny"])
def test_strict_rows_are_equal_to_the_last_bit_alone_and_among_31_others(name: str) -> None:
    net = preset(name).build(seed=0).eval()
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(300, (3 + 2 * i,), generator=generator).tolist() for i in range(32)]
    prompts[9] = prompts[6] + prompts[9]  # of one scope: it goes on from where the other began
    many = decoded(open_serving_store(net, capacity=32, limit=96, strict=True), prompts, [100, 5, 17])
    for i in (0, 9, 17, 31):
        rows = open_serving_store(net, capacity=32, limit=96, strict=True)
        assert torch.equal(decoded(rows, [prompts[i]], [9])[0], many[i])
    rows = open_serving_store(net, capacity=32, limit=96, strict=True)  # read at one call, they are read one by one
    joint = rows.extend({rows.add(prompts[i], scope=str(i)).number: prompts[i] for i in (0, 17, 31)})
    assert all(torch.equal(rows.logits(one[-1:])[0], many[i][0]) for i, one in zip((0, 17, 31), joint, strict=True))
    loose = decoded(open_serving_store(net, capacity=32, limit=96), prompts, [100, 5, 17])  # control: it rounds
    assert any(not torch.equal(one, other) for one, other in zip(loose, many, strict=True))


@pytest.mark.quick
def test_strict_without_fixed_places_or_shapes_is_each_row_by_itself() -> None:
    assert isinstance(open_serving_store(build(language(mixer=Recurrent("gru"))), strict=True), EagerStore)
    # How many tokens choose an expert decides the shape of its product, and so its rounding.
    routed = build(language(feed=Experts(count=4)))
    assert isinstance(open_serving_store(routed, strict=True), EagerStore)
    assert isinstance(open_serving_store(routed), StaticStore)


# ---------------------------------------------------------------- prefixes


def kinds() -> dict[str, Any]:
    attention, recurrence = build(decoder(*POSITIONS["rope"])), build(language(mixer=Recurrent("gru")))
    return {
        "slots": StaticStore(attention, capacity=2, limit=40),
        "joined": EagerStore(recurrence, capacity=2, limit=40),
    }


@pytest.mark.parametrize("kind", ["slots", "joined"])
def test_a_prefix_is_reused_in_its_own_scope_only(kind: str) -> None:
    rows = kinds()[kind]
    row, known = rows.add([1, 2, 3, 4], scope="mine")
    assert known == 0
    rows.extend({row: [1, 2]})
    rows.extend({row: [3, 4]})
    rows.step([row], torch.tensor([5]))
    rows.free(row)
    for scope, expected in (("yours", 0), ("", 0), ("mine", 5)):
        again = rows.add([1, 2, 3, 4, 5, 6], scope=scope)
        assert again.cached == expected
        rows.free(again.number, keep=False)
    row, known = rows.add([1, 2, 3, 4], scope="mine")  # the last token is always read: its scores are asked for
    assert known < 4
    rows.free(row, keep=False)


def test_what_must_not_be_kept_is_not() -> None:
    for rows in kinds().values():
        row = rows.add([1, 2, 3]).number
        rows.extend({row: [1, 2, 3]})
        rows.free(row, keep=False)
        assert rows.add([1, 2, 3, 4]).cached == 0


def test_a_row_in_use_lends_its_beginning() -> None:
    rows = kinds()["slots"]
    first = rows.add([1, 2, 3, 4]).number
    rows.extend({first: [1, 2, 3, 4]})
    second, known = rows.add([1, 2, 3, 9])
    assert known == 3
    scores = rows.logits(rows.extend({second: [9]})[0][-1:])
    right = lone_store(rows.model)
    assert torch.allclose(scores, right.logits(right.extend({right.add([1]).number: [1, 2, 3, 9]})[0][-1:]), atol=1e-5)


def test_what_was_not_used_for_longest_gives_way() -> None:
    net = build(decoder())
    rows = StaticStore(net, capacity=2, limit=40)
    for prompt in ([1, 2, 3], [4, 5, 6]):
        row = rows.add(prompt).number
        rows.extend({row: prompt})
        rows.free(row)
    rows.free(rows.add([1, 2, 3, 7]).number)  # used again
    row = rows.add([8, 9]).number
    rows.extend({row: [8, 9]})
    assert rows.add([1, 2, 3, 8]).cached == 3  # the other one gave way
    rows.free(row)
    assert rows.add([4, 5, 6, 7]).cached == 0


@pytest.mark.parametrize("kind", ["slots", "joined"])
def test_a_source_that_is_known_is_not_read_again(kind: str) -> None:
    net = build(pair(*POSITIONS["sinusoid"]))
    rows = {"slots": StaticStore, "joined": EagerStore}[kind](net, capacity=2, limit=20)
    calls: list[int] = []
    net.encoder.register_forward_hook(lambda *_: calls.append(1))
    for _ in range(2):
        row, known = rows.add([1, 2], source=[3, 4, 5], scope="a")
        rows.extend({row: [1, 2][known:]})
        rows.step([row], torch.tensor([2]))
        rows.free(row)
    if kind == "slots":
        assert len(calls) == 1
    row, known = rows.add([1, 2, 2, 3], source=[3, 4, 5], scope="a")
    assert known == 3
    before = len(calls)
    rows.free(row)
    row, known = rows.add([1, 2, 2, 3], source=[3, 4], scope="a")  # another source: nothing of it is the same
    assert known == 0 and len(calls) == before + 1


@pytest.mark.quick
def test_common_beginnings_are_counted() -> None:
    for one, other, expected in (([], [1], 0), ([1], [1, 2], 1), ([1, 2, 3, 4], [1, 2, 9, 4], 2), ([1], [2], 0)):
        assert common_prefix(one, other) == common_prefix(other, one) == expected
    long = list(range(1000))
    assert [common_prefix(long, [*long[:n], -1, *long[n:]]) for n in (0, 1, 500, 999, 1000)] == [0, 1, 500, 999, 1000]


# ---------------------------------------------------------------- what a step and an idle store cost


def passes(rows: StaticStore, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Rows and columns of every pass from now on."""
    seen: list[tuple[int, int]] = []
    plain = rows.forward

    def noted(ids: Tensor, state: StaticState, slots: slice, lanes: Any) -> Tensor:
        assert state.columns is not None
        seen.append((ids.shape[0], state.columns.shape[1]))
        return plain(ids, state, slots, lanes)

    monkeypatch.setattr(rows, "forward", noted)
    return seen


def test_a_lone_row_in_a_high_slot_does_not_pay_for_those_below(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = StaticStore(build(decoder()), capacity=8, limit=300)
    numbers = [rows.add([i]).number for i in range(8)]
    for i, row in enumerate(numbers):
        rows.extend({row: [i]})
    seen = passes(rows, monkeypatch)
    rows.step(numbers[7:], torch.tensor([1]))
    assert seen == [(1, 2)]


def test_rows_that_stand_apart_are_moved_together(monkeypatch: pytest.MonkeyPatch) -> None:
    net = build(decoder(*POSITIONS["rope"]), dtype=torch.float64)
    rows = StaticStore(net, capacity=6, limit=40)
    numbers = []
    for i in range(6):
        numbers.append(rows.add([i, i + 1, i + 2]).number)
        rows.extend({numbers[-1]: [i, i + 1, i + 2]})
    for row in numbers[1:5]:
        rows.free(row)
    seen, ends = passes(rows, monkeypatch), [numbers[0], numbers[5]]
    last = [rows.step(ends, torch.tensor([7, 8])) for _ in range(PATIENCE + 3)][-1]
    assert [count for count, _ in seen] == [6] * PATIENCE + [2] * 3
    for at, (first, token) in enumerate(((0, 7), (5, 8))):
        right = lone_store(net)
        row = right.add([0]).number
        text = [first, first + 1, first + 2, *[token] * (PATIENCE + 3)]
        assert torch.allclose(last[at], right.logits(right.extend({row: text})[0][-1:])[0], atol=1e-9)
    assert rows.add([1, 2, 3, 9]).cached == 3  # what stood between them is still there


def test_memory_grows_with_what_is_held() -> None:
    rows = StaticStore(build(decoder()), capacity=16, limit=4096)
    idle = rows.bytes
    assert idle * 16 * 8 < StaticStore(rows.model, capacity=16, limit=4096, strict=True).bytes
    row = rows.add([1] * 600).number
    rows.extend({row: [1] * 600})
    assert idle < rows.bytes <= 4 * idle


def test_rows_end_at_their_limit() -> None:
    for rows in kinds().values():
        row = rows.add([1]).number
        rows.extend({row: [1] * 40})
        with pytest.raises(UserError, match="41 tokens do not fit a slot of 40"):
            rows.step([row], torch.tensor([1]))
        with pytest.raises(UserError, match="do not fit"):
            rows.extend({row: [1]})
        rows.add([1])
        with pytest.raises(UserError, match="all 2 slots are taken"):
            rows.add([2])


@pytest.mark.quick
def test_parts_that_have_no_places_are_refused_by_name() -> None:
    net = build(language(mixer=named(Mixer)["lstm"]))
    assert not supports_static_cache(net)
    with pytest.raises(UserError, match="no static cache"):
        StaticStore(net)
