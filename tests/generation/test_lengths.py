"""Ends of texts: early, late, at a limit that is said before the start, or never, with flat memory."""

from __future__ import annotations

import time

import pytest
import torch

from anyformer import Alibi, DynamicScaling, Learned, Rope, UserError
from anyformer.generation import Generation, generate, stream
from anyformer.generation.decode import prefill, prepare_inputs
from tests.generation.nets import POSITIONS, PROMPTS, build, decoder, ids, padded, pair, rows

WINDOW = 16


@pytest.mark.parametrize("name", ["rope", "alibi", "buckets", "shaw", "none", "sinusoid"])
def test_ten_times_the_window_runs_with_flat_memory(name: str) -> None:
    net = build(decoder(*POSITIONS[name], window=WINDOW))
    tokens, mask = padded([ids(1, 40), ids(1, 25, seed=1)], "right")
    settings = Generation(max_new_tokens=10 * WINDOW)
    decoding = stream(net, tokens, mask, settings=settings)
    state = decoding.store.batch
    held, buffers, records = [], [], []
    for _ in decoding:
        held.append(state.bytes)
        buffers.append(sum(layer.mixer.keys.numel() for layer in state.layers))  # type: ignore[union-attr]
        records.append(state.index.shape[1] + state.positions.shape[1] + state.mask.shape[1])
    assert len(held) == 10 * WINDOW
    assert len(set(held[1:])) == 1  # after the prompt: exactly the window, for ever
    assert len(set(buffers[2 * WINDOW :])) == 1
    assert max(records) <= records[0] + 3 * 70
    wide = stream(build(decoder(*POSITIONS[name])), tokens, mask, settings=Generation(max_new_tokens=20))
    sizes = [wide.store.batch.bytes for _ in wide]
    assert len(set(sizes)) == 20  # control: without a window every token takes room


def test_a_window_gives_the_text_of_full_passes_far_beyond_it() -> None:
    net = build(decoder(None, Rope(), window=5))
    text = ids(1, 3)
    got = rows(generate(net, text, settings=Generation(max_new_tokens=200)))[0]
    with torch.no_grad():
        logits = net(torch.cat([text, torch.tensor([got])], 1)).logits[0, 2:-1]
    best = logits.topk(2).values
    sure = best[:, 0] - best[:, 1] > 1e-3
    assert sure.sum() > 150 and (logits.argmax(-1) == torch.tensor(got))[sure].all()


def growth(window: int) -> float:
    """Time a token late in a text over that early in it."""
    net, new = build(decoder(None, Alibi(), window=window)), 20 * WINDOW
    decoding, times = stream(net, ids(1, 8), settings=Generation(max_new_tokens=new)), []
    last = time.perf_counter()
    for _ in decoding:
        times.append(-last + (last := time.perf_counter()))
    early, late = (sorted(part)[len(part) // 2] for part in (times[2 * WINDOW : 6 * WINDOW], times[-4 * WINDOW :]))
    return late / early


@pytest.mark.alone
def test_time_a_token_is_flat_under_a_window() -> None:
    assert min(growth(WINDOW) for _ in range(3)) < 1.5  # of a third of a second each: a machine may slow down in one


@pytest.mark.quick
def test_learned_positions_stop_before_the_start_and_say_why() -> None:
    net = build(decoder(Learned(12), None))
    assert generate(net, ids(1, 5), settings=Generation(max_new_tokens=7)).ids.shape == (1, 12)
    with pytest.raises(UserError, match=r"5 tokens of the prompt and max_new_tokens 8 do not fit 12 learned positions; "
                                        r"use max_new_tokens=7"):  # fmt: skip
        generate(net, ids(1, 5), settings=Generation(max_new_tokens=8))
    with pytest.raises(UserError, match=r"the prompt's 12 tokens leave no room among 12 learned positions"):
        generate(net, ids(1, 12), settings=Generation(max_new_tokens=1))
    # Padding is no position: ten columns of which five are real leave room for seven.
    tokens, mask = padded([ids(1, 5), ids(1, 2)], "left")
    wide = torch.nn.functional.pad(tokens, (5, 0)), torch.nn.functional.pad(mask, (5, 0))
    assert generate(net, *wide, settings=Generation(max_new_tokens=7)).ids.shape == (2, 17)
    # Nobody asked for a length: as many as fit.
    assert generate(net, ids(1, 5)).ids.shape == (1, 12)
    assert generate(build(decoder(None, Rope())), ids(1, 5)).ids.shape == (1, 25)
    with pytest.raises(UserError, match="a source of 50 tokens does not fit 40 learned positions"):
        generate(build(pair(Learned(40), None)), ids(1, 50), settings=Generation(decoder_start_token_id=0))


@pytest.mark.quick
def test_dynamic_scaling_stops_before_the_start() -> None:
    net = build(decoder(None, Rope(scaling=DynamicScaling(factor=2.0, original=10))))
    assert generate(net, ids(1, 5), settings=Generation(max_new_tokens=5)).ids.shape == (1, 10)
    with pytest.raises(UserError, match="do not fit 10 tokens, after which DynamicScaling"):
        generate(net, ids(1, 5), settings=Generation(max_new_tokens=6))
    narrow = build(decoder(None, Rope(scaling=DynamicScaling(factor=2.0, original=80)), window=4))
    state = narrow.state(1)
    with pytest.raises(UserError, match="DynamicScaling cannot go past 80 tokens"), torch.no_grad():
        for t in range(90):  # also where a rolling state has forgotten how much there was
            narrow(ids(1, 1, seed=t), state=state)


@pytest.mark.quick
def test_a_static_cache_is_as_large_as_the_text() -> None:
    net = build(decoder(None, Rope()))
    fixed = Generation(max_new_tokens=6, cache_implementation="static")
    with torch.no_grad():
        store, _ = prefill(net, prepare_inputs(net, ids(2, 5), None, fixed, None), fixed)
    assert store.batch.limit == 11  # type: ignore[attr-defined]
    assert store.batch.layers[0].mixer.keys.shape[2] == 11  # type: ignore[attr-defined]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_that_end_early_are_padded_and_change_nobody(side: str, beams: int) -> None:
    net = build(decoder(*POSITIONS["learned"]))
    tokens, mask = padded(PROMPTS, side, fill=9)
    free = generate(net, tokens, mask, settings=Generation(max_new_tokens=10))
    ends = (int(free.new[0, 2]), int(free.new[1, 6]))
    got = generate(
        net, tokens, mask, settings=Generation(max_new_tokens=10, eos_token_id=ends, pad_token_id=22, num_beams=beams)
    )
    assert len(set(got.lengths.tolist())) > 1
    for row, (text, length) in enumerate(zip(got.new.tolist(), got.lengths.tolist(), strict=True)):
        assert all(token == 22 for token in text[length:])
        assert not set(text[: length - 1]) & set(ends)
        assert (got.reasons[row] == "eos") == (text[length - 1] in ends)
        assert (got.logprobs[row, length:] == 0).all()
        alone = generate(net, PROMPTS[row], settings=Generation(max_new_tokens=10, eos_token_id=ends, num_beams=beams))
        assert rows(alone)[0] == text[:length]
    if beams == 1:
        assert got.reasons[0] == "eos" and free.reasons == ["length"] * 3
        first = next(i for i, token in enumerate(free.new[0].tolist()) if token in ends)
        assert rows(got)[0] == free.new[0, : first + 1].tolist()
    # Prompts stand in the result on the right, whatever side their padding came from.
    assert got.ids[1, got.prompt - 3 : got.prompt].tolist() == PROMPTS[1][0].tolist()


@pytest.mark.quick
def test_a_padding_id_outside_the_vocabulary_is_only_written() -> None:
    net = build(decoder(None, Rope()))
    free = generate(net, ids(2, 4), settings=Generation(max_new_tokens=6))
    end = int(free.new[0, 1])
    got = generate(net, ids(2, 4), settings=Generation(max_new_tokens=6, eos_token_id=end, pad_token_id=99))
    assert got.new[0, int(got.lengths[0]) :].unique().tolist() == [99]
    assert rows(got)[1] == free.new[1, : int(got.lengths[1])].tolist()


def spelled(tokens: list[int]) -> str:
    return "".join("abcdefghijklmnopqrstuvw"[token] for token in tokens)


@pytest.mark.parametrize("beams", [1, 2])
def test_stop_strings(beams: int) -> None:
    net = build(decoder(*POSITIONS["rope"]))
    tokens, mask = padded(PROMPTS, "left")
    free = generate(net, tokens, mask, settings=Generation(max_new_tokens=12))
    text = spelled(rows(free)[0])
    stop = text[3:6]
    settings = Generation(max_new_tokens=12, stop_strings=[stop, "never!"], num_beams=beams)
    got = generate(net, tokens, mask, settings=settings, text_of=spelled)
    found = [spelled(row) for row in rows(got)]
    for row, said in enumerate(found):
        assert (stop in said) == (got.reasons[row] == "stop")
        assert stop not in said[:-1]
    if beams == 1:
        assert found[0] == text[: text.index(stop) + len(stop)] and got.reasons[0] == "stop"
        assert found[1] == spelled(rows(free)[1])[: len(found[1])]
        other = generate(
            net, tokens, mask, settings=Generation(max_new_tokens=12, stop_strings="never!"), text_of=spelled
        )
        assert rows(other) == rows(free)  # control: what never comes stops nothing
    said_before = spelled(PROMPTS[0][0].tolist())[-2:]
    kept = generate(net, PROMPTS[0], settings=Generation(max_new_tokens=2, stop_strings=said_before), text_of=spelled)
    assert len(rows(kept)[0]) == 2 or said_before in spelled(rows(kept)[0])  # the prompt does not stop its text
    with pytest.raises(UserError, match="text_of"):
        generate(net, tokens, mask, settings=settings)


@pytest.mark.quick
def test_streaming_gives_the_same_tokens_as_they_come() -> None:
    net = build(decoder(*POSITIONS["rope"])).train()
    tokens, mask = padded(PROMPTS, "left")
    settings = Generation(max_new_tokens=6, eos_token_id=3, logprobs=4)
    seen = []
    whole = generate(net, tokens, mask, settings=settings, on_token=seen.append)
    decoding = stream(net, tokens, mask, settings=settings)
    steps = list(decoding)
    assert net.training and torch.is_grad_enabled()  # as it was
    assert [step.tokens.tolist() for step in seen] == [step.tokens.tolist() for step in steps] == whole.new.T.tolist()
    assert torch.equal(decoding.result().ids, whole.ids) and not whole.ids.is_inference()
    assert whole.top_tokens is not None and whole.top_tokens.shape == (3, whole.new.shape[1], 4)
    assert torch.equal(whole.top_tokens[..., 0][whole.logprobs < 0], whole.new[whole.logprobs < 0])  # greedy: the best
    assert whole.top_logprobs is not None and torch.allclose(whole.top_logprobs[:, 0, 0], whole.logprobs[:, 0])
    assert torch.allclose(whole.logprobs.sum(1), whole.scores)
    part = stream(net, tokens, mask, settings=settings)
    next(iter(part))
    assert part.result().new.shape == (3, 1)  # a text may be taken as far as it has come
    with pytest.raises(UserError, match="beam search"):
        stream(net, tokens, mask, settings=Generation(num_beams=2))
    with pytest.raises(UserError, match="beam search"):
        generate(net, tokens, mask, settings=Generation(num_beams=2), on_token=seen.append)


@pytest.mark.quick
def test_ties_go_to_the_lowest_id() -> None:
    net = build(decoder(None, Rope()))
    with torch.no_grad():
        net.head.weight[5] = net.head.weight[11] = net.head.weight[17]
        net.head.weight.mul_(0.01)
        for token in (5, 11, 17):
            net.head.weight[token] *= 1e4
    said = {token for row in rows(generate(net, ids(8, 4), settings=Generation(max_new_tokens=6))) for token in row}
    assert 5 in said and not said & {11, 17}
