"""Wrong settings and inputs: one sentence each that names the field and the fix, before anything is computed."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from transformers import BartConfig, GenerationConfig, GPT2Config, MarianConfig, T5Config

from anyformer import LM, Attention, Block, Model, Pooled, Stack, Tokens, UserError
from anyformer.generation import Generation, generate
from tests.generation.nets import build, decoder, ids, pair

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_new_tokens": 0}, "max_new_tokens is 0; use a whole number, 1 or more"),
    ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5"),
    ({"max_new_tokens": True}, "max_new_tokens is True"),
    ({"max_length": -1}, "max_length is -1"),
    ({"min_new_tokens": -1}, "min_new_tokens is -1; use a whole number, 0 or more"),
    ({"min_new_tokens": 9, "max_new_tokens": 3}, "min_new_tokens 9 is above max_new_tokens 3"),
    ({"do_sample": 1}, "do_sample is 1; use True or False"),
    ({"temperature": -0.1}, "temperature is -0.1; use 0 for greedy"),
    ({"temperature": float("nan")}, "temperature is nan"),
    ({"temperature": "hot"}, "temperature is 'hot'"),
    ({"top_k": -3}, "top_k is -3"),
    ({"top_p": 0.0}, "top_p is 0.0; use 0.9"),
    ({"top_p": 1.5}, "top_p is 1.5"),
    ({"min_p": 2}, "min_p is 2"),
    ({"num_beams": 0}, "num_beams is 0"),
    ({"num_return_sequences": 0}, "num_return_sequences is 0"),
    ({"num_return_sequences": 3}, "num_return_sequences 3 would be the same greedy text again and again"),
    ({"num_return_sequences": 3, "num_beams": 2}, "num_return_sequences 3 is above num_beams 2; use num_beams=3"),
    ({"num_beams": 2, "do_sample": True}, "num_beams above 1 and do_sample exclude each other"),
    ({"num_beams": 2, "logprobs": 3}, "logprobs lists no other tokens under beam search"),
    ({"length_penalty": float("inf")}, "length_penalty is inf"),
    ({"early_stopping": "always"}, "early_stopping is 'always'; use True, False or \"never\""),
    ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
    ({"presence_penalty": float("nan")}, "presence_penalty is nan"),
    ({"frequency_penalty": "much"}, "frequency_penalty is 'much'"),
    ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size is -1"),
    ({"eos_token_id": -1}, "eos_token_id is -1; give a token id"),
    ({"eos_token_id": [1, "a"]}, "eos_token_id is"),
    ({"eos_token_id": 1.0}, "eos_token_id is 1.0"),
    ({"suppress_tokens": [-2]}, "suppress_tokens is"),
    ({"pad_token_id": -5}, "pad_token_id is -5"),
    ({"forced_eos_token_id": "x"}, "forced_eos_token_id is 'x'"),
    ({"stop_strings": ["a", ""]}, "stop_strings is"),
    ({"stop_strings": [3]}, "stop_strings is"),
    ({"seed": "x"}, "seed is 'x'"),
    ({"seed": 1.5}, "seed is 1.5"),
    ({"seed": True}, "seed is True"),
    ({"logprobs": -1}, "logprobs is -1"),
    ({"cache_implementation": "paged"}, "cache_implementation is 'paged'"),
    ({"prefill_chunk_size": 0}, "prefill_chunk_size is 0"),
]


@pytest.mark.quick
@pytest.mark.parametrize("given, message", WRONG, ids=[str(given) for given, _ in WRONG])
def test_wrong_settings(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        Generation(**given)
    assert message in str(caught.value) and str(caught.value).startswith("Generation: ") and ";" in str(caught.value)


@pytest.mark.quick
def test_an_unknown_setting_is_named_with_its_nearest() -> None:
    with pytest.raises(UserError, match="unknown setting 'temprature'; did you mean 'temperature'"):
        Generation.from_settings({"temprature": 1.0})
    assert Generation.from_settings({"temperature": 0.5}).temperature == 0.5


BOTH: list[tuple[Any, str]] = [
    ([[1, 2]], "tokens are list; give a tensor of ids"),
    (torch.tensor([1, 2]), r"tokens have shape \(2,\) and type torch.int64; expected ids \(B, T\)"),
    (torch.tensor([[1.0]]), "type torch.float32; expected ids"),
    (torch.tensor([[True]]), "type torch.bool; expected ids"),
    (torch.zeros(0, 3, dtype=torch.long), r"tokens have shape \(0, 3\); give at least one token"),
    (torch.zeros(2, 0, dtype=torch.long), r"tokens have shape \(2, 0\); give at least one token"),
    (torch.tensor([[1, 23]]), "tokens hold the id 23; ids go from 0 to 22"),
    (torch.tensor([[-1, 2]]), "tokens hold the id -1; ids go from 0 to 22"),
]


@pytest.mark.quick
@pytest.mark.parametrize("tokens, message", BOTH, ids=[message[:40] for _, message in BOTH])
def test_wrong_ids_are_refused_before_any_compute(tokens: Any, message: str) -> None:
    for net in (build(decoder()), build(pair())):
        net.register_forward_hook(lambda *_: pytest.fail("something was computed"))
        for part in net.modules():
            part.register_forward_pre_hook(lambda *_: pytest.fail("something was computed"))
        for beams in (1, 2):
            with pytest.raises(UserError, match=message):
                generate(net, tokens, settings=Generation(num_beams=beams, decoder_start_token_id=0))


@pytest.mark.quick
def test_other_wrong_inputs() -> None:
    net, two, given = build(decoder()), build(pair()), ids(2, 4)
    none = torch.ones(2, 4, dtype=torch.bool)
    none[1] = False
    bare = Model(
        embed=Tokens(vocab=9), stack=Stack(width=8, depth=1, causal=True, block=Block(mixer=Attention(heads=2)))
    )
    for call, message in (
        (
            lambda: generate(net, given, torch.ones(2, 3)),
            r"mask has shape \(2, 3\) and type torch.float32; expected \(2, 4\)",
        ),
        (lambda: generate(net, given, [1, 2]), "mask is list"),
        (lambda: generate(net, given, none), "row 1 of mask hides every token"),
        (
            lambda: generate(two, given, none, settings=Generation(bos_token_id=0)),
            "row 1 of source mask hides every token",
        ),
        (lambda: generate(two, given), "decoder_start_token_id is not set; give it"),
        (
            lambda: generate(two, given, settings=Generation(decoder_start_token_id=23)),
            "decoder_start_token_id holds the id 23",
        ),
        (
            lambda: generate(net, given, settings=Generation(forced_eos_token_id=[1, 40])),
            "forced_eos_token_id holds the id 40",
        ),
        (lambda: generate(net, given, settings=Generation(suppress_tokens=[40])), "suppress_tokens holds the id 40"),
        (lambda: generate(net, given, settings=Generation(logprobs=24)), "logprobs is 24; there are 23 tokens"),
        (lambda: generate(net, given, settings=Generation(max_length=4)), "max_length 4 leaves no room after 4 tokens"),
        (lambda: generate(net, given, settings=Generation(do_sample=True, seed=(1, 2, 3))), "3 seeds for 2 prompts"),
        (lambda: generate(bare.build(), given), "no language-model head; give it head=LM"),
        (
            lambda: generate(bare.replace(head=LM(), stack=bare.stack.replace(causal=False)).build(), given),
            "causal=True",
        ),
        (lambda: generate(torch.nn.Linear(2, 2), given), "Linear is not a built Model or Seq2Seq"),
    ):
        with pytest.raises(UserError, match=message):
            call()
    assert generate(net, given.to(torch.int32)).ids.dtype == torch.long  # any whole numbers do
    assert generate(net, given, torch.ones(2, 4, dtype=torch.long)).ids.shape == (2, 24)


@pytest.mark.quick
def test_an_end_that_cannot_come_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "anyformer"):
        generate(build(decoder()), ids(1, 3), settings=Generation(eos_token_id=50256, max_new_tokens=2))
    assert "eos_token_id 50256 is beyond the 23 ids" in caplog.text


@pytest.mark.quick
def test_generation_config_is_read() -> None:
    """facebook/bart-large-cnn's, in essence, with what belongs to the model around it."""
    file = {
        "bos_token_id": 0, "decoder_start_token_id": 2, "early_stopping": True, "eos_token_id": 2,
        "forced_bos_token_id": 0, "forced_eos_token_id": 2, "length_penalty": 2.0,
        "max_length": 142, "min_length": 56, "no_repeat_ngram_size": 3,
        "num_beams": 4, "pad_token_id": 1, "transformers_version": "4.27", "hidden_size": 1024, "typical_p": 1.0,
        "use_cache": True, "temperature": None,
    }  # fmt: skip
    got = Generation.from_hf(file)
    assert (got.num_beams, got.max_length, got.min_length, got.ends, got.forced_ends) == (4, 142, 56, (2,), (2,))
    assert (got.early_stopping, got.length_penalty, got.no_repeat_ngram_size, got.padding) == (True, 2.0, 3, 1)
    llama = Generation.from_hf({"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [128001, 128009]})
    assert llama.sampled and llama.ends == (128001, 128009) and llama.top_k is None
    marian = Generation.from_hf(
        {"bad_words_ids": [[58100]], "renormalize_logits": True, "num_beams": 4, "max_length": 512}
    )
    assert marian.suppress_tokens == (58100,) and marian.renormalize_logits
    for config in (GPT2Config(), T5Config(), BartConfig(), MarianConfig(), GenerationConfig()):
        Generation.from_hf(config.to_dict())


@pytest.mark.quick
@pytest.mark.parametrize("name, value", [
    ("typical_p", 0.9), ("penalty_alpha", 0.6), ("diversity_penalty", 0.5), ("num_beam_groups", 2),
    ("epsilon_cutoff", 3e-4),
    ("begin_suppress_tokens", [1]), ("exponential_decay_length_penalty", [5, 1.1]), ("bad_words_ids", [[1, 2]]),
    ("encoder_repetition_penalty", 1.2), ("guidance_scale", 1.5), ("sequence_bias", [[[1], 2.0]]), ("max_time", 3.0),
])  # fmt: skip
def test_options_that_would_change_the_text_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=name):
        Generation.from_hf({name: value})


@pytest.mark.quick
def test_options_that_would_not_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "anyformer"):
        assert Generation.from_hf({"low_memory": True, "cache_implementation": "offloaded"}) == Generation()
    assert "low_memory" in caplog.text
    with pytest.raises(UserError, match="generation_config.json: temperature is -1"):
        Generation.from_hf({"temperature": -1})


@pytest.mark.quick
def test_a_pooled_head_cannot_write() -> None:
    spec = Model(embed=Tokens(vocab=9), head=Pooled(classes=3),
                 stack=Stack(width=8, depth=1, causal=True, block=Block(mixer=Attention(heads=2))))  # fmt: skip
    with pytest.raises(UserError, match="head"):
        generate(spec.build(), torch.tensor([[1, 2]]))
