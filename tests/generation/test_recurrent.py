"""Recurrent and convolutional models write as Transformers do: with a state or without, alone or in a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer
from anyformer import LM, AttendingRecurrent, Block, Convolution, Mixer, Model, Recurrent, Seq2Seq, Stack, Tokens
from anyformer.checkpoints.folder import save_own
from anyformer.generation import Generation, generate, score
from anyformer.mixers.attending_recurrent import AttendingState
from tests.generation.nets import PROMPTS, VOCAB, WIDTH, build, ids, padded, rows
from tests.generation.test_same_tokens import SOURCES, WAYS, agree

MIXERS: dict[str, Mixer] = {
    "rnn": Recurrent("rnn"),
    "gru": Recurrent("gru", hidden=10),
    "lstm": Recurrent("lstm"),
    "convolution": Convolution(3),
    "dilated": Convolution(2, dilation=3, gated=True),
}
WRITERS: dict[str, Mixer] = {
    "additive": AttendingRecurrent("gru"),
    "general": AttendingRecurrent("lstm", hidden=12, score="general"),
    "dot": AttendingRecurrent("rnn", score="dot"),
    "every": AttendingRecurrent("gru", context="every"),
    "first": AttendingRecurrent("lstm", context="first"),
}
every_way = pytest.mark.parametrize("way", WAYS)


def writing(mixer: Mixer, *, causal: bool = True, head: LM | None = None) -> Model:
    stack = Stack(width=WIDTH, depth=2, causal=causal, block=Block(mixer=mixer, feed=None))
    return Model(embed=Tokens(vocab=VOCAB), stack=stack, head=head, init="xavier")


def pair(writer: Mixer) -> Seq2Seq:
    """A GRU that reads both ways, and one that writes."""
    reader = writing(Recurrent("gru", hidden=WIDTH // 2), causal=False)
    return Seq2Seq(encoder=reader, decoder=writing(writer), head=LM(tied=False))


@every_way
@pytest.mark.parametrize("name", MIXERS)
def test_language_models(name: str, way: str) -> None:
    net = build(writing(MIXERS[name], head=LM(tied=False)))
    assert all(agree(net, way, PROMPTS, None, "right" if way == "greedy" else "left"))


@every_way
@pytest.mark.parametrize("name", WRITERS)
def test_encoder_decoders(name: str, way: str) -> None:
    net = build(pair(WRITERS[name]))
    assert all(agree(net, way, PROMPTS, SOURCES, "left" if way == "greedy" else "right"))


def test_a_state_that_is_not_reordered_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: beams whose cells stay behind write other texts."""
    net = build(pair(WRITERS["additive"]))
    assert all(agree(net, "beam", PROMPTS, SOURCES, "right"))
    monkeypatch.setattr(AttendingState, "select", lambda self, rows: None)
    settings = Generation(max_new_tokens=7, num_beams=3, decoder_start_token_id=1)
    with pytest.raises(RuntimeError):  # one row a source meets three a source
        generate(net, SOURCES[0].expand(2, -1), settings=settings)


@pytest.mark.parametrize("name", MIXERS)
def test_a_prompt_may_be_read_in_chunks(name: str) -> None:
    net = build(writing(MIXERS[name], head=LM(tied=False)))
    tokens, mask = padded(PROMPTS, "right")
    whole = generate(net, tokens, mask, settings=WAYS["greedy"])
    for chunk in (1, 3):
        parts = Generation(max_new_tokens=7, eos_token_id=3, prefill_chunk_size=chunk)
        got = generate(net, tokens, mask, settings=parts)
        assert torch.equal(got.ids, whole.ids) and (got.logprobs - whole.logprobs).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["gru", "lstm"])
@torch.no_grad()
def test_endless_text_takes_no_more_memory(name: str) -> None:
    net = build(writing(MIXERS[name], head=LM(tied=False)), dtype=torch.float64)
    text, state, sizes = ids(1, 200), net.state(1), []
    parts: list[Tensor] = []
    for t in range(200):
        parts.append(net(text[:, t : t + 1], state=state).logits)
        sizes.append(state.bytes)
    assert sizes[0] == sizes[-1] > 0
    assert (torch.cat(parts, 1) - net(text).logits).abs().max() < 1e-9


def test_saved_opened_and_scored(tmp_path: Path) -> None:
    """Through a folder and back: the same text, and its score is the sum of its log-probabilities."""
    for number, spec in enumerate([writing(MIXERS["lstm"], head=LM(tied=False)), pair(WRITERS["additive"])]):
        net: Any = build(spec)
        save_own(tmp_path / str(number), spec, net)
        again = anyformer.load(tmp_path / str(number)).model
        settings = Generation(max_new_tokens=6, decoder_start_token_id=1)
        first, second = (generate(one, ids(2, 5), settings=settings) for one in (net, again))
        assert rows(first) == rows(second)
    text = ids(1, 9)
    lm = build(writing(MIXERS["lstm"], head=LM(tied=False)))
    with torch.no_grad():
        wanted = lm(text[:, :-1]).logits.log_softmax(-1).gather(-1, text[:, 1:, None]).sum()
    assert abs(float(score(lm, text).total.sum()) - float(wanted)) < 1e-4
