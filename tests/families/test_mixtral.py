"""Mixtral against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from anyformer import Experts, UserError
from anyformer.checkpoints.folder import open_folder, save_foreign
from anyformer.families import FAMILIES
from anyformer.families.config import FamilyConfig
from anyformer.inspection.routing import tokens_per_expert
from tests.families.cases.mixtral import CASES
from tests.families.parity import (
    make,
    save,
)


def test_what_is_not_implemented_is_refused_by_name() -> None:
    read = FAMILIES["mixtral"].settings
    with pytest.raises(UserError, match=r"router_jitter_noise = 0\.1 is not implemented"):
        read(FamilyConfig({"router_jitter_noise": 0.1}), "lm")
    with pytest.raises(UserError, match="top 9 is not between 1 and count 8"):
        read(FamilyConfig({"num_experts_per_tok": 9}), "lm")
    assert read(FamilyConfig({"num_experts": 6}), "lm").stack.block.feed.count == 6


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
