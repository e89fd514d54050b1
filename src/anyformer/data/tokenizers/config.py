"""The settings beside a vocabulary: special token roles, added tokens, and how they match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Core

from anyformer.data.tokenizers.bounds import check_token
from anyformer.data.tokenizers.files import AGAIN, json_if_there, read_text, there
from anyformer.errors import UserError

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
SETTINGS = "tokenizer_config.json"
Token = AddedToken | str


def merge_settings(
    folder: Path, settings: Mapping[str, Any], listed: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any], dict[int, AddedToken]]:
    """The merged settings of all files, and every added token by its id."""
    merged = dict(settings)
    added: dict[int, AddedToken] = {}
    known = merged.pop("added_tokens_decoder", None)
    if there(folder, "chat_template.jinja"):
        merged["chat_template"] = read_text(folder, "chat_template.jinja")
    if known is not None:
        if not isinstance(known, dict) or not all(str(number).isdecimal() for number in known):
            raise UserError("added_tokens_decoder is not ids with tokens", where=SETTINGS, fix=AGAIN)
        added = {int(number): added_token(token, SETTINGS) for number, token in known.items()}
    else:
        merged |= json_if_there(folder, "special_tokens_map.json")
        special = {content(merged.get(f"{role}_token")) for role in ROLES} | {content(t) for t in extras(merged) or []}
        for token, number in json_if_there(folder, "added_tokens.json").items():
            if isinstance(number, bool) or not isinstance(number, int):
                raise UserError(f"{token[:40]!r} has no id", where="added_tokens.json", fix=AGAIN)
            check_token(token, "added_tokens.json")
            added[number] = AddedToken(token, normalized=token not in special, special=token in special)
        for row in listed:
            added[int(row["id"])] = added_token(row, "tokenizer.json")
    by_name = {token.content: token for token in added.values()}
    for role in ROLES:
        value = merged.get(f"{role}_token")
        if value is not None:
            merged[f"{role}_token"] = by_name.get(content(value)) or special_token(value, f"{role}_token")
    return merged, added


def extras(settings: Mapping[str, Any]) -> list[Token] | None:
    """Further special tokens, under any of their keys; None if not given."""
    listed = settings.get("extra_special_tokens") or settings.get("additional_special_tokens")
    if isinstance(listed, dict):
        listed = list(listed.values())
    if listed is None:
        said = "extra_special_tokens" in settings or "additional_special_tokens" in settings
        return [] if said else None
    if not isinstance(listed, list):
        raise UserError("additional_special_tokens is not a list", where=SETTINGS, fix=AGAIN)
    return [special_token(token, "additional_special_tokens") for token in listed]


def content(value: Any) -> str:
    """The text of a token, in any notation."""
    if isinstance(value, dict):
        return str(value.get("content", ""))
    return value.content if isinstance(value, AddedToken) else str(value)


def special_token(value: Any, key: str) -> Token:
    """A special token given as a string, or as a token with flags."""
    if isinstance(value, str):
        check_token(value, SETTINGS)
    if isinstance(value, str | AddedToken):
        return value
    token = added_token(value, f"{SETTINGS} {key}")
    token.special = True
    return token


def added_token(value: Any, where: str) -> AddedToken:
    """A token with its flags, as in the files."""
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        raise UserError(f"{str(value)[:40]!r} is not a token", where=where, fix=AGAIN)
    check_token(value["content"], where)
    special = value.get("special") is True
    flags = {key: value.get(key) is True for key in ("single_word", "lstrip", "rstrip")}
    normalized = value.get("normalized", not special) is True
    return AddedToken(
        value["content"], single_word=flags["single_word"], lstrip=flags["lstrip"], rstrip=flags["rstrip"],
        normalized=normalized, special=special,
    )  # fmt: skip


def named_tokens(settings: Mapping[str, Any], defaults: Mapping[str, str]) -> dict[str, Token]:
    """Key -> token: the seven roles first, then a model's own (image_token and the like)."""
    keys = [f"{role}_token" for role in ROLES]
    named: dict[str, Token] = {}
    for key in keys:
        value = settings[key] if key in settings else defaults.get(key.removesuffix("_token"))
        if value is not None:
            named[key] = special_token(value, key)
    own = {k: v for k, v in settings.items() if k.endswith("_token") and k not in keys}
    return named | {key: special_token(value, key) for key, value in own.items() if isinstance(value, str | AddedToken)}


def roles_of(named: Mapping[str, Token]) -> dict[str, str]:
    return {role: content(named[f"{role}_token"]) for role in ROLES if f"{role}_token" in named}


def add_special(
    core: Core, named: Mapping[str, Token], added: Mapping[int, AddedToken], further: Sequence[Token]
) -> None:
    """Add every added token in the order of its id, then the special ones that are still missing."""
    tokens = [added[number] for number in sorted(added)]
    names = {token.content for token in core.get_added_tokens_decoder().values()} | {t.content for t in tokens}
    for value in [*named.values(), *further]:
        if content(value) not in names:
            tokens.append(value if isinstance(value, AddedToken) else AddedToken(value, special=True))
    roles = {content(value) for value in named.values()}
    for token in tokens:
        if token.content in roles:
            token.special = True
    if tokens:
        core.add_tokens(tokens)


def flag(settings: Mapping[str, Any], key: str, default: bool) -> bool:
    """A boolean setting."""
    value = settings.get(key)
    if value is not None and not isinstance(value, bool):
        raise UserError(f"{key} is {str(value)[:40]!r}", where=SETTINGS, fix="use true or false")
    return default if value is None else value
