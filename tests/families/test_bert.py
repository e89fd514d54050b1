"""BERT against transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertForMaskedLM,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertModel,
)

from anyformer import UserError
from anyformer.checkpoints.folder import open_folder, save_foreign
from tests.families.cases.bert import CASES, case
from tests.families.parity import Case, check_round_trip, make, quietly, save


def test_left_padding_pools_the_first_real_token(tmp_path: Path) -> None:
    left = case("classify", BertForSequenceClassification, "left", num_labels=3)
    theirs = make(left, torch.float64)
    (tokens,), options = left.ours(torch.float64)
    ours = open_folder(save(theirs, tmp_path / "a")).model(tokens, **options).logits
    for row, real in enumerate(options["mask"]):
        alone = theirs(input_ids=tokens[row, real][None], token_type_ids=options["segments"][row, real][None]).logits
        assert (ours[row] - alone[0]).abs().max() <= 1e-10


def test_an_activation_keeps_its_name(tmp_path: Path) -> None:
    opened = check_round_trip(CASES[7], tmp_path)
    assert opened.config["hidden_act"] == "gelu_pytorch_tanh"
    assert json.loads((tmp_path / "second" / "config.json").read_text())["hidden_act"] == "gelu_pytorch_tanh"


def pretrained(tmp_path: Path, **settings: Any) -> tuple[Any, Case, Path]:
    masked = case("pretraining", BertForMaskedLM, "right", **settings)
    both = Case(masked.name, BertForPreTraining, masked.config, masked.theirs, masked.ours, masked.real)
    theirs = make(both, torch.float64)
    return theirs, masked, save(theirs, tmp_path / "pretraining")


@torch.no_grad()
@pytest.mark.parametrize("tied", [True, False])
def test_a_pretraining_folder_opens_whole_masked_bare_and_body(tied: bool, tmp_path: Path) -> None:
    theirs, masked, folder = pretrained(tmp_path, tie_word_embeddings=tied)
    (tokens,), options = masked.ours(torch.float64)
    wanted = theirs(**masked.theirs(torch.float64), output_hidden_states=True)
    whole = open_folder(folder)
    assert whole.head == "pretraining"
    assert (whole.model(tokens, **options).pooled - wanted.seq_relationship_logits).abs().max() <= 1e-10
    for opened in (whole, open_folder(folder, head="masked")):
        assert (opened.model(tokens, **options).logits - wanted.prediction_logits)[masked.real].abs().max() <= 1e-10
    save_foreign(tmp_path / "again", whole.spec, whole.model, config=whole.config)
    again, info = BertForPreTraining.from_pretrained(tmp_path / "again", output_loading_info=True)
    assert not any(info.values())
    for name, value in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name].double(), value), name
    bare, body = open_folder(folder, head="bare"), open_folder(folder, head="body")
    pooled = theirs.bert(**masked.theirs(torch.float64)).pooler_output
    assert (bare.model(tokens, **options).pooled - pooled).abs().max() <= 1e-10
    hidden = body.model(tokens, **options)
    assert hidden.pooled is None
    assert (hidden.hidden - wanted.hidden_states[-1])[masked.real].abs().max() <= 1e-10


def test_a_masked_folder_opens_bare_without_the_pooler_it_has_not(tmp_path: Path) -> None:
    masked = case("masked", BertForMaskedLM, "right")
    theirs = make(masked, torch.float32)
    opened = open_folder(save(theirs, tmp_path / "a"), head="bare")
    assert opened.head == "body" and opened.spec.settings()["head"] is None
    _, family, head = save_foreign(tmp_path / "b", opened.spec, opened.model, config=opened.config)
    assert (family.model_type, head) == ("bert", "body")
    with quietly():
        again, info = BertModel.from_pretrained(tmp_path / "b", add_pooling_layer=False, output_loading_info=True)
    assert not any(info.values()), info
    given = masked.theirs(torch.float32)
    assert torch.equal(again.eval()(**given).last_hidden_state, theirs.bert(**given).last_hidden_state)


def rewritten(folder: Path, change: Any) -> Path:
    weights = load_file(folder / "model.safetensors")
    save_file(change(dict(weights)), folder / "model.safetensors", {"format": "pt"})
    return folder


def older(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The spelling of the first checkpoints, with the tensors that were stored though tied or computed."""
    named = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in weights.items()
    }
    return named | {
        "bert.embeddings.position_ids": torch.arange(32)[None],
        "bert.pooler.dense.weight": torch.ones(24, 24), "bert.pooler.dense.bias": torch.ones(24),
        "cls.predictions.decoder.weight": weights["bert.embeddings.word_embeddings.weight"].clone(),
        "cls.predictions.decoder.bias": weights["cls.predictions.bias"].clone(),
    }  # fmt: skip


def test_older_spellings_and_repeated_tensors_are_understood(tmp_path: Path) -> None:
    masked = case("masked", BertForMaskedLM)
    theirs = make(masked, torch.float32)
    plain = open_folder(save(theirs, tmp_path / "a")).model
    old = open_folder(rewritten(save(theirs, tmp_path / "b"), older)).model
    assert all(torch.equal(p, q) for p, q in zip(plain.parameters(), old.parameters(), strict=True))

    def second_names(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        weights["cls.predictions.decoder.weight"] = weights.pop("bert.embeddings.word_embeddings.weight")
        weights["cls.predictions.decoder.bias"] = weights.pop("cls.predictions.bias")
        return weights

    swapped = open_folder(rewritten(save(theirs, tmp_path / "c"), second_names)).model
    assert all(torch.equal(p, q) for p, q in zip(plain.parameters(), swapped.parameters(), strict=True))


def test_a_tied_tensor_that_differs_is_refused(tmp_path: Path) -> None:
    folder = save(make(case("masked", BertForMaskedLM), torch.float32), tmp_path / "a")
    rewritten(folder, lambda w: older(w) | {"cls.predictions.decoder.weight": torch.zeros(50, 24)})
    with pytest.raises(UserError, match="decoder.weight differs from .*tie_word_embeddings"):
        open_folder(folder)


def test_an_untied_folder_of_before_version_5_keeps_its_bias(tmp_path: Path) -> None:
    theirs = make(case("masked", BertForMaskedLM, tie_word_embeddings=False), torch.float32)
    folder = rewritten(
        save(theirs, tmp_path / "a"), lambda w: {n: t for n, t in w.items() if n != "cls.predictions.decoder.bias"}
    )
    assert torch.equal(open_folder(folder).model.head.bias, theirs.cls.predictions.decoder.bias)


@pytest.mark.parametrize(
    "option, value",
    [
        ("add_cross_attention", True), ("position_embedding_type", "relative_key"), ("hidden_act", "mish"),
        ("type_vocab_size", 0), ("hidden_size", "wide"), ("num_hidden_layers", 0), ("pruned_heads", {"0": [1]}),
    ],
)  # fmt: skip
def test_what_is_not_implemented_is_refused_by_name(option: str, value: Any, tmp_path: Path) -> None:
    folder = save(make(case("bare", BertModel), torch.float32), tmp_path / "a")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {option: value}))
    with pytest.raises(UserError, match=option):
        open_folder(folder)


def test_three_labels_for_a_span_are_refused(tmp_path: Path) -> None:
    folder = save(make(case("span", BertForQuestionAnswering, num_labels=3), torch.float32), tmp_path / "a")
    with pytest.raises(UserError, match="3 labels"):
        open_folder(folder)


def test_another_head_is_refused_with_everything_it_lacks(tmp_path: Path) -> None:
    folder = save(make(case("bare", BertModel), torch.float32), tmp_path / "a")
    with pytest.raises(UserError, match="missing") as refused:
        open_folder(folder, head="masked")
    listed = "\n".join(refused.value.details)
    assert all(name in listed for name in ("cls.predictions.bias", "cls.predictions.transform.LayerNorm.weight"))
