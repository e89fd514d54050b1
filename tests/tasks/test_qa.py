"""Question answering: files and columns, windows, the loss, the passage that is answered, and a whole run."""

from __future__ import annotations

import csv
import json
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import anyformer
from anyformer.data.answer_spans import AnswerSpan, find_answer
from anyformer.data.datasets.question_windows import QuestionWindows
from anyformer.data.prepared import Prepared
from anyformer.data.settings import Data
from anyformer.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from anyformer.data.tokenizers.training import Kind
from anyformer.objectives import Batch, QuestionAnswering
from anyformer.serving.predict_rows import predict_what
from anyformer.tasks.prepare import prepare
from anyformer.tasks.qa import BestSpan
from tests.cli import made
from tests.cli.trying import done, run, standing_in
from tests.families.parity import quietly, save
from tests.training.nursery import Nursery
from tests.training.tiny import differing


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# ---------------------------------------------------------------- files and columns


def squad(path: Path, *, without: bool = False) -> Path:
    """A file of SQuAD: 12 articles of a paragraph with two questions each; of v2.0 one of them has no answer."""
    rng, articles = random.Random(0), []
    for number in range(12):
        (one, two), (here, there) = rng.sample(made.PEOPLE, 2), rng.sample(made.CITIES, 2)
        context = f"{one} lives in {here}. {two} lives in {there}."
        questions = [{
            "id": f"{number}-0", "question": f"Where does {one} live?",
            "answers": [{"text": here, "answer_start": context.index(here)},
                        {"text": f"in {here}", "answer_start": context.index(here) - 3}],
        }]  # fmt: skip
        other = {"id": f"{number}-1", "question": f"Where does {two} live?", "answers":
                 [{"text": there, "answer_start": context.index(there)}]}  # fmt: skip
        if without:
            other |= {"question": "Where does Zoe live?", "answers": [], "is_impossible": True,
                      "plausible_answers": [{"text": there, "answer_start": context.index(there)}]}  # fmt: skip
        articles.append({"title": f"a{number}", "paragraphs": [{"context": context, "qas": [*questions, other]}]})
    path.write_text(json.dumps({"version": "v2.0" if without else "1.1", "data": articles}))
    return path


def prepared(path: Path, cache: Path, **settings: Any) -> Prepared:
    from anyformer.training.setup.request import replace_paths

    data = replace_paths(Data(), {name.replace("__", "."): value for name, value in settings.items()}, "data")
    return prepare([path], settings=data, cache=cache)


@pytest.mark.parametrize("without", [False, True], ids=["v1.1", "v2.0"])
def test_a_file_of_squad_is_recognised_and_its_questions_about_a_context_stay_on_one_side(
    without: bool, tmp_path: Path
) -> None:
    made_of = prepared(squad(tmp_path / "train.json", without=without), tmp_path / "cache")
    target = made_of.preprocess.target
    assert made_of.task == "qa" and isinstance(target, AnswerSpan) and target.may_be_absent == without
    assert target.names == ("answers.text", "answers.answer_start")
    assert [column.name for column in made_of.preprocess.columns or ()] == ["question", "context"]
    assert sum(made_of.facts["split"].values()) == 24
    assert isinstance(made_of.train, QuestionWindows) and made_of.valid is not None
    rows = made_of.train.questions
    sides = [{rows.frame.column("context")[int(row)].as_py() for row in side.rows}
             for side in (rows, made_of.valid, made_of.test)]  # type: ignore[union-attr]  # fmt: skip
    assert not sides[0] & sides[1] and not sides[0] & sides[2]


def lines_of_json(path: Path) -> Path:
    rows = [{"context": f"{name} is {age}.", "question": f"How old is {name}?",
             "answers": {"text": [str(age)], "answer_start": [len(name) + 4]}}
            for age, name in enumerate(made.PEOPLE * 5, 20)]  # fmt: skip
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_columns_are_recognised_by_name_and_by_what_they_hold(tmp_path: Path) -> None:
    assert prepared(made.facts(tmp_path), tmp_path / "a").task == "qa"
    assert prepared(lines_of_json(tmp_path / "rows.jsonl"), tmp_path / "b").task == "qa"
    # control: answers that are written freely are no passages, so that nothing is recognised
    free = [[f"{name} lives in Oslo.", f"Where does {name} live?", f"It is town {at}"]
            for at, name in enumerate(made.PEOPLE * 5)]  # fmt: skip
    path = made.table(tmp_path / "free.csv", ["context", "question", "answer"], free)
    with pytest.raises(anyformer.UserError, match="no target column given"):
        prepared(path, tmp_path / "c")


def test_other_names_are_told_apart_by_what_holds_the_answers(tmp_path: Path) -> None:
    rows = [[f"where is {name}, of row {at}?", city, f"{name} lives in {city}, as {at} others do."]
            for at, (name, city) in enumerate(zip(made.PEOPLE * 5, made.CITIES * 5, strict=True))]  # fmt: skip
    path = made.table(tmp_path / "rows.csv", ["asked", "reply", "page"], rows)
    found = prepare([path], task="qa", settings=Data(target=("reply",)), cache=tmp_path / "cache")
    target = found.preprocess.target
    assert isinstance(target, AnswerSpan) and (target.question, target.context) == ("asked", "page")
    assert any("first place in the context" in note for note in found.notes)


def test_an_answer_that_is_not_in_its_context_is_left_out_and_said(tmp_path: Path) -> None:
    path = made.facts(tmp_path, 30)
    rows = [line.split(",") for line in path.read_text().splitlines()]
    rows[3][2], rows[5][3] = "Atlantis", "1"  # not there; there, but not where the file says
    made.table(path, rows[0], rows[1:])
    found = prepared(path, tmp_path / "cache")
    assert found.facts["skipped"] == {"the answer is not in its context": 1}
    assert any("skipped  1: the answer is not in its context, first facts.csv row 4" in note for note in found.notes)
    assert any("1 answer not where the file says" in note for note in found.notes)


def test_the_nearest_place_is_taken() -> None:
    text = "to be or not to be"
    assert [find_answer(text, "be", at)[0] for at in (0, 3, 9, 11, 15, 40)] == [3, 3, 3, 16, 16, 16]  # type: ignore[index]
    assert find_answer(text, "bee", 3) is None


# ---------------------------------------------------------------- tokens and windows

KINDS: list[Kind] = ["bpe", "char-bpe", "wordpiece", "unigram", "word", "char", "byte"]
TEXT = "Zoë Smith-Jones paid £1,000 (in [CLS] cash) — on 3 May.\nWhere? <s> In São Paulo!"


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_are_those_of_the_same_tokens_in_the_text(kind: Kind) -> None:
    """Also where the text spells out a special token, which is then cut apart."""
    words = train_tokenizer([TEXT] * 4, kind, 400)
    ((ids, offsets),) = words.encode_with_offsets([TEXT])
    assert ids == words.encode(TEXT, special=False) and len(offsets) == len(ids)
    for start, stop in offsets:
        assert 0 <= start <= stop <= len(TEXT)
    starts = [start for start, _ in offsets]
    assert starts == sorted(starts)
    covered = set().union(*(range(start, stop) for start, stop in offsets))
    assert all(at in covered or TEXT[at].isspace() for at in range(len(TEXT)))


def windows_of(path: Path, cache: Path, **settings: Any) -> tuple[QuestionWindows, Tokenizer]:
    found = prepared(path, cache, **settings)
    assert isinstance(found.train, QuestionWindows) and found.tokenizer is not None
    return found.train, found.tokenizer


@pytest.mark.parametrize("kind", KINDS)
def test_windows_cover_the_context_and_point_to_the_answer(kind: Kind, tmp_path: Path) -> None:
    length, stride = (24, 6) if kind not in ("char", "byte") else (72, 20)
    windows, words = windows_of(
        made.facts(tmp_path, 30, people=6), tmp_path / "cache", tokenizer__kind=kind, tokenizer__max_length=length,
        questions__stride=stride,
    )  # fmt: skip
    assert len(windows) > 1.5 * len(windows.questions) and windows.lengths.max() <= length
    batch = windows.batch(np.arange(len(windows)))
    arrays, pointed = windows.questions.arrays, 0
    for question in range(len(windows.questions)):
        cells, row = windows.questions.cells(question), int(windows.questions.rows[question])
        starts = arrays["context_chars_starts"]
        chars = arrays["context_chars"][starts[row] : starts[row + 1]].reshape(-1, 2)
        reached = 0
        mine = np.flatnonzero(windows.owner == question)
        for at in mine:
            first, count, before = windows.context_at(at)
            ids = batch.inputs[0][at][batch.named["mask"][at]].tolist()
            whole = words.encode_with_offsets([cells["context"]])[0][0]
            assert ids[first : first + count] == whole[before : before + count]
            assert before <= reached and (at == mine[0] or 0 < reached - before <= max(stride, 1))
            reached = before + count
            start, stop = batch.targets[at].tolist()
            if start:
                pointed += 1
                text = cells["context"][chars[before + start - first, 0] : chars[before + stop - first, 1]]
                assert text.strip().rstrip(".") == cells["answer"]  # some tokens hold the full stop as well
        assert reached == len(chars)
    assert len(windows.questions) <= pointed < len(windows)  # each answer in one window at least, and not in all


# ---------------------------------------------------------------- the loss


def their_bert() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForQuestionAnswering(config).eval()


def some_batch(padded: bool) -> Batch:
    torch.manual_seed(1)
    tokens, mask = torch.randint(1, 96, (5, 12)), torch.ones(5, 12, dtype=torch.bool)
    if padded:
        mask[1, 9:] = mask[3, 7:] = False
    segments = (torch.arange(12) >= 5).long().expand(5, 12)
    targets = torch.tensor([[6, 8], [5, 5], [0, 0], [6, 6], [11, 11]])
    return Batch((tokens,), targets, torch.arange(5), {"mask": mask, "segments": segments})


def test_the_loss_is_that_of_transformers(tmp_path: Path) -> None:
    theirs, batch = their_bert(), some_batch(False)
    with quietly():
        ours = anyformer.load(save(theirs, tmp_path / "hf")).model
    loss = QuestionAnswering().loss(ours, batch) / QuestionAnswering().weight(batch)
    expected = theirs(batch.inputs[0], token_type_ids=batch.named["segments"], start_positions=batch.targets[:, 0],
                      end_positions=batch.targets[:, 1])  # fmt: skip
    assert abs(loss.item() - expected.loss.item()) < 1e-5
    with torch.no_grad():
        out = ours(batch.inputs[0], segments=batch.named["segments"]).logits
    assert (out[..., 0] - expected.start_logits).abs().max() < 1e-5
    assert (out[..., 1] - expected.end_logits).abs().max() < 1e-5


def test_the_loss_and_its_gradient_are_those_of_a_loop(tmp_path: Path) -> None:
    with quietly():
        model = anyformer.load(save(their_bert(), tmp_path / "hf"), dtype=torch.float64).model
    batch = some_batch(True)
    batch.targets[4] = -100  # not known
    loss = QuestionAnswering().loss(model, batch)
    loss.backward()
    found = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    model.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for row in range(4):
        real = int(batch.named["mask"][row].sum())
        logits = model(batch.inputs[0][row : row + 1, :real], segments=batch.named["segments"][row : row + 1, :real])
        for side in range(2):
            scores = logits.logits[0, :, side]
            total = total + torch.log(torch.exp(scores).sum()) - scores[batch.targets[row, side]]
    total.backward()
    assert loss.item() == pytest.approx(total.item(), abs=1e-10) and QuestionAnswering().weight(batch) == 8
    for name, value in model.named_parameters():
        if value.grad is not None:
            assert torch.allclose(found[name], value.grad, atol=1e-10), name
    # control: padding that counts as a candidate would be noticed
    plain = torch.nn.functional.cross_entropy(
        model(*batch.inputs, **batch.named).logits, batch.targets, reduction="sum"
    )
    assert abs(plain.item() - total.item()) > 1e-3


# ---------------------------------------------------------------- passages


def brute_force(
    windows: list[tuple[np.ndarray, tuple[int, int, int]]], longest: int, *, none: bool
) -> tuple[Any, float]:
    """The best passage as token numbers, None for none, and its probability; every passage of every window by hand."""
    found = []
    for logits, (first, count, before) in windows:
        for start in range(count):
            for stop in range(start, min(count, start + longest)):
                found.append((logits[first + start, 0] + logits[first + stop, 1], (before + start, before + stop)))
    if none:
        found.append((min(logits[0].sum() for logits, _ in windows), None))
    scores = np.array([score for score, _ in found])
    return found[int(scores.argmax())][1], float(np.exp(scores.max()) / np.exp(scores).sum())


@pytest.mark.parametrize("none", [False, True])
def test_the_best_passage_over_windows_is_that_of_all_passages(none: bool) -> None:
    rng, absent = np.random.default_rng(0), 0
    for _ in range(60):
        windows = [(rng.normal(size=(14, 2)) * 2, (4, 9, 0)), (rng.normal(size=(12, 2)) * 2, (4, 7, 5))]
        for logits, _ in windows:
            logits[0] += 4.0  # so that none is the best now and then
        span = BestSpan(none)
        for logits, at in windows:
            span.add(logits, at, 3, 0.0)
        chars = np.stack([np.arange(12) * 2, np.arange(12) * 2 + 1], 1)
        text = " ".join("abcdefghijkl")
        answer = span.read(text, chars)
        best, share = brute_force(windows, 3, none=none)
        absent += best is None
        assert answer.score == pytest.approx(share)
        if best is None:
            assert (answer.text, answer.start) == ("", None)
        else:
            assert answer.start == 2 * best[0] and answer.text == text[2 * best[0] : 2 * best[1] + 1]
    assert (absent > 0) == none


# ---------------------------------------------------------------- a whole run

PLAIN = [f"model.{place}.dropout=0" for place in ("embed", "stack.block", "stack.block.mixer", "stack.block.feed")]
LEARN = ["--steps", "240", "--batch-size", "64", "--set", "data.tokenizer.kind=word", "--progress", "none",
         *(word for text in PLAIN for word in ("--set", text))]  # fmt: skip


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on 3,000 questions about two people and somebody else; guessing one of the three answers is right a third
    of the time."""
    place = tmp_path_factory.mktemp("qa")
    made.facts(place, 3000, absent=0.25)
    with standing_in(place):
        done("train", "facts.csv", "--out", "run", "--set", "training.threads=1", *LEARN)
    return place


def test_who_lives_where_is_learned_and_that_nobody_knows(learned: Path) -> None:
    found = json.loads((learned / "run" / "evaluation.json").read_text())
    ours, trivial = found["metrics"][found["split"]], found["baselines"]["trivial"]["metrics"]
    assert ours["answered_exact_match"] > 0.9 and ours["unanswered_accuracy"] > 0.9
    assert trivial["exact_match"] < 0.35 and found["baselines"]["strong"]["metrics"]["answered_f1"] > 0.9
    losses = [json.loads(line) for line in (learned / "run" / "metrics.jsonl").read_text().splitlines()]
    # Before it learns, each of some 20 tokens is as likely a start as any: about ln 20.
    assert 2.0 < next(line["loss"] for line in losses if "loss" in line) < 5.0


def test_predict_evaluate_and_serve_give_the_passage_and_its_place(learned: Path) -> None:
    made.facts(learned / "run", 60, absent=0.25, seed=77).rename(learned / "new.csv")
    with standing_in(learned):
        judged = done("evaluate", "run", "new.csv", "--json").json
        done("predict", "run", "new.csv", "-o", "out.csv")
    rows = read_rows(learned / "out.csv")
    right = sum(row["prediction"] == row["answer"] for row in rows) / len(rows)
    assert judged["rows"] == 60 and judged["exact_match"] == pytest.approx(right) and right > 0.9
    for row in rows:
        assert 0 < float(row["score"]) <= 1 and 0 <= float(row["no_answer"]) <= 1
        if row["prediction"]:
            assert row["context"][int(row["start"]) :].startswith(row["prediction"])
        else:
            assert row["start"] == "" and row["score"] == row["no_answer"]
    assert {row["prediction"] == "" for row in rows} == {True, False}
    answer = predict_what(anyformer.load(learned / "run"))
    asked = [{"context": row["context"], "question": row["question"]} for row in rows]
    for said, row in zip(answer(asked), rows, strict=True):
        assert said["answer"] == row["prediction"] and said["score"] == pytest.approx(float(row["score"]), abs=1e-5)
        if said["answer"]:
            assert row["context"][said["start"] : said["end"]] == said["answer"]
    wrong = answer([{"context": "Anna lives in Oslo."}, asked[0]])
    assert isinstance(wrong[0], anyformer.UserError) and wrong[1]["answer"] == rows[0]["prediction"]


def test_a_context_longer_than_the_model_is_learned_and_answered_in_windows(tmp_path: Path) -> None:
    """Six sentences, of which a window of 19 tokens holds two: guessing a city is right once in six times."""
    made.facts(tmp_path, 700, people=6)
    with standing_in(tmp_path):
        said = done("train", "facts.csv", "--out", "run", "--json", "--max-length", "19", "--set",
                    "data.questions.stride=5", *LEARN, "--steps", "180")  # fmt: skip
    assert "700 questions make 3,500 windows" in said.err
    assert said.json["metrics"]["exact_match"] > 0.5


def test_a_run_resumes_to_the_bit(tmp_path: Path, nursery: Nursery) -> None:
    squad(tmp_path / "train.json", without=True)
    words = ["train", "train.json", "--set", "training.save_every=3", "--set", "training.eval_every=3", "--set",
             "training.threads=1", "--set", "model.stack.depth=1", "--set", "model.stack.width=16", "--batch-size",
             "4", "--max-length", "16", "--set", "data.questions.stride=3", "--progress", "none"]  # fmt: skip
    with standing_in(tmp_path):
        done(*words, "--steps", "12", "--out", "whole")
        killed = nursery.command(*words, "--steps", "12", "--out", "half", where=tmp_path, fault="kill@step:8")
        assert killed.returncode == -signal.SIGKILL and differing(tmp_path / "whole", tmp_path / "half")
        done("resume", "half", "--progress", "none")
    assert not differing(tmp_path / "whole", tmp_path / "half")


def test_a_bert_folder_is_tuned_and_goes_back_to_transformers(tmp_path: Path) -> None:
    words = train_tokenizer(["Anna lives in Oslo. Where does Ben live?"] * 4, "wordpiece", 96)
    with quietly():
        bare = save(their_bert().bert, tmp_path / "bert")
    words.save(bare)
    made.facts(tmp_path, 60)
    with standing_in(tmp_path):
        done("train", "facts.csv", "--from", "bert", "--steps", "3", "--out", "run", "--progress", "none")
        done("convert", "run", "hf", "--to", "hf")
        again = done("evaluate", "run", "facts.csv", "--json").json
    with quietly():
        theirs, info = transformers.AutoModelForQuestionAnswering.from_pretrained(
            tmp_path / "hf", output_loading_info=True
        )
    assert not any(info.values()), info
    ours, back = anyformer.load(tmp_path / "run"), anyformer.load(tmp_path / "hf")
    asked = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")(
        "Where does Ben live?", "Anna lives in Oslo. Ben lives in Rome.", return_tensors="pt"
    )
    assert asked["token_type_ids"].max() == 1
    with torch.no_grad():
        expected = theirs.eval()(**asked)
        for model in (ours.model, back.model):
            out = model(asked["input_ids"], segments=asked["token_type_ids"]).logits
            assert (out[..., 0] - expected.start_logits).abs().max() <= 1e-5
            assert (out[..., 1] - expected.end_logits).abs().max() <= 1e-5
    assert again["rows"] == 60


def test_mistakes_are_told_in_one_line(tmp_path: Path) -> None:
    made.facts(tmp_path, 30)
    made.table(tmp_path / "free.csv", ["context", "question", "answer"],
               [[f"a {at} b c", f"what {at}?", "never"] for at in range(30)])  # fmt: skip
    made.reviews(tmp_path)
    with standing_in(tmp_path):
        for words, wanted in (
            (["free.csv", "--task", "qa"], "no answer of 'answer' stands in 'context'"),
            (["reviews.csv", "--task", "qa", "--target", "label"], "question and context are not told apart"),
            (["facts.csv", "--set", "data.questions.stride=-1"], "stride -1 is below 0"),
            (
                ["reviews.csv", "--target", "label", "--set", "data.questions.stride=7"],
                "only --task qa reads questions",
            ),
        ):
            said = run("train", *words, "--out", "no", "--steps", "1")
            assert said.code == 2 and len(said.errors) == 1 and wanted in said.errors[0], said.err
