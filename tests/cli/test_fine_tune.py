"""`train --from`: any folder that opens is trained on, through the same command, and so is a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import anyformer
from tests.cli import made
from tests.cli.trying import done, refused, run, standing_in, tree
from tests.families.parity import quietly, save

STILL = ["--progress", "none", "--steps", "3", "--json"]


def words_beside(folder: Path, kind: str, texts: list[str]) -> int:
    """A tokenizer trained on some texts, saved in the folder; its size."""
    from anyformer.data.tokenizers.tokenizer import train_tokenizer

    words = train_tokenizer(texts, kind, 300)
    folder.mkdir(parents=True, exist_ok=True)
    words.save(folder)
    return words.size


def bert(folder: Path) -> Path:
    from transformers import BertConfig, BertForMaskedLM

    size = words_beside(folder, "wordpiece", ["good film bad story great actor one two"] * 20)
    config = BertConfig(vocab_size=size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=64, max_position_embeddings=64)  # fmt: skip
    return save(BertForMaskedLM(config), folder)


def gpt2(folder: Path) -> Path:
    from transformers import GPT2Config, GPT2LMHeadModel

    size = words_beside(folder, "bpe", ["The good film was bad, said the story."] * 20)
    config = GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=size, n_positions=64)
    return save(GPT2LMHeadModel(config), folder)


def vit(folder: Path) -> Path:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    config = ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16,
                       patch_size=4, num_labels=7)  # fmt: skip
    save(ViTForImageClassification(config), folder)
    with quietly():
        ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)
    return folder


def t5(folder: Path) -> Path:
    from transformers import T5Config, T5ForConditionalGeneration

    size = words_beside(folder, "unigram", [" ".join([*made.NUMBERS, *made.NUMBERS.values()])] * 20)
    config = T5Config(vocab_size=size, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, pad_token_id=0,
                      decoder_start_token_id=0)  # fmt: skip
    return save(T5ForConditionalGeneration(config), folder)


FAMILIES: dict[str, tuple[Any, Any, list[str], str, str]] = {
    # folder, data, words, task, the name of a tensor that must come from the folder
    "BERT on a CSV": (bert, made.reviews, ["--target", "label"], "classify", "stack.blocks.0"),
    "BERT tags": (bert, made.tagged, [], "tag", "stack.blocks.0"),
    "GPT-2 on text": (gpt2, made.book, [], "lm", "stack.blocks.0"),
    "GPT-2 on a CSV": (gpt2, made.reviews, ["--target", "label"], "classify", "stack.blocks.0"),
    "ViT on photos": (vit, made.photos, [], "classify", "stack.blocks.0"),
    "T5 on pairs": (t5, made.pairs, ["--set", "objective.num_beams=1"], "translate", "encoder.stack.blocks.0"),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_of_hugging_face_is_fine_tuned(name: str, tmp_path: Path) -> None:
    make, data, words, task, part = FAMILIES[name]
    torch.manual_seed(0)
    folder = make(tmp_path / "model")
    path = data(tmp_path)
    slow = ["--set", "training.optimizer.lr=1e-9"]  # so that the weights can be recognised
    with standing_in(tmp_path):
        said = done("train", path.name, "--from", "model", "--out", "run", *words, *slow, *STILL)
    assert said.json["task"] == task and said.json["status"] == "done"
    before = {key: value for key, value in anyformer.load(folder).model.named_parameters() if key.startswith(part)}
    after = load_file(sorted((tmp_path / "run" / "checkpoints").iterdir())[-1] / "model.safetensors")
    assert before and all(torch.allclose(after[key], value, atol=1e-6) for key, value in before.items())
    assert "tensors start anew" in said.err
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert f"start: {(tmp_path / 'model').resolve()}" in config
    assert anyformer.load(tmp_path / "run").preprocess is not None


def test_a_run_is_trained_on_from_a_run(tmp_path: Path) -> None:
    made.reviews(tmp_path)
    with standing_in(tmp_path):
        done("train", "reviews.csv", "--out", "first", *STILL)
        said = done("train", "reviews.csv", "--from", "first", "--out", "second", *STILL)
        assert "; 0 tensors start anew" in said.err, said.err
        done("resume", "second")
    first, second = (json.loads((tmp_path / name / "data.json").read_text()) for name in ("first", "second"))
    assert first["tokenizer"]["sha256"] == second["tokenizer"]["sha256"]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    vit(tmp_path / "vit")
    bert(tmp_path / "bert")
    made.reviews(tmp_path)
    made.pairs(tmp_path)
    before = tree(tmp_path)
    with standing_in(tmp_path):
        for words in (["reviews.csv", "--from", "vit"], ["pairs.tsv", "--from", "bert"]):
            refused(run("train", *words, "--out", "run"), before, tmp_path)
