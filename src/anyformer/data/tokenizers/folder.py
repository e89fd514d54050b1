"""Opening a tokenizer folder: its class, and the files it is read from.

A known class builds its own pipeline around the vocabulary, even if a tokenizer.json differs (like transformers); any
other class uses tokenizer.json unchanged.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Core

from anyformer.data.tokenizers.bounds import check_tokenizer
from anyformer.data.tokenizers.config import SETTINGS, add_special, extras, merge_settings, named_tokens, roles_of
from anyformer.data.tokenizers.files import (
    AGAIN,
    BPE,
    CONTROL,
    USER_DEFINED,
    SentencePieceModel,
    check_charsmap,
    json_if_there,
    read_json,
    read_merges,
    read_pieces,
    read_text,
    read_vocab_json,
    read_vocab_txt,
    short,
    there,
)
from anyformer.data.tokenizers.formats import FORMS, OpenedTokenizer, Parts, bos_eos, build
from anyformer.errors import UserError

LOG = logging.getLogger("anyformer")
GENERIC = "PreTrainedTokenizerFast"  # uses tokenizer.json unchanged, in every version of transformers

# The class of a model type if the folder names none.
CLASSES = {
    "bert": "BertTokenizer", "distilbert": "BertTokenizer", "electra": "BertTokenizer", "visual_bert": "BertTokenizer",
    "mobilebert": "BertTokenizer", "gpt2": "GPT2Tokenizer", "gpt_neo": "GPT2Tokenizer", "gptj": "GPT2Tokenizer",
    "opt": "GPT2Tokenizer", "roberta": "RobertaTokenizer", "bart": "RobertaTokenizer", "longformer": "RobertaTokenizer",
    "clip": "CLIPTokenizer", "t5": "T5Tokenizer", "mt5": "T5Tokenizer", "albert": "AlbertTokenizer",
    "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer", "gpt_neox": "GPTNeoXTokenizer", "marian": "MarianTokenizer",
    "mistral": GENERIC, "mixtral": GENERIC,
}  # fmt: skip
ALIASES = {
    "ElectraTokenizer": "BertTokenizer", "MobileBertTokenizer": "BertTokenizer", "BartTokenizer": "RobertaTokenizer",
    "LongformerTokenizer": "RobertaTokenizer",
}  # fmt: skip
# Model types whose published folders name a wrong class; the one in the table is used.
WRONGLY_NAMED = {"qwen2"}
# Only for folders without a tokenizer.json: the pipeline that reads such files.
OLDER = {"llama": "LlamaTokenizer", "mistral": "LlamaTokenizer", "mixtral": "LlamaTokenizer", "mt5": "T5Tokenizer"}


def form_of(settings: Mapping[str, Any], model_type: str, config_class: str | None, byte_level: bool) -> str:
    """The class that transformers' AutoTokenizer would choose."""
    named = settings.get("tokenizer_class") or config_class
    said = named.removesuffix("Fast") if isinstance(named, str) and named != GENERIC else named
    listed = CLASSES.get(model_type)
    if said == "LlamaTokenizer" and byte_level and model_type not in ("mistral", "mixtral"):
        return GENERIC  # Llama 3: the class is named, but its files are byte-level
    if isinstance(said, str) and listed is not None and listed != said:
        if listed == GENERIC:
            return GENERIC
        said = listed if model_type in WRONGLY_NAMED else said
    chosen = said if isinstance(said, str) else listed or GENERIC
    return ALIASES.get(chosen, chosen)


def open_folder(folder: Path) -> OpenedTokenizer | None:
    """The tokenizer of a folder, or None if it has none."""
    names = ("tokenizer.json", "vocab.txt", "merges.txt", "spiece.model", "tokenizer.model")
    here = {name for name in names if there(folder, name)}
    if not here:
        return None
    settings, config = json_if_there(folder, SETTINGS), json_if_there(folder, "config.json")
    model_type, config_class = str(config.get("model_type", "")), config.get("tokenizer_class")
    try:
        if "tokenizer.json" in here:
            return from_json(folder, settings, model_type, config_class)
        return from_older(folder, here, settings, model_type, config_class)
    except UserError:
        raise
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library is compiled: unexpected input causes a panic, which is no Exception
        where = "tokenizer.json" if "tokenizer.json" in here else ", ".join(sorted(here))
        raise UserError(f"not a tokenizer ({short(error)})", where=where, fix=AGAIN) from None


def from_json(folder: Path, settings: dict[str, Any], model_type: str, config_class: Any) -> OpenedTokenizer:
    text = read_text(folder, "tokenizer.json")
    form = form_of(settings, model_type, config_class, '"ByteLevel"' in text)
    data = read_json(folder, "tokenizer.json")
    check_tokenizer(data, len(text))
    refuse_panics(data)
    core = Core.from_str(text)
    core.no_truncation()
    core.no_padding()
    merged, added = merge_settings(folder, settings, data.get("added_tokens") or [])
    merged = {key: value for key, value in merged.items() if key not in ("add_bos_token", "add_eos_token")}
    if form in FORMS:
        return build(form, parts_of(data, core), merged, added)
    named = named_tokens(merged, {})
    add_special(core, named, added, extras(merged) or [])
    if core.post_processor is None:
        core.post_processor = bos_eos(core, merged, named)
    return OpenedTokenizer(core, GENERIC, merged, roles_of(named))


def refuse_panics(data: Mapping[str, Any]) -> None:
    """Reject what the library would panic on, printing pages of its own messages."""
    for step in find_character_maps(data.get("normalizer")):
        check_charsmap(base64.b64decode(str(step.get("precompiled_charsmap", ""))), "tokenizer.json")
    model = data.get("model")
    prefix = model.get("continuing_subword_prefix") if isinstance(model, dict) else None
    if isinstance(model, dict) and prefix and model.get("merges"):
        rights = [pair.split(" ", 1)[-1] if isinstance(pair, str) else pair[-1] for pair in model["merges"]]
        if not all(right.startswith(prefix) for right in rights):
            raise UserError(f"a merge without its prefix {prefix[:20]!r}", where="tokenizer.json", fix=AGAIN)


def find_character_maps(step: Any) -> list[dict[str, Any]]:
    """Every character map among the normalizers."""
    if not isinstance(step, dict):
        return []
    inner = [found for s in step.get("normalizers") or [] for found in find_character_maps(s)]
    return inner + ([step] if step.get("type") == "Precompiled" else [])


def parts_of(data: dict[str, Any], core: Core) -> Parts:
    """Vocabulary, merges, scores and character map of a tokenizer.json."""
    model = data["model"]
    vocab, merges = model["vocab"], model.get("merges") or []
    parts = Parts(post=core.post_processor)
    if isinstance(vocab, dict):
        parts.vocab = vocab
    else:
        parts.scores = [(piece, score) for piece, score in vocab]
    for pair in merges:
        left, right = pair.split(" ", 1) if isinstance(pair, str) else pair
        parts.merges.append((left, right))
    parts.unk = model.get("unk_id")
    for step in find_character_maps(data.get("normalizer"))[:1]:
        parts.charsmap = base64.b64decode(step["precompiled_charsmap"])
    return parts


def from_older(
    folder: Path, here: set[str], settings: dict[str, Any], model_type: str, config_class: Any
) -> OpenedTokenizer | None:
    form = form_of(settings, model_type, config_class, byte_level=False)
    form = form if form in FORMS else OLDER.get(model_type, form)
    if form == GENERIC and "vocab.txt" in here:
        form = "BertTokenizer"  # the only family whose files have this name
    files = ", ".join(sorted(here))
    if form not in FORMS:
        raise UserError(
            f"no file says whose {files} this is" if form == GENERIC else f"{form} is not read from {files}",
            where=folder.name, fix=f"save it once with transformers as tokenizer.json, or name its class in {SETTINGS}",
        )  # fmt: skip
    choices = FORMS[form].files
    chosen = next((names for names in choices if all(there(folder, name) for name in names)), None)
    if chosen is None and not any(there(folder, name) for names in choices for name in names):
        LOG.warning("%s: %s is not a %s; the folder is opened without a tokenizer", folder.name, files, form)
        return None
    if chosen is None:
        missing = next(name for name in choices[0] if not there(folder, name))
        raise UserError(f"{form} needs {missing} too", where=folder.name, fix="copy the whole folder")
    merged, added = merge_settings(folder, settings, [])
    if chosen[0] == "vocab.txt":
        parts = Parts(vocab=read_vocab_txt(folder))
    elif chosen[0] == "vocab.json":
        parts = Parts(vocab=read_vocab_json(folder), merges=read_merges(folder))
    else:
        parts = parts_of_pieces(read_pieces(folder, chosen[0]), form, chosen[0], merged)
    return build(form, parts, merged, added)


def parts_of_pieces(pieces: SentencePieceModel, form: str, name: str, settings: Mapping[str, Any]) -> Parts:
    """A sentencepiece model as a vocabulary; BPE merges are reconstructed from the pieces."""
    is_bpe = pieces.algorithm == BPE
    if is_bpe != (form == "LlamaTokenizer"):
        raise UserError(
            f"a {'BPE' if is_bpe else 'unigram'} model for {form}",
            where=name,
            fix=f"name the right class in {SETTINGS}",
        )
    parts = Parts(scores=pieces.pieces, unk=pieces.unk, charsmap=pieces.charsmap)
    parts.special = [
        AddedToken(piece, normalized=False, special=kind == CONTROL)
        for piece, kind in pieces.of_kind(CONTROL, USER_DEFINED)
    ]
    if is_bpe:
        parts.vocab = {piece: i for i, (piece, _) in enumerate(pieces.pieces)}
        parts.merges = merges_of(parts.vocab)
    if form == "T5Tokenizer":
        # T5's sentinels come after the pieces, in reverse order (1910.10683, 3.1.4).
        extra = settings.get("extra_ids", 100)
        if isinstance(extra, bool) or not isinstance(extra, int) or not 0 <= extra <= 10_000:
            raise UserError(f"extra_ids {str(extra)[:40]}", where=SETTINGS, fix="use a whole number, usually 100")
        parts.scores = parts.scores + [(f"<extra_id_{i}>", 0.0) for i in reversed(range(extra))]
    return parts


def merges_of(vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every way to join two pieces to a third; sentencepiece stores its pieces in merge order."""
    found = []
    for piece, rank in vocab.items():
        ways = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in vocab and piece[i:] in vocab]
        ways.sort(key=lambda way: (vocab[way[0]], vocab[way[1]]))
        found += [(rank, len(left), len(right), left, right) for left, right in ways]
    found.sort(key=lambda row: row[:3])
    return [(left, right) for _, _, _, left, right in found]
