"""Beam search finds the best text: against brute force over every text of a small vocabulary."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.generation import Generation, generate, score
from anyformer.generation.beam import beam_search
from anyformer.generation.prompts import GenerationInputs
from tests.generation.nets import POSITIONS, PROMPTS, build, decoder, ids, padded, pair, rows

VOCAB, LENGTH, END, MODELS = 5, 5, 4, 200
EVERY_TEXT = VOCAB ** (LENGTH - 1) * VOCAB  # beams that leave nothing out
PENALTIES = [-1.0, 0.0, 0.6, 1.0, 2.0]
EARLY: list[Any] = [False, True, "never"]


class Trees:
    """Random models of all texts: every beginning has its own scores for the next token; one model a prompt."""

    def __init__(self, models: int, seed: int = 0) -> None:
        nodes = sum(VOCAB**depth for depth in range(LENGTH))
        generator = torch.Generator().manual_seed(seed)
        self.scores = 1.5 * torch.randn(models, nodes, VOCAB, generator=generator, dtype=torch.float64)
        self.model = torch.arange(models)
        self.node = torch.zeros(models, dtype=torch.long)

    def first(self) -> Tensor:
        return self.scores[self.model, self.node]

    def step(self, sequences: Sequence[int], tokens: Tensor) -> Tensor:
        self.node = self.node * VOCAB + 1 + tokens
        return self.scores[self.model, self.node]

    def fork(self, copies: int) -> list[int]:
        self.model, self.node = self.model.repeat_interleave(copies), self.node.repeat_interleave(copies)
        return list(range(len(self.model)))

    def select(self, sequences: Sequence[int], origins: Tensor) -> None:
        self.node = self.node[origins]


def texts() -> list[tuple[int, ...]]:
    """Every text: it ends with its first END, or after LENGTH tokens."""
    found = []
    for length in range(1, LENGTH + 1):
        for head in itertools.product(range(VOCAB - 1), repeat=length - 1):
            found.append((*head, END))
    found += list(itertools.product(range(VOCAB - 1), repeat=LENGTH))
    return found


def brute_force(logp: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """The best score of every model and which text has it, from log-probabilities of all texts (models, texts)."""
    lengths = torch.tensor([len(text) for text in texts()], dtype=torch.float64)
    best = (logp / lengths**penalty).max(1)
    return best.values, best.indices


@lru_cache(maxsize=1)
def tree_logp() -> Tensor:
    """Log-probabilities of all texts, (models, texts)."""
    own = Trees(MODELS).scores.log_softmax(-1)
    columns = []
    for text in texts():
        node, total = 0, torch.zeros(own.shape[0], dtype=torch.float64)
        for token in text:
            total = total + own[:, node, token]
            node = node * VOCAB + 1 + token
        columns.append(total)
    return torch.stack(columns, 1)


def search(models: int, width: int, penalty: float, early: Any, seed: int = 0) -> Any:
    trees: Any = Trees(models, seed)
    prompt = torch.zeros(models, 1, dtype=torch.long)
    settings = Generation(
        num_beams=width, length_penalty=penalty, early_stopping=early, eos_token_id=END, pad_token_id=0
    )
    return beam_search(trees, trees.first(), GenerationInputs(prompt, None, 1, LENGTH), settings)


@pytest.mark.parametrize("early", EARLY)
@pytest.mark.parametrize("penalty", PENALTIES)
def test_enough_beams_find_the_best_text_of_200_models(penalty: float, early: Any) -> None:
    values, where = brute_force(tree_logp(), penalty)
    found = search(MODELS, VOCAB ** (LENGTH - 1) * 2 + 30, penalty, early)
    assert (found.scores - values).abs().max() < 1e-9
    every = texts()
    assert [tuple(row) for row in found.rows()] == [every[i] for i in where.tolist()]


def test_control_few_beams_miss_it_and_the_penalty_matters() -> None:
    values, where = brute_force(tree_logp(), 1.0)
    found = search(MODELS, 1, 1.0, False)
    assert (found.scores < values - 1e-9).sum() > 20
    assert (found.scores <= values + 1e-9).all()  # never better than the best
    other = brute_force(tree_logp(), -1.0)[1]
    assert (where != other).sum() > 100


@pytest.mark.parametrize("penalty", PENALTIES)
def test_enough_beams_find_the_best_text_of_real_networks(penalty: float) -> None:
    every = texts()
    table = torch.full((len(every), LENGTH), 0)
    real = torch.zeros(len(every), LENGTH, dtype=torch.bool)
    for i, text in enumerate(every):
        table[i, : len(text)], real[i, : len(text)] = torch.tensor(text), True
    seed = PENALTIES.index(penalty)
    net = build(decoder(*POSITIONS["rope"], vocab=VOCAB), seed=seed)
    prompt = ids(1, 3, seed=seed, vocab=VOCAB)
    whole = torch.cat([prompt.expand(len(every), -1), table], 1)
    mask = torch.cat([torch.ones(len(every), 3, dtype=torch.bool), real], 1)
    logp = score(net, whole, mask).logprobs[:, 3:].sum(1)[None].double()
    values, where = brute_force(logp, penalty)
    for early in EARLY:
        settings = Generation(max_new_tokens=LENGTH, num_beams=EVERY_TEXT, length_penalty=penalty,
                              early_stopping=early, eos_token_id=END)  # fmt: skip
        found = generate(net, prompt, settings=settings)
        assert abs(float(found.scores) - float(values)) < 1e-4
        gap = (logp[0] / real.sum(1) ** penalty).topk(2).values
        assert tuple(next(found.rows())) == every[int(where)] or gap[0] - gap[1] < 1e-4


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_one_beam_is_greedy(penalty: float, early: bool) -> None:
    greedy = search(MODELS, 1, penalty, early)
    trees, found = Trees(MODELS), list(greedy.rows())
    for i in range(MODELS):
        node, text = 0, []
        while len(text) < LENGTH and (not text or text[-1] != END):
            text.append(int(trees.scores[i, node].argmax()))
            node = node * VOCAB + 1 + text[-1]
        assert found[i] == text
    wider = search(MODELS, 3, penalty, early)  # control: three beams are not
    assert list(wider.rows()) != found


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("name", ["rope", "learned", "buckets"])
def test_a_score_is_the_recomputed_log_probability(name: str, window: int | None) -> None:
    net = build(decoder(*POSITIONS[name], window=window))
    tokens, mask = padded(PROMPTS, "left")
    for penalty in (0.0, 1.0, -0.5):
        settings = Generation(
            max_new_tokens=6, num_beams=4, num_return_sequences=3, length_penalty=penalty, eos_token_id=3
        )
        found = generate(net, tokens, mask, settings=settings)
        written = torch.arange(found.new.shape[1]) < found.lengths[:, None]
        whole = torch.cat([mask.repeat_interleave(3, 0), written], 1)
        logp = score(net, found.ids, whole).logprobs[:, found.prompt :]
        assert (logp - found.logprobs).abs().max() < 1e-4
        assert (logp.sum(1) / found.lengths**penalty - found.scores).abs().max() < 1e-4
        best_first = found.scores.view(len(PROMPTS), 3)
        assert (best_first[:, :-1] >= best_first[:, 1:]).all()
        assert len({tuple(row) for row in rows(found)[:3]}) == 3  # three different texts of one prompt


def test_more_beams_than_words_and_a_text_that_cannot_be() -> None:
    net = build(decoder(vocab=VOCAB))
    wide = Generation(max_new_tokens=1, num_beams=12, num_return_sequences=12)
    found = generate(net, ids(1, 2, vocab=VOCAB), settings=wide)
    assert (found.scores > -torch.inf).sum() == VOCAB  # five texts of one word, and no sixth
    assert sorted(row[0] for row in rows(found) if row) == list(range(VOCAB))
    assert found.scores[:VOCAB].exp().sum().item() == pytest.approx(1.0, abs=1e-5)


def test_encoder_decoders_compute_the_source_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net, calls = build(pair(*POSITIONS["rope"])), {"encode": 0, "cross": 0}
    for part, name in ((net.encoder, "encode"), *((block.cross.kv, "cross") for block in net.decoder.stack.blocks)):
        part.register_forward_hook(lambda *_, name=name: calls.update({name: calls[name] + 1}))
    generate(net, ids(2, 5), settings=Generation(max_new_tokens=6, num_beams=3, decoder_start_token_id=1))
    assert calls == {"encode": 1, "cross": len(net.decoder.stack.blocks)}
    generate(net, ids(2, 5), settings=Generation(max_new_tokens=6, decoder_start_token_id=1))
    assert calls == {"encode": 2, "cross": 2 * len(net.decoder.stack.blocks)}
