"""The page on serving beyond one machine: what it says of exports is tried, its table is that of the families."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer
from anyformer.data.tokenizers.tokenizer import train_tokenizer
from anyformer.errors import UserError
from anyformer.families import FAMILIES
from tests.cli import made
from tests.cli.trying import done, standing_in
from tests.families.parity import quietly

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "scale-serving.md"
TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}<s>assistant:"
# Of our architectures, those that the tables of vLLM's pages name at the commit which the page quotes.
LISTED = {
    "ArceeForCausalLM", "BloomForCausalLM", "GPT2LMHeadModel", "GPTNeoXForCausalLM", "LlamaForCausalLM",
    "MistralForCausalLM", "MixtralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",  # texts
    "BertModel", "CLIPModel", "RobertaModel", "BertForSequenceClassification", "RobertaForSequenceClassification",
    "BertForTokenClassification", "RobertaForTokenClassification",  # vectors, scores, tags
}  # fmt: skip
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODERS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "llama": {**SMALL, "num_key_value_heads": 2, "intermediate_size": 48},
    "mistral": {**SMALL, "num_key_value_heads": 2, "intermediate_size": 48, "sliding_window": 8},
    "qwen2": {**SMALL, "num_key_value_heads": 2, "intermediate_size": 48},
    "qwen3": {**SMALL, "num_key_value_heads": 2, "intermediate_size": 48, "head_dim": 8},
    "arcee": {**SMALL, "num_key_value_heads": 2, "intermediate_size": 48},
    "mixtral": {**SMALL, "num_key_value_heads": 2, "intermediate_size": 48, "num_local_experts": 4},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "gpt_neox": {**SMALL, "intermediate_size": 48},
}


def rows() -> list[tuple[str, str, str]]:
    found = re.findall(r"^\| (\w+) \| `(\w+)` \| (.*?) \|$", PAGE.read_text(encoding="utf-8"), re.M)
    assert len(found) > 20
    return found


def test_the_table_names_every_family_and_what_is_written() -> None:
    table = rows()
    assert {family for family, _, _ in table} == set(FAMILIES)
    for family, architecture, listed in table:
        assert architecture in FAMILIES[family].heads, (family, architecture)
        assert listed.startswith("yes" if architecture in LISTED else "no"), (architecture, listed)
    named = {architecture for _, architecture, _ in table}
    writers = {family.architecture("lm") for family in FAMILIES.values() if "lm" in family.kinds}
    assert writers <= named and named >= LISTED
    text = PAGE.read_text(encoding="utf-8")
    assert "a014e35f38c" in text and "Not run: vLLM itself" in text


def theirs(kind: str, folder: Path) -> Path:
    """A decoder as others write it, with a tokenizer, a template and settings of its own."""
    from transformers import AutoConfig, AutoModelForCausalLM

    words = train_tokenizer(["Once upon a time there was a rose. " * 20], "bpe", 300,
                            special={"bos": "<s>", "eos": "</s>", "pad": "<pad>"})  # fmt: skip
    ids = {"vocab_size": words.size, "bos_token_id": words.bos, "eos_token_id": words.eos, "pad_token_id": words.pad}
    torch.manual_seed(0)
    with quietly():
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **DECODERS[kind], **ids))
        model.save_pretrained(folder)
    words.save(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [words.eos, 7], "pad_token_id": words.pad, "top_k": 17, "temperature": 0.5,
                    "do_sample": True, "repetition_penalty": 1.25}))  # fmt: skip
    return folder


def compared(folder: Path, made_here: Path) -> tuple[Any, Any]:
    """Ours and theirs agree on tokens and greedy text; both are handed back for more."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ours = anyformer.load(folder)
    with quietly():
        model = AutoModelForCausalLM.from_pretrained(made_here).eval()
        words = AutoTokenizer.from_pretrained(made_here)
    for text in ("Once upon a rose", "a time. There", "häh? \n\n 1"):
        ids = ours.require_tokenizer().encode(text)
        assert words(text).input_ids == ids and words.decode(ids) == ours.require_tokenizer().decode(
            ids, skip_special=False
        )
        given = torch.tensor([ids])
        settings = {"max_new_tokens": 16, "do_sample": False, "temperature": 1.0, "top_k": None}
        with quietly():
            wanted = model.generate(given, attention_mask=torch.ones_like(given), **(settings | {"top_k": 50}))
        assert ours.generate(given, **settings).tolist() == wanted.tolist(), text
    return ours, (model, words)


@pytest.mark.parametrize("kind", DECODERS)
def test_a_decoder_that_is_exported_writes_the_same_in_transformers(kind: str, tmp_path: Path) -> None:
    source = theirs(kind, tmp_path / "theirs")
    done("convert", source, tmp_path / "out", "--to", "hf", "--quiet")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (kind, config["architectures"][0]) in {(family, name) for family, name, _ in rows()}
    ours, (model, words) = compared(source, tmp_path / "out")
    kept = model.generation_config
    assert kept.eos_token_id == [ours.require_tokenizer().eos, 7] and (kept.top_k, kept.temperature) == (17, 0.5)
    assert kept.do_sample and kept.repetition_penalty == 1.25
    said = words.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert said == "<s>user: Hi</s><s>assistant:" and ours.require_tokenizer().chat_template == TEMPLATE


def test_the_comparison_notices_other_weights(tmp_path: Path) -> None:
    """The control: the same export with one tensor changed writes another text."""
    from safetensors.torch import load_file, save_file

    source = theirs("llama", tmp_path / "theirs")
    done("convert", source, tmp_path / "out", "--to", "hf", "--quiet")
    file = tmp_path / "out" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].flip(0) * torch.linspace(-2, 2, 32)
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(AssertionError):
        compared(source, tmp_path / "out")


@pytest.mark.parametrize(("words", "architecture", "act"), [
    ([], "ArceeForCausalLM", "gelu_new"), (["--set", "model.stack.block.feed.act=relu2"], "ArceeForCausalLM", "relu2"),
    (["--preset", "gpt2-tiny"], "GPT2LMHeadModel", None), (["--preset", "llama3-8b-tiny"], "LlamaForCausalLM", "silu"),
], ids=str)  # fmt: skip
def test_a_run_on_text_goes_by_the_page(words: list[str], architecture: str, act: str | None, tmp_path: Path) -> None:
    made.book(tmp_path)
    (command,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    line = [{"RUN": "run", "DST": "dst"}.get(word, word) for word in shlex.split(command, comments=True)[1:]]
    with standing_in(tmp_path):
        done("train", "book.txt", "--out", "run", "--steps", "3", "--quiet", "--progress", "none",
             "--set", "data.tokenizer.max_length=32", *words)  # fmt: skip
        done(*line)
    config = json.loads((tmp_path / "dst" / "config.json").read_text())
    assert config["architectures"] == [architecture] and config.get("hidden_act") == act
    ours, (model, _) = compared(tmp_path / "run", tmp_path / "dst")
    words_here = ours.require_tokenizer()
    assert config["eos_token_id"] == words_here.eos and config["pad_token_id"] == words_here.pad
    assert config.get("max_position_embeddings", config.get("n_positions")) >= 32
    assert model.config.eos_token_id == words_here.eos and model.config.vocab_size == words_here.size


def test_what_no_family_has_is_said_with_the_way_out(tmp_path: Path) -> None:
    from anyformer.checkpoints.folder import as_family

    for name in ("encoder-mini", "translator-mini", "vit-mini", "ft-transformer", "lstm-lm", "resnet-50"):
        with pytest.raises(UserError, match="no family there has this network") as told:
            as_family(anyformer.preset(name), {})
        assert len(f"error: {told.value.line}") <= 300 and "--to anyformer" in told.value.line
        assert "gpt2" in told.value.line
