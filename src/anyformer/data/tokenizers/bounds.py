"""Limits on a tokenizer.json, checked before it is passed to the tokenizers library.

The library is compiled: it accepts any id and any pipeline, and if these need too much memory the whole process dies.
So ids are limited by the size of the file, and pipeline steps by how much they could expand a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from anyformer.errors import UserError

FILE = "tokenizer.json"
FIX = "that is not a published tokenizer; copy the file again"
FEW_IDS = 2**16  # ids allowed regardless of the file size: a reduced vocabulary keeps the ids of its special tokens
LONGEST_TOKEN = 2**16  # characters
LONGEST_PATTERN, MOST_REPEATS = 2**14, 2**12  # of a regular expression: characters, and the product of its counts {n}
LONGEST_WORD = 10_000  # characters; WordPiece tries every substring of a word
MOST_STEPS, DEEPEST = 64, 8  # of a pipeline, and of nested pipelines
MOST_GROWTH = 2**12  # characters that one character may expand to
PIPELINES = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors",
             "decoder": "decoders"}  # fmt: skip


def check_tokenizer(data: Mapping[str, Any], size: int) -> None:
    """Reject a tokenizer.json, of `size` characters, with numbers and steps that no tokenizer needs."""
    model = data.get("model")
    if not isinstance(model, dict):
        raise bounds_error("there is no model")
    check_model(model, max(size, FEW_IDS))
    check_added(data.get("added_tokens"), max(size, FEW_IDS))
    for name, inner in PIPELINES.items():
        steps = list(steps_of(data.get(name), inner, name))
        if len(steps) > MOST_STEPS:
            raise bounds_error(f"{name} has {len(steps):,} steps")
        for step in steps:
            check_step(step, name, max(size, FEW_IDS))
        if growth(steps) > MOST_GROWTH:
            raise bounds_error(f"{name} makes a text more than {MOST_GROWTH:,} times as long")


def bounds_error(what: str) -> UserError:
    return UserError(what, where=FILE, fix=FIX)


# ---------------------------------------------------------------- ids and tokens


def check_model(model: Mapping[str, Any], ids: int) -> None:
    """Check vocabulary, merges and limits of the model."""
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        for token, number in vocab.items():
            check_token(token)
            check_id(number, ids, token)
    elif isinstance(vocab, list):
        for row in vocab:
            if not isinstance(row, list) or len(row) != 2 or not isinstance(row[0], str) or not is_number(row[1]):
                raise bounds_error(f"vocab holds {str(row)[:40]}, expected a piece with its score")
            check_token(row[0])
        unknown = model.get("unk_id")
        if unknown is not None:
            check_id(unknown, len(vocab), "unk_id")
    else:
        raise bounds_error("model has no vocab")
    for pair in model.get("merges") or ():
        parts = pair.split(" ", 1) if isinstance(pair, str) else pair
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
            raise bounds_error(f"merges holds {str(pair)[:40]}, expected two tokens")
    longest = model.get("max_input_chars_per_word", 100)
    if not is_whole(longest) or not 0 < longest <= LONGEST_WORD:
        raise bounds_error(f"max_input_chars_per_word is {str(longest)[:40]}, expected 1 to {LONGEST_WORD:,}")


def check_added(rows: Any, ids: int) -> None:
    """Check the added tokens."""
    if rows is None:
        return
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise bounds_error("added_tokens is not a list of tokens")
    for row in rows:
        check_token(row.get("content"))
        check_id(row.get("id"), ids, str(row.get("content")))


def check_token(token: Any, where: str = FILE) -> None:
    """Reject an invalid token: not a string, or too long for any vocabulary."""
    if not isinstance(token, str) or len(token) > LONGEST_TOKEN:
        raise UserError(
            f"{str(token)[:40]!r} is not a token of at most {LONGEST_TOKEN:,} characters", where=where, fix=FIX
        )


def check_id(number: Any, ids: int, token: str) -> None:
    if not is_whole(number) or not 0 <= number < ids:
        raise bounds_error(f"{token[:40]!r} has id {str(number)[:40]}, expected 0 to {ids - 1:,}")


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30


# ---------------------------------------------------------------- steps


def steps_of(step: Any, inner: str, name: str, depth: int = 0) -> Iterator[dict[str, Any]]:
    """The flattened steps of a pipeline, including nested ones."""
    if step is None:
        return
    if not isinstance(step, dict) or not isinstance(step.get("type"), str):
        raise bounds_error(f"{name} holds {str(step)[:40]}, expected a step with its type")
    if depth > DEEPEST:
        raise bounds_error(f"{name} is nested more than {DEEPEST} deep")
    if step["type"] != "Sequence":
        yield step
        return
    within = step.get(inner)
    if not isinstance(within, list) or not all(isinstance(one, dict) for one in within):
        raise bounds_error(f"{name} is a Sequence without {inner}")
    for one in within:
        yield from steps_of(one, inner, name, depth + 1)


def check_step(step: Mapping[str, Any], name: str, ids: int) -> None:
    """Check patterns, ids and lengths of one step."""
    for key, value in step.items():
        if isinstance(value, str) and key != "precompiled_charsmap":
            check_token(value)
    pattern = step.get("pattern")
    if isinstance(pattern, dict) and isinstance(pattern.get("Regex"), str):
        check_pattern(pattern["Regex"], name)
    if step["type"] == "TemplateProcessing":
        check_template(step)
    for number in numbers_in(step):
        if not number < ids:
            raise bounds_error(f"{name} holds the number {str(number)[:40]}")


def check_template(step: Mapping[str, Any]) -> None:
    """Check that a template only uses special tokens that it defines."""
    known = step.get("special_tokens")
    if isinstance(known, list):
        known = {row.get("id"): row for row in known if isinstance(row, dict)}
    for pieces in (step.get("single"), step.get("pair")):
        for piece in pieces if isinstance(pieces, list) else ():
            token = piece.get("SpecialToken") if isinstance(piece, dict) else None
            if token is not None and (not isinstance(token, dict) or token.get("id") not in (known or ())):
                raise bounds_error("post_processor names a special token that it does not describe")
    for row in (known or {}).values():
        ids, tokens = (row.get("ids"), row.get("tokens")) if isinstance(row, dict) else (None, None)
        if not isinstance(ids, list) or not isinstance(tokens, list) or not 0 < len(ids) == len(tokens):
            raise bounds_error("post_processor has a special token without its ids")


def numbers_in(value: Any) -> Iterator[int | float]:
    """Every number inside a step."""
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from numbers_in(one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def growth(steps: list[dict[str, Any]]) -> int:
    """The maximum number of characters that one character may expand to in the steps that replace text."""
    found = 1
    for step in steps:
        if step["type"] == "Replace":
            pattern, content = step.get("pattern"), str(step.get("content", ""))
            exact = pattern.get("String") if isinstance(pattern, dict) else None
            # A regular expression may match the empty string before every character.
            found *= max(1, -(-len(content) // len(exact)) if exact else len(content) + 1)
    return found


def check_pattern(pattern: str, name: str) -> None:
    """Reject a regular expression that needs much memory to compile or, on a long text, unbounded time to match."""
    repeats = 1
    for count in re.findall(r"\{(\d+)(?:,(\d*))?\}", pattern):
        repeats *= max(int(number or 1) if len(number) < 9 else MOST_REPEATS + 1 for number in count) or 1
    if len(pattern) > LONGEST_PATTERN or repeats > MOST_REPEATS:
        raise bounds_error(f"{name} has a pattern that is too large: {pattern[:40]!r}")
    if repeats_a_repeat(pattern):
        raise bounds_error(f"{name} has a pattern that repeats what it repeats already: {pattern[:40]!r}")


def repeats_a_repeat(pattern: str) -> bool:
    r"""Whether an unbounded repetition is nested in another one, as in (a+)+.

    >>> repeats_a_repeat(r"(a+)+$"), repeats_a_repeat(r"\s+(?!\S)|(?:'s)? ?\p{L}+")
    (True, False)
    """
    open_groups, closed = [False], None  # whether a group contains such a repetition; that of the group just closed
    at, in_class = 0, False
    while at < len(pattern):
        letter, rest = pattern[at], pattern[at:]
        endless = letter in "*+" or re.match(r"\{\d*,\}", rest) is not None
        if letter == "\\":
            at, closed = at + 1, None
        elif in_class:
            in_class = letter != "]"
        elif letter == "[":
            in_class, closed = True, None
        elif letter == "(":
            open_groups.append(False)
            closed = None
        elif letter == ")":
            closed = open_groups.pop() if len(open_groups) > 1 else False
            open_groups[-1] = open_groups[-1] or closed
        elif endless and closed:
            return True
        elif endless:
            open_groups[-1], closed = True, None
        else:
            closed = None
        at += 1
    return False
