"""Proposed tokens change the speed and nothing else: greedy or drawn, for every causal part, alone or in a batch."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer import LM, Alibi, Learned, Mixer, Model, Recurrent, Rope, Sinusoid, UserError
from anyformer.checkpoints.folder import save_own
from anyformer.core.history import RecurrentState
from anyformer.data.tokenizers.tokenizer import train_tokenizer
from anyformer.generation import Generated, Generation, generate, stream
from anyformer.generation.cache.eager_store import EagerStore
from anyformer.generation.cache.static_store import StaticStore
from anyformer.generation.noise import row_seeds
from anyformer.generation.proposers import Draft, Lookup
from anyformer.generation.result import NewToken
from anyformer.generation.speculative import Speculation
from anyformer.inference.opening import load
from anyformer.inference.predictor import Predictor
from tests.generation.nets import LIMIT, POSITIONS, PROMPTS, build, decoder, ids, padded, pair, rows
from tests.generation.test_recurrent import MIXERS, WRITERS, writing
from tests.generation.test_recurrent import pair as recurrent_pair
from tests.generation.test_same_tokens import SOURCES
from tests.laws import nets as laws
from tests.laws.parts import LIMIT as LAW_LIMIT
from tests.laws.parts import VOCAB as LAW_VOCAB
from tests.laws.parts import mixers

NEW = 13
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"do_sample": True, "temperature": 1.3, "seed": 11},
    "filtered": {"do_sample": True, "seed": 4, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.4,
                 "no_repeat_ngram_size": 3, "suppress_tokens": [5], "min_new_tokens": 6, "forced_eos_token_id": 2},
}  # fmt: skip
EXACT = torch.float64  # passes of other shapes round otherwise: here never so much that another token wins


def settings(way: str, **more: Any) -> Generation:
    return Generation(**{"max_new_tokens": NEW, "eos_token_id": 3, **WAYS[way], **more})


def equal(one: Generated, other: Generated) -> bool:
    """The same tokens for the same reasons, with the same log-probabilities."""
    alike = torch.equal(one.ids, other.ids) and one.reasons == other.reasons
    return (
        alike and torch.equal(one.lengths, other.lengths) and bool((one.logprobs - other.logprobs).abs().max() < 1e-5)
    )


def check(net: Any, given: Tensor, mask: Tensor | None, way: str, draft: Any, **more: Any) -> Generated:
    """Plain decoding, prompt lookup and a draft agree; what the draft gave."""
    plain = generate(net, given, mask, settings=settings(way, **more))
    looked = generate(net, given, mask, settings=settings(way, prompt_lookup_num_tokens=4, **more))
    drafted = generate(net, given, mask, settings=settings(way, num_assistant_tokens=3, **more), draft=draft)
    assert equal(plain, looked) and equal(plain, drafted)
    return drafted


# ---------------------------------------------------------------- every part


@pytest.mark.parametrize("mixer", [mixer for mixer in mixers(causal=True) if not mixer.values[0].looks_at_memory])
def test_every_causal_mixer(mixer: Mixer, cells: Counter) -> None:
    """But those that write from a memory, which is for encoder-decoders."""
    net, draft = (laws.build(laws.language(mixer=mixer, position=Sinusoid()), seed=seed) for seed in (0, 1))
    prompts = [ids(1, length, seed=length, vocab=LAW_VOCAB) for length in (6, 2, 1)]
    check(net, prompts[0], None, "greedy", draft, max_new_tokens=9)
    check(net, *padded(prompts, "left"), "sampled", draft, max_new_tokens=9)
    cells["generation", "run"] += 2


@pytest.mark.parametrize(
    "position, way", [*((name, "sampled") for name in POSITIONS), *(("rope", way) for way in WAYS)]
)
def test_decoders_in_a_batch(position: str, way: str) -> None:
    net = build(decoder(*POSITIONS[position]), dtype=EXACT)
    given, mask = padded(PROMPTS, "right" if way == "greedy" else "left")
    for draft in (build(decoder(None, Rope(), depth=1), seed=5, dtype=EXACT), net):
        got = check(net, given, mask, way, draft)
    assert way != "greedy" or (got.passes <= -(-got.lengths // 4)).all()  # its own draft is always right


@pytest.mark.parametrize("name, way", [("rope", "greedy"), ("gru", "sampled"), ("shaw", "filtered")])
def test_encoder_decoders(name: str, way: str) -> None:
    spec = recurrent_pair(WRITERS["additive"]) if name == "gru" else pair(*POSITIONS[name])
    net, draft = build(spec, dtype=EXACT), build(pair(*POSITIONS["learned"]), seed=3, dtype=EXACT)
    given, mask = padded(SOURCES, "right")
    check(net, given, mask, way, draft, decoder_start_token_id=1)
    check(net, SOURCES[0], None, way, net, decoder_start_token_id=1)


@pytest.mark.parametrize("name", WRITERS)
def test_writers_that_look_at_a_source(name: str) -> None:
    net = build(recurrent_pair(WRITERS[name]), dtype=EXACT)
    check(net, SOURCES[0], None, "sampled", net, decoder_start_token_id=1)


def test_a_draft_of_another_kind() -> None:
    """A recurrence proposes to attention, and the other way round."""
    attention, cell = (build(spec, dtype=EXACT) for spec in (decoder(None, Rope()), writing(MIXERS["gru"], head=LM())))
    given, mask = padded(PROMPTS, "left")
    for way in WAYS:
        check(attention, given, mask, way, cell)
        check(cell, given, mask, way, attention)


@pytest.mark.quick
def test_states_that_are_not_taken_back_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of every test above."""
    net, draft = (build(decoder(None, Rope()), seed=seed, dtype=EXACT) for seed in (0, 5))
    given, mask = padded(PROMPTS, "left")
    check(net, given, mask, "sampled", draft)
    for kind, prompts, real in ((StaticStore, given, mask), (EagerStore, PROMPTS[0], None)):
        plain = generate(net, prompts, real, settings=settings("sampled"))
        with monkeypatch.context() as patch:
            kept = kind.truncate
            patch.setattr(
                kind, "truncate", lambda self, text, length, k=kept: k(self, text, min(length + 1, self.length(text)))
            )
            with contextlib.suppress(IndexError):  # what was refused is held until nothing fits any more
                assert not equal(plain, generate(net, prompts, real, settings=settings("sampled"), draft=draft))


# ---------------------------------------------------------------- ends


def test_an_end_in_the_middle_of_what_was_right() -> None:
    net = build(decoder(None, Rope()), dtype=EXACT)
    free = rows(generate(net, PROMPTS[0], settings=Generation(max_new_tokens=20)))[0]
    for at in range(8):
        how = {"max_new_tokens": 20, "eos_token_id": free[at], "num_assistant_tokens": 6}
        plain = generate(net, PROMPTS[0], settings=Generation(**how))
        got = generate(net, PROMPTS[0], settings=Generation(**how), draft=net)
        assert equal(plain, got) and got.reasons == ["eos"]


def test_the_last_token_in_the_middle_of_what_was_right() -> None:
    """Also where the positions end there."""
    net = build(decoder(Learned(LIMIT)), dtype=EXACT)
    given, mask = padded([ids(1, LIMIT - 9), ids(1, 3)], "left")
    for new in (1, 2, 6, 7, 8, 9):
        how = Generation(max_new_tokens=new, num_assistant_tokens=7, prompt_lookup_num_tokens=7)
        plain = generate(net, given, mask, settings=Generation(max_new_tokens=new))
        assert equal(plain, generate(net, given, mask, settings=how))
        drafted = generate(net, given, mask, settings=Generation(max_new_tokens=new, num_assistant_tokens=7), draft=net)
        assert equal(plain, drafted) and drafted.lengths.tolist() == [new, new]


def test_stop_strings_and_most_probable_tokens() -> None:
    def spelled(tokens: list[int]) -> str:
        return "".join(chr(97 + token) for token in tokens)

    net = build(decoder(None, Alibi()), dtype=EXACT)
    free = spelled(rows(generate(net, PROMPTS[0], settings=Generation(max_new_tokens=20)))[0])
    for at in range(7):
        how = {"max_new_tokens": 20, "stop_strings": [free[at : at + 2]], "logprobs": 3}
        plain = generate(net, PROMPTS[0], settings=Generation(**how), text_of=spelled)
        got = generate(net, PROMPTS[0], settings=Generation(**how), text_of=spelled, draft=net)
        assert equal(plain, got) and got.reasons == ["stop"]
        assert got.top_tokens is not None and torch.equal(got.top_tokens, plain.top_tokens)
        assert torch.allclose(got.top_logprobs, plain.top_logprobs)


def test_steps_come_one_by_one_and_may_be_left() -> None:
    net = build(decoder(None, Rope()), dtype=EXACT)
    given, mask = padded(PROMPTS, "right")
    how = settings("sampled", num_return_sequences=2, prompt_lookup_num_tokens=5)
    plain, ours = (
        stream(net, given, mask, settings=settings("sampled", num_return_sequences=2)),
        stream(net, given, mask, settings=how),
    )
    for count, (one, other) in enumerate(zip(plain, ours, strict=True)):
        assert torch.equal(one.tokens, other.tokens) and torch.equal(one.live, other.live)
        if count in (0, 5):
            assert equal(plain.result(), ours.result())
    assert isinstance(ours, Speculation) and ours.finished
    seen: list[Any] = []
    generate(net, given, mask, settings=how, on_token=seen.append)
    assert len(seen) == plain.count


def test_a_model_in_training_stays_in_training_and_drops_nothing() -> None:
    net, draft = (build(decoder(None, Rope()), seed=seed, dtype=EXACT).train() for seed in (0, 1))
    got = generate(net, PROMPTS[0], settings=settings("greedy"), draft=draft)
    assert net.training and draft.training
    assert equal(got, generate(net.eval(), PROMPTS[0], settings=settings("greedy")))


# ---------------------------------------------------------------- distribution


def first_two(net: Any, prompt: Tensor) -> Tensor:
    """The exact probabilities (V,V) of the first two tokens."""
    vocab = net.spec.embed.vocab
    first = net(prompt).logits[0, -1].softmax(-1)
    texts = torch.cat([prompt.expand(vocab, -1), torch.arange(vocab)[:, None]], 1)
    return first[:, None] * net(texts).logits[:, -1].softmax(-1)


@torch.no_grad()
def distance(net: Any, draft: Any, prompt: Tensor, seeds: int) -> float:
    """Chi-square of the first two tokens of that many seeded texts, in standard deviations from what is expected."""
    how = Generation(max_new_tokens=3, do_sample=True, seed=list(range(seeds)), num_assistant_tokens=2)
    got = generate(net, prompt.expand(seeds, -1), settings=how, draft=draft).new
    share = first_two(net, prompt).flatten()
    seen = torch.bincount(got[:, 0] * net.spec.embed.vocab + got[:, 1], minlength=len(share)).double()
    chi = ((seen - seeds * share) ** 2 / (seeds * share)).sum()
    return float((chi - (len(share) - 1)) / (2 * (len(share) - 1)) ** 0.5)


def always(self: Speculation, row: int, hidden: Tensor, proposed: Any) -> None:
    """A broken rule: whatever is proposed stands."""
    for token in proposed or [int(self.store.logits(hidden)[0].argmax())]:
        if self.reasons[row] is None:
            self.append(row, NewToken(token, 0.0))


def test_draws_have_the_model_s_own_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    net, draft = (build(decoder(None, Rope(), vocab=5, depth=1), seed=seed, scale=1.0) for seed in (0, 4))
    prompt = ids(1, 4, vocab=5)
    assert abs(distance(net, draft, prompt, 500)) < 4
    monkeypatch.setattr(Speculation, "accept", always)
    assert distance(net, draft, prompt, 500) > 20  # control: the draft's distribution is another


def test_common_noise_makes_drafts_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that draws with noise of its own is right less often, and the text is the same all the same."""
    net = build(decoder(None, Rope()), dtype=EXACT, scale=1.0)
    draft = build(decoder(None, Rope()), dtype=EXACT, scale=0.9)
    how = Generation(max_new_tokens=40, do_sample=True, seed=list(range(4)))
    given = PROMPTS[0].expand(4, -1)
    common = generate(net, given, settings=how, draft=draft)
    sample = Draft.sample

    def apart(self: Draft, *args: Any) -> int | None:
        seeds = self.sampler.seeds
        assert seeds is not None
        self.sampler.seeds = row_seeds(list(range(50, 54)), 4, 1, seeds.device)
        try:
            return sample(self, *args)
        finally:
            self.sampler.seeds = seeds

    monkeypatch.setattr(Draft, "sample", apart)
    own = generate(net, given, settings=how, draft=draft)
    assert equal(common, own)
    assert common.passes.sum() < 0.7 * own.passes.sum()


# ---------------------------------------------------------------- proposals


@pytest.mark.quick
def test_what_is_looked_up() -> None:
    def guess(text: list[int], most: int = 4) -> list[int]:
        return Lookup([[]], most).propose({0: text}, {0: most})[0]

    assert guess([1, 2, 3, 9, 8, 1, 2]) == [3, 9, 8, 1]
    assert guess([1, 2, 3, 5, 2, 4, 1, 2]) == [3, 5, 2, 4]  # the longest match
    assert guess([2, 3, 5, 2, 4, 7, 2]) == [4, 7, 2, 4]  # of those the latest, and round at the end
    assert guess([7, 7]) == [7, 7, 7, 7]
    assert guess([1, 2, 3]) == [] and guess([1]) == []
    assert Lookup([[4, 5, 6]], 2).propose({0: [9, 4]}, {0: 5})[0] == [5, 6]  # from the source
    step, whole = Lookup([[]], 3), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8]
    for end in range(1, len(whole) + 1):  # token by token as from nothing
        assert step.propose({0: whole[:end]}, {0: 3})[0] == guess(whole[:end], 3)


def test_a_text_that_repeats_takes_few_passes() -> None:
    net = build(decoder(*POSITIONS["rope"]), dtype=EXACT)  # its greedy text ends in a loop
    got = generate(net, PROMPTS[0], settings=Generation(max_new_tokens=60, prompt_lookup_num_tokens=8))
    assert equal(got, generate(net, PROMPTS[0], settings=Generation(max_new_tokens=60)))
    assert got.passes is not None and int(got.passes) < 25


def test_recurrences_do_not_hoard() -> None:
    net = build(writing(Recurrent("gru"), head=LM()), dtype=EXACT)
    decoding = stream(net, ids(1, 40), settings=Generation(max_new_tokens=30, prompt_lookup_num_tokens=4))
    assert isinstance(decoding, Speculation) and len(list(decoding)) == 30
    states = [layer.mixer for layer in decoding.store.sequences[0].state.layers]  # type: ignore[attr-defined]
    assert all(isinstance(state, RecurrentState) and len(state.steps) <= 1 for state in states)
    assert equal(decoding.result(), generate(net, ids(1, 40), settings=Generation(max_new_tokens=30)))


@pytest.mark.quick
def test_refusals() -> None:
    net = build(decoder(None, Rope()))
    other: Model = decoder(None, Rope(), vocab=24)
    with pytest.raises(UserError, match="draft: the draft knows 24 tokens and the model 23; use a draft with the same"):
        generate(net, PROMPTS[0], draft=build(other))
    with pytest.raises(UserError, match="draft: one of model and draft is an encoder-decoder"):
        generate(net, PROMPTS[0], draft=build(pair()))
    with pytest.raises(UserError, match="draft: beam search takes no draft"):
        generate(net, PROMPTS[0], settings=Generation(num_beams=2), draft=net)
    with pytest.raises(UserError, match="beam search takes no proposals"):
        Generation(num_beams=2, prompt_lookup_num_tokens=2)
    with pytest.raises(UserError, match="leave out one of draft and prompt_lookup_num_tokens"):
        generate(net, PROMPTS[0], settings=Generation(prompt_lookup_num_tokens=2), draft=net)
    with pytest.raises(UserError, match=f"do not fit {LIMIT} learned positions"):
        generate(net, PROMPTS[0], settings=Generation(max_new_tokens=LIMIT), draft=build(decoder(Learned(LIMIT))))
    with pytest.raises(UserError, match="prompt_lookup_num_tokens is 0"):
        Generation(prompt_lookup_num_tokens=0)
    assert Generation.from_hf({"prompt_lookup_num_tokens": 10}).prompt_lookup_num_tokens == 10
    assert Generation.from_hf({"prompt_lookup_num_tokens": 10, "num_beams": 2}).prompt_lookup_num_tokens is None
    assert LAW_LIMIT > 18  # the texts of the first test fit the learned tables of its parts


def test_folders_with_a_draft(tmp_path: Path) -> None:
    """From text to text; another tokenizer is refused even where it has as many tokens."""

    def saved(name: str, text: str, depth: int) -> Predictor:
        words = train_tokenizer([text], "char", 20)
        folder = save_own(tmp_path / name, decoder(None, Rope(), vocab=16, depth=depth), build(
            decoder(None, Rope(), vocab=16, depth=depth), seed=depth))  # fmt: skip
        words.save(folder)
        return load(folder)

    model, draft, other = saved("model", "to be or not", 2), saved("draft", "to be or not", 1), saved("o", "rose is", 1)
    how: dict[str, Any] = {"max_new_tokens": 12, "do_sample": True, "seed": 3}
    plain = model.generate(["to be", "or"], **how)
    assert model.generate(["to be", "or"], draft=draft, **how) == plain
    assert model.generate(["to be", "or"], draft=draft.model, num_assistant_tokens=2, **how) == plain
    assert model.generate(["to be", "or"], draft="int8", **how) == plain
    assert model.generate(["to be", "or"], prompt_lookup_num_tokens=3, **how) == plain
    with pytest.raises(UserError, match="draft: the draft has another tokenizer"):
        model.generate("to be", draft=other)
    assert len(model.generate("to be", regex="[eor]{3}", max_new_tokens=9)) == 3
    with pytest.raises(UserError, match="give one of json_schema and regex"):
        model.generate("to be", regex="a", json_schema={})
