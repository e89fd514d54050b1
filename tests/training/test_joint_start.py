"""Fine-tuning on images beside text: what was trained on one, the other or both goes on where the data has it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertForMaskedLM, VisualBertConfig, VisualBertForPreTraining

from anyformer import load
from tests.cli import made
from tests.cli.trying import done, run, standing_in
from tests.training.tiny import differing

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
LABEL = ["--target", "label", "--types", "text=text", "--lr", "1e-12", "--steps", "1", "--progress", "none"]
BOTH = ["--task", "image-text", "--inputs", "image", "--inputs", "text", "--types", "text=text", "--progress", "none"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """colours.csv and its columns alone, and folders that were trained on words, or on words and regions."""
    folder = tmp_path_factory.mktemp("joint")
    with made.colours(folder, 80).open() as file:
        rows = list(csv.DictReader(file))
    for kept in ("image", "text"):
        made.table(folder / f"{kept}.csv", [kept, "label"], [[row[kept], row["label"]] for row in rows])
    words = sorted({word for row in rows for word in row["text"].split()})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    torch.manual_seed(0)
    sizes = {**SIZES, "vocab_size": len(vocabulary) + 3, "max_position_embeddings": 24}  # some rows of the table unused
    BertForMaskedLM(BertConfig(**sizes)).save_pretrained(folder / "bert")
    visual = VisualBertConfig(**sizes, visual_embedding_dim=24)
    VisualBertForPreTraining(visual).save_pretrained(folder / "visual")
    VisualBertForPreTraining(visual).save_pretrained(folder / "no-words")
    for name in ("bert", "visual"):
        (folder / name / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    with standing_in(folder):
        done("train", "colours.csv", *BOTH, "--steps", "2", "--out", "own", "--set", "model.stack.width=64")
    return folder


def started(home: Path, out: str, data: str, start: str, *more: str) -> tuple[dict[str, torch.Tensor], str]:
    """The weights that a run began with, and what it said."""
    with standing_in(home):
        said = done("train", data, "--from", start, "--out", out, *(more or LABEL))
        return load_file(home / out / "start.safetensors"), said.err


def theirs(home: Path, name: str) -> dict[str, torch.Tensor]:
    return load_file(home / name / "model.safetensors")


def test_a_visualbert_folder_starts_a_classifier_of_images_and_text(home: Path) -> None:
    """Its words, positions, segments, norm and layers go on; regions of a detector give way to pixels."""
    weights, _ = started(home, "seen", "colours.csv", "visual")
    before = theirs(home, "visual")
    embeddings = "visual_bert.embeddings."
    for ours, name in (
        ("parts.0.table.weight", "word_embeddings.weight"),
        ("parts.0.position.table.weight", "position_embeddings.weight"),
        ("parts.0.segment.weight", "token_type_embeddings.weight"),
        ("norm.weight", "LayerNorm.weight"),
    ):
        assert torch.equal(weights[f"embed.{ours}"], before[embeddings + name]), ours
    assert sum(name.startswith("stack.blocks.") for name in weights) == 2 * 16 - 8  # q, k and v are one
    assert not any(name.startswith("embed.parts.1.") for name in weights)  # nothing of regions is taken for pixels
    with standing_in(home):
        judged = done("evaluate", "seen", "colours.csv", "--json").json
        assert judged["rows"] == 80 and 0 <= judged["accuracy"] <= 1
        row = {"image": "plain/0.png", "text": "this picture is red here"}
        assert load("seen").predict([row])[0] in ("warm", "cold")


def test_a_visualbert_folder_is_pretrained_further(home: Path) -> None:
    weights, _ = started(home, "further", "colours.csv", "visual", *BOTH, "--steps", "1")
    before = theirs(home, "visual")
    assert torch.equal(weights["head.words.dense.weight"], before["cls.predictions.transform.dense.weight"])
    assert "embed.parts.1.patch.weight" not in weights


@pytest.mark.parametrize("task", [LABEL, [*BOTH, "--steps", "1"]], ids=["label", "image-text"])
def test_words_of_a_text_model_go_on_beside_images(home: Path, task: list[str]) -> None:
    weights, _ = started(home, f"beside-{len(task)}", "colours.csv", "bert", *task)
    before = theirs(home, "bert")
    assert torch.equal(weights["embed.parts.0.table.weight"], before["bert.embeddings.word_embeddings.weight"])
    assert torch.equal(
        weights["embed.parts.0.position.table.weight"], before["bert.embeddings.position_embeddings.weight"]
    )
    if "head.words.dense.weight" in weights:
        transform = before["cls.predictions.transform.dense.weight"]
        assert torch.equal(weights["head.words.dense.weight"], transform)


@pytest.mark.parametrize(("column", "part"), [("text", 0), ("image", 1)])
def test_one_side_alone_goes_on_from_both(home: Path, column: str, part: int) -> None:
    label = [*LABEL[:2], "--types", f"{column}={column}", *LABEL[4:]]
    weights, said = started(home, f"only-{column}", f"{column}.csv", "own", *label)
    own = load(home / "own").model.state_dict()
    sides = {name: value for name, value in weights.items() if name.startswith("embed.")}
    assert sides and all(
        torch.equal(value, own[name.replace("embed.", f"embed.parts.{part}.", 1)]) for name, value in sides.items()
    )
    assert "2 tensors start anew (head.out" in said


def test_the_norm_of_all_parts_is_the_one_of_the_words_alone(home: Path) -> None:
    weights, _ = started(home, "read", "text.csv", "visual")
    assert torch.equal(weights["embed.norm.weight"], theirs(home, "visual")["visual_bert.embeddings.LayerNorm.weight"])


def test_a_joint_start_resumes_in_the_same_bits(home: Path) -> None:
    settings = ("save_every=2", "eval_every=2", "threads=1", "schedule={type: Constant, warmup: 0.0}")
    few = [word for setting in settings for word in ("--set", f"training.{setting}")]
    with standing_in(home):
        for out, steps, seed in (("whole", "4", "0"), ("parts", "2", "0"), ("other", "4", "1")):
            done("train", "colours.csv", "--target", "label", "--types", "text=text", "--from", "visual", "--steps",
                 steps, "--seed", seed, "--out", out, "--progress", "none", *few)  # fmt: skip
        done("resume", "parts", "--set", "training.steps=4", "--allow-change", "steps", "--quiet")
    assert differing(home / "parts", home / "whole") == []
    assert differing(home / "other", home / "whole")  # control


def test_a_table_of_words_needs_its_tokenizer(home: Path) -> None:
    """A tokenizer trained on the data would look up other words' rows, or rows that are not there."""
    with standing_in(home):
        for data in ("colours.csv", "text.csv"):
            said = run("train", data, "--from", "no-words", "--out", "none", *LABEL)
            assert said.code == 2 and "the folder has no tokenizer" in said.errors[0]
            assert "data.tokenizer.folder" in said.errors[0]
        done("train", "colours.csv", "--from", "no-words", "--out", "given", *LABEL,
             "--set", "data.tokenizer.folder=visual")  # fmt: skip


def test_a_tokenizer_of_more_tokens_than_the_table_is_told(home: Path) -> None:
    text = [f"word{number} stands here" for number in range(80)]
    made.table(home / "many.csv", ["text", "label"], [[line, str(at % 2)] for at, line in enumerate(text)])
    with standing_in(home):
        done("train", "many.csv", "--target", "label", "--types", "text=text", "--steps", "1", "--out", "many",
             "--progress", "none")  # fmt: skip
        said = run("train", "colours.csv", "--from", "no-words", "--out", "wide", *LABEL,
                   "--set", "data.tokenizer.folder=many/data")  # fmt: skip
    assert said.code == 2 and "the trained table" in said.errors[0]


def test_a_model_that_does_not_fit_is_named_as_the_start(home: Path) -> None:
    with standing_in(home):
        said = run("train", "colours.csv", "--task", "translate", "--target", "text", "--inputs", "image",
                   "--from", "bert", "--out", "none")  # fmt: skip
    assert said.code == 2 and said.errors[0].startswith("error: --from: the model bert has no encoder and decoder")
