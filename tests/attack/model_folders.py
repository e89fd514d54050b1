"""Attack model folders: spoil every field of every JSON file in them and watch what each verb does.

Each try is a process of its own with bounded memory. What may come out: success, or one refused line; never a
traceback, an abort, more than five seconds of processor time or a gigabyte of memory. Run it for figures:

    python -m tests.attack.model_folders --count 2000 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import anyformer
from anyformer.errors import UserError

SECONDS, BYTES = 5.0, 2**30  # of processor time and of memory beyond what the libraries take themselves
PATIENCE = 30.0  # of a clock on the wall: only a process that waits for something reaches it
DEEP = 10_000
LONG = 10 * 2**20  # characters
MANY = 100_000  # items
Path_ = tuple[str | int, ...]  # of a value in a JSON file
HUGE = 10**30


# ---------------------------------------------------------------- good folders


def good_folders(root: Path) -> dict[str, Path]:
    """A tiny folder that opens for every family and of our own, some with a tokenizer and other files."""
    from tests.attack.tiny_models import TINY
    from tests.families.parity import save

    made = {}
    for name, build in TINY.items():
        torch.manual_seed(0)
        made[name] = save(build(), root / name)
    for name in ("gpt2", "bert", "t5", "llama"):
        made[name].joinpath("tokenizer.json").write_text(tokenizer_json(name), encoding="utf-8")
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "</s>",
                    "model_max_length": 32,
                    "added_tokens_decoder": {"0": {"content": "<unk>", "special": True}}}  # fmt: skip
        made[name].joinpath("tokenizer_config.json").write_text(json.dumps(settings))
    generation = {"max_new_tokens": 2, "num_beams": 1, "temperature": 1.0, "top_k": 5, "top_p": 0.9, "eos_token_id": 1,
                  "repetition_penalty": 1.1, "no_repeat_ngram_size": 0, "suppress_tokens": [3], "max_length": 30,
                  "min_length": 0, "length_penalty": 1.0, "num_return_sequences": 1, "pad_token_id": 0}  # fmt: skip
    made["gpt2"].joinpath("generation_config.json").write_text(json.dumps(generation))
    pictures = {"image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": 8, "width": 8},
                "do_rescale": True, "rescale_factor": 0.00392, "do_normalize": True, "image_mean": [0.5, 0.5, 0.5],
                "image_std": [0.5, 0.5, 0.5], "resample": 2}  # fmt: skip
    made["vit"].joinpath("preprocessor_config.json").write_text(json.dumps(pictures))
    made |= own_folders(root)
    return made


def own_folders(root: Path) -> dict[str, Path]:
    """What training and converting write: anyformer.json, preprocess.json, the tokenizer's files."""
    table = root / "rows.csv"
    table.write_text("text,age,label\n" + "".join(f"a b {i},{i},{'yes' if i % 2 else 'no'}\n" for i in range(60)))
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
        anyformer.train([table], target=["label"], out=root / "run",
                        settings={"training.steps": 1})  # fmt: skip
    anyformer.load(root / "run").save(root / "trained")
    anyformer.load(root / "gpt2").save(root / "own")
    return {"trained": root / "trained", "own": root / "own"}


def tokenizer_json(kind: str) -> str:
    """A tokenizer.json with as many kinds of steps as its model allows."""
    words = ["<unk>", "</s>", *"abcdefghij", "ab", "abc", "de", "##b"]
    vocab = {word: i for i, word in enumerate(words)}
    models: dict[str, dict[str, Any]] = {
        "gpt2": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                 "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                 "vocab": vocab, "merges": [["a", "b"], ["ab", "c"], ["d", "e"]]},
        "bert": {"type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": "##",
                 "max_input_chars_per_word": 100, "vocab": vocab},
        "t5": {"type": "Unigram", "unk_id": 0, "vocab": [[word, -float(i)] for i, word in enumerate(words)],
               "byte_fallback": False},
        "llama": {"type": "WordLevel", "unk_token": "<unk>", "vocab": vocab},
    }  # fmt: skip
    text = {"Regex": "[0-9]+"}
    normalizers = [{"type": "NFC"}, {"type": "Lowercase"}, {"type": "Replace", "pattern": text, "content": "a"},
                   {"type": "Prepend", "prepend": "a"}, {"type": "Strip", "strip_left": True, "strip_right": False},
                   {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                    "lowercase": True}]  # fmt: skip
    cuts = [{"type": "Split", "pattern": text, "behavior": "Isolated", "invert": False}, {"type": "WhitespaceSplit"},
            {"type": "Digits", "individual_digits": True}, {"type": "Punctuation", "behavior": "Isolated"},
            {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}]  # fmt: skip
    piece = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}]
    pair = [*piece, {"Sequence": {"id": "B", "type_id": 1}}]
    return json.dumps({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 4}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "<unk>"},
        "added_tokens": [
            {"id": i, "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True} for i, word in enumerate(words[:2])
        ],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts},
        "post_processor": {"type": "TemplateProcessing", "single": piece, "pair": pair,
                           "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "_"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            {"type": "WordPiece", "prefix": "##", "cleanup": True}]},
        "model": models[kind],
    })  # fmt: skip


# ---------------------------------------------------------------- what is spoiled


@dataclass(frozen=True)
class Spoiling:
    """One change of one file of a folder."""

    folder: str
    file: str
    place: Path_
    how: str

    def __str__(self) -> str:
        return f"{self.folder}/{self.file} {'.'.join(map(str, self.place)) or '(all)'} {self.how}"


def deep(opening: str, closing: str) -> str:
    return opening * DEEP + closing * DEEP


# How a value is spoiled; text that JSON's own writer cannot make is put in as it stands.
NUMBERS = {"0": 0, "-1": -1, "2^31": 2**31, "4e9": 4_000_000_000, "2^63": 2**63, "10^30": HUGE, "20000": 20_000}
VALUES: dict[str, Any] = {
    **{name: json.dumps(value) for name, value in NUMBERS.items()},
    "1e30": "1e30", "nan": "NaN", "infinity": "-Infinity", "0.5": "0.5", "null": "null", "true": "true",
    "word": '"word"', "nothing": '""', "empty list": "[]", "empty object": "{}", "lone surrogate": '"\\ud800"',
    "long text": '"' + "a" * LONG + '"', "deep lists": deep("[", "]"),
    "deep objects": deep('{"a":', "}").replace(":}", ":0}"),
    "words as keys": '{"a": "b", "c": "d"}', "many numbers": "[" + "1," * MANY + "1]",
}  # fmt: skip
REPEATED, NESTED, GONE = "repeated", "nested in itself", "left out"  # these depend on the value itself
MARK = "@@spoiled@@"


def places(value: Any, at: Path_ = ()) -> Iterator[Path_]:
    """Every value of a JSON tree; of long lists and objects the first, a middle and the last."""
    yield at
    keys: Sequence[Any] = (
        list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    chosen = (
        keys
        if len(keys) <= 64 and not isinstance(value, list)
        else [keys[0], keys[len(keys) // 2], keys[-1]]
        if keys
        else []
    )
    for key in dict.fromkeys(chosen):
        yield from places(value[key], (*at, key))


def spoilings(folders: Mapping[str, Path]) -> Iterator[Spoiling]:
    """Everything that can be spoiled, once each."""
    for name, folder in folders.items():
        for path in sorted(folder.glob("*.json")):
            data = json.loads(path.read_text(encoding="utf-8"))
            for place in places(data):
                found = data
                for key in place:
                    found = found[key]
                special = [REPEATED, NESTED] if isinstance(found, list | dict) else []
                for how in [*VALUES, *special, GONE]:
                    if place or how != GONE:
                        yield Spoiling(name, path.name, place, how)


def apply(spoiling: Spoiling, folder: Path) -> None:
    """Spoil a copy of the folder."""
    path = folder / spoiling.file
    data = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(spoiled(data, spoiling), encoding="utf-8")


def spoiled(data: Any, spoiling: Spoiling) -> str:
    """The file's new text."""
    parent: Any = None
    found = data
    for key in spoiling.place:
        parent, found = found, found[key]
    if spoiling.how == GONE:
        del parent[spoiling.place[-1]]
        return json.dumps(data)
    text = VALUES.get(spoiling.how) or itself(found, nested=spoiling.how == NESTED)
    if parent is None:
        return text
    parent[spoiling.place[-1]] = MARK
    return json.dumps(data).replace(f'"{MARK}"', text)


def itself(found: Any, *, nested: bool) -> str:
    """A value many times over, beside or inside itself."""
    whole = json.dumps(found)
    if nested:  # {"type": "Sequence", "normalizers": [...]} inside the last list of itself
        key = (
            next((key for key in reversed(found) if isinstance(found[key], list | dict)), None)
            if isinstance(found, dict)
            else None
        )
        opening, closing = ("[", "]") if key is None else json.dumps({**found, key: [MARK]}).split(f'"{MARK}"')
        return opening * DEEP + whole + closing * DEEP
    if isinstance(found, list):
        return json.dumps((found * (MANY // max(len(found), 1)))[:MANY]) if found else VALUES["many numbers"]
    more = {f"{key}{i}": value for i in range(MANY // max(len(found), 1)) for key, value in found.items()}
    return json.dumps(found | more)


# ---------------------------------------------------------------- one try


@dataclass(frozen=True)
class Outcome:
    """How a process ended: `bad` says what must not have happened, empty if nothing."""

    code: int
    seconds: float
    bytes: int
    said: str
    bad: str


def attempt(action: Callable[[], int], scratch: Path) -> Outcome:
    """Run an action in a process of its own, with bounded memory and time."""
    said = scratch / "said.txt"
    child = os.fork()
    if child == 0:
        confined(action, said)
    started = time.monotonic()
    while True:
        done, status, used = os.wait4(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() - started > PATIENCE:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    text = said.read_text(encoding="utf-8", errors="replace") if said.exists() else ""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code = os.waitstatus_to_exitcode(status)
    seconds, grown = used.ru_utime + used.ru_stime, max(0, used.ru_maxrss - before) * 1024
    return Outcome(code, seconds, grown, text, judged(code, seconds, grown, text))


def judged(code: int, seconds: float, grown: int, text: str) -> str:
    """What is wrong with how a process ended."""
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    if code < 0:
        return f"killed by signal {-code}: {text[-200:]}"
    if "Traceback" in text or "panicked" in text:
        return "traceback: " + " ".join(text.split())[-300:]
    if code not in (0, 2) or (code == 2 and (len(errors) != 1 or len(errors[0]) > 600)):
        return f"exit {code}, {len(errors)} error lines: {text[-300:]}"
    if seconds > SECONDS:
        return f"{seconds:.1f} s"
    return f"{grown / 2**20:,.0f} MiB" if grown > BYTES else ""


def confined(action: Callable[[], int], said: Path) -> None:
    """The child's whole life."""
    code = 1
    try:
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = (
            os.fdopen(1, "w", closefd=False),
            os.fdopen(2, "w", closefd=False, errors="backslashreplace"),
        )
        own = int(re.findall(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[0]) * 1024
        resource.setrlimit(resource.RLIMIT_AS, (own + 2 * BYTES, own + 2 * BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.disable()  # pytest's would write a crash, which is what is looked for, past us to the terminal
        code = action()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def by_load(folder: Path, scratch: Path) -> int:
    """Open the folder from Python, and use what was opened."""
    try:
        predictor = anyformer.load(folder)
        if predictor.tokenizer is not None:
            predictor.tokenizer.decode(predictor.tokenizer.encode("a b 12 abc"))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def by_verb(*words: str) -> Callable[[Path, Path], int]:
    """A verb of the command line; FOLDER and NEW stand for the two folders."""

    def run(folder: Path, scratch: Path) -> int:
        from anyformer.cli import main

        named = {"FOLDER": str(folder), "NEW": str(scratch / "new")}
        return main([named.get(word, word) for word in words])

    return run


def by_serve(folder: Path, scratch: Path) -> int:
    """Start a server; it is ready when it would answer."""
    from anyformer.serving.server import ServeOptions, serve

    try:
        serve(ServeOptions(folder, host="127.0.0.1", port=0, max_batch_size=2), lambda standing: os._exit(0))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


VERBS: dict[str, Callable[[Path, Path], int]] = {
    "load": by_load,
    "check": by_verb("check", "FOLDER"),
    "generate": by_verb("generate", "FOLDER", "a b", "--max-new-tokens", "2"),
    "convert": by_verb("convert", "FOLDER", "NEW", "--to", "anyformer"),
    "serve": by_serve,
}


def try_one(spoiling: Spoiling | Callable[[Path], None], good: Path, verb: str, scratch: Path) -> Outcome:
    """Spoil a copy of a good folder and give it to a verb."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    shutil.copytree(good, scratch / "model")
    apply(spoiling, scratch / "model") if isinstance(spoiling, Spoiling) else spoiling(scratch / "model")
    return attempt(lambda: VERBS[verb](scratch / "model", scratch), scratch)


def warm_up(good: Path) -> None:
    """Import here what every process would import by itself, or a try would measure that."""
    import anyformer.cli
    import anyformer.inference.predictor
    import anyformer.serving.server

    anyformer.load(good)


# ---------------------------------------------------------------- figures


def attack(
    count: int, seed: int, only: str = "", *, seconds: float = float("inf"), say: Callable[[str], None] = print
) -> dict[str, tuple[int, int]]:
    """Try `count` spoilings chosen by the seed (0: all), for so many seconds; for each file its tries and bad ones."""
    figures: dict[str, tuple[int, int]] = {}
    torch.set_num_threads(1)  # a child that is forked while threads wait here would wait for them for ever
    with tempfile.TemporaryDirectory() as root:
        folders = good_folders(Path(root) / "good")
        every = [one for one in spoilings(folders) if only in str(one)]
        chosen = every if count == 0 else random.Random(seed).sample(every, min(count, len(every)))
        warm_up(folders["gpt2"])
        verbs = itertools.cycle(VERBS)
        started = time.monotonic()
        for one in chosen:
            if time.monotonic() - started > seconds:
                break
            verb = next(verbs)
            outcome = try_one(one, folders[one.folder], verb, Path(root) / "try")
            key = f"{one.folder}/{one.file}"
            tries, bad = figures.get(key, (0, 0))
            figures[key] = (tries + 1, bad + bool(outcome.bad))
            if outcome.bad:
                say(f"BAD {verb} {one}: {outcome.bad}")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="tries; 0 means every one there is")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--only", default="", help="spoilings whose description holds this")
    asked = parser.parse_args()
    figures = attack(asked.count, asked.seed, asked.only, seconds=asked.seconds)
    for name, (tries, bad) in sorted(figures.items()):
        print(f"{name:<40} {tries:>6} tries  {bad:>5} bad")
    print(f"{'all':<40} {sum(t for t, _ in figures.values()):>6} tries  {sum(b for _, b in figures.values()):>5} bad")


if __name__ == "__main__":
    main()
