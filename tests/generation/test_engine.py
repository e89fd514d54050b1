"""The engine: what it accepts, in what order it works, and how everything ends."""

from __future__ import annotations

import itertools
import threading
import time
from collections import abc
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.engine.batch_calls import BatchCall, CallCancelled
from anyformer.engine.engine import Engine, stream_tokens
from anyformer.engine.sequence import ContextTooLong, Prefilled, Sequence
from anyformer.engine.waiting_queue import EngineClosed, QueueFull, WaitingQueue
from anyformer.errors import UserError
from anyformer.generation import Generation, score
from anyformer.generation.cache.open_store import open_serving_store
from tests.generation.engines import alone, at_rest, job, net, running, told, turns, until
from tests.generation.schedules import lone_store

GPT, PAIR = "gpt2-tiny", "t5-small-tiny"


def rows(capacity: int = 4, **more: Any) -> Any:
    return open_serving_store(net(GPT), capacity=capacity, **more)


# ---------------------------------------------------------------- one job


@pytest.mark.quick
def test_a_job_is_told_its_prompt_its_tokens_and_its_end() -> None:
    work = job([1, 2, 3], Generation(max_new_tokens=5, logprobs=2))
    with running(rows()) as engine:
        engine.submit(work)
        until(lambda: work.status == "finished")
    events = told(work)
    assert isinstance(events[0], Prefilled) and events[0].logprobs is None
    assert events.tokens == alone(net(GPT), work) and events.reason == "length" and work.new_tokens == 5
    assert all(event.top is not None and event.top[event.token] == event.logprob for event in events[1:-1])  # type: ignore[union-attr]


@pytest.mark.quick
def test_whoever_stops_listening_has_cancelled() -> None:
    with running(rows()) as engine:
        settings = Generation(max_new_tokens=200)
        texts = stream_tokens(engine, [1, 2, 3], settings)
        first = [next(texts).token for _ in range(3)]
        texts.close()  # type: ignore[attr-defined]
        assert first == alone(net(GPT), job([1, 2, 3], Generation(max_new_tokens=3)))
        until(lambda: not engine.in_flight)
        assert (engine.counts.cancelled, engine.counts.done) == (1, 0)


@pytest.mark.quick
def test_what_no_row_can_hold_is_refused_with_both_numbers() -> None:
    engine = Engine(rows(limit=32))
    with pytest.raises(ContextTooLong) as caught:
        engine.submit(job([1] * 32))
    assert (caught.value.tokens, caught.value.limit) == (32, 32) and "31" in caught.value.line
    with pytest.raises(ContextTooLong) as caught:
        engine.submit(job([1] * 30, new=3))
    assert (caught.value.tokens, caught.value.limit) == (33, 32) and "max_new_tokens=2" in caught.value.line
    assert engine.counts.accepted == 0


def test_a_text_without_a_length_fills_the_context_and_no_more() -> None:
    work = job([1] * 20, Generation())
    engine = Engine(rows(limit=32))
    engine.submit(work)
    turns(engine)
    assert work.new_tokens == 12 and told(work).reason == "length"


@pytest.mark.parametrize(
    ("tokens", "settings", "more"),
    [
        ([], {}, {}),
        ([1, 512], {}, {}),
        ([-1], {}, {}),
        ([1], {"num_beams": 2}, {}),
        ([1], {"do_sample": True, "num_return_sequences": 2}, {}),
        ([1], {"seed": (1, 2)}, {}),
        ([1], {"suppress_tokens": [600]}, {}),
        ([1], {"stop_strings": "x"}, {}),  # without a way to read tokens
        ([1], {"max_length": 1}, {}),
        ([1], {}, {"source": [1, 2]}),
    ],
)
def test_what_is_wrong_with_a_job_is_said_before_it_waits(tokens: list[int], settings: Any, more: Any) -> None:
    engine = Engine(rows())
    with pytest.raises(UserError) as caught:
        engine.submit(
            job(tokens, Generation(**{"max_new_tokens": None if "max_length" in settings else 4, **settings}), **more)
        )
    assert len(caught.value.line) <= 300
    assert engine.counts.accepted == 0


def test_a_model_without_rows_only_answers_calls() -> None:
    with pytest.raises(UserError, match="writes no text"):
        Engine(None).submit(job([1]))


def test_a_job_is_handed_over_once() -> None:
    engine, work = Engine(rows()), job([1])
    engine.submit(work)
    with pytest.raises(UserError, match="before"):
        engine.submit(work)
    turns(engine)
    with pytest.raises(UserError, match="before"):
        engine.submit(work)


# ---------------------------------------------------------------- how texts end


def test_a_text_ends_by_token_by_string_by_guide_or_by_length() -> None:
    drawn = Generation(max_new_tokens=8, do_sample=True, seed=1)
    text = alone(net(GPT), job([5, 6], drawn))
    assert len(set(text)) == 8

    def text_of(ids: list[int]) -> str:
        return "".join(f"<{one}>" for one in ids)

    class Guide:
        """Nothing but the third token of the text, twice."""

        count = 0

        def mask(self) -> Tensor:
            allowed = torch.zeros(512, dtype=torch.bool)
            allowed[text[2]] = True
            return allowed

        def accept(self, token: int) -> None:
            self.count += 1

        @property
        def over(self) -> bool:
            return self.count == 2

    cases = [
        (job([5, 6], replace(drawn, eos_token_id=[text[3], 600])), text[:4], "eos"),
        (job([5, 6], replace(drawn, stop_strings=f"{text[1]}><{text[2]}")), text[:3], "stop"),
        (job([5, 6], drawn, guide=Guide()), [text[2]] * 2, "stop"),
        (job([5, 6], drawn), text, "length"),
        (job([5, 6], replace(drawn, max_new_tokens=None, max_length=5)), text[:3], "length"),
    ]
    engine = Engine(rows(capacity=3), text_of=text_of)
    for work, _, _ in cases:
        engine.submit(work)
    turns(engine)
    for work, tokens, reason in cases:
        assert (told(work).tokens, told(work).reason) == (tokens, reason)
    at_rest(engine)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_echo_gives_the_log_probabilities_of_the_prompt(size: int) -> None:
    prompt = torch.randint(0, 512, (1, 40), generator=torch.Generator().manual_seed(0))
    work = job(prompt[0].tolist(), Generation(max_new_tokens=1, logprobs=3), echo=True)
    engine = Engine(rows(), chunk=size)
    # The same prompt before, so that a store that reuses prompts would have nothing left to read.
    for one in (job(prompt[0].tolist(), new=1), work):
        engine.submit(one)
        turns(engine)
    event = told(work)[0]
    assert isinstance(event, Prefilled) and event.logprobs is not None and event.top is not None
    expected = score(net(GPT), prompt).logprobs[0].tolist()
    assert event.logprobs[0] is None and event.top[0] is None
    assert event.logprobs[1:] == pytest.approx(expected[1:], abs=2e-4)
    exact = net(GPT)(prompt).logits[0].log_softmax(-1).topk(3)
    for at, top in enumerate(event.top[1:]):
        assert top is not None and list(top) == exact.indices[at].tolist()
        assert list(top.values()) == pytest.approx(exact.values[at].tolist(), abs=2e-4)


# ---------------------------------------------------------------- the queue


@pytest.mark.quick
def test_a_full_queue_says_when_to_come_back() -> None:
    engine = Engine(rows(capacity=1), queue_tokens=80)
    for _ in range(7):  # seven of ten tokens each; the last eighth is for clients that have nothing in line
        engine.submit(job([1, 2, 3, 4], new=6))
    with pytest.raises(QueueFull) as caught:
        engine.submit(job([1, 2, 3, 4], new=6))
    assert caught.value.after >= 1.0
    engine.submit(job([1, 2, 3, 4], new=6, client="another"))
    with pytest.raises(QueueFull):
        engine.submit(job([1, 2, 3, 4], new=6, client="a third"))
    counts = engine.counts
    assert (counts.accepted, counts.rejected, counts.queue_length, counts.queue_tokens) == (8, 2, 8, 80)
    turns(engine)
    assert counts.done == 8 and counts.new_tokens == 48
    engine.submit(job([1, 2, 3, 4], new=6))
    turns(engine)
    at_rest(engine)


def test_the_time_to_come_back_follows_the_rate() -> None:
    engine = Engine(rows(capacity=1), queue_tokens=100)
    engine.counts.rate.add(tokens=50, seconds=10.0)  # five tokens a second
    engine.submit(job([1], new=99))
    with pytest.raises(QueueFull) as caught:
        engine.submit(job([1], new=99, client="b"))
    assert caught.value.after == pytest.approx(100 / 5.0)
    engine.stop()


def test_the_queue_is_bounded_in_length_too() -> None:
    line: WaitingQueue[int] = WaitingQueue(cost=10**9, length=8)
    for number in range(7):
        assert not line.excess("a", 1)
        line.put("a", number, 1)
    assert line.excess("a", 1) and not line.excess("b", 1)
    assert line.remove(lambda number: number % 2 == 0) == [0, 2, 4, 6]
    assert (line.cost, line.length, line.take(), line.take(), line.take(), line.take()) == (3, 3, 1, 3, 5, None)
    assert not line.lines


def order_of_service(clients: Sequence[str]) -> list[int]:
    """The order in which jobs of these clients begin to write, with one row."""
    engine, began = Engine(rows(capacity=1)), []
    for number, client in enumerate(clients):
        engine.submit(
            Sequence([1], Generation(max_new_tokens=1), lambda event, n=number: began.append(n), client=client)
        )  # type: ignore[misc]
    turns(engine)
    return [n for at, n in enumerate(began) if n not in began[:at]]


@pytest.mark.quick
def test_a_client_that_floods_does_not_starve_another() -> None:
    flood = ["a"] * 20 + ["b", "b"] + ["a"] * 5
    order = order_of_service(flood)
    assert order.index(20) == 1 and order.index(21) == 3
    assert [n for n in order if flood[n] == "a"] == sorted(n for n in order if flood[n] == "a")
    assert order_of_service([""] * 27).index(20) == 20  # control: without names it waits for all before it


# ---------------------------------------------------------------- reading in chunks


class Noting:
    """Rows that note how many tokens were read between two steps."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.log, self.together = inner, [0], list[int]()
        self.model, self.capacity, self.limit = inner.model, inner.capacity, inner.limit
        self.can_resume, self.batches_prefill = inner.can_resume, inner.batches_prefill
        self.add, self.logits, self.free = inner.add, inner.logits, inner.free

    @property
    def available(self) -> int:
        return self.inner.available  # type: ignore[no-any-return]

    @property
    def bytes(self) -> int:
        return self.inner.bytes  # type: ignore[no-any-return]

    def extend(self, pieces: abc.Mapping[int, abc.Sequence[int]]) -> list[Tensor]:
        self.log[-1] += sum(map(len, pieces.values()))
        self.together.append(len(pieces))
        return self.inner.extend(pieces)  # type: ignore[no-any-return]

    def step(self, rows: abc.Sequence[int], tokens: Tensor) -> Tensor:
        self.log.append(0)
        return self.inner.step(rows, tokens)  # type: ignore[no-any-return]


def most_read_at_once(chunk: int) -> tuple[int, list[int]]:
    noting = Noting(lone_store(net("llama3-8b-tiny"), capacity=4, limit=1024))
    engine = Engine(noting, chunk=chunk)
    running, long, short = job([1, 2], new=60), job([7] * 900, new=2), [job([3, n], new=2) for n in range(2)]
    engine.submit(running)
    turns(engine, lambda: running.new_tokens >= 3)
    noting.log = [0]
    for work in (long, *short):
        engine.submit(work)
    turns(engine, lambda: all(work.status == "finished" for work in short))
    before = long.status
    turns(engine)
    at_rest(engine)
    return max(noting.log), [before == "prefill"]


def test_a_long_prompt_is_read_between_steps_and_short_ones_pass_it() -> None:
    assert most_read_at_once(64) == (64, [True])
    assert most_read_at_once(10_000)[0] > 900  # control: in one piece all others wait for it


def test_several_short_prompts_are_read_between_two_steps() -> None:
    engine = Engine(rows(capacity=8), chunk=32)
    works = [job([1 + n] * 8, new=4) for n in range(6)]
    for work in works:
        engine.submit(work)
    with torch.no_grad():
        engine.step()
        assert [work.status for work in works] == ["decode"] * 4 + ["waiting"] * 2
        engine.step()
    assert [work.status for work in works] == ["decode"] * 6
    turns(engine)
    at_rest(engine)


def begun_in_a_turn(rows: Any, prompts: Sequence[Sequence[int]], chunk: int = 32) -> tuple[int, list[int]]:
    """How many texts begin in the first turn, and the rows of each reading until all are over."""
    noting = Noting(rows)
    engine, works = Engine(noting, chunk=chunk), [job(prompt, new=4) for prompt in prompts]
    for work in works:
        engine.submit(work)
    with torch.no_grad():
        engine.step()
    begun = [work.status for work in works].count("decode")
    turns(engine)
    at_rest(engine)
    assert [told(work).tokens for work in works] == [alone(net(GPT), work) for work in works]
    return begun, noting.together


def test_prompts_are_read_side_by_side_as_far_as_the_longest_leaves_room() -> None:
    assert begun_in_a_turn(rows(capacity=32), [[1]] * 32) == (32, [32])
    # A store that reads one after the other pays for every pass, however few tokens it reads.
    assert begun_in_a_turn(lone_store(net(GPT), capacity=32), [[1]] * 32) == (8, [1] * 32)
    mixed = [[1] * 4, [2] * 7, [3] * 8, [4] * 12, [5] * 3, [6] * 40, [7] * 2]
    begun, together = begun_in_a_turn(rows(capacity=8), mixed)
    assert together[0] == 3 and begun < 7  # 3 of up to 8 tokens; a fourth would make all of them 12 wide
    assert begun_in_a_turn(rows(capacity=8), mixed, chunk=10_000) == (7, [7])


@pytest.mark.alone
def test_the_longest_gap_while_a_long_prompt_is_read_is_about_a_chunk_and_a_step() -> None:
    def gap(chunk: int) -> float:
        rows, times = lone_store(net("llama3-8b-tiny"), capacity=2, limit=2048), []
        engine = Engine(rows, chunk=chunk)
        running = Sequence([1, 2], Generation(max_new_tokens=60), lambda event: times.append(time.perf_counter()))
        engine.submit(running)
        turns(engine, lambda: running.new_tokens >= 3)
        engine.submit(job([7] * 1800, new=1))
        turns(engine)
        return max(b - a for a, b in itertools.pairwise(times[3:]))

    best = min(gap(128) for _ in range(3)), min(gap(10_000) for _ in range(3))
    assert best[0] < best[1] / 3, best


# ---------------------------------------------------------------- cancelled and late


@pytest.mark.parametrize("how", ["cancelled", "deadline"])
@pytest.mark.parametrize("phase", ["waiting", "prefill", "decode"])
def test_what_is_cancelled_or_late_is_gone_before_the_next_step(phase: str, how: str) -> None:
    noting = Noting(rows(capacity=1))
    engine = Engine(noting, chunk=16)
    other = job([1] * 60, new=40) if phase == "waiting" else None
    if other is not None:
        engine.submit(other)
        turns(engine, lambda: other.status == "decode")
    work = job([1] * 100, new=50)
    engine.submit(work)
    turns(engine, lambda: work.status == phase)
    tokens = engine.waiting.cost
    if how == "cancelled":
        engine.cancel(work)
    else:
        work.deadline, engine.touched = time.monotonic() - 1, True  # as when the time between two looks is over
    steps = len(noting.log)
    engine.sweep(time.monotonic())
    assert told(work).reason == how and work.status == "finished" and len(noting.log) == steps
    assert noting.available == (1 if other is None else 0)
    assert engine.waiting.cost == 0 and (tokens > 0) == (phase == "waiting")
    turns(engine)
    assert getattr(engine.counts, how) == 1
    at_rest(engine)


def test_a_deadline_is_met_while_others_work() -> None:
    with running(rows(capacity=1)) as engine:
        first = job([1], new=250)
        late = job([1], new=5, deadline=time.monotonic() + 0.1)
        engine.submit(first)
        engine.submit(late)
        until(lambda: late.status == "finished")
        assert told(late).reason == "deadline" or first.status == "finished"
        engine.cancel(first)
        until(lambda: not engine.in_flight)


def test_who_cannot_be_told_is_cancelled_and_nobody_else_is_hurt() -> None:
    def tell(event: Any) -> None:
        raise RuntimeError("gone")

    engine, deaf, fine = Engine(rows()), Sequence([1], Generation(max_new_tokens=9), tell), job([1, 2], new=9)
    engine.submit(deaf)
    engine.submit(fine)
    turns(engine)
    assert deaf.new_tokens < 3 and told(fine).tokens == alone(net(GPT), fine)
    assert (engine.counts.cancelled, engine.counts.done) == (1, 1)
    at_rest(engine)


# ---------------------------------------------------------------- calls


def answers() -> tuple[list[Any], Any]:
    """A list to gather what a call is told, and how it is told."""
    got: list[Any] = []
    return got, got.append


def test_calls_of_one_kind_are_answered_together_and_long_ones_in_pieces() -> None:
    sizes: list[int] = []

    def double(some: list[int]) -> list[int]:
        sizes.append(len(some))
        return [2 * one for one in some]

    def square(some: list[int]) -> Sequence[int]:
        return tuple(one * one for one in some)

    engine = Engine(None)
    told = [answers() for _ in range(5)]
    for number, count in enumerate((3, 5, 70, 20)):
        engine.call(BatchCall(double, list(range(count)), told[number][1], client=str(number)))
    engine.call(BatchCall(square, [3], told[4][1]))
    turns(engine)
    for number, count in enumerate((3, 5, 70, 20)):
        assert told[number][0] == [[2 * one for one in range(count)]]
    assert told[4][0] == [[9]]
    assert max(sizes) == 32 and sum(sizes) == 98 and sizes[0] == 28  # 3 + 5 + 20 fit where 32 more do not
    assert engine.counts.answered_rows == 99 and engine.counts.done == 5
    at_rest(engine)


def test_an_error_in_a_joint_call_is_its_own_callers() -> None:
    def inverse(some: list[int]) -> list[float]:
        return [1 / one for one in some]

    engine, told = Engine(None), [answers() for _ in range(4)]
    for (_, tell), some in zip(told, ([1, 2], [1, 0], [4], [1] * 40 + [0] + [1] * 60), strict=True):
        engine.call(BatchCall(inverse, list(some), tell))
    turns(engine)
    assert told[0][0] == [[1.0, 0.5]] and told[2][0] == [[0.25]]
    assert [type(told[n][0][0]) for n in (1, 3)] == [ZeroDivisionError] * 2 and len(told[3][0]) == 1
    assert (engine.counts.done, engine.counts.failed) == (2, 2)
    engine.call(BatchCall(lambda some: [], [1], told[0][1]))
    turns(engine)
    assert isinstance(told[0][0][1], RuntimeError)  # as many answers as rows
    at_rest(engine)


def test_calls_are_bounded_cancelled_and_late() -> None:
    engine, told = Engine(None, queue_rows=64), [answers() for _ in range(3)]
    works = [BatchCall(lambda some: some, [1] * 20, tell) for _, tell in told]
    works[1].deadline = time.monotonic() - 1
    engine.call(works[0])
    engine.call(works[1])
    with pytest.raises(QueueFull):
        engine.call(works[2])
    engine.cancel(works[0])
    turns(engine)
    assert isinstance(told[0][0][0], CallCancelled) and isinstance(told[1][0][0], TimeoutError)
    assert (engine.counts.cancelled, engine.counts.deadline, engine.counts.rejected) == (1, 1, 1)
    engine.call(BatchCall(lambda some: some, [], told[2][1]))
    assert told[2][0] == [[]]
    at_rest(engine)


def test_calls_and_steps_take_turns() -> None:
    engine, order = Engine(rows()), []
    engine.submit(Sequence([1], Generation(max_new_tokens=6), lambda event: order.append("job")))
    for _ in range(3):
        engine.call(BatchCall(lambda some: some, [1] * 32, lambda got: order.append("call")))
    turns(engine)
    assert order[:9] == ["job"] * 3 + ["call", "job", "call", "job", "call", "job"]


# ---------------------------------------------------------------- ends of the engine


@pytest.mark.quick
def test_drain_waits_for_what_is_there_and_takes_no_more() -> None:
    with running(rows()) as engine:
        works = [job([1, n], new=20) for n in range(6)]
        for work in works:
            engine.submit(work)
        assert engine.drain(20.0) and all(told(work).reason == "length" for work in works)
        with pytest.raises(EngineClosed):
            engine.submit(job([1]))
        with pytest.raises(EngineClosed):
            engine.call(BatchCall(lambda some: some, [1], print))
    assert engine.thread is not None and not engine.thread.is_alive()


@pytest.mark.parametrize("started", [True, False])
def test_stop_tells_everybody(started: bool) -> None:
    engine, (got, tell) = Engine(rows(capacity=2)), answers()
    works = [job([1, n], new=250) for n in range(5)]
    for work in works:
        engine.submit(work)
    if started:
        engine.start()
        until(lambda: works[0].new_tokens > 2)
    else:
        engine.call(BatchCall(lambda some: some, [1], tell))
    assert not engine.drain(0.01)
    engine.stop()
    engine.stop()
    assert [told(work).reason for work in works] == ["EngineClosed"] * 5
    assert engine.counts.failed == 5 + len(got) and len(got) == (not started)
    at_rest(engine)


def test_a_broken_engine_says_so_and_leaves_nobody_waiting() -> None:
    engine, works = Engine(rows(capacity=2)), [job([1, n], new=100) for n in range(4)]
    for work in works:
        engine.submit(work)

    def bug() -> int:
        raise SystemError("a mistake of ours")

    assert engine.runner is not None
    turns(engine, lambda: works[0].new_tokens > 2)
    engine.runner.decode = bug  # type: ignore[method-assign]
    assert engine.stuck_for < 30
    engine.start()
    until(lambda: engine.broken is not None and not engine.in_flight)
    assert engine.stuck_for == float("inf") and isinstance(engine.broken, SystemError)
    assert [told(work).reason for work in works] == ["EngineClosed"] * 4
    with pytest.raises(EngineClosed):
        engine.submit(job([1]))
    engine.stop()
    at_rest(engine)


def test_a_hanging_engine_is_seen_and_its_jobs_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyformer.engine.engine.PATIENCE", 0.2)
    store, hold, entered = rows(capacity=2), threading.Event(), threading.Event()
    step = store.step

    def hang(*given: Any) -> Tensor:
        entered.set()
        hold.wait(20)
        return step(*given)  # type: ignore[no-any-return]

    store.step = hang
    engine, works = Engine(store), [job([1, n], new=50) for n in range(3)]
    assert engine.stuck_for == 0.0
    engine.start()
    for work in works:
        engine.submit(work)
    assert entered.wait(20)
    time.sleep(0.15)
    assert engine.stuck_for > 0.1
    engine.stop()
    assert [told(work).reason for work in works] == ["EngineClosed"] * 3
    hold.set()
    assert engine.thread is not None
    engine.thread.join(20)
    assert [told(work).reason for work in works] == ["EngineClosed"] * 3  # what comes too late is not told
    assert engine.stuck_for == 0.0
    at_rest(engine)


def test_an_idle_engine_costs_nothing_and_is_not_stuck() -> None:
    with running(rows()) as engine:
        before = time.process_time()
        time.sleep(0.2)
        assert engine.stuck_for == 0.0 and time.process_time() - before < 0.15


def test_times_and_tokens_are_counted() -> None:
    engine = Engine(rows(capacity=2), chunk=16)
    for n in range(4):
        engine.submit(job([1 + n] * 20, new=5))
    turns(engine)
    counts = engine.counts
    assert (counts.prompt_tokens, counts.new_tokens, counts.done) == (80, 20, 4)
    assert (counts.first_token.total, counts.between_tokens.total, counts.queued.total) == (4, 16, 4)
    assert counts.first_token.sum > 0 and counts.rate.per_second > 0


def test_an_encoder_decoder_counts_its_source() -> None:
    engine = Engine(open_serving_store(net(PAIR), capacity=2), queue_tokens=40)
    work = job([0], new=4, source=[5] * 30)
    engine.submit(work)
    assert engine.counts.queue_tokens == 35
    with pytest.raises(QueueFull):
        engine.submit(job([0], new=4, source=[5] * 30, client="b"))
    with pytest.raises(UserError, match="source"):
        engine.submit(job([0], new=4))
    turns(engine)
    assert told(work).reason == "length"
    at_rest(engine)
