"""Mixtral against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    MixtralForQuestionAnswering,
    MixtralForSequenceClassification,
    MixtralForTokenClassification,
    MixtralModel,
)

from anyformer import Experts, UserError
from anyformer.checkpoints.folder import open_folder, save_foreign
from anyformer.families import FAMILIES
from anyformer.families.config import Config
from anyformer.inspection.routing import tokens_per_expert
from tests.families.parity import (
    Case,
    check_config,
    check_logits,
    check_maps,
    check_round_trip,
    make,
    save,
    text_case,
)
from tests.families.passes import check_hidden, check_steps

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 20, "vocab_size": 50, "num_local_experts": 4,
}  # fmt: skip


def case(name: str, kind: type = MixtralForCausalLM, pad: str = "left", **settings: Any) -> Case:
    # Their RMSNorm and router cast to float32 inside, hence the bound in float64.
    made = MixtralConfig(**{**SMALL, **settings})
    made._experts_implementation = "eager"  # their grouped product has no float64
    return text_case(f"Mixtral {name}", kind, made, pad=pad, positions=True, float64=1e-6)


CASES = [
    case("lm"),
    case("bare", MixtralModel),
    case("lm, right padding, all kv heads, odd head size", pad="right", num_key_value_heads=4, head_dim=6),
    case("window, three of five experts, tied, gelu", sliding_window=5, num_local_experts=5, num_experts_per_tok=3,
         tie_word_embeddings=True, hidden_act="gelu"),
    case("one expert of three", num_local_experts=3, num_experts_per_tok=1, router_aux_loss_coef=0.02),
    case("all experts", num_local_experts=2, num_experts_per_tok=2, rms_norm_eps=1e-3),
    case("linear rope", rope_parameters={"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}),
    case("classify", MixtralForSequenceClassification, num_labels=3, pad_token_id=0),
    case("tag", MixtralForTokenClassification, num_labels=3),
    case("span", MixtralForQuestionAnswering),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_answers_equal_transformers(case: Case, tmp_path: Path) -> None:
    check_logits(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_folder_goes_there_and_back(case: Case, tmp_path: Path) -> None:
    check_round_trip(case, tmp_path)


@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=str)
def test_maps_hidden_states_and_steps_equal_theirs(case: Case, tmp_path: Path) -> None:
    check_maps(case, tmp_path)
    check_hidden(case, tmp_path)
    check_steps(case, tmp_path)


def test_every_option_of_the_config_is_read() -> None:
    check_config("mixtral", MixtralConfig)


def test_what_is_not_implemented_is_refused_by_name() -> None:
    read = FAMILIES["mixtral"].settings
    with pytest.raises(UserError, match=r"router_jitter_noise = 0\.1 is not implemented"):
        read(Config({"router_jitter_noise": 0.1}), "lm")
    with pytest.raises(UserError, match="top 9 is not between 1 and count 8"):
        read(Config({"num_experts_per_tok": 9}), "lm")
    assert read(Config({"num_experts": 6}), "lm").stack.block.feed.count == 6


def test_another_kind_of_mixture_is_not_written_as_mixtral(tmp_path: Path) -> None:
    opened = open_folder(save(make(CASES[0], torch.float32), tmp_path / "theirs"))
    feed = opened.spec.stack.block.feed
    assert isinstance(feed, Experts) and feed.renormalise is None
    raw = opened.spec.replace(stack=opened.spec.stack.replace(
        block=opened.spec.stack.block.replace(feed=feed.replace(renormalise=False))))  # fmt: skip
    with pytest.raises(UserError, match="no family there has this network"):
        save_foreign(tmp_path / "other", raw, raw.build(seed=0))


@torch.no_grad()
def test_the_same_experts_are_chosen(tmp_path: Path) -> None:
    case = CASES[0]
    theirs = make(case, torch.float32)
    opened = open_folder(save(theirs, tmp_path / "theirs"))
    given, options = case.ours(torch.float32)
    ours = [count for calls in tokens_per_expert(opened.model, *given, **options).values() for count in calls]
    out = theirs(**case.theirs(torch.float32), output_router_logits=True)
    for logits, count in zip(out.router_logits, ours, strict=True):
        chosen = logits.topk(2, -1).indices.view(*given[0].shape, 2)[options["mask"]]
        assert torch.equal(torch.bincount(chosen.flatten(), minlength=4), count)
