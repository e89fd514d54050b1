"""Texts that tokenizers stumble over, and small vocabularies made on the spot."""

from __future__ import annotations

import io
import json
import random
from functools import cache
from pathlib import Path

SHARED = Path(__file__).resolve().parents[3].parent / "shared"

WORDS = """the quick brown fox jumps over a lazy dog's tail; don't we'll it's I've they're naïve café Ångström Straße
İstanbul ﬁnd ﬂow ² ½ Ⅷ ｆｕｌｌ état résumé größer Ünïcödé русский текст 中文 字符 日本語 テスト 한국어 עברית שלום
مرحبا بالعالم हिन्दी ไทย
foo_bar snake_case camelCase HTTPServer 3.14 1,000 10^-5 v2.0 #tag @user http://a.b/c?d=e&f=1 x==y a->b :: // /* */
{} [] () <> !? ... -- — – “quoted” ‘single’ `` '' 'tis &amp; \\n 100% $5 €7 ₿ ∑ ∞ ≠ π""".split()
LOOKS = """<s> </s> <pad> <unk> <mask> [CLS] [SEP] [PAD] [UNK] [MASK] [cls] <|endoftext|> <|startoftext|> <extra_id_0>
</w> <|ENDOFTEXT|> <S> <0x0A> ▁ ▁the ## ##ing Ġ Ċ <new> special_word <|im_end|>""".split()
ODD = [
    "", " ", "  ", "\n", "\t", "\r\n", " \n ", "\x00", "\x01\x02", "\x7f", "\x85", "\xa0", "\xad", "\u200b",
    "\u200d", "\u2028", "\u2029", "\u3000", "\ufeff", "\ufffd", "\ue000", "e\u0301", "o\u0308\u0323", "\u0301",
    "a" + "\u0300" * 30, "👍", "👍🏽", "👨\u200d👩\u200d👧\u200d👦", "🇩🇪", "🏳️\u200d🌈", "𝔘𝔫𝔦", "𐍈", "\U0010ffff",
    "\u202eabc\u202c", "שָׁלוֹם", "ﷺ", "ǆ", "ß", "ſ", "\u212a", "Ω", "①", "\u0130", "ﬀ", "Å", "½", "⑳", "㎏",
    "a b", "a  b", "a   b", " a", "a ", "  a  ", "\ta\n", "a\n\n\nb", "a \n b", "if x:\n    return y\n",
    "\t\tif(x){y();}", "``quote''", "word" * 30, "x" * 300, "中" * 50, "1234567890" * 10, "!" * 40,
]  # fmt: skip


RANGES = [(32, 127), (0, 0x250), (0x300, 0x370), (0x590, 0x700), (0x4E00, 0x4F00), (0x1F300, 0x1F700), (0, 0xD800)]


@cache
def texts(number: int = 2000) -> list[str]:
    """Unicode, emoji, code, blanks, control characters, both directions, marks, long texts and look-alikes."""
    rng = random.Random(5)
    long = " ".join(rng.choice(WORDS + LOOKS + ODD) for _ in range(2500))
    found = [*ODD, *LOOKS, *WORDS]
    blanks = [" "] * 8 + ["", "  ", "\n", "\t", "   "]
    while len(found) < number - 3:
        pool = rng.choice([WORDS, WORDS, WORDS + LOOKS, WORDS + ODD, LOOKS + ODD])
        if rng.random() < 0.2:
            kinds = [
                (32, 127),
                (0, 0x250),
                (0x300, 0x370),
                (0x590, 0x700),
                (0x4E00, 0x4F00),
                (0x1F300, 0x1F700),
                (0, 0xD800),
            ]
            low, high = rng.choice(kinds)
            found.append("".join(chr(rng.randrange(low, high)) for _ in range(rng.randrange(1, 40))))
        else:
            found.append("".join(rng.choice(pool) + rng.choice(blanks) for _ in range(rng.randrange(1, 12))))
    return [*found[: number - 3], long[:10_000], "a" * 10_000, "é " * 5000]


@cache
def corpus() -> list[str]:
    """Plain text to train a vocabulary on."""
    rng = random.Random(3)
    return [" ".join(rng.choice(WORDS) for _ in range(12)) for _ in range(400)]


@cache
def pieces(kind: str, **options: object) -> bytes:
    """A sentencepiece model trained on the corpus."""
    import sentencepiece

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()), model_writer=out, model_type=kind, minloglevel=2, num_threads=1, **options
    )
    return out.getvalue()


def write(folder: Path, files: dict[str, object]) -> Path:
    """A folder of these files: bytes and texts as they are, anything else as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        if isinstance(data, bytes):
            (folder / name).write_bytes(data)
        else:
            (folder / name).write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return folder


@cache
def byte_bpe(special: tuple[str, ...], suffix: str = "") -> tuple[dict[str, int], str]:
    """vocab.json and merges.txt of a byte-level BPE trained on the corpus; CLIP's with `</w>` at the end of a word."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    core = Tokenizer(models.BPE(end_of_word_suffix=suffix))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if suffix:
        core.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=alphabet, special_tokens=list(special), end_of_word_suffix=suffix,
        show_progress=False,
    )  # fmt: skip
    core.train_from_iterator([t.lower() for t in corpus()] if suffix else corpus(), trainer)
    model = json.loads(core.to_str())["model"]
    vocab = model["vocab"]
    if suffix:
        for letter in alphabet:
            vocab.setdefault(letter + suffix, len(vocab))
    merges = "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]) + "\n"
    return vocab, merges


@cache
def wordpieces() -> str:
    """vocab.txt of a small WordPiece vocabulary."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    core = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.normalizer, core.pre_tokenizer = normalizers.BertNormalizer(lowercase=False), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    core.train_from_iterator(
        corpus() + [t.lower() for t in corpus()],
        trainers.WordPieceTrainer(vocab_size=700, special_tokens=special, show_progress=False),
    )
    vocab = core.get_vocab()
    return "\n".join(sorted(vocab, key=vocab.__getitem__)) + "\n"
