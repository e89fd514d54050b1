"""Constrained output: whatever model, tokenizer and settings, a text that ended by itself has the form asked for."""

from __future__ import annotations

import functools
import json
import re
import time
from typing import Any

import jsonschema_rs
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anyformer import Rope, UserError
from anyformer.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from anyformer.generation import Generated, Generation, generate
from anyformer.generation import grammar as grammars
from anyformer.generation.grammar import Grammar, choice_guide, grammar_vocabulary, json_guide, regex_guide
from tests.generation.nets import build, decoder

TEXT = [
    '{"name": "Bob", "age": 31.5e+2, "tags": [true, false, null]} The quick brown fox jumps: é 0123456789 -_\\/u'
] * 3
LETTERS = [chr(code) for code in range(32, 127)]
KINDS = ("bpe", "byte", "char", "unigram", "wordpiece")
every_kind = pytest.mark.parametrize("kind", KINDS)
PERSON = {
    "type": "object", "additionalProperties": False, "required": ["name", "age"],
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
                   "kind": {"enum": ["a", "b c"]}},
}  # fmt: skip


@functools.cache
def words(kind: str) -> Tokenizer:
    """A tokenizer that can spell everything printable, inside words too."""
    inside = [f"a{letter}a" for letter in LETTERS]
    return train_tokenizer([*TEXT, *[" ".join(LETTERS + inside)] * 3], kind, 400)  # type: ignore[arg-type]


@functools.cache
def net(size: int, seed: int = 0) -> Any:
    return build(decoder(None, Rope(), vocab=size, depth=1), seed=seed, scale=1.0)


def end_of(tokenizer: Tokenizer) -> int:
    found = tokenizer.sep if tokenizer.eos is None else tokenizer.eos
    assert found is not None
    return found


def write(kind: str, guide: Grammar | None, *, new: int = 150, seed: int = 0, **more: Any) -> Generated:
    tokenizer = words(kind)
    ids = torch.tensor([tokenizer.encode("The fox", special=False)])
    how = Generation(
        **{"max_new_tokens": new, "eos_token_id": end_of(tokenizer), "do_sample": True, "seed": seed} | more
    )
    return generate(net(tokenizer.size), ids, settings=how, guide=guide)


def text_of(kind: str, result: Generated) -> str:
    return words(kind).decode(next(iter(result.rows())))


# ---------------------------------------------------------------- JSON


NAMES = st.sampled_from(["a", "bc", "name", "x y", 'q"', "é"])
LEAVES = st.one_of(
    st.just({"type": "boolean"}), st.just({"type": "null"}), st.just({"type": "integer"}),
    st.builds(lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
              st.integers(-200, 200), st.integers(0, 500)),
    st.just({"type": "number", "minimum": -2.5, "maximum": 10}),
    st.builds(lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
              st.integers(0, 3), st.integers(0, 4)),
    st.just({"type": "string", "pattern": "^[a-f]{2,5}$"}), st.just({"type": "string", "format": "date"}),
    st.just({"enum": ["x", 3, None, [1, {"a": True}]]}), st.just({"const": {"k": [1.5, "v"]}}),
)  # fmt: skip


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    sizes = st.tuples(st.integers(0, 2), st.integers(0, 2)).map(
        lambda pair: {"minItems": pair[0], "maxItems": sum(pair)}
    )
    lists = st.builds(lambda items, size: {"type": "array", "items": items, **size}, inner, sizes)
    objects = st.dictionaries(NAMES, inner, max_size=3).flatmap(
        lambda parts: st.sets(st.sampled_from(sorted(parts)) if parts else st.nothing()).map(
            lambda needed: {
                "type": "object",
                "properties": parts,
                "required": sorted(needed),
                "additionalProperties": False,
            }
        )
    )
    return st.one_of(lists, objects, st.lists(inner, min_size=1, max_size=3).map(lambda some: {"anyOf": some}))


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    schema=st.recursive(LEAVES, larger, max_leaves=5), kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32),
    temperature=st.sampled_from([0.0, 0.7, 1.0, 5.0]),
)  # fmt: skip
def test_texts_obey_their_schema(schema: Any, kind: str, seed: int, temperature: float) -> None:
    guide = json_guide(words(kind), schema, [end_of(words(kind))])
    got = write(kind, guide, seed=seed, temperature=temperature, do_sample=temperature > 0)
    text = text_of(kind, got)
    if got.reasons != ["length"]:
        assert jsonschema_rs.is_valid(schema, json.loads(text)), (schema, text)


@every_kind
def test_each_vocabulary_ends_its_texts(kind: str) -> None:
    """Or the law above would be empty. The control: without a guide the same model writes no JSON."""
    ended = 0
    for seed in range(4):
        got = write(kind, json_guide(words(kind), PERSON, [end_of(words(kind))]), seed=seed)
        if got.reasons != ["length"]:
            assert jsonschema_rs.is_valid(PERSON, json.loads(text_of(kind, got)))
            ended += 1
        with pytest.raises(json.JSONDecodeError):
            json.loads(text_of(kind, write(kind, None, new=30, seed=seed)))
    assert ended >= 2


@every_kind
def test_a_cut_text_is_the_beginning_of_a_right_one(kind: str) -> None:
    tokenizer = words(kind)
    for cut in (1, 4, 9):
        guide = json_guide(tokenizer, PERSON, [end_of(tokenizer)])
        first = write(kind, guide, new=cut, seed=3)
        assert first.reasons == ["length"]
        how = Generation(max_new_tokens=150, eos_token_id=end_of(tokenizer), do_sample=True, seed=5)
        rest = generate(net(tokenizer.size), first.ids, settings=how, guide=guide)  # the same guide goes on
        assert rest.reasons != ["length"]
        whole = [*next(iter(first.rows())), *next(iter(rest.rows()))]
        assert jsonschema_rs.is_valid(PERSON, json.loads(tokenizer.decode(whole)))


# ---------------------------------------------------------------- patterns and choices


PATTERNS = ["[0-9]{3}(-[a-e]+)?", "(yes|no|maybe)", "[A-Z][a-z]{0,3}( [a-z]{1,4}){1,3}", r"\d+\.\d{2}", "a{3}|b{2,4}",
            r"\w{1,6}@\w{1,4}\.com", "x*y"]  # fmt: skip


@every_kind
@pytest.mark.parametrize("pattern", PATTERNS)
def test_texts_match_their_pattern(pattern: str, kind: str) -> None:
    got = write(kind, regex_guide(words(kind), pattern, [end_of(words(kind))]), new=60, seed=len(pattern))
    text = text_of(kind, got)
    assert got.reasons == ["length"] or re.fullmatch(pattern, text, re.ASCII), text
    assert not re.fullmatch(pattern, text_of(kind, write(kind, None, new=20)))  # control


@every_kind
def test_choices(kind: str) -> None:
    texts = {"the fox", "brown", "browns", 'a "quoted" one'}
    found = {text_of(kind, write(kind, choice_guide(words(kind), sorted(texts), []), seed=seed)) for seed in range(6)}
    assert found <= texts and len(found) > 1


@pytest.mark.quick
def test_rules_do_not_break_the_form() -> None:
    """Whatever is suppressed, penalised or forced, the guide is obeyed."""
    tokenizer = words("byte")
    quote = tokenizer.encode('"', special=False)[0]
    ways: list[dict[str, Any]] = [
        {"suppress_tokens": [quote]}, {"no_repeat_ngram_size": 1}, {"min_new_tokens": 100}, {"repetition_penalty": 5.0},
        {"forced_eos_token_id": tokenizer.eos, "top_k": 1}, {"do_sample": False}, {"temperature": 1e-6, "top_p": 0.1},
    ]  # fmt: skip
    for more in ways:
        got = write("byte", json_guide(tokenizer, PERSON, [end_of(tokenizer)]), new=200, seed=2, **more)
        assert got.reasons != ["length"], more
        assert jsonschema_rs.is_valid(PERSON, json.loads(text_of("byte", got)))


@every_kind
def test_special_tokens_never_come_but_the_ends(kind: str) -> None:
    tokenizer, end = words(kind), end_of(words(kind))
    special = [i for i, spelled in enumerate(tokenizer.spelling.tokens) if spelled is None]
    assert end in special and len(special) >= 3
    guide, draws = regex_guide(tokenizer, ".{1,20}", [end]), torch.Generator().manual_seed(0)
    for step in range(8):
        mask = guide.mask()
        assert [i for i in special if mask[i]] in ([], [end] if step else [])  # in half a character there is no end
        mask[end] = False
        guide.accept(int((torch.rand(len(mask), generator=draws) * mask).argmax()))


# ---------------------------------------------------------------- batches, proposals, engine


def test_batches_have_a_guide_each() -> None:
    tokenizer = words("bpe")
    model, ids = net(tokenizer.size), torch.tensor([tokenizer.encode("The fox", special=False)]).expand(3, -1)
    how = Generation(max_new_tokens=60, eos_token_id=tokenizer.eos, do_sample=True, seed=[1, 2, 3])

    def guides() -> list[Grammar | None]:
        return [regex_guide(tokenizer, "[0-9]{4}", how.ends), None, json_guide(tokenizer, {"enum": ["v"]}, how.ends)]

    together = generate(model, ids, settings=how, guide=guides())
    texts = [tokenizer.decode(row) for row in together.rows()]
    assert re.fullmatch("[0-9]{4}", texts[0]) and texts[2] == '"v"' and together.reasons[0] == "stop"
    for row, guide in enumerate(guides()):
        seed = Generation(max_new_tokens=60, eos_token_id=tokenizer.eos, do_sample=True, seed=row + 1)
        alone = generate(model, ids[:1], settings=seed, guide=None if guide is None else [guide])
        assert next(iter(alone.rows())) == list(together.rows())[row]
    with pytest.raises(UserError, match="guide: 1 guides for 3 texts"):
        generate(model, ids, settings=how, guide=guides()[0])
    with pytest.raises(UserError, match="one guide serves two texts"):
        generate(model, ids, settings=how, guide=guides()[:1] * 3)
    with pytest.raises(UserError, match="beam search takes no guide"):
        generate(model, ids, settings=Generation(num_beams=2), guide=guides())


def test_proposals_change_nothing() -> None:
    tokenizer = words("bpe")
    model, draft = net(tokenizer.size), net(tokenizer.size, 1)
    ids = torch.tensor([tokenizer.encode('{"name": "Bob", "age": 3} The', special=False)]).expand(2, -1)
    base = {"max_new_tokens": 70, "eos_token_id": tokenizer.eos, "do_sample": True, "seed": [4, 5]}

    def run(draft: Any = None, **more: Any) -> Generated:
        how = Generation(**{**base, **more})
        guides = [json_guide(tokenizer, PERSON, how.ends) for _ in range(2)]
        return generate(model, ids, settings=how, guide=guides, draft=draft)

    plain = run()
    for got in (run(prompt_lookup_num_tokens=6), run(draft), run(model)):
        assert torch.equal(got.ids, plain.ids) and got.reasons == plain.reasons
    assert got.passes is not None and got.passes.sum() < 0.5 * plain.lengths.sum()  # a draft obeys a copy of the guide


def test_an_engine_obeys_guides() -> None:
    from anyformer.engine.engine import Engine, stream_tokens
    from anyformer.generation.cache.open_store import open_serving_store

    tokenizer = words("bpe")
    engine = Engine(open_serving_store(net(tokenizer.size), capacity=4), text_of=tokenizer.decode)
    engine.start()
    try:
        streams = []
        for seed in range(5):
            how = Generation(max_new_tokens=150, eos_token_id=tokenizer.eos, do_sample=True, seed=seed)
            guide = json_guide(tokenizer, PERSON, how.ends)
            streams.append(stream_tokens(engine, tokenizer.encode("The fox", special=False), how, guide=guide))
        for seed, stream in enumerate(streams):
            tokens = [new.token for new in stream]
            alone = write("bpe", json_guide(tokenizer, PERSON, [end_of(tokenizer)]), seed=seed)
            assert tokens == next(iter(alone.rows()))
            assert alone.reasons == ["length"] or jsonschema_rs.is_valid(PERSON, json.loads(tokenizer.decode(tokens)))
    finally:
        engine.stop()


# ---------------------------------------------------------------- bounds and mistakes


def deep(levels: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.quick
@pytest.mark.parametrize(
    "schema, message",
    [
        ({"type": "foo"}, "JSON schema: Invalid type: foo"),
        ({"type": "object", "properties": {"a": {"items": {"not": {}}}}}, "JSON schema /properties/a/items: Unimpl"),
        ({"$defs": {"x": {"type": "strin"}}, "$ref": "#/$defs/x"}, r"JSON schema /\$defs/x: Invalid type: strin"),
        ({"$ref": "https://example.org/s.json"}, "does not fetch"),
        ({"type": "string", "pattern": "(a"}, "JSON schema: unclosed group"),
        ("{", "the schema is not JSON"),
        ([], "a schema is an object, not list"),
        (False, "nothing obeys the schema false"),
        ({"minimum": float("nan")}, "the schema is not JSON"),
        ({"type": "integer", "multipleOf": 99991}, "multipleOf 99991 makes too large a table"),
        ({"allOf": [{"multipleOf": 101}, {"multipleOf": 0.00103}]}, "makes? too large a table"),
        (deep(70), "levels deep; use at most 64"),
        ({"enum": ["x" * 100] * 1000}, "JSON schema: the schema has .* characters; use at most 65,536"),
        ({"allOf": [{"type": "integer"}, {"type": "string"}]}, "Unsatisfiable"),
        ({"x-guidance": {"lenient": True}, "uniqueItems": True}, "Unimplemented keys"),
    ],
)  # fmt: skip
def test_schemas_that_cannot_be_obeyed_are_refused(schema: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        json_guide(words("bpe"), schema, [])
    assert len(str(error.value)) <= 300


@pytest.mark.quick
@pytest.mark.parametrize(
    "pattern, message",
    [
        ("(a", r"regex: the pattern is not valid: missing \), unterminated subpattern at position 0"),
        ("a(?=b)", "look-around"),
        (r"(a)\1", "backreferences are not supported"),
        (r"\bfoo", "lookarounds not supported"),
        ("[[a]", "the pattern is not clear: Possible nested set at position 1"),
        ("a" * 5000, "the pattern has 5,000 characters; use at most 4,096"),
        ("", "no pattern given"),
    ],
)
def test_patterns_that_cannot_be_obeyed_are_refused(pattern: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        regex_guide(words("bpe"), pattern, [])
    assert len(str(error.value)) <= 300


def test_a_vocabulary_that_cannot_spell_it_says_so() -> None:
    few = train_tokenizer(["abc { "], "char", 20)
    with pytest.raises(UserError, match="regex: no token of this vocabulary can continue the text"):
        regex_guide(few, "[0-9]+", [])
    guide = json_guide(few, {"type": "object"}, [])
    for token in few.encode("{ ", special=False):
        guide.accept(token)
    with pytest.raises(UserError, match="JSON schema: no token of this vocabulary can continue"):
        guide.mask()


def test_hostile_grammars_cost_little() -> None:
    """Seconds of the processor, of compiling and of sixty tokens; limits turn the rest into sentences."""
    tokenizer = words("bpe")
    hostile: list[Any] = [
        {"anyOf": [{"type": "object", "properties": {f"k{i}": {}}} for i in range(1000)]},
        {"type": "string", "pattern": "(a|b)*a(a|b){30}"}, {"type": "array", "minItems": 10**6, "items": {}},
        {"type": "string", "maxLength": 10**9}, {"enum": [f"word{i}" for i in range(4000)]},
        {"$defs": {"n": {"anyOf": [{"$ref": "#/$defs/n"}] * 100}}, "$ref": "#/$defs/n"},
        {"$defs": {f"n{i}": {"allOf": [{"$ref": f"#/$defs/n{i + 1}"}] * 2} for i in range(40)} | {"n40": {}},
         "$ref": "#/$defs/n0"}, "(.*a.{50}b){5}", "((((a{0,50}){0,50}){0,50}){0,50}){0,50}b", r"(((\w*)*)*)*c",
        "(?:(?:a?){1000}){100}a{1000}", "|".join(f"w{i}" for i in range(700)),
    ]  # fmt: skip
    for case in hostile:
        started = time.process_time()
        try:
            guide = (regex_guide if isinstance(case, str) else json_guide)(tokenizer, case, [])
            draws = torch.Generator().manual_seed(0)
            for _ in range(60):
                mask = guide.mask()
                guide.accept(int((torch.rand(len(mask), generator=draws) * mask).argmax()))
                if guide.over:
                    break
        except UserError as error:
            assert len(str(error)) <= 300
        assert time.process_time() - started < 3, case


@pytest.mark.quick
def test_grammars_are_compiled_once_and_few_are_kept() -> None:
    tokenizer = train_tokenizer(TEXT, "byte", 260)
    made = grammar_vocabulary(tokenizer)
    one, two = (regex_guide(tokenizer, "[ab]c", []) for _ in range(2))
    assert len(made.grammars) == 1 and one.matcher is not two.matcher
    one.accept(tokenizer.encode("a", special=False)[0])
    assert not torch.equal(one.mask(), two.mask())  # each is in the middle of its own text
    for number in range(2 * grammars.KEPT):
        regex_guide(tokenizer, f"a{number}", [])
    assert len(made.grammars) == grammars.KEPT
    assert grammar_vocabulary(words("byte")) is not made
