"""Folders of other people: whatever their head, `look` opens them, and says what transformers would answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import anyformer
from anyformer.errors import UserError
from anyformer.inspection.capture import look
from tests.cli.test_fine_tune import words_beside
from tests.families import cases
from tests.families.cases import bart, bert, detr, distilbert, electra, marian, t5, visual_bert
from tests.families.parity import Case, make, quietly

IDS = torch.tensor([[5, 7, 9, 3]])
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXTS = ["Who wrote the book ? The old dog and the young boy wrote a very long book about the sea ."] * 20
IMAGES = {
    "image_processor_type": "DetrImageProcessor", "do_resize": True, "size": {"shortest_edge": 64, "longest_edge": 96},
    "do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "format": "coco_detection",
}  # fmt: skip
UNUSUAL = [
    one
    for module in (bart, bert, distilbert, electra, marian, t5, visual_bert)
    for one in {case.kind: case for case in reversed(module.FAMILY.cases)}.values()
]


def saved(case: Case, folder: Path) -> Any:
    with quietly():
        model = make(case, torch.float32)
        model.save_pretrained(folder)
    return model


def worded(folder: Path, kind: type, config: type, how: str = "wordpiece", **settings: Any) -> Any:
    """A small model of transformers beside a tokenizer."""
    size = words_beside(folder, how, TEXTS)
    torch.manual_seed(0)
    with quietly():
        model = kind(config(vocab_size=size, **settings)).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.15)
        model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("case", UNUSUAL, ids=lambda case: case.kind.__name__)
def test_a_folder_of_any_head_is_looked_at(case: Case, tmp_path: Path) -> None:
    saved(case, tmp_path / "model")
    capture = look(anyformer.load(tmp_path / "model"), IDS)
    assert capture.sites
    for one in capture.prediction():
        assert one.name and (one.probability is None or 0 <= one.probability <= 1)
    capture.html(tmp_path / "page.html")


def test_there_are_unusual_heads() -> None:
    names = {case.kind.__name__ for case in UNUSUAL}
    assert {"T5ForQuestionAnswering", "ElectraForPreTraining", "MarianModel", "VisualBertForPreTraining"} <= names
    assert len(names) > 25 and cases


# ---------------------------------------------------------------- what is said of each


@torch.no_grad()
def test_a_discriminator_says_which_token_was_replaced(tmp_path: Path) -> None:
    case = next(case for case in UNUSUAL if case.kind.__name__ == "ElectraForPreTraining")
    theirs = saved(case, tmp_path)(input_ids=IDS).logits[0]
    capture = look(anyformer.load(tmp_path), IDS)
    for at in range(4):
        found = {one.name: one.probability for one in capture.prediction(at=at)}
        assert found == {
            "replaced": pytest.approx(float(theirs[at].sigmoid()), abs=1e-5),
            "original": pytest.approx(float((-theirs[at]).sigmoid()), abs=1e-5),
        }
    assert capture.prediction() == capture.prediction(at=int(theirs.argmax()))  # the surest one


@torch.no_grad()
@pytest.mark.parametrize("name", ["DistilBertForQuestionAnswering", "T5ForQuestionAnswering"])
def test_a_span_head_says_the_best_passage(name: str, tmp_path: Path) -> None:
    case = next(case for case in UNUSUAL if case.kind.__name__ == name)
    given = IDS.clone()
    given[0, -1] = case.config.eos_token_id if "T5" in name else 3
    model = saved(case, tmp_path)
    out = model(input_ids=given)
    starts, ends = out.start_logits[0].softmax(0), out.end_logits[0].softmax(0)
    pairs = sorted(((float(starts[i] * ends[j]), i) for i in range(4) for j in range(i, 4)), reverse=True)
    found = look(anyformer.load(tmp_path), given).prediction(top=3)
    assert [(pytest.approx(one.probability, abs=1e-5), one.id) for one in found] == pairs[:3]


def test_a_text_is_compared_with_an_image(tmp_path: Path) -> None:
    size = words_beside(tmp_path, "bpe", TEXTS)
    torch.manual_seed(0)
    config = transformers.CLIPConfig(
        text_config={**SMALL, "vocab_size": size, "max_position_embeddings": 40, "eos_token_id": 1},
        vision_config={**SMALL, "image_size": 32, "patch_size": 8}, projection_dim=16,
    )  # fmt: skip
    with quietly():
        model = transformers.CLIPModel(config).eval()
        model.save_pretrained(tmp_path)
    steps = {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True,
        "size": {"height": 32, "width": 32},
        "do_center_crop": False,
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(steps))
    predictor = anyformer.load(tmp_path)
    image = torch.randint(0, 255, (32, 32, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8).numpy()
    found = look(predictor, {"text": "the old dog", "image": image})
    with torch.no_grad():
        ids = torch.tensor([predictor.encode("the old dog")])
        theirs = model(input_ids=ids, pixel_values=predictor.pixels([image])).logits_per_text
    assert found.prediction()[0].logit == pytest.approx(float(theirs), abs=1e-4)
    assert {site.stack for site in found.sites} == {"first", "second"}
    for given in ("the old dog", image, None):  # what is not given is that of the example
        assert len(look(predictor, given).prediction()) == 1
    with pytest.raises(UserError, match="compares a text with an image"):
        look(predictor, {"caption": "the old dog"})


def test_images_without_their_preparation_are_refused_in_words(tmp_path: Path) -> None:
    saved(detr.FAMILY.cases[0], tmp_path)
    with pytest.raises(UserError, match=r"preprocessor_config\.json"):
        look(anyformer.load(tmp_path), "a text")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(IMAGES))
    assert look(anyformer.load(tmp_path)).sites  # of the example's image


# ---------------------------------------------------------------- questions


def their_answer(model: Any, predictor: Any, question: str, context: str) -> str:
    """By the tokens of one pair, as transformers sees them, every passage of the context tried."""
    words = predictor.require_tokenizer()
    pair = words.core.encode(question, context)
    kinds = (
        {"token_type_ids": torch.tensor([pair.type_ids])} if isinstance(model.config, transformers.BertConfig) else {}
    )
    with torch.no_grad():
        out = model(input_ids=torch.tensor([pair.ids]), **kinds)
    starts: Tensor = out.start_logits[0]
    ends: Tensor = out.end_logits[0]
    inside = [i for i, part in enumerate(pair.sequence_ids) if part == 1]
    _, first, last = max((float(starts[i] + ends[j]), i, j) for i in inside for j in inside if i <= j < i + 30)
    return context[pair.offsets[first][0] : pair.offsets[last][1]].strip()


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_folder_with_a_span_head_answers_questions(name: str, tmp_path: Path) -> None:
    kinds = {
        "bert": (transformers.BertForQuestionAnswering, transformers.BertConfig, "wordpiece", {}),
        "roberta": (transformers.RobertaForQuestionAnswering, transformers.RobertaConfig, "bpe", {"pad_token_id": 0}),
    }
    kind, config, how, more = kinds[name]
    model = worded(tmp_path, kind, config, how, **SMALL, max_position_embeddings=130, **more)
    predictor = anyformer.load(tmp_path)
    rows = [
        {"question": "Who wrote the book?", "context": "The old dog and the young boy wrote a long book."},
        {"question": "about the sea?", "context": "A very long book about the sea, and the old boy."},
    ]
    said = predictor.predict(rows)
    wanted = [their_answer(model, predictor, **row) for row in rows]
    assert said == wanted
    assert len({*wanted}) == 2 and all(one in row["context"] for one, row in zip(said, rows, strict=True))
    assert look(predictor, rows[0]).prediction()[0].probability is not None
    # What goes back to transformers is what came: the columns are ours alone.
    predictor.export(tmp_path / "back")
    assert not (tmp_path / "back" / "preprocess.json").exists()


def test_an_encoder_decoder_that_classifies_predicts(tmp_path: Path) -> None:
    case = next(case for case in UNUSUAL if case.kind.__name__ == "BartForSequenceClassification")
    model = saved(case, tmp_path)
    rows = [[5, 7, 9, 12, 2], [8, 30, 2], [41, 3, 17, 2], [22, 22, 35, 2]]
    predictor = anyformer.load(tmp_path)
    with torch.no_grad():
        theirs = [model(input_ids=torch.tensor([row])).logits[0].softmax(0) for row in rows]
    ours = predictor.predict_proba(rows)
    assert float((ours - torch.stack(theirs)).abs().max()) < 2e-6
    assert predictor.predict(rows) == [f"LABEL_{int(one.argmax())}" for one in theirs]
    assert float((ours[0] - ours[1]).abs().max()) > 1e-4
