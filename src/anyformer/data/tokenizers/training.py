"""Tokenizer training. The same text gives the same tokenizer, on every machine, in every run.

The library's own WordPiece and unigram trainers do not guarantee that: they number pieces and break ties in the order
of a hash table. WordPiece gets its alphabet numbered beforehand; unigram is trained by hard EM over integer counts.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Core

from anyformer.errors import UserError, did_you_mean

Kind = Literal["bpe", "char-bpe", "wordpiece", "unigram", "word", "char", "byte"]
ANGLES = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>"}
BRACKETS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
HAS_UNKNOWN = ("char-bpe", "unigram", "word", "char")  # kinds that do not cover every character
BOUNDARY = "▁"  # stands for a space, and before the first word
MOST_WORDS = 200_000  # distinct words that a unigram model is fitted on, the most frequent ones
LONGEST = 16  # characters of a unigram piece, as in sentencepiece


def default_special(kind: Kind) -> dict[str, str]:
    """The special tokens of a kind: BERT's for WordPiece, else bos, eos, padding, and unknown if it can occur."""
    if kind == "wordpiece":
        return dict(BRACKETS)
    return {role: token for role, token in ANGLES.items() if role != "unk" or kind in HAS_UNKNOWN}


def special_token(kind: Kind, role: str) -> str:
    """The spelling of a role's token in a tokenizer of this kind."""
    return BRACKETS[role] if kind == "wordpiece" else ANGLES.get(role, f"<{role}>")


def train(
    texts: Sequence[str], kind: Kind, vocab: int, special: Mapping[str, str], extra: Sequence[str], lower: bool,
    leading_blank: bool,
) -> Core:  # fmt: skip
    """The tokenizer of one kind, with special tokens but no post-processor yet."""
    if kind not in get_args(Kind):
        raise UserError(f"no tokenizer {kind!r}", fix=did_you_mean(str(kind), get_args(Kind)))
    tokens = list(dict.fromkeys([*special.values(), *extra]))
    if any(not token for token in tokens):
        raise UserError("a special token is empty", fix="give it a name, such as <pad>")
    least = len(tokens) + (256 if kind in ("bpe", "byte") else 1)
    if isinstance(vocab, bool) or not isinstance(vocab, int) or vocab < least:
        raise UserError(f"a vocabulary of {vocab} for {kind!r}", fix=f"use at least {least}")
    if kind in (*HAS_UNKNOWN, "wordpiece") and "unk" not in special:
        raise UserError(f"{kind!r} without an unknown token", fix="name one: special={'unk': '<unk>', ...}")
    if kind == "byte":
        core = whole_bytes(tokens)
    else:
        # Only byte-level BPE encodes a word differently at the start of a text than after a space.
        blank = {"leading_blank": True} if leading_blank and kind == "bpe" else {}
        core = TRAINERS[kind](without(texts, tokens), vocab, special.get("unk", ""), tokens, lower, **blank)
    # Tokens in the model keep their ids; the others are appended. All of them become special here.
    core.add_special_tokens(tokens)
    return core


def without(texts: Sequence[str], tokens: Sequence[str]) -> list[str]:
    """The texts split at spelled-out special tokens, so that no piece can grow into one."""
    if not tokens:
        return list(texts)
    cut = re.compile("|".join(sorted(map(re.escape, tokens), key=len, reverse=True)), re.IGNORECASE)
    return [part for text in texts for part in cut.split(text) if part]


def add_frame(core: Core, special: Mapping[str, str], add_bos: bool, add_eos: bool) -> Any:
    """The post-processor: BERT's frame if there are cls and sep, else bos and eos as requested."""
    if "cls" in special and "sep" in special:
        front, back = [special["cls"]], [special["sep"]]
        second = ["$B:1", f"{back[0]}:1"]
    else:
        front = [special["bos"]] if add_bos else []
        back = [special["eos"]] if add_eos else []
        second = [f"{t}:1" for t in [*front, "$B", *back]]
    first = [f"{t}:0" for t in [*front, "$A", *back]]
    names = [(token, core.token_to_id(token)) for token in dict.fromkeys([*front, *back])]
    return processors.TemplateProcessing(single=first, pair=first + second, special_tokens=names)


def whole_bytes(tokens: Sequence[str]) -> Core:
    """One token per byte, in the order of the bytes, after the special tokens."""
    names = [byte_name(byte) for byte in range(256)]
    core = Core(models.BPE({token: i for i, token in enumerate([*tokens, *names])}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return core


def byte_name(byte: int) -> str:
    """GPT-2's printable stand-in for a byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(byte) if byte in plain else chr(256 + byte - sum(p < byte for p in plain))


def bpe(
    texts: list[str], vocab: int, unk: str, tokens: Sequence[str], lower: bool, leading_blank: bool = False
) -> Core:
    core = Core(models.BPE())
    core.normalizer = normalizers.Lowercase() if lower else None
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=leading_blank)
    core.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab, special_tokens=list(tokens), initial_alphabet=alphabet, show_progress=False
        ),
    )
    return core


def char_bpe(texts: list[str], vocab: int, unk: str, tokens: Sequence[str], lower: bool) -> Core:
    """Sennrich's BPE (1508.07909) on characters: a word begins with its boundary, and no merge crosses one.

    Spaces, line ends and tabs are restored; only a character not in training is unknown.
    """
    steps: list[Any] = [normalizers.Lowercase()] if lower else []
    normal = normalizers.Sequence([*steps, normalizers.Prepend(BOUNDARY), normalizers.Replace(" ", BOUNDARY)])
    texts, letters = common(texts, (vocab - len(tokens)) // 2)
    core = Core(models.BPE(unk_token=unk))
    core.normalizer = normal
    core.pre_tokenizer = pre_tokenizers.Split(BOUNDARY, "merged_with_next")
    core.decoder = decoders.Sequence([decoders.Replace(BOUNDARY, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    alphabet = sorted({BOUNDARY, *(normal.normalize_str(letter)[-1] for letter in letters)})
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab, special_tokens=list(tokens), initial_alphabet=alphabet, show_progress=False
        ),
    )
    return core


def wordpiece(texts: list[str], vocab: int, unk: str, tokens: Sequence[str], lower: bool) -> Core:
    normal, cut = normalizers.BertNormalizer(lowercase=lower), pre_tokenizers.BertPreTokenizer()
    texts, letters = common([normal.normalize_str(text) for text in texts], (vocab - len(tokens)) // 4)
    # Numbered here, in the order of the letters: the trainer would number continuations in hash table order.
    inner = [f"##{letter}" for letter in letters if not letter.isspace()]
    trainee = Core(models.WordPiece(unk_token=unk))
    trainee.pre_tokenizer = cut
    trainee.train_from_iterator(
        texts,
        trainers.WordPieceTrainer(vocab_size=vocab, special_tokens=[*tokens, *inner], show_progress=False),
    )
    core = Core(models.WordPiece(trainee.get_vocab(with_added_tokens=False), unk_token=unk))
    core.normalizer, core.pre_tokenizer, core.decoder = normal, cut, decoders.WordPiece(prefix="##")
    return core


def word(texts: list[str], vocab: int, unk: str, tokens: Sequence[str], lower: bool) -> Core:
    core = Core(models.WordLevel(unk_token=unk))
    core.normalizer = normalizers.Lowercase() if lower else None
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.train_from_iterator(
        texts, trainers.WordLevelTrainer(vocab_size=vocab, special_tokens=list(tokens), show_progress=False)
    )
    return core


def char(texts: list[str], vocab: int, unk: str, tokens: Sequence[str], lower: bool) -> Core:
    normal = normalizers.Lowercase() if lower else None
    _, letters = common([normal.normalize_str(t) for t in texts] if normal else texts, vocab - len(tokens))
    names = dict.fromkeys([*tokens, *letters])
    core = Core(models.WordLevel({token: i for i, token in enumerate(names)}, unk_token=unk))
    core.normalizer = normal
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    return core


def common(texts: list[str], most: int) -> tuple[list[str], list[str]]:
    """The texts with all but the `most` most frequent characters replaced by spaces, and those characters, sorted."""
    counts = Counter("".join(texts))
    ranked = sorted(counts, key=lambda letter: (-counts[letter], letter))
    kept, rare = sorted(ranked[:most]), ranked[most:]
    blank = dict.fromkeys(map(ord, rare), " ")
    return ([text.translate(blank) for text in texts] if rare else texts), kept


def unigram(texts: list[str], vocab: int, unk: str, tokens: Sequence[str], lower: bool) -> Core:
    """Kudo's unigram model (1804.10959) by hard EM: segment with the best pieces, count, drop the cheapest, repeat.

    The candidates are the pieces of a BPE twice as large. All counts are integers and ties are broken by name, so the
    result does not depend on the order of any table or thread. Special tokens except the unknown one stay out of the
    model and get the last ids: as pieces of the model they would be found in the text.
    """
    steps: list[Any] = [normalizers.NFKC(), *([normalizers.Lowercase()] if lower else [])]
    normal = normalizers.Sequence(steps)
    bars = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    cut = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), bars])
    room = vocab - len(tokens)  # pieces of the model, excluding the unknown one
    texts, _ = common([normal.normalize_str(text) for text in texts], max(1, room // 2))
    counts = Counter(piece for text in texts for piece, _ in cut.pre_tokenize_str(text))
    words = {w: counts[w] for w in sorted(counts, key=lambda w: (-counts[w], w))[:MOST_WORDS]}
    seed = Core(models.BPE())
    seed.pre_tokenizer = cut
    seed.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=2 * room, min_frequency=2, max_token_length=LONGEST, show_progress=False)
    )
    letters = {letter for piece in words for letter in piece}
    candidates = letters | set(seed.get_vocab()) - set(tokens)
    scores = choose_pieces(words, candidates, letters, max(room, len(letters)))
    ranked = sorted(scores, key=lambda piece: (-scores[piece], piece))
    core = Core(models.Unigram([(unk, 0.0), *((piece, scores[piece]) for piece in ranked)], unk_id=0))
    core.normalizer, core.pre_tokenizer = normal, cut
    core.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    return core


def choose_pieces(words: Mapping[str, int], pieces: set[str], letters: set[str], size: int) -> dict[str, float]:
    """Log-probability of each piece kept; letters are always kept."""
    # Initial scores: frequency in the words, favouring long pieces, as suffix-array seeds are scored.
    found: Counter[str] = Counter()
    for word_, count in words.items():
        for i in range(len(word_)):
            for j in range(i + 1, min(len(word_), i + LONGEST) + 1):
                if word_[i:j] in pieces:
                    found[word_[i:j]] += count * (j - i)
    counts: Mapping[str, int] = found
    while True:
        counts = best_counts(words, logs(counts, pieces))
        scores = logs(counts, pieces)
        surplus = len(pieces) - size
        if surplus <= 0:
            return logs(best_counts(words, scores), pieces)
        cost = {p: counts.get(p, 0) * (scores[p] - detour(p, scores)) for p in pieces - letters}
        drop = sorted(cost, key=lambda piece: (cost[piece], piece))[: max(1, min(surplus, len(pieces) // 4))]
        if not drop:
            return scores
        pieces = pieces - set(drop)


def logs(counts: Mapping[str, int], pieces: set[str]) -> dict[str, float]:
    """Smoothed log-probabilities; an unused piece gets half a count."""
    whole = math.log(sum(counts.get(piece, 0) for piece in pieces) + 0.5 * len(pieces)) if pieces else 0.0
    return {piece: math.log(counts.get(piece, 0) + 0.5) - whole for piece in pieces}


def best_counts(words: Mapping[str, int], scores: Mapping[str, float]) -> Counter[str]:
    """How often each piece is used in the best segmentation of every word."""
    order = sorted(scores)
    core = Core(models.Unigram([("\0unknown", 0.0), *((piece, scores[piece]) for piece in order)], unk_id=0))
    counts: Counter[str] = Counter()
    names = list(words)
    for name, row in zip(names, core.encode_batch_fast(names, add_special_tokens=False), strict=True):
        for number in row.ids:
            counts[order[number - 1]] += words[name]
    return counts


def detour(piece: str, scores: Mapping[str, float]) -> float:
    """The best score of the piece's text without the piece itself."""
    best = [0.0] + [-math.inf] * len(piece)
    for stop in range(1, len(piece) + 1):
        for start in range(stop):
            part = piece[start:stop]
            if part != piece and part in scores:
                best[stop] = max(best[stop], best[start] + scores[part])
    return best[-1]


TRAINERS: dict[str, Any] = {
    "bpe": bpe,
    "char-bpe": char_bpe,
    "wordpiece": wordpiece,
    "word": word,
    "char": char,
    "unigram": unigram,
}


def check_texts(texts: Any) -> Iterator[str]:
    """The texts, each checked to be a string that can be encoded as UTF-8."""
    if isinstance(texts, str | bytes):
        raise UserError("texts is one string", fix="give a list of texts")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f"text {i} is {type(text).__name__}", fix="give strings")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise UserError(
                f"text {i} holds half a character (a lone surrogate)", fix="read the file as UTF-8"
            ) from None
        yield text
