"""Ids, texts and saved folders equal those of transformers' AutoTokenizer, for every form a tokenizer comes in."""

from __future__ import annotations

import gzip
import json
import lzma
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anyformer.data.tokenizers.files import read_pieces
from anyformer.data.tokenizers.folder import merges_of
from anyformer.data.tokenizers.tokenizer import Tokenizer, open_tokenizer, train_tokenizer
from tests.data.tokenizers.tokenizer_texts import SHARED, byte_bpe, corpus, pieces, texts, wordpieces, write

Files = dict[str, object]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
END = "<|endoftext|>"


def of(model_type: str, **settings: Any) -> Files:
    """config.json and, where there are settings, tokenizer_config.json."""
    return {"config.json": {"model_type": model_type}} | ({"tokenizer_config.json": settings} if settings else {})


def bpe(special: list[str], suffix: str = "") -> Files:
    vocab, merges = byte_bpe(tuple(special), suffix)
    return {"vocab.json": vocab, "merges.txt": merges}


def json_form(model_type: str, **settings: Any) -> Files:
    """A tokenizer.json with its own pipeline, of a word-piece kind that no class of transformers names."""
    words = train_tokenizer(corpus(), "unigram", 500, extra=["<new>"], add_bos=True, add_eos=True)
    return of(model_type, **settings) | {"tokenizer.json": words.core.to_str()}


def llama_json(**settings: Any) -> Files:
    """A tokenizer.json as published with Llama 2: bars by a normalizer, where its class has them by a pre-tokenizer."""
    from tokenizers import Tokenizer as Core
    from tokenizers import decoders, models, normalizers, processors

    names = [name for name, _ in read_pieces_of(llama_pieces())]
    vocab = {name: i for i, name in enumerate(names)}
    core = Core(models.BPE(vocab, merges_of(vocab), unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.post_processor = processors.TemplateProcessing("<s>:0 $A:0", "<s>:0 $A:0 <s>:1 $B:1", [("<s>", 1)])
    core.add_special_tokens(["<unk>", "<s>", "</s>"])
    return of("llama", **settings) | {"tokenizer.json": core.to_str()}


def bert_json(**settings: Any) -> Files:
    """A tokenizer.json that keeps case, under a class whose settings say whether to."""
    words = train_tokenizer(corpus(), "wordpiece", 400)
    return of("bert", **settings) | {"tokenizer.json": words.core.to_str()}


def t5_pieces() -> bytes:
    return pieces("unigram", vocab_size=205, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, character_coverage=0.98)


def albert_pieces() -> bytes:
    return pieces(
        "unigram", vocab_size=220, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols="[CLS],[SEP]",
        user_defined_symbols="[MASK]",
    )  # fmt: skip


def read_pieces_of(data: bytes) -> list[tuple[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        return read_pieces(write(Path(folder), {"m": data}), "m").pieces


def llama_pieces() -> bytes:
    return pieces(
        "bpe", vocab_size=800, byte_fallback=True, unk_id=0, bos_id=1, eos_id=2, pad_id=-1,
        normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True, character_coverage=0.98,
    )  # fmt: skip


ADDED = {"content": "<new>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
MASK = {"content": "<mask>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
FORMS: dict[str, Callable[[], Files]] = {
    "tokenizer.json": lambda: json_form("gpt2", tokenizer_class="PreTrainedTokenizerFast", eos_token="</s>"),
    "tokenizer.json without settings": lambda: json_form("bloom"),
    "tokenizer.json and special map": lambda: (
        json_form("llama", model_max_length=77, padding_side="left")
        | {"special_tokens_map.json": {"eos_token": "</s>", "pad_token": {**ADDED, "content": "special_word"}}}
    ),
    "tokenizer.json of Llama 2": lambda: llama_json(tokenizer_class="LlamaTokenizer", add_bos_token=True, legacy=False),
    "tokenizer.json of Llama 2, no class": lambda: llama_json(bos_token="<s>", eos_token="</s>"),
    "tokenizer.json of BERT": lambda: bert_json(tokenizer_class="BertTokenizer", do_lower_case=False),
    "tokenizer.json of BERT, no class": lambda: bert_json(),
    "bert": lambda: of("bert") | {"vocab.txt": wordpieces()},
    "bert, cased": lambda: (
        of("bert", tokenizer_class="BertTokenizer", do_lower_case=False, clean_up_tokenization_spaces=True)
        | {"vocab.txt": wordpieces()}
    ),
    "distilbert, accents": lambda: (
        of("distilbert", tokenizer_class="DistilBertTokenizer", strip_accents=False, tokenize_chinese_chars=False)
        | {"vocab.txt": wordpieces(), "added_tokens.json": {"special_word": 700, "<new>": 701}}
    ),
    "electra": lambda: of("electra", do_lower_case=True, model_max_length=512) | {"vocab.txt": wordpieces()},
    "gpt2": lambda: of("gpt2") | bpe([END]),
    "gpt2, begin token": lambda: (
        of("gpt2", tokenizer_class="GPT2Tokenizer", add_bos_token=True, add_prefix_space=True, pad_token="<new>")
        | bpe([END])
    ),
    "roberta": lambda: of("roberta") | bpe(ROBERTA),
    "roberta, mask takes the blank": lambda: of("roberta", mask_token={"__type": "AddedToken", **MASK}) | bpe(ROBERTA),
    "bart": lambda: of("bart", tokenizer_class="BartTokenizer", model_max_length=1024) | bpe(ROBERTA),
    "clip": lambda: of("clip") | bpe(["<|startoftext|>", END], "</w>"),
    "qwen2": lambda: (
        of("qwen2", tokenizer_class="Qwen2Tokenizer", additional_special_tokens=["<|im_start|>", "<|im_end|>"])
        | bpe([END])
    ),
    "gpt_neox": lambda: of("gpt_neox", add_bos_token=False) | bpe([END, "<|padding|>"]),
    "t5": lambda: of("t5") | {"spiece.model": t5_pieces()},
    "t5, ten sentinels": lambda: of("t5", tokenizer_class="T5Tokenizer", extra_ids=10) | {"spiece.model": t5_pieces()},
    "albert": lambda: of("albert") | {"spiece.model": albert_pieces()},
    "albert, cased": lambda: (
        of("albert", tokenizer_class="AlbertTokenizer", do_lower_case=False, keep_accents=True)
        | {"special_tokens_map.json": {"mask_token": {**MASK, "content": "[MASK]"}}}
        | {"spiece.model": albert_pieces()}
    ),
    "llama": lambda: (
        of("llama", tokenizer_class="LlamaTokenizer", add_bos_token=True, add_eos_token=False, legacy=False)
        | {"tokenizer.model": llama_pieces()}
    ),
    "llama, legacy": lambda: (
        of("llama", tokenizer_class="LlamaTokenizer", add_bos_token=True, add_eos_token=True, legacy=True)
        | {"special_tokens_map.json": {"pad_token": "</s>"}}
        | {"tokenizer.model": llama_pieces(), "added_tokens.json": {"<new>": 800}}
    ),
}  # fmt: skip


def unpacked(form: str) -> Files:
    """Published vocabularies, where the shared folder is there."""
    folder = SHARED / "data" / "tokenizers"
    if not folder.is_dir():
        pytest.skip("did not run: no folder shared/data/tokenizers beside the repository")
    if form == "bert":
        with lzma.open(folder / "bert_uncased" / "vocab.txt.xz") as file:
            return of("bert", do_lower_case=True) | {"vocab.txt": file.read()}
    if form == "clip":
        with gzip.open(folder / "clip_bpe" / "bpe_simple_vocab_16e6.txt.gz", "rt", encoding="utf-8") as file:
            merges = file.read().split("\n")[1 : 49152 - 256 - 2 + 1]
        letters = [chr(i) for i in [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]]
        names = [
            *letters,
            *(f"{x}</w>" for x in letters),
            *("".join(m.split()) for m in merges),
            "<|startoftext|>",
            END,
        ]
        return of("clip") | {"vocab.json": {n: i for i, n in enumerate(names)}, "merges.txt": "\n".join(merges) + "\n"}
    with lzma.open(folder / "gpt2_bpe" / "encoder.json.xz") as file:
        vocab = json.load(file)
    with lzma.open(folder / "gpt2_bpe" / "vocab.bpe.xz") as file:
        merges = file.read()
    if form == "roberta":
        vocab = {token: i + 4 for token, i in vocab.items()} | {
            "<s>": 0,
            "<pad>": 1,
            "</s>": 2,
            "<unk>": 3,
            "<mask>": 50264,
        }
    return of(form) | {"vocab.json": vocab, "merges.txt": merges}


def theirs(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def differences(ours: Tokenizer, other: Any, rows: list[str]) -> list[str]:
    """Texts whose ids, pairs or decoded texts differ."""
    few = rows[:300]
    his = other(rows)["input_ids"]
    wrong = [f"ids of {t!r}" for t, a, b in zip(rows, ours.encode_batch(rows), his, strict=True) if a != b]
    plain = ours.encode_batch(few, special=False), other(few, add_special_tokens=False)["input_ids"]
    wrong += [f"plain ids of {t!r}" for t, a, b in zip(few, *plain, strict=True) if a != b]
    pairs = list(zip(few, reversed(few), strict=True))
    together = other([a for a, _ in pairs], [b for _, b in pairs])["input_ids"]
    wrong += [f"pair {t!r}" for t, a, b in zip(pairs, ours.encode_batch(pairs), together, strict=True) if a != b]
    for ids in his[:300]:
        for skip in (True, False):
            if ours.decode(ids, skip_special=skip) != other.decode(ids, skip_special_tokens=skip):
                wrong.append(f"text of {ids[:20]}")
    return wrong


def check(files: Files, tmp_path: Path) -> None:
    rows = texts()
    assert len(rows) == 2000
    source, saved = write(tmp_path / "source", files), tmp_path / "saved"
    ours, other = open_tokenizer(source), theirs(source)
    assert ours is not None
    assert not differences(ours, other, rows)[:3]
    assert [ours.bos, ours.eos, ours.pad, ours.unk, ours.cls, ours.sep, ours.mask] == [
        other.bos_token_id, other.eos_token_id, other.pad_token_id, other.unk_token_id, other.cls_token_id,
        other.sep_token_id, other.mask_token_id,
    ]  # fmt: skip
    assert ours.padding_side == other.padding_side
    assert ours.max_length == (other.model_max_length if other.model_max_length < 1e20 else None)
    assert ours.size == max(other.get_vocab().values()) + 1
    # A saved folder, with the model's own config beside it: transformers and we read the same from it.
    ours.save(saved)
    (saved / "config.json").write_text(json.dumps(files["config.json"]), encoding="utf-8")
    reopened, again = theirs(saved), open_tokenizer(saved)
    assert again is not None
    assert not differences(ours, reopened, rows[:300])[:3]
    assert not differences(again, other, rows[:300])[:3]
    assert (again.roles, again.max_length, again.padding_side) == (ours.roles, ours.max_length, ours.padding_side)
    assert reopened.model_input_names == other.model_input_names or ours.form == "PreTrainedTokenizerFast"


def test_control_another_tokenizer_is_seen(tmp_path):
    other = theirs(write(tmp_path, FORMS["gpt2"]()))
    wrong = differences(train_tokenizer(corpus(), "byte", 300), other, texts()[:300])
    assert {line.split(" ")[0] for line in wrong} == {"ids", "plain", "pair", "text"}


@pytest.mark.parametrize("form", FORMS)
def test_ids_texts_and_saved_folders_equal_transformers(form, tmp_path):
    check(FORMS[form](), tmp_path)


@pytest.mark.parametrize("form", ["bert", "gpt2", "roberta", "clip"])
def test_published_vocabularies_equal_transformers(form, tmp_path):
    check(unpacked(form), tmp_path)


@pytest.mark.parametrize(
    "kind, vocab",
    [
        ("bpe", 400),
        ("char-bpe", 400),
        ("wordpiece", 400),
        ("unigram", 400),
        ("word", 300),
        ("char", 120),
        ("byte", 260),
    ],
)
def test_a_trained_tokenizer_opens_in_transformers_to_the_same_ids(kind, vocab, tmp_path):
    words = train_tokenizer(corpus(), kind, vocab, extra=["<new>"])
    words.save(tmp_path)
    rows = texts()[:700]
    assert not differences(words, theirs(tmp_path), rows)[:3]
    again = open_tokenizer(tmp_path)
    assert again is not None
    assert again.encode_batch(rows) == words.encode_batch(rows)
    assert (again.safe, again.roles, again.sha256) == (True, words.roles, words.sha256)
