"""What was trained here opens in transformers and answers the same, for every family that has a preset."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import anyformer
from anyformer import Seq2Seq, UserError, quantise
from anyformer.checkpoints import changes
from anyformer.checkpoints.folder import save_foreign
from anyformer.embeds.patches import Patches
from tests.families.parity import quietly, their_answer

STEPS = {"training.steps": 2}
FIRST = {
    "model.head.pool": "first",
    "model.head.dense": True,
}  # as these families classify; by default words are averaged
HEADS = {
    "bart": {"model.head.bias": True},
    "distilbert": FIRST | {"model.head.act": "relu"},
    "electra": FIRST | {"model.head.act": "gelu"},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A little data of each kind."""
    from PIL import Image

    place = tmp_path_factory.mktemp("data")
    words = ["red", "fox", "sees", "a", "blue", "bird", "by", "the", "sea"]
    draw = random.Random(0)
    lines = list(dict.fromkeys(" ".join(draw.choices(words, k=draw.randint(6, 9))) for _ in range(80)))
    (place / "text.txt").write_text("\n".join(lines * 8))
    (place / "classes.csv").write_text(
        "text,label\n" + "".join(f"{line},{'yes' if 'fox' in line else 'no'}\n" for line in lines)
    )
    (place / "pairs.csv").write_text("source,target\n" + "".join(f"{x},{x[::-1]}\n" for x in lines))
    tagged = ["\n".join(f"{word} {'B-A' if word == 'fox' else 'O'}" for word in line.split()) for line in lines]
    (place / "tags.conll").write_text("\n\n".join(tagged) + "\n")
    for i in range(24):
        folder = place / "images" / ("a" if i % 2 else "b")
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (i * 10, 255 * (i % 2), 90)).save(folder / f"{i}.png")
    return {"lm": place / "text.txt", "classify": place / "classes.csv", "translate": place / "pairs.csv",
            "tag": place / "tags.conll", "image": place / "images"}  # fmt: skip


RUNS = {
    "gpt2": ("gpt2-tiny", "lm"), "llama": ("llama2-7b-tiny", "lm"), "bloom": ("bloom-560m-tiny", "lm"),
    "bert": ("bert-base-tiny", "classify"), "bert tags": ("bert-base-tiny", "tag"),
    "roberta": ("roberta-base-tiny", "classify"), "distilbert": ("distilbert-tiny", "classify"),
    "albert": ("albert-base-tiny", "classify"), "electra": ("electra-small-tiny", "classify"),
    "t5": ("t5-small-tiny", "translate"), "bart": ("bart-base-tiny", "translate"), "vit": ("vit-b16-tiny", "image"),
}  # fmt: skip


@pytest.mark.parametrize("case", RUNS)
def test_a_trained_run_goes_to_transformers(case: str, data: dict[str, Any], tmp_path: Path) -> None:
    preset, kind = RUNS[case]
    task = "classify" if kind == "image" else kind
    target = ["label"] if kind == "classify" else None
    run = anyformer.train([data[kind]], task, preset, target, out=tmp_path / "run", device="cpu", progress="silent",
                          settings=STEPS | HEADS.get(case, {}))  # fmt: skip
    predictor = anyformer.load(run.path)
    folder = predictor.export(tmp_path / "hf")
    with pytest.raises(UserError, match="not empty"):
        predictor.export(folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    with quietly():
        theirs, info = getattr(transformers, config.architectures[0]).from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    again = anyformer.load(folder)
    ids = torch.randint(3, 20, (2, 8), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        if isinstance(predictor.spec, Seq2Seq):
            answers = [their_answer(theirs.eval()(input_ids=ids, decoder_input_ids=ids))]
            answers += [one.model(ids, ids).logits for one in (predictor, again)]
        elif isinstance(predictor.spec.embed, Patches):
            pixels = torch.randn(2, 3, *predictor.spec.embed.pixels)
            answers = [theirs.eval()(pixel_values=pixels).logits]
            answers += [one.model(pixels).logits for one in (predictor, again)]
        else:
            answers = [their_answer(theirs.eval()(input_ids=ids))]
            answers += [one.model(ids).logits for one in (predictor, again)]
    for answer in answers[1:]:
        assert (answer - answers[0]).abs().max() <= 1e-5 * max(1.0, answers[0].abs().max().item())
    assert again.labels == predictor.labels or kind in ("lm", "translate")
    if predictor.tokenizer is not None:
        text = "red fox by the sea"
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        assert tokenizer(text)["input_ids"] == predictor.tokenizer.encode(text)


def test_what_no_family_has_is_refused_with_the_nearest_and_the_difference(tmp_path: Path) -> None:
    spec = anyformer.preset("distilbert-tiny").replace(head=anyformer.Pooled(classes=3, pool="mean"))
    with pytest.raises(UserError, match=r"the nearest, distilbert, does not fit: head\.pool is 'mean'"):
        save_foreign(tmp_path / "new", spec, spec.build(seed=0))
    assert not (tmp_path / "new").exists()


# ---------------------------------------------------------------- models in 8 bits


def test_a_model_in_8_bits_keeps_its_answers_through_a_state_dict_and_cannot_be_trained() -> None:
    spec, ids = anyformer.preset("gpt2-tiny"), torch.arange(12)[None]
    first, second = (quantise(spec.build(seed=seed)) for seed in (0, 1))
    assert not torch.equal(first(ids).logits, second(ids).logits)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(ids).logits, second(ids).logits)
    assert not any(parameter.requires_grad for parameter in first.parameters())
    with pytest.raises(RuntimeError, match="Missing key"):
        spec.build(seed=0).load_state_dict(first.state_dict())


def test_a_model_in_8_bits_is_not_changed() -> None:
    spec = anyformer.preset("gpt2-tiny")
    model = quantise(spec.build(seed=0))
    for change in (
        lambda: changes.fewer_layers(spec, model, [0]), lambda: changes.fewer_kv_heads(spec, model, 2),
        lambda: changes.longer(spec, model, 64), lambda: changes.other_position(spec, model, "rope"),
    ):  # fmt: skip
        with pytest.raises(UserError, match="in 8 bits cannot be changed"):
            change()
    images = anyformer.preset("vit-b16-tiny")
    with pytest.raises(UserError, match="in 8 bits cannot be changed"):
        changes.other_image_size(images, quantise(images.build(seed=0)), 64)
