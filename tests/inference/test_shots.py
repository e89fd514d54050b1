"""Prompting: rows and templates, examples, scores of choices, what is written, and the table of a command."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer
from anyformer import UserError
from anyformer.checkpoints.folder import Opened
from anyformer.data.tokenizers.tokenizer import train_tokenizer
from anyformer.inference.predictor import Predictor
from anyformer.inference.prompt_rows import Template, draw_examples, pick_answer, read_prompt_rows
from anyformer.inference.shots import ShotSettings, ask, bootstrap, continuations
from tests.cli import made
from tests.cli.trying import done, run, standing_in

WORDS = "what colour is the sky grass snow blue green white red Question Answer : ? \n".split(" ")
ROWS = [
    ("what colour is the sky ?", "blue"), ("what colour is grass ?", "green"), ("what colour is snow ?", "white"),
    ("is the sky blue or green ?", "blue"), ("is grass white or green ?", "green"), ("is snow red ?", "white"),
]  # fmt: skip


def questions(path: Path, rows: list[tuple[str, str]] | None = None) -> Path:
    return made.table(path, ["question", "answer"], [list(row) for row in rows or ROWS])


def writer(preset: str, limit: int | None = None) -> Predictor:
    """A language model that nothing was taught, with a tokenizer of its own."""
    tokenizer = train_tokenizer([" ".join(WORDS) * 3, *(" ".join(row) for row in ROWS)], "bpe", 320)
    spec: Any = anyformer.preset(preset)
    if isinstance(spec, anyformer.Seq2Seq):
        sides = {side: getattr(spec, side) for side in ("encoder", "decoder")}
        spec = spec.replace(**{name: side.replace(embed=side.embed.replace(vocab=tokenizer.size))
                               for name, side in sides.items()})  # fmt: skip
    else:
        spec = spec.replace(embed=spec.embed.replace(vocab=tokenizer.size))
        if limit is not None:
            spec = spec.replace(embed=spec.embed.replace(position=spec.embed.position.replace(length=limit)))
    return Predictor(Opened(spec, spec.build(seed=0).eval()), tokenizer=tokenizer)


# ---------------------------------------------------------------- rows and templates


def test_choices_come_from_a_list_from_columns_or_from_all_answers(tmp_path: Path) -> None:
    files = {
        "labels.csv": "question,answer\nsky?,blue\ngrass?,green\n",
        "list.csv": 'question,choices,answer\nsky?,blue|green,A\ngrass?,"[""blue"", ""green""]",1\n',
        "columns.csv": "question,choice_a,choice_b,answer\nsky?,blue,green,blue\ngrass?,blue,green,B\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "list.jsonl").write_text(
        '{"question": "sky?", "choices": ["blue", "green"], "answer": 0}\n'
        '{"question": "grass?", "choices": ["blue", "green"], "answer": 1}\n'
    )
    for name in (*files, "list.jsonl"):
        rows = read_prompt_rows([tmp_path / name], choose=True)
        assert [(row.cells["question"], row.answer, row.choices) for row in rows] == [
            ("sky?", "blue", ("blue", "green")), ("grass?", "green", ("blue", "green")),
        ], name  # fmt: skip
    assert pick_answer("3", ["7", "3"], "") == "3" and pick_answer("0", ["7", "3"], "") == "7"  # the text comes first
    with pytest.raises(UserError, match="none of the choices"):
        pick_answer("red", ["blue", "green"], "row 1")


def test_a_template_names_columns_and_ends_in_the_answer() -> None:
    row = read_row({"question": "sky {answer}?", "context": "day"})
    made_of = Template.parse(r"{context}: {question}\n= {answer}\n")
    assert made_of.prompt(row) == "day: sky {answer}?\n= " and made_of.example(row) == "day: sky {answer}?\n= blue\n"
    for wrong in ("{question}", "{answer} {question}", "{answer}{answer}"):
        with pytest.raises(UserError, match="names {answer} once"):
            Template.parse(wrong)
    with pytest.raises(UserError, match="unknown column 'contxt'.*did you mean 'context'"):
        Template.parse("{contxt} {answer}").prompt(row)


def read_row(cells: dict[str, str]) -> Any:
    from anyformer.inference.prompt_rows import PromptRow

    return PromptRow("row 1", cells, "blue", ("blue", "green"))


def test_examples_are_other_rows_and_more_shots_keep_those_of_fewer() -> None:
    for row in range(20):
        many = draw_examples(20, row, 19, seed=3).tolist()
        assert sorted(many) == [other for other in range(20) if other != row]
        assert [draw_examples(20, row, shots, seed=3).tolist() for shots in (0, 1, 5)] == [many[:0], many[:1], many[:5]]
        assert draw_examples(20, row, 19, seed=4).tolist() != many
    drawn = {int(draw_examples(20, row, 1, seed=0)[0]) for row in range(20)}
    assert len(drawn) > 8  # not the same example for all
    assert len(draw_examples(20, None, 20, seed=0)) == 20  # of another file every row may be drawn


# ---------------------------------------------------------------- scores


def loop(predictor: Predictor, prompt: str, choice: str) -> tuple[float, int]:
    """log p of a choice behind a prompt by a pass for every token in double precision, and how many tokens it has."""
    words, model = predictor.require_tokenizer(), predictor.model.double()
    read = words.encode(prompt.rstrip(" "))
    tokens = words.encode(prompt + choice)[len(read) :]
    total = 0.0
    for token in tokens:
        with torch.no_grad():
            logits = model(torch.tensor([read])).logits[0, -1]
        total += float(logits[token] - torch.log(torch.exp(logits).sum()))
        read = [*read, token]
    return total, len(tokens)


@pytest.mark.parametrize("normalise", ["sum", "token", "byte"])
def test_the_choice_is_that_of_a_loop_in_double_precision(normalise: Any, tmp_path: Path) -> None:
    predictor = writer("gpt2-tiny")
    rows = read_prompt_rows([questions(tmp_path / "q.csv")], choose=True)
    template = Template.parse("Question: {question}\nAnswer: {answer}\n\n")
    report = ask(predictor, rows, None, template, ShotSettings((0, 2), normalise=normalise, seed=1), batch_size=4)
    answers = {(one["shots"], one["question"]): one["predicted"] for one in report.answers}
    for shots in (0, 2):
        for at, row in enumerate(rows):
            examples = [template.example(rows[i]) for i in draw_examples(len(rows), at, shots, 1)]
            prompt = "".join(examples) + template.prompt(row)
            scores = []
            for choice in row.choices:
                total, tokens = loop(predictor, prompt, choice)
                scores.append(total / {"sum": 1, "token": tokens, "byte": len(choice.encode())}[normalise])
            assert answers[shots, row.cells["question"]] == row.choices[int(np.argmax(scores))]
    right = [one["right"] for one in report.answers if one["shots"] == 2]
    assert report.scores[1].accuracy == pytest.approx(sum(right) / 6)
    assert report.majority == pytest.approx(2 / 6) and report.chance == pytest.approx(1 / 3)


def test_a_blank_before_the_answer_belongs_to_the_choice() -> None:
    predictor = writer("gpt2-tiny")
    for prompt in ("Answer: ", "Answer:", ""):
        for one, choice in zip(continuations(predictor, prompt, ["blue", "white"]), ["blue", "white"], strict=True):
            whole = predictor.require_tokenizer().encode(prompt + choice)
            assert list((one.prefix if prompt else ()) + one.tokens) == whole and len(one.tokens) >= 1
    spaced = continuations(predictor, "Answer: ", ["blue"])[0]
    assert predictor.decode(spaced.tokens) == " blue"


def test_an_encoder_decoder_reads_the_prompt_and_writes_the_choice(tmp_path: Path) -> None:
    predictor = writer("t5-small-tiny")
    rows = read_prompt_rows([questions(tmp_path / "q.csv")], choose=True)
    report = ask(predictor, rows, None, Template.parse("{question} {answer}\n"), ShotSettings((0, 1)), batch_size=4)
    assert [one.rows for one in report.scores] == [6, 6]
    (one,) = continuations(predictor, "what colour ?", ["blue"])
    assert one.source == tuple(predictor.encode("what colour ?")) and len(one.prefix) == 1


def test_examples_that_do_not_fit_are_dropped_and_questions_left_out(tmp_path: Path) -> None:
    predictor = writer("gpt2-tiny", limit=40)
    long = ("what colour is the sky ? " * 30, "blue")
    rows = read_prompt_rows([questions(tmp_path / "q.csv", [*ROWS, long])], choose=True)
    said: list[str] = []
    report = ask(predictor, rows, None, Template.parse("{question} {answer}\n"), ShotSettings((0, 5)), batch_size=4,
                 log=said.append)  # fmt: skip
    assert [one.rows for one in report.scores] == [6, 6] and [one.left_out for one in report.scores] == [1, 1]
    assert report.scores[0].dropped == 0 and 0 < report.scores[1].dropped <= 30
    assert any("left out 1 rows: longer than the model takes, the first q.csv row 8" in line for line in said)
    assert any(f"dropped  {report.scores[1].dropped} examples at 5 shots" in line for line in said)


def test_the_interval_is_that_of_a_share() -> None:
    """Of 400 rows with 100 right the standard error is 0.0217: the interval is 1.96 of them to each side, about."""
    low, high = bootstrap(np.arange(400) < 100, seed=0)
    error = math.sqrt(0.25 * 0.75 / 400)
    assert low == pytest.approx(0.25 - 1.96 * error, abs=0.006) and high == pytest.approx(
        0.25 + 1.96 * error, abs=0.006
    )


# ---------------------------------------------------------------- commands


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model that has learned two facts by heart, as a run, and questions about them."""
    folder = tmp_path_factory.mktemp("shots")
    (folder / "book.txt").write_text("Q: sky\nA: blue\n\nQ: grass\nA: green\n\n" * 150)
    questions(folder / "q.csv", [("sky", "blue"), ("grass", "green")] * 5)
    questions(folder / "more.csv", [("snow", "white")] * 3)
    with standing_in(folder):
        done("train", "book.txt", "--task", "lm", "--out", "run", "--steps", "60", "--max-length", "48", "--set",
             "model.stack.depth=1", "--set", "data.tokenizer.kind=char", "--progress", "none")  # fmt: skip
    return folder


TEMPLATE = r"Q: {question}\nA: {answer}\n\n"


def test_the_command_prints_and_writes_a_table(place: Path) -> None:
    words = ["evaluate", "run", "q.csv", "--shots", "0,1", "--template", TEMPLATE]
    with standing_in(place):
        said = done(*words, "-o", "table.csv")
        done(*words, "-o", "table.json", "--normalise", "byte", "--quiet")
        facts = done(*words, "--json", "--seed", "5").json
        refused = run(*words, "-o", "table.csv")
    assert said.out.splitlines()[0].split() == ["shots", "accuracy", "95", "%", "interval", "rows"]
    assert "majority 0.5000 (always 'blue')" in said.out and "chance   0.5000" in said.out
    assert "log-likelihood" in said.err and "Q: {question}" in said.err  # both are said
    with (place / "table.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [(row["shots"], float(row["accuracy"]), row["rows"]) for row in table] == [
        ("0", 1.0, "10"),
        ("1", 1.0, "10"),
    ]
    kept = json.loads((place / "table.json").read_text())
    assert len(kept["answers"]) == 20 and kept["settings"]["normalise"] == "byte"
    assert facts["scores"][1]["accuracy"] == 1.0 and facts["settings"]["seed"] == 5
    assert refused.code == 2 and "not overwritten" in refused.errors[0]


def test_what_is_written_is_compared_with_the_answer(place: Path) -> None:
    with standing_in(place):
        words = ["evaluate", "run", "q.csv", "--shots", "0", "--template", TEMPLATE, "--by", "generate"]
        assert done(*words, "--json").json["scores"][0]["accuracy"] == 1.0
        other = ["evaluate", "run", "more.csv", "--shots", "0", "--template", TEMPLATE, "--by", "generate"]
        assert done(*other, "--json").json["scores"][0]["accuracy"] == 0.0  # control: snow was never heard of
        told = done("evaluate", "run", "q.csv", "--shots", "3", "--examples", "more.csv", "--template", TEMPLATE)
    assert "    3 " in told.out


def test_mistakes_are_told_in_one_line(place: Path) -> None:
    made.reviews(place)
    with standing_in(place):
        done("train", "reviews.csv", "--target", "label", "--steps", "1", "--out", "other", "--progress", "none")
        for words, wanted in (
            (["run", "q.csv", "--template", "x {answer}"], "--template is for prompting"),
            (["run", "q.csv", "--shots", "one"], "'one' is not a list of numbers"),
            (["run", "q.csv", "--shots", "-1"], "no number of examples"),
            (["run", "q.csv", "--shots", "10"], "10 examples of 10 rows"),
            (["run", "--shots", "0"], "no questions given"),
            (["run", "q.csv", "--shots", "0", "--by", "chance"], "'chance' is not known"),
            (["run", "q.csv", "--shots", "0", "-o", "x.txt"], "no table ends in '.txt'"),
            (["run", "reviews.csv", "--shots", "0", "--template", "{texxt} {answer}"], "unknown column 'texxt'"),
            (["other", "q.csv", "--shots", "0"], "--shots asks a language model"),
            (["run", "book.txt", "--shots", "0"], "no column is a question"),
        ):
            said = run("evaluate", *words)
            assert said.code == 2 and len(said.errors) == 1 and wanted in said.errors[0], said.err
