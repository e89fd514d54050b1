"""The classes of published tokenizers in transformers: their pipelines and special tokens.

The reference are the ids of transformers 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Core

from anyformer.data.tokenizers.config import Token, add_special, content, extras, flag, named_tokens, roles_of


@dataclass
class Parts:
    """The vocabulary of a tokenizer and what comes with it."""

    vocab: dict[str, int] = field(default_factory=dict)
    merges: list[tuple[str, str]] = field(default_factory=list)
    scores: list[tuple[str, float]] = field(default_factory=list)
    unk: int | None = None
    charsmap: bytes = b""
    post: Any = None  # the post-processor of a tokenizer.json
    special: list[AddedToken] = field(default_factory=list)  # control and user-defined pieces of a sentencepiece model


@dataclass
class OpenedTokenizer:
    """A tokenizer as opened: the pipeline, the merged settings of all files, and the token of each role."""

    core: Core
    form: str
    settings: dict[str, Any]
    roles: dict[str, str]


@dataclass(frozen=True)
class Form:
    """One tokenizer class of transformers: its files, special tokens, pipeline and post-processing."""

    files: tuple[tuple[str, ...], ...]
    roles: dict[str, str]
    pipeline: Callable[[Parts, Mapping[str, Any], dict[str, str]], Core]
    around: Callable[[Core, Mapping[str, Any], dict[str, str]], Any] | None = (
        None  # None: bos and eos according to the settings
    )
    keeps_post: bool = False  # whether a tokenizer.json's post-processor takes precedence over `around`
    side: str = "right"
    segments: bool = False  # the model takes token types


def build(form: str, parts: Parts, settings: dict[str, Any], added: Mapping[int, AddedToken]) -> OpenedTokenizer:
    """Build the tokenizer of one class around a vocabulary."""
    rule = FORMS[form]
    named = named_tokens(settings, rule.roles)
    roles = roles_of(named)
    core = rule.pipeline(parts, settings, roles)
    further = extras(settings)
    if further is None:
        sentinels = settings.get("extra_ids", 100) if form == "T5Tokenizer" else 0
        further = [*parts.special, *(f"<extra_id_{i}>" for i in range(sentinels))]
    add_special(core, named, added, further)
    if rule.keeps_post and parts.post is not None:
        core.post_processor = parts.post
    elif rule.around is not None:
        core.post_processor = rule.around(core, settings, roles)
    else:
        core.post_processor = bos_eos(core, settings, named)
    return OpenedTokenizer(core, form, settings, roles)


def bos_eos(core: Core, settings: Mapping[str, Any], named: Mapping[str, Token]) -> Any:
    """A post-processor with bos and eos around each text, if the settings enable them."""
    bos = content(named["bos_token"]) if "bos_token" in named and flag(settings, "add_bos_token", False) else ""
    eos = content(named["eos_token"]) if "eos_token" in named and flag(settings, "add_eos_token", False) else ""

    def side(letter: str, number: int) -> list[str]:
        return [f"{t}:{number}" for t in ([bos] if bos else []) + [letter] + ([eos] if eos else [])]

    return processors.TemplateProcessing(
        single=side("$A", 0), pair=side("$A", 0) + side("$B", 1),
        special_tokens=[with_id(core, token) for token in dict.fromkeys([bos, eos]) if token],
    )  # fmt: skip


def with_id(core: Core, token: str) -> tuple[str, int]:
    """A special token with its id; all of them have been added before."""
    number = core.token_to_id(token)
    assert number is not None, token
    return token, number


def bert_around(core: Core, settings: Mapping[str, Any], roles: dict[str, str]) -> Any:
    cls, sep = roles["cls"], roles["sep"]
    return processors.TemplateProcessing(
        single=[f"{cls}:0", "$A:0", f"{sep}:0"], pair=[f"{cls}:0", "$A:0", f"{sep}:0", "$B:1", f"{sep}:1"],
        special_tokens=[with_id(core, cls), with_id(core, sep)],
    )  # fmt: skip


def bert(parts: Parts, settings: Mapping[str, Any], roles: dict[str, str]) -> Core:
    core = Core(models.WordPiece(parts.vocab, unk_token=roles["unk"]))
    accents = settings.get("strip_accents")
    core.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=flag(settings, "tokenize_chinese_chars", True),
        strip_accents=None if accents is None else flag(settings, "strip_accents", False),
        lowercase=flag(settings, "do_lower_case", True),
    )
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece(prefix="##")
    return core


def byte_level(parts: Parts, settings: Mapping[str, Any], roles: dict[str, str]) -> Core:
    """GPT-2, RoBERTa and BART: BPE over bytes."""
    core = Core(
        models.BPE(parts.vocab, parts.merges, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False)
    )
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=flag(settings, "add_prefix_space", False))
    core.decoder = decoders.ByteLevel()
    return core


def neox(parts: Parts, settings: Mapping[str, Any], roles: dict[str, str]) -> Core:
    core = byte_level(parts, settings, roles)
    core.normalizer = normalizers.NFC()
    return core


QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def qwen(parts: Parts, settings: Mapping[str, Any], roles: dict[str, str]) -> Core:
    core = neox(parts, settings, roles)
    prefix = flag(settings, "add_prefix_space", False)
    core.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False),
    ])  # fmt: skip
    return core


def clip(parts: Parts, settings: Mapping[str, Any], roles: dict[str, str]) -> Core:
    core = Core(
        models.BPE(
            parts.vocab, parts.merges, unk_token=roles.get("unk"), continuing_subword_prefix="",
            end_of_word_suffix="</w>", fuse_unk=False,
        )
    )  # fmt: skip
    core.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    core.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(CLIP), behavior="removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])  # fmt: skip
    core.decoder = decoders.ByteLevel()
    return core


def roberta_around(core: Core, settings: Mapping[str, Any], roles: dict[str, str]) -> Any:
    sep, cls = roles["sep"], roles["cls"]
    trim, prefix = flag(settings, "trim_offsets", True), flag(settings, "add_prefix_space", False)
    return processors.RobertaProcessing(with_id(core, sep), with_id(core, cls), trim, prefix)


def clip_around(core: Core, settings: Mapping[str, Any], roles: dict[str, str]) -> Any:
    eos, bos = roles["eos"], roles["bos"]
    return processors.RobertaProcessing(with_id(core, eos), with_id(core, bos), False, False)


def t5(parts: Parts, settings: Mapping[str, Any], roles: dict[str, str]) -> Core:
    core = Core(models.Unigram(parts.scores, unk_id=2 if parts.unk is None else parts.unk, byte_fallback=False))
    if parts.charsmap:
        core.normalizer = normalizers.Precompiled(parts.charsmap)
    return words_with_bars(core, "always")


def t5_around(core: Core, settings: Mapping[str, Any], roles: dict[str, str]) -> Any:
    eos = core.token_to_id(roles["eos"])
    pair = ["$A", "</s>", "$B", "</s>"]
    return processors.TemplateProcessing(single=["$A", "</s>"], pair=pair, special_tokens=[("</s>", eos)])


def albert(parts: Parts, settings: Mapping[str, Any], roles: dict[str, str]) -> Core:
    core = Core(models.Unigram(parts.scores, unk_id=1 if parts.unk is None else parts.unk, byte_fallback=False))
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not flag(settings, "keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if flag(settings, "do_lower_case", True):
        steps.append(normalizers.Lowercase())
    if parts.charsmap:
        steps.append(normalizers.Precompiled(parts.charsmap))
    core.normalizer = normalizers.Sequence(steps)
    return words_with_bars(core, "always" if flag(settings, "add_prefix_space", True) else "never")


def words_with_bars(core: Core, scheme: Any) -> Core:
    """Sentencepiece's words: split at spaces, the space kept as a leading bar."""
    bars = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), bars])
    core.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)
    return core


def llama(parts: Parts, settings: Mapping[str, Any], roles: dict[str, str]) -> Core:
    core = Core(models.BPE(parts.vocab, parts.merges, fuse_unk=True, byte_fallback=True))
    prefix = flag(settings, "add_prefix_space", True)
    scheme: Any = ("always" if flag(settings, "legacy", False) else "first") if prefix else "never"
    core.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    core.decoder = decoders.Sequence(steps + ([decoders.Strip(content=" ", left=1)] if prefix else []))
    return core


END = "<|endoftext|>"
BRACKETS = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
ANGLES = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
ALBERT = {
    "bos": "[CLS]",
    "eos": "[SEP]",
    "unk": "<unk>",
    "sep": "[SEP]",
    "pad": "<pad>",
    "cls": "[CLS]",
    "mask": "[MASK]",
}
LLAMA = {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}
PAIRS = (("vocab.json", "merges.txt"),)
SPIECE = (("spiece.model",), ("tokenizer.model",))

FORMS = {
    "BertTokenizer": Form((("vocab.txt",),), BRACKETS, bert, bert_around, segments=True),
    "DistilBertTokenizer": Form((("vocab.txt",),), BRACKETS, bert, bert_around),
    "GPT2Tokenizer": Form(PAIRS, {"unk": END, "bos": END, "eos": END}, byte_level, keeps_post=True),
    "RobertaTokenizer": Form(PAIRS, ANGLES, byte_level, roberta_around),
    "GPTNeoXTokenizer": Form(PAIRS, {"unk": END, "bos": END, "eos": END, "pad": "<|padding|>"}, neox),
    "Qwen2Tokenizer": Form(PAIRS, {"unk": END, "eos": END, "pad": END}, qwen, keeps_post=True),
    "CLIPTokenizer": Form(PAIRS, {"unk": END, "bos": "<|startoftext|>", "eos": END, "pad": END}, clip, clip_around),
    "T5Tokenizer": Form(SPIECE, {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}, t5, t5_around),
    "AlbertTokenizer": Form(SPIECE, ALBERT, albert, bert_around, keeps_post=True),
    "LlamaTokenizer": Form(SPIECE[::-1], LLAMA, llama, keeps_post=True, side="left"),
}  # fmt: skip
