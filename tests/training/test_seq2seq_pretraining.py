"""`--task spans`, `prefix`, `deshuffle`, `drop` and `mass` on a text file: from the command line to a folder to use."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import anyformer
from anyformer import UserError
from anyformer.data.datasets.blocks import SourceBlocks
from anyformer.data.reopen import reopen
from anyformer.data.sizes import Sizes
from anyformer.inference.evaluate import evaluate_run
from anyformer.inference.filled_spans import decode_spans, has_sentinels
from anyformer.objectives.draw import EVALUATION
from anyformer.presets import preset, preset_names
from anyformer.tasks import find
from anyformer.training.run.folder import RunFolder
from tests.cli.trying import done, standing_in
from tests.families.parity import quietly
from tests.training.nursery import Nursery
from tests.training.test_resume import KILLED, expect
from tests.training.tiny import STREAM, WORDS, differing, resume

TASKS = ("spans", "prefix", "deshuffle", "drop", "mass")
each_task = pytest.mark.parametrize("task", TASKS)
ROUND = "the cat sat on a red mat here".split()
SMALL = {
    "training.threads": 1, "training.batch_size": 16, "data.tokenizer.kind": "word", "data.tokenizer.max_length": 23,
}  # fmt: skip


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text that goes round, in blocks that begin anywhere in it: whoever sees some of it knows the rest."""
    path = tmp_path_factory.mktemp("text") / "round.txt"
    path.write_text(" ".join(ROUND * 250) + "\n")
    return path


def train(book: Path, out: Path, task: str, steps: int, **other: Any) -> Any:
    settings = SMALL | {"training.steps": steps} | {name.replace("__", "."): value for name, value in other.items()}
    name = settings.pop("preset", "t5-small-tiny")
    return anyformer.train([book], task, name, out=out, device="cpu", progress="silent", settings=settings)


def narrow(*stacks: str) -> dict[str, int]:
    """Settings of one layer, 32 wide."""
    return {f"model__{stack}__{size}": value for stack in stacks for size, value in (("width", 32), ("depth", 1))}


def judged(run: Path) -> dict[str, Any]:
    return json.loads((run / "evaluation.json").read_text())


@pytest.fixture(scope="module")
def spans(book: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned to fill spans."""
    out = tmp_path_factory.mktemp("runs") / "spans"
    return train(book, out, "spans", 400, preset="transformer-base-tiny", objective__rate=0.25,
                 training__optimizer__lr=3e-3, **narrow("encoder__stack", "decoder__stack")).path  # fmt: skip


# ---------------------------------------------------------------- learning


def test_spans_are_learned_and_written(spans: Path) -> None:
    found = judged(spans)
    ours, trivial = found["metrics"]["valid"], found["baselines"]["trivial"]["metrics"]
    assert set(ours) >= {"loss", "perplexity", "accuracy"}
    assert ours["accuracy"] > 0.9 and ours["loss"] < 0.5 * trivial["loss"], (ours, trivial)
    model = anyformer.load(spans)
    right = 0
    for turn in range(len(ROUND)):
        words = (ROUND * 4)[turn : turn + 23]  # a block; T5's spans are such that the last one ends the text
        first = 4 + turn
        text = " ".join([*words[:first], "<extra_id_0>", *words[first + 3 : 20], "<extra_id_1>"])
        right += model.generate(text).split()[:3] == words[first : first + 3]
    assert right >= 5, right  # a model that does not read the neighbours of the gap would have one


def test_the_command_line_says_which_span_fills_which_gap(spans: Path, tmp_path: Path) -> None:
    words = (ROUND * 4)[:23]
    text = " ".join([*words[:4], "<extra_id_0>", *words[7:20], "<extra_id_1>"])
    with standing_in(tmp_path):
        said = done("generate", str(spans), text, "--quiet").out.split()
        listed = done("generate", str(spans), text, "--json").json["texts"]
        plain = done("generate", str(spans), " ".join(words[:6]), "--quiet").out
    assert said[0] == "<extra_id_0>" and "<extra_id_1>" in said and listed == [" ".join(said)]
    bare = anyformer.load(spans).generate(text)
    assert [word for word in said if not word.startswith("<")] == bare.split()
    assert said[1:4] == words[4:7]
    assert "<extra_id" not in plain  # control: a prompt without gaps is answered as before


def test_spans_are_decoded_with_their_sentinels_only(spans: Path) -> None:
    tokenizer = anyformer.load(spans).require_tokenizer()
    gaps = tokenizer.encode("<extra_id_0> cat sat <extra_id_1> <extra_id_2> mat")
    assert decode_spans(tokenizer, [*gaps, 0]) == "<extra_id_0> cat sat <extra_id_1> <extra_id_2> mat"
    assert decode_spans(tokenizer, tokenizer.encode("cat")) == "cat" and decode_spans(tokenizer, []) == ""
    assert has_sentinels(tokenizer, "the <extra_id_0>") and not has_sentinels(tokenizer, "the cat")


@pytest.mark.parametrize(("task", "name"), [
    ("prefix", "decoder-mini"), ("prefix", "t5-small-tiny"), ("drop", "t5-small-tiny"), ("mass", "t5-small-tiny"),
    ("deshuffle", "t5-small-tiny"),
])  # fmt: skip
def test_every_objective_falls_below_guessing(task: str, name: str, book: Path, tmp_path: Path) -> None:
    sizes = narrow(*(("stack",) if name == "decoder-mini" else ("encoder__stack", "decoder__stack")))
    run = train(book, tmp_path / "run", task, 100, preset=name, training__optimizer__lr=5e-3, **sizes).path
    found = judged(run)
    ours, trivial = found["metrics"]["valid"], found["baselines"]["trivial"]["metrics"]
    assert ours["loss"] < 0.95 * trivial["loss"], (ours, trivial)
    again = evaluate_run(run, [], device="cpu", batch_size=7, log=lambda line: None)
    assert again["loss"] == pytest.approx(ours["loss"], rel=1e-4)  # with other batches, the same rows corrupted alike
    assert "loss" in evaluate_run(run, [book], device="cpu", batch_size=16, log=lambda line: None)
    assert (run / "report.html").is_file() and list((run / "samples").iterdir())
    assert isinstance(anyformer.load(run).generate(" ".join(ROUND[:6]), max_new_tokens=4), str)


# ---------------------------------------------------------------- T5


def test_a_run_opens_in_transformers_as_t5_with_its_loss(book: Path, tmp_path: Path) -> None:
    spans = train(book, tmp_path / "run", "spans", 20, training__optimizer__lr=3e-3).path
    folder = anyformer.load(spans).export(tmp_path / "hf")
    with quietly():
        theirs, info = transformers.T5ForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    data, run = reopen(RunFolder.open(spans).cache), RunFolder.open(spans)
    assert data is not None and isinstance(data.valid, SourceBlocks)
    objective = run.config().objective
    batch = objective.corrupt(data.valid.batch(range(len(data.valid))), EVALUATION, data.valid)
    masks = batch.named.get("source_mask", torch.ones_like(batch.inputs[0]))
    model = anyformer.load(spans).model.eval()
    with torch.no_grad():
        mine = objective.loss(model, batch) / objective.weight(batch)
        # Their own shift makes the decoder's inputs from the labels.
        found = theirs.eval()(input_ids=batch.inputs[0], attention_mask=masks.long(), labels=batch.targets)
        late = theirs(input_ids=batch.inputs[0], attention_mask=masks.long(), labels=batch.targets.roll(1, 1))
    assert abs(mine - found.loss) <= 1e-5 * max(1.0, mine.item())
    assert abs(mine - late.loss) > 1e-2  # control: targets of one place later have another loss
    text = "the <extra_id_0> sat on <extra_id_1>"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text)["input_ids"]
    assert ids == anyformer.load(spans).encode(text)
    assert {tokenizer.convert_tokens_to_ids(f"<extra_id_{n}>") for n in (0, 1)} <= set(ids)


def test_sentinels_are_the_tokenizers_and_never_come_from_the_text(tmp_path: Path) -> None:
    path = tmp_path / "tricky.txt"
    path.write_text(" ".join([*WORDS, "<extra_id_0>", "<extra_id_7>"] * 60))
    for kind in ("bpe", "word", "unigram", "byte"):
        run = train(path, tmp_path / kind, "spans", 1, data__tokenizer__kind=kind).path
        data = reopen(RunFolder.open(run).cache)
        assert data is not None and isinstance(data.train, SourceBlocks)
        assert len(data.train.facts.sentinels) == 100
        assert not set(data.train.ids.tolist()) & set(data.train.facts.sentinels), kind
        batch = RunFolder.open(run).config().objective.corrupt(data.train.batch([0]), EVALUATION, data.train)
        assert data.train.facts.sentinels[0] in batch.inputs[0]


# ---------------------------------------------------------------- resume


@each_task
def test_a_run_that_was_killed_ends_in_the_same_bits(task: str, tmp_path: Path, nursery: Nursery) -> None:
    chance = random.Random(0)
    (tmp_path / "book.txt").write_text("\n".join(" ".join(chance.choice(WORDS) for _ in range(8)) for _ in range(60)))
    settings = {
        "training.steps": 8, "training.threads": 1, "training.save_every": 3, "training.eval_every": 4,
        "training.batch_size": 6, "training.micro_batch_size": 3, "data.tokenizer.kind": "word",
        "data.tokenizer.max_length": 16, "training.workers": 2 if task == "spans" else 0,
    }  # fmt: skip
    name = "gpt2-tiny" if task == "prefix" else "t5-small-tiny"
    words = [word for path, value in settings.items() for word in ("--set", f"{path}={value}")]
    command = ["train", "book.txt", "--task", task, "--preset", name, *STREAM, *words, "--out"]
    expect(nursery, [*command, "whole"], tmp_path, 0)
    expect(nursery, [*command, "run"], tmp_path, KILLED, "kill@step:10")
    expect(nursery, resume("run"), tmp_path, 0)
    assert differing(tmp_path / "whole", tmp_path / "run") == []
    if task == "spans":  # control: another seed is noticed
        expect(nursery, [*command, "other", "--seed", "1"], tmp_path, 0)
        assert differing(tmp_path / "whole", tmp_path / "other")


# ---------------------------------------------------------------- which networks


@each_task
def test_every_preset_is_taken_or_refused_with_one_that_is_taken(task: str) -> None:
    sizes, chosen = Sizes(parts=["text"], vocab=64, length=16), find(task)
    fitting, named = set(), set()
    for name in (name for name in preset_names() if name.endswith("-tiny")):
        try:
            spec: Any = chosen.fit_network(preset(name), name, sizes)
        except UserError as error:
            assert name in str(error) and "use " in str(error)
            named |= {word for word in str(error).split("use ")[1].replace(",", " ").split() if "-" in word}
            continue
        fitting.add(name)
        assert isinstance(spec, anyformer.Seq2Seq) or spec.stack.causal == "prefix_lm"
    assert {"t5-small-tiny", "bart-base-tiny", "transformer-base-tiny"} <= fitting
    assert ("gpt2-tiny" in fitting) == (task == "prefix")
    assert named
    for name in named:
        chosen.fit_network(preset(name), name, sizes)
