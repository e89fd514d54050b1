"""The plain loop: schedule, pace, batches, the figure that is reported, and the head that is drawn."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from anyformer.demo import data, inside, model, training
from anyformer.demo.estimate import training_bytes
from anyformer.demo.sampling import complete, text_of
from anyformer.demo.training import Pace, Settings, Windows, bits_per_byte, schedule, train

SMALL = Settings(batch=2, length=16)


@pytest.fixture(scope="module")
def tokenizer():
    return data.train_tokenizer(list(data.corpus().training.values())[:3], 280)


@pytest.fixture(scope="module")
def net():
    return model(280).build(seed=0)


class Clock:
    """A clock that moves only when told."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(training.time, "perf_counter", lambda: self.now)


def test_the_schedule_rises_then_falls_to_nothing():
    values = [schedule(i / 100) for i in range(101)]
    top = values.index(max(values))
    assert values[0] == 0 and max(values) == 1 and values[-1] == pytest.approx(0)
    assert values[: top + 1] == sorted(values[: top + 1]) and values[top:] == sorted(values[top:], reverse=True)


def test_a_steady_machine_keeps_the_number_of_steps(monkeypatch):
    clock = Clock(monkeypatch)
    pace = Pace(seconds=100, step_seconds=0.1)
    for _ in range(1000):
        clock.now += 0.1
        pace.tick()
    assert pace.total == 1000 and pace.done and pace.progress == pytest.approx(1) and pace.elapsed == pytest.approx(100)


@pytest.mark.parametrize("factor", [0.2, 3.0, 8.0])
def test_another_speed_half_way_still_ends_in_time_without_a_jump(factor, monkeypatch):
    clock = Clock(monkeypatch)
    pace = Pace(seconds=100, step_seconds=0.1)
    seen = [0.0]
    while not pace.done:
        clock.now += 0.1 if pace.elapsed < 40 else 0.1 * factor
        pace.tick()
        seen.append(pace.progress)
    assert 84 <= pace.elapsed <= 105 and pace.progress == pytest.approx(1)
    assert max(b - a for a, b in pairwise(seen)) < 0.05
    assert seen == sorted(seen)


def test_pauses_are_part_of_the_time_and_not_of_a_step(monkeypatch):
    clock = Clock(monkeypatch)
    pace = Pace(seconds=100, step_seconds=0.1, pauses=20)
    assert pace.total == 800
    for to_come in range(19, -1, -1):
        for _ in range(40):
            clock.now += 0.1
            pace.tick()
        clock.now += 1.0
        pace.resume(to_come)
        assert pace.total == 800 and pace.elapsed + pace.left == pytest.approx(100)
    assert pace.done and pace.elapsed == pytest.approx(100)


def test_control_a_given_number_of_steps_ignores_the_clock(monkeypatch):
    clock = Clock(monkeypatch)
    pace = Pace(steps=7)
    while not pace.done:
        clock.now += 1000
        pace.tick()
    assert pace.at == 7 and pace.seconds is None


def test_batches_follow_from_the_seed_and_cover_the_text():
    tokens = torch.arange(1000)

    def first(seed, count=31):
        batches = iter(Windows(tokens, SMALL, seed))
        return torch.stack([next(batches) for _ in range(count)])  # (count, B, T+1)

    assert torch.equal(first(1), first(1)) and not torch.equal(first(1), first(2))
    assert first(0).shape == (31, 2, 17) and (first(0).diff(dim=-1) == 1).all()
    assert len(first(0)[..., :-1].unique()) > 900


def test_the_number_of_threads_is_the_fastest():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        costs = {4: 3.0, 2: 1.0, 1: 2.0}
        assert training.fastest_threads(lambda: costs[torch.get_num_threads()]) == 1.0
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
@pytest.mark.parametrize("count", [2, 16, 17, 24, 25, 40, 41, 200])
def test_bits_per_byte_count_every_token_once(count, net):
    tokens = torch.randint(0, 280, (count,), generator=torch.Generator().manual_seed(count))
    stride, nats = 8, math.log(280)
    for at in range(1, count):  # one token at a time: the window that first reaches it past its first half
        start = max(0, -(-(at - 16) // stride) * stride)
        logits = net(tokens[None, start:at]).logits[0, -1]
        nats += float(F.cross_entropy(logits, tokens[at]))
    expected = nats / math.log(2) / 77
    assert bits_per_byte(net, tokens, 77, 16, batch=3) == pytest.approx(expected, rel=1e-5)


def test_a_short_training_lowers_the_loss_and_repeats(net):
    tokens = torch.arange(400) % 7

    def losses(seed):
        fresh = model(280).build(seed=seed)
        pace = Pace(steps=12)
        return [float(moment.loss) for moment in train(fresh, Windows(tokens, SMALL, seed), SMALL, pace)]

    first = losses(0)
    assert len(first) == 12 and first[-1] < 0.7 * first[0] and first == losses(0)
    assert first != losses(1)  # control


def test_the_space_of_a_prompt_is_left_to_the_first_token(net, tokenizer):
    pieces = complete(net, tokenizer, "def ", tokens=3, seed=0, before="x = 1\n")
    ids = tokenizer.encode("x = 1\ndef").ids
    with torch.no_grad():
        odds = net(torch.tensor([ids])).logits[0, -1].softmax(-1)
    fitting = {tokenizer.decode([i]): float(odds[i]) for i in range(280) if tokenizer.decode([i]).startswith(" ")}
    assert fitting[" " + pieces[1].text] == pytest.approx(pieces[1].probability, rel=1e-4) and pieces[1].text.strip()
    # Control: a prompt without a space is taken as it is.
    greedy = complete(net, tokenizer, "(", tokens=1, temperature=0, before="")
    assert greedy[1].text == tokenizer.decode([int(first_choice(net, tokenizer, "("))])


@torch.no_grad()
def first_choice(net, tokenizer, prompt):
    return net(torch.tensor([tokenizer.encode(prompt).ids])).logits[0, -1].argmax()


def test_completions_follow_from_the_seed_and_carry_probabilities(net, tokenizer):
    first, again, other = (complete(net, tokenizer, "def ", tokens=8, seed=seed) for seed in (0, 0, 1))
    assert first == again and first != other and text_of(first).startswith("def ")
    assert first[0].probability is None and all(0 < piece.probability <= 1 for piece in first[1:])
    greedy = [complete(net, tokenizer, "def ", tokens=8, temperature=0, seed=seed) for seed in (0, 1)]
    assert greedy[0] == greedy[1]


@torch.no_grad()
def test_the_cached_steps_give_the_full_pass(net, tokenizer):
    pieces = complete(net, tokenizer, "def f", tokens=6, temperature=0, before="")
    ids = tokenizer.encode("def f").ids
    for piece in pieces[1:]:
        odds = net(torch.tensor([ids])).logits[0, -1].softmax(-1)
        assert float(odds.max()) == pytest.approx(piece.probability, rel=1e-4)
        ids.append(int(odds.argmax()))


def test_brackets_are_paired_and_the_head_is_the_best_one(net, tokenizer):
    assert inside.bracket_pairs("a(b[c]{d})") == [(5, 3), (8, 6), (9, 1)]
    assert inside.bracket_pairs("a)b]") == [] and inside.bracket_pairs("(]") == []
    found = inside.bracket_head(net, tokenizer)
    assert "".join(found.words) == inside.LINE and found.pairs
    for closing, opening in found.pairs:
        assert set(found.words[closing]) & set(")]}") and set(found.words[opening]) & set("([{")
        assert opening < closing
    weights = torch.tensor(found.weights)
    assert torch.allclose(weights.sum(-1), torch.ones(len(found.words)), atol=1e-5) and weights.triu(1).max() == 0
    mean = sum(found.weights[a][b] for a, b in found.pairs) / len(found.pairs)
    assert found.score == pytest.approx(mean, rel=1e-5)
    maps = inside.attention_maps(net, torch.tensor([tokenizer.encode(inside.LINE).ids]))
    every = [float(sum(w[0, h, a, b] for a, b in found.pairs)) / len(found.pairs)
             for calls in maps.values() for w in calls for h in range(w.shape[1])]  # fmt: skip
    assert found.score == pytest.approx(max(every), rel=1e-5) and min(every) < found.score


def test_expected_memory_grows_with_the_batch():
    small, large = (training_bytes(model(), Settings(batch=batch)) for batch in (4, 8))
    weights = 4 * 4 * sum(p.numel() for p in model().build(device="meta").parameters())
    assert large - weights == pytest.approx(2 * (small - weights), rel=0.01) and small > weights
