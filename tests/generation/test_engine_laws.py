"""Laws of the engine: neighbours, cancels and faults change nobody else's text, and everything that began ends once."""

from __future__ import annotations

import random
import time
from collections import abc
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.core.model import Seq2Seq
from anyformer.core.static_cache import StaticCache
from anyformer.engine.engine import Engine
from anyformer.engine.scheduler import Scheduler
from anyformer.engine.sequence import NewToken, Sequence
from anyformer.generation import Generation
from anyformer.generation.batch_sampler import BatchSampler, SamplerState
from anyformer.generation.cache.eager_store import EagerStore
from anyformer.generation.cache.open_store import open_serving_store
from tests.generation.engines import Faulty, alone, at_rest, job, net, running, told, turns, until
from tests.generation.nets import doubt, same

PRESETS = [
    "gpt2-tiny", "llama3-8b-tiny", "bloom-560m-tiny", "hyena-small-tiny", "lstm-lm-tiny", "t5-small-tiny",
    "translator-mini",
]  # fmt: skip
START = 0  # what the text of an encoder-decoder begins with


def mixed_jobs(model: Any, count: int, seed: int = 0) -> list[Sequence]:
    """Jobs of many lengths and settings, greedy and drawn."""
    chance = random.Random(seed)
    pair = isinstance(model.spec, Seq2Seq)
    decoder = model.spec.decoder if pair else model.spec
    vocab = decoder.embed.vocabulary[0]
    jobs = []
    for number in range(count):
        settings: dict[str, Any] = {"max_new_tokens": chance.randint(1, 9)}
        if number % 4:
            settings |= {
                "do_sample": True,
                "seed": chance.randrange(2**40),
                "temperature": chance.choice([0.7, 1, 1.3]),
            }
            settings |= chance.choice([{}, {"top_k": 9}, {"top_p": 0.8}, {"min_p": 0.05}])
        settings |= chance.choice([{}, {}, {"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 2}, {"logprobs": 3}])
        if number % 5 == 0:
            settings |= {"eos_token_id": chance.sample(range(vocab), vocab // 8)}
        if pair:
            settings["decoder_start_token_id"] = START
        text = [chance.randrange(vocab) for _ in range(chance.choice([1, 2, 5, 12, 30]))]
        given: dict[str, Any] = {"source": text} if pair else {}
        jobs.append(job([START] if pair else text, Generation(**settings), client=str(number % 3), **given))
    return jobs


def differ(model: Any, works: abc.Sequence[Sequence]) -> list[int]:
    """Jobs whose text is not the one `generate` writes for them alone, and the doubt is not in the numbers."""
    wrong = []
    for number, work in enumerate(works):
        source = None if work.source is None else torch.tensor([list(work.source)])
        gap = doubt(model, torch.tensor([list(work.prompt)]), work.settings, source)
        if not same(told(work).tokens, alone(model, work), gap):
            wrong.append(number)
    return wrong


@pytest.mark.parametrize("name", PRESETS)
def test_thirty_two_jobs_together_write_what_each_writes_alone(name: str) -> None:
    model = net(name)
    works = mixed_jobs(model, 32)
    with running(open_serving_store(model, capacity=12, limit=64), chunk=24) as engine:
        for work in works:
            engine.submit(work)
        until(lambda: not engine.in_flight, 60)
        assert engine.counts.done == 32 and engine.counts.new_tokens == sum(work.new_tokens for work in works)
    assert differ(model, works) == []


class BySlot(BatchSampler):
    """A sampler whose noise depends on where a sequence is in its batch."""

    def sample(self, states: abc.Sequence[SamplerState], logits: Tensor) -> Any:
        for place, state in enumerate(states):
            state.seed += place
        self.plan = None
        return super().sample(states, logits)


def test_noise_that_depends_on_the_neighbours_is_noticed() -> None:
    model = net("gpt2-tiny")
    works = mixed_jobs(model, 32)
    engine = Engine(open_serving_store(model, capacity=12, limit=64), chunk=24)
    assert engine.scheduler is not None
    engine.scheduler.sampler = BySlot(512, "cpu")
    for work in works:
        engine.submit(work)
    turns(engine)
    assert len(differ(model, works)) > 8


def test_prompts_that_begin_alike_are_reused_within_a_scope_and_change_no_text() -> None:
    model, begin = net("gpt2-tiny"), list(range(100, 140))
    works = [
        job(
            [*begin, n], Generation(max_new_tokens=6, do_sample=True, seed=n), scope="b" if n == 3 else "a", echo=n == 5
        )
        for n in range(6)
    ]
    engine = Engine(open_serving_store(model, capacity=4))
    for work in works:
        before = engine.counts.reused_tokens
        engine.submit(work)
        turns(engine)
        reused = engine.counts.reused_tokens - before
        assert reused == (0 if work.scope == "b" or work.echo or work is works[0] else 40)
    assert differ(model, works) == []
    at_rest(engine)


# ---------------------------------------------------------------- readers that are behind


def held_now_and_then(engine: Engine, works: abc.Sequence[Sequence], seed: int) -> int:
    """Run to the end while texts are held and let go at random; how often one was held while it was being written."""
    chance, count, new = random.Random(seed), 0, dict[Sequence, int]()
    for work in works:
        engine.submit(work)
    with torch.no_grad():
        for _ in range(2_000):
            for work in works:
                if work.status == "decode" and chance.random() < 0.5:
                    work.paused = not work.paused
                    count += work.paused
                    new[work] = work.new_tokens
            engine.step()
            assert all(work.new_tokens <= new[work] + 2 for work in works if work.paused)  # or prefilled again
            if not engine.in_flight:
                return count
    raise AssertionError("the engine does not come to an end")


@pytest.mark.parametrize("name", ["gpt2-tiny", "lstm-lm-tiny", "t5-small-tiny"])
def test_a_text_that_waits_for_its_reader_goes_on_as_if_it_had_not(name: str) -> None:
    model = net(name)
    works = mixed_jobs(model, 32)
    engine = Engine(open_serving_store(model, capacity=3, limit=64), chunk=24)  # few slots: pauses preempt
    assert held_now_and_then(engine, works, 0) > 8
    assert differ(model, works) == []
    at_rest(engine)


def test_control_a_text_that_forgets_its_newest_token_while_it_waits_is_noticed() -> None:
    class Forgetful(Scheduler):
        """Goes on from the token before."""

        def pause(self, sequence: Sequence) -> None:
            super().pause(sequence)
            sequence.tokens[-1:] = []

    works = mixed_jobs(net("gpt2-tiny"), 16)
    engine = Engine(open_serving_store(net("gpt2-tiny"), capacity=3, limit=64), chunk=24)
    assert engine.store is not None
    engine.use_scheduler(Forgetful(engine.store, engine.counts, 24, engine.end_sequence))
    held_now_and_then(engine, works, 0)
    assert differ(net("gpt2-tiny"), works) != []


def test_held_texts_leave_their_rows_to_others_and_do_not_count_as_a_hang() -> None:
    long, short = [job([n], new=60) for n in range(4)], job([9, 9], new=5)
    with running(open_serving_store(net("gpt2-tiny"), capacity=4, limit=128)) as engine:
        for work in long:
            engine.submit(work)
        until(lambda: all(work.new_tokens for work in long))
        for work in long:
            work.paused = True
        until(lambda: engine.counts.paused == 4 and engine.counts.active == 0)
        written = [work.new_tokens for work in long]
        engine.submit(short)
        until(lambda: short.status == "finished")
        time.sleep(0.2)
        assert written == [work.new_tokens for work in long] and max(written) < 60 and engine.stuck_for < 0.15
        long[0].deadline = time.monotonic()
        engine.cancel(long[1])
        until(lambda: engine.counts.paused == 2)
        engine.resume(long)
        until(lambda: not engine.in_flight)
    assert [told(work).reason for work in (*long, short)] == ["deadline", "cancelled", "length", "length", "length"]
    assert differ(net("gpt2-tiny"), [*long[2:], short]) == []


def logprobs_when_held(model: Any, *, held: bool, resumes: bool) -> list[float]:
    rows = open_serving_store(model, capacity=4, limit=64, strict=True)
    rows.can_resume = resumes
    work, engine = job([1, 2, 3, 4, 5], new=24), Engine(rows)
    if held:
        held_now_and_then(engine, [work], 3)
    else:
        engine.submit(work)
        turns(engine)
    return [event.logprob for event in told(work) if isinstance(event, NewToken)]


def test_strict_texts_keep_their_rows_and_their_bits_while_they_wait() -> None:
    model = net("gpt2-tiny")
    alone = logprobs_when_held(model, held=False, resumes=False)
    assert logprobs_when_held(model, held=True, resumes=False) == alone and len(alone) == 24
    assert logprobs_when_held(model, held=True, resumes=True) != alone  # control: what was written is read instead


# ---------------------------------------------------------------- whatever begins ends once


def storm(engine: Engine, count: int, seed: int) -> list[Sequence]:
    """Jobs that come, are cancelled or run out of time at random moments, while the engine runs."""
    chance, works = random.Random(seed), []
    for number in range(count):
        deadline = time.monotonic() + chance.uniform(0.0, 0.05) if number % 5 == 0 else None
        work = job([1 + number % 100] * chance.choice([1, 3, 90]), new=chance.choice([1, 4, 16]), deadline=deadline)
        works.append(work)
        engine.submit(work)
        if number % 3 == 0:
            time.sleep(chance.uniform(0, 0.004))
        if chance.random() < 0.5:
            engine.cancel(chance.choice(works))
        with engine.lock:
            counts = engine.counts
            assert (
                counts.accepted
                == counts.finished + len(engine.in_flight)
                == counts.finished + counts.in_flight
                == number + 1
            )
            assert counts.queue_length == engine.waiting.length <= len(engine.in_flight)
    return works


@pytest.mark.parametrize("seed", range(2))
def test_every_job_ends_exactly_once_under_random_cancels(seed: int) -> None:
    with running(open_serving_store(net("gpt2-tiny"), capacity=3, limit=128), chunk=32) as engine:
        works = storm(engine, 60, seed)
        until(lambda: not engine.in_flight, 60)
        counts = engine.counts
        ends = [told(work).reason for work in works]  # each asserts that its last event is the only one of its kind
        assert (counts.cancelled, counts.deadline) == (ends.count("cancelled"), ends.count("deadline"))
        assert counts.done == ends.count("length") and counts.failed == 0
        assert counts.cancelled > 5 and counts.done > 5
    done = [work for work, end in zip(works, ends, strict=True) if end == "length"][:12]
    assert differ(net("gpt2-tiny"), done) == []


def test_a_row_that_is_not_given_back_is_noticed() -> None:
    class Forgetful(Scheduler):
        """Gives back the row of a job that was cancelled only if it had begun to write."""

        def release(self, sequence: Sequence, *, keep: bool) -> None:
            if sequence.cancelled and not sequence.new_tokens:
                sequence.slot = None
            super().release(sequence, keep=keep)

    engine = Engine(open_serving_store(net("gpt2-tiny"), capacity=3, limit=128), chunk=32)
    assert engine.store is not None
    engine.use_scheduler(Forgetful(engine.store, engine.counts, 32, engine.end_sequence))
    work = job([1] * 90, new=3)
    engine.submit(work)
    turns(engine, lambda: work.status == "prefill")
    engine.cancel(work)
    turns(engine)
    with pytest.raises(AssertionError):
        at_rest(engine)


# ---------------------------------------------------------------- faults


MARK = 511  # prompts that begin with it fail


@pytest.mark.parametrize(
    ("name", "when", "error"),
    [
        ("gpt2-tiny", "add", MemoryError),
        ("gpt2-tiny", "extend", torch.OutOfMemoryError),
        ("gpt2-tiny", "step", RuntimeError),
        ("lstm-lm-tiny", "extend", RuntimeError),
        ("lstm-lm-tiny", "step", torch.OutOfMemoryError),
    ],
)
def test_a_fault_of_one_row_leaves_all_others_unharmed(name: str, when: str, error: type[Exception]) -> None:
    model = net(name)
    works = mixed_jobs(model, 24)
    bad = [job([MARK, 2, 3], new=5) for _ in range(3)]
    order = [*works[:5], bad[0], *works[5:12], *bad[1:], *works[12:]]
    faulty = Faulty(model, 6, when=when, mark=MARK, error=error)
    with running(faulty, chunk=24) as engine:
        for work in order:
            engine.submit(work)
        until(lambda: not engine.in_flight, 60)
        assert engine.counts.failed == 3 and engine.counts.done == 24
        after = job([4, 5, 6])  # the engine lives
        engine.submit(after)
        until(lambda: after.status == "finished")
    assert faulty.raised >= 3 and [told(work).reason for work in bad] == [error.__name__] * 3
    assert len(told(bad[0]).tokens) <= 1 + (when == "step")
    assert differ(model, [*works, after]) == []


def test_a_step_repeated_on_rows_that_it_has_changed_is_noticed() -> None:
    class Careless(Scheduler):
        """Repeats a failed step row by row, as if nothing had happened to the rows."""

        def isolate(self, batch: list[Sequence], error: Exception) -> None:
            if len(batch) == 1:
                return super().isolate(batch, error)
            self.newest = None
            for sequence in batch:
                sequence.isolated = True

    model = net("lstm-lm-tiny")
    works = mixed_jobs(model, 12)
    engine = Engine(Faulty(model, 6, when="step", mark=MARK))
    assert engine.store is not None
    engine.use_scheduler(Careless(engine.store, engine.counts, 24, engine.end_sequence))
    for work in [*works[:4], job([MARK, 2, 3], new=5), *works[4:]]:
        engine.submit(work)
    turns(engine)
    assert differ(model, works) != []


@pytest.mark.parametrize("name", ["gpt2-tiny", "lstm-lm-tiny"])
def test_faults_at_any_moment_end_no_job_twice_and_change_no_text(name: str) -> None:
    model, chance = net(name), random.Random(1)

    class Flaky(Faulty):
        """Fails now and then, after the row has been changed."""

        def check(self, when: str, sequences: abc.Sequence[int]) -> None:
            if chance.random() < 0.06:
                self.raised += 1
                raise torch.OutOfMemoryError("injected")

    works = mixed_jobs(model, 24)
    flaky = Flaky(model, 5, when="", mark=MARK)
    with running(flaky, chunk=24) as engine:
        for work in works:
            engine.submit(work)
        until(lambda: not engine.in_flight, 60)
        assert engine.counts.failed + engine.counts.done == 24 and engine.counts.done > 8
    assert flaky.raised > 3
    assert differ(model, [work for work in works if told(work).reason != "OutOfMemoryError"]) == []


@pytest.mark.parametrize("call", [1, 4, 7, 10])
def test_memory_that_runs_out_while_buffers_grow_is_one_jobs_loss(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, resize = [0], StaticCache.resize

    def short(self: StaticCache, rows: int, columns: int) -> None:
        calls[0] += 1
        if calls[0] == call:
            raise torch.OutOfMemoryError("injected")
        resize(self, rows, columns)

    monkeypatch.setattr(StaticCache, "resize", short)
    model = net("llama3-8b-tiny")
    works = [job([1 + n] * (5 if n % 2 else 300), new=6) for n in range(6)]
    engine = Engine(open_serving_store(model, capacity=4, limit=1024))
    for work in works:
        engine.submit(work)
    turns(engine)
    fine = [work for work in works if told(work).reason == "length"]
    assert len(fine) >= 5 and differ(model, fine) == []  # all, where several were read together and each again alone
    at_rest(engine)


def test_a_step_that_fails_only_with_many_rows_is_taken_by_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net("gpt2-tiny")
    monkeypatch.setattr("anyformer.engine.scheduler.CALM", 64)

    class Small(EagerStore):
        """Room for three rows in a step."""

        def step(self, sequences: abc.Sequence[int], tokens: Tensor) -> Tensor:
            if len(sequences) > 3:
                raise torch.OutOfMemoryError("too many")
            return super().step(sequences, tokens)

    works = mixed_jobs(model, 12)
    engine = Engine(Small(model, capacity=8, batched=False, prefix_cache=False), chunk=64)
    for work in works:
        engine.submit(work)
    turns(engine)
    assert engine.counts.failed == 0 and engine.scheduler is not None and engine.scheduler.batch_limit <= 3
    assert differ(model, works) == []
    engine.submit(job([1], new=150))  # without faults they come together again
    turns(engine)
    assert engine.scheduler.batch_limit >= 4
    at_rest(engine)


class Broken:
    """A guide that fails after a few tokens, in one of the ways a guide can."""

    def __init__(self, how: str, after: int = 2) -> None:
        self.how, self.after, self.count = how, after, 0

    def mask(self) -> Tensor:
        if self.how == "mask" and self.count == self.after:
            raise ValueError("no mask")
        return torch.full((512,), self.how != "nothing" or self.count < self.after)

    def accept(self, token: int) -> None:
        self.count += 1
        if self.how == "accept" and self.count == self.after:
            raise ValueError("not accepted")

    @property
    def over(self) -> bool:
        if self.how == "over" and self.count == self.after:
            raise ValueError("over?")
        return False


@pytest.mark.parametrize("how", ["mask", "accept", "over", "nothing"])
@pytest.mark.parametrize("after", [0, 2])
def test_a_guide_that_fails_fails_its_own_job(how: str, after: int) -> None:
    model = net("gpt2-tiny")
    works = mixed_jobs(model, 6)
    bad = job([1, 2], new=9, guide=Broken(how, max(after, how in ("accept", "over"))))
    engine = Engine(open_serving_store(model, capacity=7))
    for work in [*works[:3], bad, *works[3:]]:
        engine.submit(work)
    turns(engine)
    assert told(bad).reason == ("UserError" if how == "nothing" else "ValueError") and bad.new_tokens <= 2
    assert differ(model, works) == []
    at_rest(engine)


def test_scores_that_are_not_numbers_fail_their_own_job() -> None:
    model = net("gpt2-tiny")

    class Poisoned(EagerStore):
        """The first row's scores are no numbers from some step on."""

        def step(self, sequences: abc.Sequence[int], tokens: Tensor) -> Tensor:
            logits = super().step(sequences, tokens)
            if 0 in sequences and len(sequences) > 2:
                logits[list(sequences).index(0)] = torch.nan
            return logits

    works = [job([9, n], new=8) for n in range(4)]
    engine = Engine(Poisoned(model, capacity=4, batched=False, prefix_cache=False))
    for work in works:
        engine.submit(work)
    turns(engine)
    assert [told(work).reason for work in works] == ["ArithmeticError"] + ["length"] * 3
    assert differ(model, works[1:]) == []
    at_rest(engine)
