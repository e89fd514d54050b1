"""Text as it comes: whole characters, nothing taken back, no stop shown, and the same whole as at once."""

from __future__ import annotations

import asyncio
import json
import random
import threading

import pytest
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, pre_tokenizers

from anyformer.data.tokenizers.backends import LibraryEngine
from anyformer.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from anyformer.engine.sequence import Failed, Finished, NewToken, Prefilled
from anyformer.serving.choices import ResponseChoice, chat_logprobs, completion_logprobs
from anyformer.serving.detokenizer import HALF, Detokenizer, StopFilter, TextPieces, longest_stop_prefix
from anyformer.serving.mailbox import Box, Mailbox

TEXTS = ["It's a 'good' film, isn't it? We've seen it: Grüße aus Köln, 日本語の映画 🙂🙃 naïve café.",
         "  spaces   and\ttabs\nlines\r\n\r\n end ", "ab " * 40, "🙂" * 20,
         "don't do not ' quote ' they 're"]  # fmt: skip


def fallback() -> Tokenizer:
    """As sentencepiece's vocabularies with single bytes for what they do not know."""
    pieces = [
        "<unk>",
        *(f"<0x{value:02X}>" for value in range(256)),
        "▁",
        "▁a",
        "▁film",
        "b",
        "c",
        "▁it",
        "s",
        ".",
        "</s>",
    ]
    core = Core(models.BPE({piece: at for at, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                      decoders.Strip(" ", 1, 0)])  # fmt: skip
    core.add_special_tokens(["</s>"])
    return Tokenizer(LibraryEngine(core, {"eos": "</s>", "unk": "<unk>"}), {"eos": "</s>", "unk": "<unk>"}, {},
                     form="PreTrainedTokenizerFast")  # fmt: skip


def tidy() -> Tokenizer:
    """A word tokenizer that takes blanks back."""
    words = train_tokenizer(TEXTS, "wordpiece", 200, lower=True)
    return Tokenizer(LibraryEngine(words.core, dict(words.roles), tidy="words"), words.roles, words.settings,
                     form=words.form)  # fmt: skip


KINDS = {kind: (lambda kind=kind: train_tokenizer(TEXTS, kind, 300 if kind == "bpe" else 400))
         for kind in ("bpe", "byte", "char", "unigram", "wordpiece", "word")}  # fmt: skip
KINDS |= {"fallback": fallback, "tidy": tidy}


@pytest.fixture(scope="module")
def readers() -> dict[str, Detokenizer]:
    return {kind: Detokenizer(make()) for kind, make in KINDS.items()}


def streams(words: Tokenizer, count: int, seed: int = 0) -> list[list[int]]:
    """Real texts, and random tokens: halves of characters, special tokens and all."""
    chance = random.Random(seed)
    real = [words.encode(text) for text in TEXTS]
    drawn = [[chance.randrange(words.size) for _ in range(chance.randrange(1, 120))] for _ in range(count)]
    mixed = [[one for part in chance.sample(real, 3) for one in part[: chance.randrange(1, 30)]] for _ in range(count)]
    return real + drawn + mixed


def parted(ids: list[int], chance: random.Random) -> list[list[int]]:
    """The tokens as they come: one at a time, or several where the reader was busy."""
    parts, at = [], 0
    while at < len(ids):
        size = chance.choice((1, 1, 1, 2, 5))
        parts.append(ids[at : at + size])
        at += size
    return parts


@pytest.mark.parametrize("kind", KINDS)
def test_the_pieces_are_the_whole(kind: str, readers: dict[str, Detokenizer]) -> None:
    reader, chance = readers[kind], random.Random(1)
    assert reader.by_bytes == (kind in ("bpe", "byte"))
    for ids in streams(reader.tokenizer, 40):
        for pieces in (TextPieces(reader), reader.pieces()):
            said = [pieces.add(part) for part in parted(ids, chance)]
            assert "".join([*said, pieces.end()]) == reader.text(ids)
            assert not isinstance(pieces, TextPieces) or len(pieces.ids) < 100 or kind in ("fallback", "word")


@pytest.mark.parametrize("kind", ["bpe", "byte", "fallback"])
def test_every_piece_is_whole_characters(kind: str, readers: dict[str, Detokenizer]) -> None:
    reader = readers[kind]
    for text in TEXTS:
        pieces = reader.pieces()
        said = [pieces.add([one]) for one in reader.tokenizer.encode(text)]
        assert not any(HALF in piece for piece in said) and "".join(said).strip() in text


def test_control_tokens_one_by_one_are_not_the_whole(readers: dict[str, Detokenizer]) -> None:
    wrong = {kind: sum("".join(reader.text([one]) for one in ids) != reader.text(ids)
                       for ids in streams(reader.tokenizer, 10)) for kind, reader in readers.items()}  # fmt: skip
    assert all(wrong[kind] for kind in ("bpe", "byte", "fallback", "wordpiece", "tidy"))


def test_a_text_goes_on_from_its_prompt(readers: dict[str, Detokenizer]) -> None:
    reader = readers["fallback"]
    prompt, new = [reader.tokenizer.core.token_to_id(one) for one in ("▁a", "▁film")], "▁it"
    token = reader.tokenizer.core.token_to_id(new)
    assert TextPieces(reader, prompt).add([token]) == " it" and TextPieces(reader).add([token]) == "it"


@pytest.mark.quick
def test_no_stop_is_shown_and_nothing_before_it_lost() -> None:
    chance = random.Random(2)
    for _ in range(2000):
        text = "".join(chance.choice("ab\n") for _ in range(chance.randrange(40)))
        stops = ["".join(chance.choice("ab\n") for _ in range(chance.randrange(1, 5))) for _ in range(2)]
        until, said, at = StopFilter(stops), "", 0
        while at < len(text):
            size = chance.randrange(1, 4)
            said += until.add(text[at : at + size])
            assert not any(stop in said for stop in stops)
            at += size
        said += until.end()
        first = min((place for stop in stops if (place := text.find(stop)) >= 0), default=len(text))
        # Two stops may overlap: then the one that was whole first counts, and it may begin later.
        whole = min((text.find(stop) + len(stop) for stop in stops if stop in text), default=len(text))
        assert said == text[:first] or (len(said) > first and len(said) <= whole and text.startswith(said))
        assert until.found == (whole < len(text) or any(text.endswith(stop) for stop in stops))


def test_control_a_beginning_that_is_not_held_back_leaks() -> None:
    assert longest_stop_prefix("so\nus", ["\nuser:"]) == 3
    until = StopFilter(["\nuser:"])
    assert until.add("so\nus") == "so" and until.add("er: x") == "" and until.found
    until = StopFilter(["\nuser:"])
    assert until.add("so\nus") + until.add("ual") + until.end() == "so\nusual"


# ---------------------------------------------------------------- one text


def told(text: ResponseChoice, ids: list[int], reason: str = "length") -> str:
    said = ""
    for one in ids:
        text.receive(NewToken(one, -1.0, {one: -1.0, 5: -2.0}))
        said += text.take_new()[0]
    text.receive(Finished(reason))  # type: ignore[arg-type]
    return said + text.take_new()[0]


def test_ends_stops_and_reasons(readers: dict[str, Detokenizer]) -> None:
    reader = readers["bpe"]
    words = reader.tokenizer
    ids = words.encode("It's a 'good' film, isn't it?")
    assert told(ResponseChoice(0, reader), ids) == words.decode(ids)
    text = ResponseChoice(0, reader, ends=[words.eos or 0])
    assert told(text, [*ids, words.eos or 0], "eos") == words.decode(ids) and text.reason == "stop"
    assert text.count == len(ids) + 1
    text = ResponseChoice(0, reader, stops=["film", "good"])
    assert told(text, ids, "stop") == "It's a '" and text.reason == "stop"
    text = ResponseChoice(0, reader, stops=["filmy"])
    assert told(text, ids) == words.decode(ids) and text.reason == "length"
    for event, code in ((Finished("cancelled"), "cancelled"), (Finished("deadline"), "timeout")):
        text = ResponseChoice(0, reader)
        text.receive(event)
        assert text.error is not None and text.error.code == code and text.error.status == 503
    text = ResponseChoice(0, reader)
    text.receive(Failed(RuntimeError("at 0x7f00deadbeef in /usr/x.py")))
    assert text.error is not None and text.error.status == 500 and "0x" not in text.error.message


def test_log_probabilities_belong_to_what_is_shown(readers: dict[str, Detokenizer]) -> None:
    reader = readers["bpe"]
    words = reader.tokenizer
    prompt, ids = words.encode("Grüße "), words.encode("日本 film, isn't")
    text = ResponseChoice(0, reader, prompt="Grüße ", prompt_ids=prompt, before=prompt, logprobs=True, stops=[", isn"])
    text.receive(Prefilled([None, *[-0.5] * (len(prompt) - 1)], [None, *[{7: float("-inf")}] * (len(prompt) - 1)]))
    said, entries = text.take_new()
    for one in ids:
        text.receive(NewToken(one, -1.0, {one: -1.0}))
        piece, more = text.take_new()
        said, entries = said + piece, entries + more
    assert said == "Grüße 日本 film" and text.reason == "stop"
    lists = json.loads(completion_logprobs(entries, reader))
    assert "".join(lists["tokens"]).count("film") <= 1 and "isn" not in "".join(lists["tokens"])
    assert lists["token_logprobs"][0] is None and lists["top_logprobs"][0] is None
    assert lists["top_logprobs"][1] and set(lists["top_logprobs"][1].values()) == {-9999.0}
    assert lists["text_offset"] == sorted(lists["text_offset"]) and lists["text_offset"][len(prompt)] == 6
    assert (
        b"".join(bytes(one["bytes"]) for one in json.loads(chat_logprobs(entries, reader))["content"]).decode() == said
    )


# ---------------------------------------------------------------- mailbox


def test_nothing_is_lost_on_the_way_from_the_engine() -> None:
    async def run() -> int:
        mailbox = Mailbox(asyncio.get_running_loop())
        boxes = [Box(mailbox) for _ in range(20)]
        wakes = 0
        deliver = mailbox.deliver

        def counted() -> None:
            nonlocal wakes
            wakes += 1
            deliver()

        mailbox.deliver = counted  # type: ignore[method-assign]

        def engine() -> None:
            for item in range(2000):
                for box in boxes:
                    box.post(item)

        async def read(box: Box) -> list[int]:
            found: list[int] = []
            while len(found) < 2000:
                found += await box.take()
            return found

        thread = threading.Thread(target=engine)
        thread.start()
        found = await asyncio.wait_for(asyncio.gather(*map(read, boxes)), 20)
        thread.join()
        assert all(one == list(range(2000)) for one in found)
        return wakes

    assert asyncio.run(run()) < 20 * 2000 / 2  # many items a wake


def test_a_reader_who_is_behind_is_told_of_once_and_one_who_left_is_not_waited_for() -> None:
    async def run() -> None:
        mailbox, told = Mailbox(asyncio.get_running_loop()), list[bool]()
        box = Box(mailbox, 10, told.append)
        for item in range(9):
            box.post(item)
        assert told == [] and len(await box.take()) == 9
        for _ in range(2):
            for item in range(12):
                box.post(item)
            assert told == [True] and len(await box.take()) == 12 and told == [True, False]
            told.clear()
        waiting = asyncio.create_task(box.take())
        await asyncio.sleep(0)
        box.leave()
        assert await asyncio.wait_for(waiting, 1) == []

    asyncio.run(run())
