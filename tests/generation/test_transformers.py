"""Tokens and scores against transformers' generate, on tiny random models of its own."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.generation import Generated, Generation, generate
from tests.generation.theirs import DECODERS, EOS, PAD, PAIRS, START, both, prompts

ENDS = {"eos_token_id": (EOS, 11), "pad_token_id": PAD, "decoder_start_token_id": START}
NEW = 14

GREEDY: dict[str, dict[str, Any]] = {
    "plain": {},
    "no end": {"eos_token_id": ()},
    "at least 6": {"min_new_tokens": 6},
    "min_length": {"min_length": 13},
    "max_length": {"max_length": 17},
    "words kept out": {"suppress_tokens": (9, 12, 13, 20)},
    "last word forced": {"forced_eos_token_id": EOS},
}
UNPADDED: dict[str, dict[str, Any]] = {  # there, padding counts as words that were said
    "repetition": {"repetition_penalty": 1.6},
    "repetition wanted": {"repetition_penalty": 0.7},
    "no two words twice": {"no_repeat_ngram_size": 2},
    "no word twice": {"no_repeat_ngram_size": 1},
}
BEAMS: dict[str, dict[str, Any]] = {
    f"{beams} beams, penalty {penalty}, {early}, {count}": {
        "num_beams": beams, "length_penalty": penalty, "early_stopping": early, "num_return_sequences": count,
    }
    for beams, penalty, early, count in (
        (2, 1.0, False, 1), (3, 1.0, True, 3), (4, 0.0, False, 2), (4, 0.6, True, 4), (4, 2.0, "never", 2),
        (5, -1.0, False, 5), (5, -1.0, "never", 1), (3, 2.0, False, 3), (7, 0.6, "never", 3),
    )
}  # fmt: skip
BEAMS |= {
    "4 beams, at least 6": {"num_beams": 4, "min_new_tokens": 6},
    "4 beams, renormalised, words kept out": {"num_beams": 4, "renormalize_logits": True, "suppress_tokens": (9, 12)},
    "3 beams, last word forced": {"num_beams": 3, "forced_eos_token_id": EOS},
}
EVERY = list(DECODERS) + list(PAIRS)


def compare(name: str, settings: dict[str, Any], *, masked: bool = True, seed: int = 0) -> tuple[Any, Generated]:
    """Their answer and ours."""
    model, ours = both(name)
    # Their encoders count padding as positions unless it stands on the right, their decoders unless on the left.
    tokens, mask = prompts(seed, side="right" if name in PAIRS else "left")
    if not masked:
        mask = torch.ones_like(mask)
    given = {"max_new_tokens": NEW} | ENDS | settings
    if "max_length" in given:
        del given["max_new_tokens"]
    forced = {"forced_bos_token_id": 7, "forced_eos_token_id": EOS} if name == "bart" else {}
    given = forced | given
    got = generate(ours, tokens, mask, settings=Generation(**given))
    listed = {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}
    if not listed["eos_token_id"]:
        model.generation_config.eos_token_id = None
        listed["eos_token_id"] = None
    if "suppress_tokens" in listed:
        listed["suppress_tokens"] = list(listed["suppress_tokens"])
    try:
        want = model.generate(tokens, attention_mask=mask.long(), do_sample=False, return_dict_in_generate=True,
                              output_scores=True, **listed)  # fmt: skip
    finally:
        model.generation_config.eos_token_id = EOS
    return want, got


def equal(theirs: Tensor, ours: Tensor) -> bool:
    return theirs.shape == ours.shape and torch.equal(theirs, ours)


@pytest.mark.parametrize("settings", GREEDY.values(), ids=GREEDY)
@pytest.mark.parametrize("name", EVERY)
def test_greedy_tokens(name: str, settings: dict[str, Any], cells: Counter) -> None:
    want, got = compare(name, settings)
    assert equal(want.sequences, got.ids)
    cells["generation", "run"] += 1


@pytest.mark.parametrize("settings", UNPADDED.values(), ids=UNPADDED)
@pytest.mark.parametrize("name", EVERY)
def test_words_that_were_said(name: str, settings: dict[str, Any], cells: Counter) -> None:
    want, got = compare(name, settings, masked=False)
    assert equal(want.sequences, got.ids)
    if name in DECODERS and settings != UNPADDED["repetition wanted"]:
        assert not equal(compare(name, {}, masked=False)[1].ids, got.ids)  # control: the setting matters here
    cells["generation", "run"] += 1


@pytest.mark.parametrize("settings", BEAMS.values(), ids=BEAMS)
@pytest.mark.parametrize("name", EVERY)
def test_beam_tokens_and_scores(name: str, settings: dict[str, Any], cells: Counter) -> None:
    want, got = compare(name, settings)
    assert equal(want.sequences, got.ids)
    assert (want.sequences_scores - got.scores).abs().max() <= 1e-5 * want.sequences_scores.abs().max().clamp(min=1)
    cells["generation", "run"] += 1


@pytest.mark.quick
def test_the_cases_are_not_trivial() -> None:
    """The control of this file: rows end at different lengths, settings matter, and a changed weight is seen."""
    ended, lengths, other = set(), set(), 0
    for name in EVERY:
        plain, beams = compare(name, {})[1], compare(name, BEAMS["5 beams, penalty -1.0, False, 5"])[1]
        ended |= set(plain.reasons) | set(beams.reasons)
        lengths |= set(beams.lengths.tolist())
        other += not torch.equal(plain.new[0], beams.new[0])
    assert ended == {"eos", "length"} and len(lengths) > 3 and other >= 5
    _, ours = both("gpt2")
    with torch.no_grad():
        weight = ours.stack.blocks[0].mixer.out.weight
        weight.mul_(1.5)
        want, got = compare("gpt2", {"num_beams": 3})
        weight.div_(1.5)
    assert not equal(want.sequences, got.ids) or (want.sequences_scores - got.scores).abs().max() > 1e-3
