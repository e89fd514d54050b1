"""Model folders that lie, are broken, or reach outside themselves. Each function spoils one good folder."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

Spoil = Callable[[Path], None]


class Bomb:
    """Runs code when unpickled: touches a file beside the folder."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def config(**changes: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return spoil


def text(name: str, content: str | bytes) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return spoil


def pickled(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / name).write_bytes(pickle.dumps(Bomb(str(folder.parent / "ran"))))

    return spoil


def header(change: Callable[[dict[str, Any]], Any], *, length: int | None = None) -> Spoil:
    """Rewrite the header of model.safetensors; the bytes of the tensors stay."""

    def spoil(folder: Path) -> None:
        path = folder / "model.safetensors"
        data = path.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        described = json.loads(data[8 : 8 + size])
        changed = change(described)
        new = (changed if isinstance(changed, str) else json.dumps(described)).encode()
        path.write_bytes(struct.pack("<Q", len(new) if length is None else length) + new + data[8 + size :])

    return spoil


def entry(**changes: Any) -> Callable[[dict[str, Any]], None]:
    """Change the first tensor's description."""

    def change(described: dict[str, Any]) -> None:
        first = next(name for name in described if name != "__metadata__")
        described[first].update(changes)

    return change


def rename(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    def change(described: dict[str, Any]) -> None:
        described[new] = described.pop(old)

    return change


def index(**placed: str) -> Spoil:
    """Replace the weights by an index that names these files."""

    def spoil(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "kept.safetensors")
        mapping = {"weight_map": placed or {"x": "kept.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(mapping))

    return spoil


def linked(name: str, target: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return spoil


def cut(share: float) -> Spoil:
    def spoil(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])

    return spoil


def cyclic(folder: Path) -> None:
    """An index whose shard is the index itself."""
    index(a="model.safetensors.index.json", b="model.safetensors.index.json")(folder)


def loop(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("model.safetensors")


def fifo(folder: Path) -> None:
    """A pipe nobody writes into must not be waited for."""
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


def folder_for_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()


def spec(**changes: Any) -> Spoil:
    """The folder as one of our own, with some fields of its anyformer.json changed by their dotted paths."""

    def spoil(folder: Path) -> None:
        import anyformer

        predictor = anyformer.load(folder)
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        predictor.save(folder)
        tree = json.loads((folder / "anyformer.json").read_text())
        for path, value in changes.items():
            *above, last = path.split("__")
            part = tree
            for name in above:
                part = part[name]
            part[last] = value
        (folder / "anyformer.json").write_text(json.dumps(tree))

    return spoil


def many_tensors(described: dict[str, Any]) -> None:
    """50,000 tensors of no bytes."""
    for i in range(50_000):
        described[f"transformer.h.{i}.attn.c_attn.weigth"] = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


def tokenizer(**changes: Any) -> Spoil:
    """A small tokenizer.json with some fields changed by their dotted paths."""

    def spoil(folder: Path) -> None:
        vocab = {"<unk>": 0, "a": 1, "b": 2, "c": 3}
        tree: dict[str, Any] = {
            "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": None,
            "post_processor": None, "decoder": None,
            "added_tokens": [{"id": 0, "content": "<unk>", "single_word": False, "lstrip": False, "rstrip": False,
                              "normalized": False, "special": True}],
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
        }  # fmt: skip
        for path, value in changes.items():
            *above, last = path.split("__")
            part: Any = tree
            for name in above:
                part = part[int(name) if name.isdigit() else name]
            part[last] = value
        (folder / "tokenizer.json").write_text(json.dumps(tree))

    return spoil


def sequence(count: int, step: dict[str, Any], name: str = "normalizers") -> dict[str, Any]:
    return {"type": "Sequence", name: [step] * count}


def nested(depth: int) -> dict[str, Any]:
    """Pipelines inside each other."""
    step: dict[str, Any] = {"type": "Lowercase"}
    for _ in range(depth):
        step = {"type": "Sequence", "normalizers": [step]}
    return step


DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
INSERT = {"type": "Replace", "pattern": {"Regex": ""}, "content": "b"}
SLOW = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
LARGE = {"type": "Split", "pattern": {"Regex": "((a{1000}){1000}){1000}"}, "behavior": "Isolated", "invert": False}
TEMPLATE = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}], "pair": [],
            "special_tokens": {}}  # fmt: skip
DEEP = "[" * 100_000 + "]" * 100_000
W = "transformer.h.0.attn.c_attn.weight"
OUTSIDE = (
    "../secret.safetensors",
    "/etc/passwd",
    "a/b.safetensors",
    "..",
    ".",
    "",
    "..\\secret",
    "x\0y",
    "~/x",
    "//etc/passwd",
)

CASES: dict[str, Spoil] = {
    **{
        f"pickle {name}": pickled(name)
        for name in ("pytorch_model.bin", "model.pt", "model.pth", "weights.ckpt", "model.pkl")
    },
    "pickle called safetensors": lambda f: (
        (f / "model.safetensors").write_bytes(pickle.dumps(Bomb(str(f.parent / "ran")))) and None
    ),
    "config is an array": text("config.json", "[]"),
    "config is empty": text("config.json", ""),
    "config is half": text("config.json", '{"model_type": "gpt2"'),
    "config is not text": text("config.json", b"\xff\xfe\x00\x01"),
    "config is deep": text("config.json", DEEP),
    "config is large": text("config.json", '{"a": "' + "x" * (70 * 2**20) + '"}'),
    "config has nan": text("config.json", '{"model_type": "gpt2", "n_embd": NaN}'),
    "no config": lambda f: (f / "config.json").unlink(),
    "config is a pipe": fifo,
    "config is a folder": folder_for_config,
    "unknown family": config(model_type="gpt5"),
    "family is a number": config(model_type=7),
    "family is missing": config(model_type=None),
    "unknown head": config(architectures=["GPT2ForWorldPeace"]),
    "head is a number": config(architectures=3),
    "head list holds a list": config(architectures=[["GPT2LMHeadModel"]]),
    "code of its own": config(model_type="custom", auto_map={"AutoModel": "evil.Model"}),
    "quantised": config(quantization_config={"bits": 4}),
    "pruned heads": config(pruned_heads={"0": [1]}),
    "negative width": config(n_embd=-8),
    "width is text": config(n_embd="8"),
    "width is a float": config(n_embd=8.5),
    "width is true": config(n_embd=True),
    "width not divisible": config(n_embd=25),
    "giant depth": config(n_layer=10**6),
    "giant vocabulary": config(vocab_size=10**12),
    "giant width": config(n_embd=2**30, n_head=1),
    "giant heads": config(n_head=2**31),
    "zero layers": config(n_layer=0),
    "unknown activation": config(activation_function="__import__('os').mkdir('ran')"),
    "cross-attention": config(add_cross_attention=True),
    "eps is infinite": text("config.json", '{"model_type": "gpt2", "layer_norm_epsilon": Infinity}'),
    "dropout above one": config(attn_pdrop=2.0),
    "another width": config(n_embd=48),
    "fewer layers": config(n_layer=1),
    "more layers": config(n_layer=9),
    "another vocabulary": config(vocab_size=51),
    "no weights": lambda f: (f / "model.safetensors").unlink(),
    "weights are empty": text("model.safetensors", b""),
    "weights are four bytes": text("model.safetensors", b"\0\0\0\0"),
    "weights are text": text("model.safetensors", "hello world, this is no tensor"),
    **{f"weights cut at {share}": cut(share) for share in (0.01, 0.25, 0.5, 0.999)},
    "header of zero bytes": header(lambda d: None, length=0),
    "header longer than the file": header(lambda d: None, length=2**40),
    "header of 2^63": header(lambda d: None, length=2**63),
    "header is an array": header(lambda d: "[]"),
    "header is deep": header(lambda d: DEEP),
    "offset below zero": header(entry(data_offsets=[-8, 0])),
    "offset past the end": header(entry(data_offsets=[0, 2**50])),
    "offsets backwards": header(entry(data_offsets=[64, 0])),
    "offsets overlap": header(entry(data_offsets=[0, 8])),
    "giant shape": header(entry(shape=[2**31, 2**31])),
    "shape of another size": header(entry(shape=[1])),
    "negative shape": header(entry(shape=[-1, 4])),
    "unknown dtype": header(entry(dtype="F12")),
    "integers for weights": header(entry(dtype="I32")),
    "a tensor renamed": header(rename(W, "transformer.h.0.attn.c_atn.weight")),
    "a tensor called ../x": header(rename(W, "../../x")),
    "a tensor too many": header(
        lambda d: d.update({"extra.weight": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}})
    ),
    **{f"shard at {name!r}": index(x=name) for name in OUTSIDE},
    "shard is the index": cyclic,
    "shard is missing": index(x="nowhere.safetensors"),
    "tensor in no shard": index(nothing="kept.safetensors"),
    "weight_map is a list": text("model.safetensors.index.json", '{"weight_map": []}'),
    "weights link to themselves": loop,
    "weights link outside": linked("model.safetensors", "/etc/hostname"),
    "config links outside": linked("config.json", "/etc/hostname"),
    "tokenizer links outside": linked("tokenizer.json", "/etc/hostname"),
    "tokenizer is broken": text("tokenizer.json", "{"),
    "tokenizer is a pickle": text("tokenizer.json", pickle.dumps({"a": 1})),
    "tokenizer is deep": text("tokenizer.json", DEEP),
    "generation settings are broken": text("generation_config.json", "nope"),
    "generation settings lie": text("generation_config.json", '{"num_beams": -3}'),
    "image settings are broken": text("preprocessor_config.json", "[1"),
    "depth 20,000": config(n_layer=20_000),
    "depth 4,000": config(n_layer=4_000),
    "50,000 tensors of no bytes": header(many_tensors),
    "labels named by words": config(id2label={"yes": "no"}),
    "labels that are a list": config(architectures=["GPT2ForSequenceClassification"], id2label=["a"], num_labels=2**40),
    "vocabulary of 1e30": text("config.json", '{"model_type": "gpt2", "vocab_size": 1e30}'),
    "vocabulary of 10^30": config(vocab_size=10**30),
    "width 2^31": config(n_embd=2**31),
    "width 2^63": config(n_embd=2**63),
    "a very long width": config(n_embd="8" * 10_000_000),
    "a thousand million beams": text("generation_config.json", '{"num_beams": 1000000000}'),
    "a thousand million answers": text(
        "generation_config.json", '{"num_return_sequences": 1000000000, "do_sample": true}'
    ),
    "beams as text": text("generation_config.json", '{"num_beams": "many"}'),
    "one suppressed token": text("generation_config.json", '{"suppress_tokens": "a"}'),
    "stops that are a number": text("generation_config.json", '{"stop_strings": 7}'),
    "an end of 2^70": text("generation_config.json", '{"eos_token_id": 1180591620717411303424}'),
    "token id 4e9": tokenizer(model__vocab__c=4_000_000_000),
    "token id -1": tokenizer(model__vocab__c=-1),
    "added token id 4e9": tokenizer(added_tokens__0__id=4_000_000_000),
    "token of ten million letters": tokenizer(model__vocab={"<unk>": 0, "a" * 10_000_000: 1}),
    "a prepended text of ten million letters": tokenizer(normalizer={"type": "Prepend", "prepend": "a" * 10_000_000}),
    "no vocabulary": tokenizer(model={"type": "WordLevel"}),
    "chained normalizers that double": tokenizer(normalizer=sequence(40, DOUBLE)),
    "chained normalizers that insert": tokenizer(normalizer=sequence(40, INSERT)),
    "chained decoders that double": tokenizer(decoder=sequence(40, DOUBLE, "decoders")),
    "100,000 normalizers": tokenizer(normalizer=sequence(100_000, {"type": "Lowercase"})),
    "normalizers 90 deep": tokenizer(normalizer=nested(90)),
    "a pattern that never ends": tokenizer(pre_tokenizer=SLOW),
    "a pattern that is large": tokenizer(pre_tokenizer=LARGE),
    "an unknown special token": tokenizer(post_processor=TEMPLATE),
    "a spec of depth 20,000": spec(stack__depth=20_000),
    "a spec of depth 10^9": spec(stack__depth=10**9),
    "a spec of width 2^31": spec(stack__width=2**31),
    "a spec of width 2^31 - 1": spec(stack__width=2**31 - 1),
    "a spec of width 10^30": spec(stack__width=10**30),
    "a spec of vocabulary 1e30": spec(embed__vocab=1e30),
    "a spec of vocabulary 2^31 - 1": spec(embed__vocab=2**31 - 1),
    "a spec with an unknown part": text("anyformer.json", '{"anyformer": 1, "type": "os.system"}'),
    "a spec from the future": text("anyformer.json", '{"anyformer": 99, "type": "Model"}'),
    "a spec that is a part": text("anyformer.json", '{"anyformer": 1, "type": "RMSNorm", "eps": 1e-6}'),
    "a spec that is deep": text("anyformer.json", DEEP),
    "a spec that is not text": text("anyformer.json", b"\xff\xfe"),
}
HARMLESS = {"weight_map is a list", "giant heads none"}  # the index is not read where a single file is there
