"""What a tokenizer promises: nothing lost, nothing smuggled in, the same each time, plain words about bad files."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anyformer.data.tokenizers.files import read_pieces
from anyformer.data.tokenizers.tokenizer import Tokenizer, open_tokenizer, train_tokenizer
from anyformer.data.tokenizers.training import byte_name
from anyformer.errors import UserError
from tests.data.tokenizers.tokenizer_texts import SHARED, byte_bpe, corpus, pieces, texts, wordpieces, write

KINDS = {"bpe": 400, "char-bpe": 400, "wordpiece": 400, "unigram": 400, "word": 300, "char": 120, "byte": 260}
END = "<|endoftext|>"


@pytest.fixture(scope="module")
def trained() -> dict[str, Tokenizer]:
    # Look-alikes in the training text: a piece that grew into a special token would have its id.
    rows = corpus() + ["<s> hello </s> <pad> <new> [CLS] [SEP]"] * 50
    return {kind: train_tokenizer(rows, kind, vocab, extra=["<new>"]) for kind, vocab in KINDS.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder to break."""
    words = train_tokenizer(corpus(), "unigram", 300, add_eos=True)
    words.save(tmp_path_factory.mktemp("tokenizer"))
    return tmp_path_factory.getbasetemp() / "tokenizer0"


def special_ids(words: Tokenizer) -> set[int]:
    return {i for i, token in words.engine.added().items() if token.special}


# --- training -------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=60) | st.text(st.sampled_from("<s>/pad|new \n\t\x00é👍"), max_size=40))
def test_byte_level_gives_back_any_text(trained, text):
    for kind in ("bpe", "byte"):
        words = trained[kind]
        ids = words.encode(text)
        assert words.decode(ids) == text
        assert not special_ids(words) & set(ids)


def test_characters_and_odd_texts_come_back(trained):
    for text in texts():
        assert trained["bpe"].decode(trained["bpe"].encode(text)) == text
    known = "".join(sorted(set("".join(corpus()))))
    words = train_tokenizer(corpus(), "char", 1000)
    assert words.decode(words.encode(known)) == known


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_never_come_out_of_a_text(trained, kind):
    words = trained[kind]
    allowed = {words.unk}
    names = [words.token(i) for i in special_ids(words)]
    rng = random.Random(1)
    rows = [*names, *texts(), *("".join(rng.choice([*names, " ", "x"]) for _ in range(8)) for _ in range(300))]
    for text, ids in zip(rows, words.encode_batch(rows, special=False), strict=True):
        assert not (special_ids(words) - allowed) & set(ids), text
    # Control: asked to, the same tokenizer does read them.
    seen = {i for row in words.encode_batch(names, special=False, safe=False) for i in row}
    assert special_ids(words) <= seen


def test_safe_reading_of_published_tokenizers(tmp_path):
    """Unigram models hold their special tokens as pieces, and would find them in any text."""
    spm = pieces("unigram", vocab_size=205, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, character_coverage=0.98)
    vocab, merges = byte_bpe((END,))
    for name, files in {
        "t5": {"spiece.model": spm},
        "gpt2": {"vocab.json": vocab, "merges.txt": merges},
        "bert": {"vocab.txt": wordpieces()},
    }.items():
        words = open_tokenizer(write(tmp_path / name, {"config.json": {"model_type": name}, **files}))
        assert words is not None
        around = words.encode("")
        token = words.roles["eos" if name != "bert" else "sep"]
        text = f"the {token} quick{token}{token.upper()} fox"
        assert words.engine.id_of(token) in words.encode(text)[: -1 if around else None]
        safe = words.encode(text, safe=True)
        count = sum(i in special_ids(words) - {words.unk if name != "gpt2" else None} for i in safe)
        assert count == len(around)
        pair = words.encode(text, text, safe=True)
        assert [i for i in pair if i in around] == [i for i in words.encode("a", "b") if i in around]
        plain = "the quick fox"
        assert words.encode(plain, safe=True) == words.encode(plain)
        if name == "gpt2":
            assert words.decode(safe, skip_special=False) == text


def test_training_gives_the_same_tokenizer_in_every_process(trained):
    code = (
        "from tests.data.tokenizers.test_tokenizer import KINDS, corpus\n"
        "from anyformer.data.tokenizers.tokenizer import train_tokenizer\n"
        "rows = corpus() + ['<s> hello </s> <pad> <new> [CLS] [SEP]'] * 50\n"
        "print({k: train_tokenizer(iter(rows), k, v, extra=['<new>']).sha256 for k, v in KINDS.items()})"
    )
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONHASHSEED": "7", "TOKENIZERS_PARALLELISM": "true", "PYTHONPATH": str(root)}
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, env=environment)
    assert other.stdout.strip() == str({kind: words.sha256 for kind, words in trained.items()}), other.stderr
    changed = train_tokenizer([*corpus(), "zebra zebra zebra"], "word", 300, extra=["<new>"])
    assert changed.sha256 != trained["word"].sha256  # control


def test_kinds_cut_as_they_are_named():
    rows = ["low lower lowest newer wider"] * 5
    words = {kind: train_tokenizer(rows, kind, 300) for kind in KINDS}
    cut = {kind: [w.token(i) for i in w.encode("lower x", special=False)] for kind, w in words.items()}
    assert cut["char"] == ["l", "o", "w", "e", "r", " ", "<unk>"]
    assert cut["word"] == ["lower", "<unk>"]
    assert cut["wordpiece"] == ["lower", "[UNK]"]
    assert cut["bpe"] == ["low", "er", "Ġ", "x"]
    assert cut["char-bpe"] == ["▁lower", "▁", "<unk>"]
    assert cut["unigram"][0] == "▁lower"
    assert words["byte"].encode("aé\x00", special=False) == [3 + b for b in "aé\x00".encode()]
    assert sorted(byte_name(b) for b in range(256)) == sorted({byte_name(b) for b in range(256)})
    lower = train_tokenizer(rows, "wordpiece", 300, lower=True)
    assert lower.encode("LOWER") == lower.encode("lower")


def test_a_first_word_is_written_like_any_other_with_a_leading_blank() -> None:
    rows = ["film after film, after all"] * 5
    blank, plain = (train_tokenizer(rows, "bpe", 300, leading_blank=on) for on in (True, False))
    whole = blank.encode("after film", special=False)
    assert whole == blank.encode(" after film", special=False) and len(whole) == 2
    assert whole[1:] == blank.encode("film", special=False)
    assert plain.encode("film", special=False) != plain.encode(" film", special=False)  # control
    words, places = blank.encode_with_offsets(["film, all"])[0]
    assert next((a, b) for a, b in places if b > a) == (0, 4) and words  # places are those of the text as it is


def test_begin_and_end_tokens_are_put_as_asked():
    words = train_tokenizer(corpus(), "bpe", 300, add_bos=True, add_eos=True, max_length=32)
    assert (words.encode("")[0], words.encode("x")[-1], words.max_length) == (words.bos, words.eos, 32)
    assert words.encode("x", special=False) == words.encode("x")[1:-1]
    assert words.encode("x", "y") == words.encode("x") + words.encode("y")
    bert = train_tokenizer(corpus(), "wordpiece", 300)
    assert bert.encode("the", "fox") == [bert.cls, *bert.encode("the", special=False), bert.sep,
                                         *bert.encode("fox", special=False), bert.sep]  # fmt: skip


@pytest.mark.parametrize("arguments, words", [
    ({"kind": "bpx"}, "did you mean 'bpe'"),
    ({"vocab": 100}, "at least 259"),
    ({"kind": "word", "special": {"pad": "<pad>"}}, "without an unknown token"),
    ({"special": {"begin": "<s>"}}, "no special role 'begin'"),
    ({"special": {"pad": "<pad>"}, "add_bos": True}, "add_bos without a bos token"),
    ({"extra": [""]}, "empty"),
    ({"texts": "one string"}, "give a list"),
    ({"texts": ["a", 3]}, "text 1 is int"),
    ({"texts": ["a\ud800"]}, "lone surrogate"),
])  # fmt: skip
def test_wrong_requests_are_refused(arguments, words):
    given_ = {"texts": ["some text"], "kind": "bpe", "vocab": 300, **arguments}
    with pytest.raises(UserError, match=words):
        train_tokenizer(given_.pop("texts"), given_.pop("kind"), given_.pop("vocab"), **given_)


# --- use ------------------------------------------------------------------------------------------------------------


def test_batches_are_padded_on_either_side(trained):
    words = trained["bpe"]
    rows = ["the quick fox", "", "a lazy dog's tail"]
    lists = words.encode_batch(rows)
    for side in ("left", "right"):
        ids, mask = words.batch(rows, side=side, device="cpu")
        assert ids.shape == mask.shape == (3, max(map(len, lists)))
        assert (ids.dtype, mask.dtype) == (torch.long, torch.bool)
        assert [row[keep].tolist() for row, keep in zip(ids, mask, strict=True)] == lists
        assert (ids[~mask] == words.pad).all()
        edge = mask[:, -1] if side == "left" else mask[:, 0]
        assert edge.tolist() == [True, False, True]
    assert words.batch([])[0].shape == (0, 0)
    assert words.batch(rows)[1].tolist() == words.batch(rows, side="right")[1].tolist()
    with pytest.raises(UserError, match="'left' or 'right'"):
        words.batch(rows, side="up")


def test_tokens_by_id_and_wrong_input(trained):
    words = trained["bpe"]
    assert words.token(words.pad) == "<pad>"
    assert words.size == 400
    for number in (-1, 400, 2**40):
        with pytest.raises(UserError, match="ids go from 0 to 399"):
            words.token(number)
    with pytest.raises(UserError, match="lone surrogate"):
        words.encode("a\udfffb")
    with pytest.raises(UserError, match="text 1 is NoneType"):
        words.encode_batch(["a", None])
    with pytest.raises(UserError, match="whole numbers"):
        words.decode([-1])
    assert words.encode_batch(["x", ("x", "y")])[0] == words.encode("x")


def test_settings_of_a_folder_are_kept(tmp_path):
    vocab, merges = byte_bpe((END,))
    files = {
        "config.json": {"model_type": "gpt2"}, "vocab.json": vocab, "merges.txt": merges,
        "chat_template.jinja": "{{ x }}",
        "tokenizer_config.json": {
            "model_max_length": 1024, "padding_side": "left", "chat_template": "old", "image_token": "<image>",
            "auto_map": {"AutoTokenizer": ["evil.py"]}, "extra_special_tokens": ["<tool>"], "pad_token": None,
        },
    }  # fmt: skip
    words = open_tokenizer(write(tmp_path / "a", files))
    assert words is not None
    assert (words.max_length, words.padding_side, words.chat_template, words.pad) == (1024, "left", "{{ x }}", None)
    words.save(tmp_path / "b")
    again = open_tokenizer(tmp_path / "b")
    assert again is not None
    assert (again.max_length, again.padding_side, again.chat_template, again.pad) == (1024, "left", "{{ x }}", None)
    assert again.encode("<image><tool>") == words.encode("<image><tool>") == [words.size - 2, words.size - 1]
    saved = json.loads((tmp_path / "b" / "tokenizer_config.json").read_text())
    assert "auto_map" not in saved  # it names code
    several = {"chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]}
    words = open_tokenizer(
        write(tmp_path / "c", {**files, "tokenizer_config.json": several, "chat_template.jinja": ""})
    )
    assert words is not None
    assert words.chat_template == ""


def test_llama_pieces_are_cut_as_sentencepiece_cuts_them(tmp_path):
    """Mistral's old folders name no class that reads them; the yardstick is the model's own library."""
    import sentencepiece

    model = pieces(
        "bpe", vocab_size=800, byte_fallback=True, unk_id=0, bos_id=1, eos_id=2, pad_id=-1, character_coverage=0.98,
        normalization_rule_name="identity", remove_extra_whitespaces=False,
    )  # fmt: skip
    words = open_tokenizer(write(tmp_path, {"tokenizer.model": model, "config.json": {"model_type": "mistral"}}))
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert words is not None
    names = (
        "<s>",
        "</s>",
        "<unk>",
        "▁",
        "\x00",
    )  # there the two differ by design: special tokens, bars, a first blank, end of string
    rows = [text for text in texts() if text[:1].strip(" ") and not any(name in text for name in names)]
    assert len(rows) > 1000
    assert words.encode_batch(rows, special=False) == library.encode(rows)
    assert (words.bos, words.eos, words.unk) == (1, 2, 0)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_marian_reads_one_language_and_writes_another(tmp_path):
    from transformers import AutoTokenizer

    source, target = (pieces("unigram", vocab_size=size, pad_id=-1, character_coverage=0.98) for size in (190, 205))
    names = [
        name for data in (source, target) for name, _ in read_pieces(write(tmp_path / "x", {"m": data}), "m").pieces
    ]
    vocab = {name: i for i, name in enumerate(dict.fromkeys(["</s>", "<unk>", *names, ">>fr<<", "<pad>"]))}
    files = {
        "source.spm": source, "target.spm": target, "vocab.json": vocab, "config.json": {"model_type": "marian"},
        "tokenizer_config.json": {"source_lang": "en", "target_lang": "fr"},
    }  # fmt: skip
    ours, theirs = open_tokenizer(write(tmp_path / "a", files)), AutoTokenizer.from_pretrained(tmp_path / "a")
    assert ours is not None
    ours.save(tmp_path / "b")
    (tmp_path / "b" / "config.json").write_text('{"model_type": "marian"}')
    again, reopened = open_tokenizer(tmp_path / "b"), AutoTokenizer.from_pretrained(tmp_path / "b")
    assert again is not None
    rows = [">>fr<< the fox", *texts()[:600]]
    expected = theirs(rows)["input_ids"]
    assert ours.encode_batch(rows) == again.encode_batch(rows) == reopened(rows)["input_ids"] == expected
    assert ours.target.encode_batch(rows) == theirs(text_target=rows)["input_ids"]
    assert ours.target.encode_batch(rows) != expected  # control: two languages, two models
    assert (ours.eos, ours.pad, ours.unk, ours.max_length) == (0, len(vocab) - 1, 1, 512)
    for ids in expected:
        for skip in (True, False):
            assert ours.decode(ids, skip_special=skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert ours.eos not in ours.encode("a </s> b", safe=True)[:-1]


def test_published_albert_vocabulary(caplog):
    path = SHARED / "data" / "weights" / "albert_rxnmapper"
    if not path.is_dir():
        pytest.skip("did not run: no folder shared/data/weights/albert_rxnmapper beside the repository")
    # An ALBERT with a vocabulary of molecules, which no tokenizer of its class reads: the model opens without one.
    assert open_tokenizer(path) is None
    assert "vocab.txt is not a AlbertTokenizer" in caplog.text


def test_importing_brings_no_heavy_library():
    heavy = "{'transformers', 'sentencepiece', 'google'}"
    code = f"import sys, anyformer.data.tokenizers.tokenizer; print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


# --- folders that are broken or hostile -----------------------------------------------------------------------------


def test_a_folder_without_a_tokenizer(tmp_path):
    assert open_tokenizer(tmp_path) is None
    assert open_tokenizer(write(tmp_path, {"config.json": {"model_type": "vit"}, "tokenizer_config.json": {}})) is None


GOOD = json.loads(train_tokenizer(["a b c"], "char", 20).core.to_str())
BROKEN: dict[str, dict[str, Any]] = {
    "empty": {"tokenizer.json": ""},
    "no JSON": {"tokenizer.json": "{"},
    "a list": {"tokenizer.json": []},
    "not UTF-8": {"tokenizer.json": b"\xff\xfe{}"},
    "deep": {"tokenizer.json": '{"a":' * 100_000},
    "no model": {"tokenizer.json": {"version": "1.0"}},
    "unknown model": {"tokenizer.json": {**GOOD, "model": {"type": "Evil", "vocab": {}}}},
    "no unknown": {"tokenizer.json": {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 9}}},
    "merge outside": {"tokenizer.json": {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}},
    "character map": {
        "tokenizer.json": {**GOOD, "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAAECAwQFBg=="}}
    },
    "template": {"tokenizer.json": {**GOOD, "post_processor": {"type": "TemplateProcessing", "single": [], "pair": 3}}},
    "prefix": {
        "tokenizer.json": {
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"], "continuing_subword_prefix": "####"}
        }
    },
    "regex": {
        "tokenizer.json": {**GOOD, "normalizer": {"type": "Replace", "pattern": {"Regex": "("}, "content": ""}}
    },
    "added tokens": {"tokenizer.json": {**GOOD, "added_tokens": [{"id": "x"}]}},
    "bad settings": {"tokenizer.json": GOOD, "tokenizer_config.json": "{"},
    "settings as a list": {"tokenizer.json": GOOD, "tokenizer_config.json": []},
    "role is a number": {"tokenizer.json": GOOD, "tokenizer_config.json": {"eos_token": 7}},
    "extra is a string": {"tokenizer.json": GOOD, "tokenizer_config.json": {"additional_special_tokens": "x"}},
    "decoder ids": {"tokenizer.json": GOOD, "tokenizer_config.json": {"added_tokens_decoder": {"x": {"content": "a"}}}},
    "decoder tokens": {"tokenizer.json": GOOD, "tokenizer_config.json": {"added_tokens_decoder": {"1": "a"}}},
    "side": {"tokenizer.json": GOOD, "tokenizer_config.json": {"padding_side": "top"}},
    "split flag": {"tokenizer.json": GOOD, "tokenizer_config.json": {"split_special_tokens": "yes"}},
    "class for another model": {"tokenizer.json": GOOD, "tokenizer_config.json": {"tokenizer_class": "T5Tokenizer"}},
    "lower-case flag": {"vocab.txt": "[UNK]\na", "tokenizer_config.json": {"do_lower_case": "no"}},
    "vocabulary in Latin-1": {"vocab.txt": b"[UNK]\n\xe9"},
    "no class": {"vocab.json": {"a": 0}, "merges.txt": ""},
    "class that is not read": {"vocab.json": {}, "merges.txt": "", "tokenizer_config.json": {"tokenizer_class": "Xyz"}},
    "vocabulary missing": {"merges.txt": "", "config.json": {"model_type": "gpt2"}},
    "ids are strings": {"vocab.json": {"a": "0"}, "merges.txt": "", "config.json": {"model_type": "gpt2"}},
    "ids below 0": {"vocab.json": {"a": -1}, "merges.txt": "", "config.json": {"model_type": "gpt2"}},
    "merges of three": {"vocab.json": {"a": 0}, "merges.txt": "a b c", "config.json": {"model_type": "gpt2"}},
    "merges unknown": {"vocab.json": {"a": 0}, "merges.txt": "a b", "config.json": {"model_type": "gpt2"}},
    "no pieces": {"spiece.model": b"", "config.json": {"model_type": "t5"}},
    "text for pieces": {"tokenizer.model": "IQ== 0\nIg== 1\n", "config.json": {"model_type": "llama"}},
    "pieces cut off": {"spiece.model": b"\x0a\xff\x01abc", "config.json": {"model_type": "t5"}},
    "endless number": {"spiece.model": b"\xff" * 50, "config.json": {"model_type": "t5"}},
    "sentinels": {
        "spiece.model": b"\x0a\x03\x0a\x01a", "config.json": {"model_type": "t5"},
        "tokenizer_config.json": {"extra_ids": 10**9},
    },
    "unigram for Llama": {"tokenizer.model": b"\x0a\x03\x0a\x01a", "config.json": {"model_type": "llama"}},
    "Marian without unknown": {"source.spm": b"x", "target.spm": b"x", "vocab.json": {"a": 0}},
    "Marian pieces": {"source.spm": b"x", "target.spm": b"x", "vocab.json": {"<unk>": 0, "</s>": 1, "<pad>": 2}},
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_named_in_one_line(case, tmp_path, capfd):
    with pytest.raises(UserError) as caught:
        open_tokenizer(write(tmp_path, BROKEN[case]))
    assert "\n" not in str(caught.value)
    assert caught.value.fix
    assert len(str(caught.value)) < 400
    assert capfd.readouterr() == ("", "")  # a panic of the compiled library would speak by itself


def test_links_out_of_the_folder_are_not_followed(tmp_path):
    secret = write(tmp_path / "outside", {"tokenizer.json": GOOD, "tokenizer_config.json": {"padding_side": "left"}})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        place = write(tmp_path / f"in-{name}", {} if name == "tokenizer.json" else {"tokenizer.json": GOOD})
        (place / name).symlink_to(secret / name)
        with pytest.raises(UserError, match="link out of the folder"):
            open_tokenizer(place)
    # A hub's own store is where its links point to.
    hub = write(tmp_path / "hub" / "snapshots" / "1", {})
    write(tmp_path / "hub" / "blobs", {"abc": GOOD})
    (hub / "tokenizer.json").symlink_to("../../blobs/abc")
    assert open_tokenizer(hub) is not None


def test_too_large_files_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("anyformer.safe_files.LIMIT", 100)
    with pytest.raises(UserError, match="more than 100 bytes"):
        open_tokenizer(write(tmp_path, {"tokenizer.json": GOOD}))


def test_cut_and_changed_bytes_never_end_in_a_traceback(folder, tmp_path, capfd):
    whole = (folder / "tokenizer.json").read_bytes()
    spm = pieces("unigram", vocab_size=205, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, character_coverage=0.98)
    rng = random.Random(2)
    opened = refused = 0
    for i in range(120):
        name, source = ("tokenizer.json", whole) if i % 2 else ("spiece.model", spm)
        data = bytearray(source)
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        place = write(tmp_path / str(i), {name: bytes(data[: rng.choice([len(data), rng.randrange(len(data))])])})
        (place / "config.json").write_text('{"model_type": "t5"}' if name == "spiece.model" else "{}")
        try:
            words = open_tokenizer(place)
            assert words is not None
            words.encode("the quick fox")
            opened += 1
        except UserError:
            refused += 1
    assert opened > 0
    assert refused > 20
    assert "panicked" not in capfd.readouterr().err
