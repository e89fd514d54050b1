"""The report: one file that loads nothing, keeps data as text, and comes out the same from the folder alone."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from anyformer.evaluation.answers import Answers
from anyformer.evaluation.report import write_report
from anyformer.evaluation.run_files import read_run, smooth_line, thin_line
from anyformer.evaluation.sentences import relation, verdict
from tests.tasks_by_name import evaluation_facts, metrics

EVIL = "<script>alert(1)</script>"
ATTRIBUTE = '"onmouseover="alert(1)" x="'
VOID = {"meta", "line", "rect", "circle", "path", "br", "link", "img"}


class Named:
    """Examples whose every word is hostile."""

    def place(self, row: int) -> str:
        return f"{EVIL}{ATTRIBUTE}.csv row {row}"

    def shown(self, row: int, most: int = 200) -> str:
        return f"{EVIL} & {ATTRIBUTE} 'text' {row}"


def answers_of(task: str) -> Answers:
    draw = np.random.default_rng(0)
    if task == "lm":
        return Answers("lm", nats=300.0, tokens=200, bytes=400, losses=draw.random(5), examples=Named())
    if task == "classify":
        chances = draw.dirichlet(np.ones(3), 60)
        return Answers("classify", draw.integers(0, 3, 60), chances.argmax(1), chances, [EVIL, ATTRIBUTE, "c"],
                       examples=Named())  # fmt: skip
    if task == "sets":
        chances = draw.random((60, 2))
        return Answers("classify", draw.integers(0, 2, (60, 2)), chances > 0.5, chances, [EVIL, "b"], multi=True)
    if task == "regress":
        truth = draw.normal(size=(2500, 2))
        return Answers("regress", truth, truth + 1, labels=[EVIL, "b"], examples=Named())
    if task == "tag":
        tags = ["O", f"B-{EVIL}", f"I-{EVIL}"]
        pairs = [(list(draw.choice(tags, 5)), list(draw.choice(tags, 5))) for _ in range(9)]
        return Answers("tag", [a for a, _ in pairs], [b for _, b in pairs], labels=tags, examples=Named())
    return Answers("translate", [[f"{EVIL} a b", "c"], ["d"]], [f"{EVIL} a", ATTRIBUTE], examples=Named())


TASKS = ["lm", "classify", "sets", "regress", "tag", "translate"]


def folder_of(path: Path, task: str) -> Path:
    folder = path / f"run-{task}"
    (folder / "samples").mkdir(parents=True)
    (folder / "samples" / "step-000010.txt").write_text(f"{EVIL} once upon")
    run = {
        "id": EVIL,
        "status": "done",
        "preset": ATTRIBUTE,
        "parameters": 1234567,
        "step": 20,
        "best_step": 10,
        "seconds": 75,
    }
    data = {"sources": [{"name": EVIL, "rows": 60, "sha256": "ab" * 32}], "columns": {ATTRIBUTE: {"kind": EVIL}},
            "split": {"train": 48, EVIL: 6}, "skipped": {EVIL: 3}, "dropped": {EVIL: EVIL}, "notes": [EVIL],
            "other": {EVIL: [1, {EVIL: 2}]}}  # fmt: skip
    for name, value in (("run", run), ("data", data), ("env", {EVIL: {"a": EVIL}, "torch": "2"})):
        (folder / f"{name}.json").write_text(json.dumps(value))
    (folder / "config.yaml").write_text(f"a: {EVIL}\n")
    (folder / "command.txt").write_text(f"anyformer train {EVIL}\n")
    lines = [{"step": i, "loss": 2 / i, "lr": 0.1, "grad_norm": 1.0} for i in range(1, 21)]
    lines += [{"step": i, "eval": {"split": "valid", "loss": 3 / i, "accuracy": 0.5, EVIL: 1.0}} for i in (10, 20)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 21, "lo')
    (folder / "events.jsonl").write_text(json.dumps({"step": 3, "kind": EVIL, "text": EVIL}) + "\n")
    return folder


def evaluation_of(answers: Answers) -> dict:
    found = metrics(answers)
    worse = {name: value * 0.9 for name, value in found.items()}
    return {
        "task": answers.task, "split": "test", "main": next(iter(found)), "metrics": {"valid": found, "test": found},
        "baselines": {"trivial": {"name": f"always {EVIL}", "metrics": worse},
                      "strong": {"name": f"none: {EVIL}", "metrics": {}}},
    }  # fmt: skip


class Reader(HTMLParser):
    """Checks nesting, and notes tags, attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.wrong: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


@pytest.fixture(params=TASKS)
def made(request, tmp_path):
    answers = answers_of(request.param)
    folder = folder_of(tmp_path, request.param)
    evaluation = evaluation_of(answers)
    return folder, answers, evaluation, write_report(folder, answers, evaluation).read_text(encoding="utf-8")


def test_data_stays_text(made):
    *_, text = made
    assert "<script" not in text and EVIL in read(text).text
    reader = read(text)
    assert not [tag for tag, _ in reader.tags if tag in ("script", "iframe", "object", "embed", "link", "img", "base")]
    assert not [name for _, attrs in reader.tags for name in attrs if name.startswith("on")]


def test_control_the_reader_sees_what_was_not_escaped():
    seen = read(f"<p title='{ATTRIBUTE}'>{EVIL}</p>".replace("'", '"'))
    assert "script" in [tag for tag, _ in seen.tags] and any("onmouseover" in attrs for _, attrs in seen.tags)


def test_it_is_well_formed(made):
    reader = read(made[-1])
    assert not reader.wrong and not reader.open
    names = [attrs["id"] for _, attrs in reader.tags if "id" in attrs]
    assert len(names) == len(set(names))
    links = {attrs["href"][1:] for tag, attrs in reader.tags if tag == "a"}
    assert links <= set(names)


def test_control_bad_nesting_is_seen():
    assert read("<p><b>x</p></b>").wrong and read("<p>").open


def test_nothing_is_loaded_from_elsewhere(made):
    *_, text = made
    assert not re.search(r"(https?:)?//[a-z]|url\(|@import|\bsrc=", text.replace(ATTRIBUTE, ""))
    assert "default-src 'none'" in text


def test_everybody_can_read_it(made):
    reader = read(made[-1])
    tags = [tag for tag, _ in reader.tags]
    assert tags.count("h1") == 1 and {"header", "nav", "main", "footer"} <= set(tags)
    for tag, attrs in reader.tags:
        if tag == "svg":
            assert attrs.get("aria-label") if attrs.get("role") == "img" else attrs.get("aria-hidden") == "true"
        if tag == "th":
            assert attrs.get("scope") in ("row", "col")


def test_the_folder_alone_gives_the_same_bytes(made):
    folder, answers, evaluation, text = made
    (folder / "evaluation.json").write_text(
        json.dumps(evaluation | {"facts": evaluation_facts(answers)}, allow_nan=False)
    )
    (folder / "report.html").unlink()
    assert write_report(folder).read_text(encoding="utf-8") == text
    assert not list(folder.glob("*.part"))


@pytest.mark.quick
@pytest.mark.parametrize("task, parts", [
    ("lm", {"result", "curves", "worst", "samples"}),
    ("classify", {"confusion", "labels", "calibration", "worst"}),
    ("sets", {"labels", "calibration"}),
    ("regress", {"predictions", "worst"}),
    ("tag", {"confusion", "labels", "worst"}),
    ("translate", {"metrics", "worst"}),
])  # fmt: skip
def test_each_task_has_its_parts(task, parts, tmp_path):
    answers = answers_of(task)
    text = write_report(folder_of(tmp_path, task), answers, evaluation_of(answers)).read_text(encoding="utf-8")
    sections = {attrs["id"] for tag, attrs in read(text).tags if tag == "section"}
    assert parts | {"result", "metrics", "curves", "data", "settings", "repeat"} <= sections


def test_an_empty_folder_has_a_report_too(tmp_path):
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert "has not been evaluated" in text and not read(text).wrong


@pytest.mark.parametrize("name", ["run.json", "data.json", "metrics.jsonl", "events.jsonl", "evaluation.json"])
@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"[1, 2]", b'{"sources": 3, "columns": 4, "split": "a", "step": "b"}']
)
def test_a_damaged_file_costs_its_part_and_not_the_report(name, content, tmp_path):
    folder = folder_of(tmp_path, "lm")
    (folder / name).write_bytes(content)
    answers = answers_of("lm")
    assert not read(write_report(folder, answers, evaluation_of(answers)).read_text(encoding="utf-8")).wrong


# ---------------------------------------------------------------- facts


def test_many_classes_are_cut_to_the_most_confused():
    truth = np.arange(400) % 100
    predicted = np.where(truth < 40, (truth + 1) % 100, truth)
    facts = evaluation_facts(Answers("classify", truth, predicted))
    assert len(facts["confusion"]["labels"]) == 30 and facts["confusion"]["classes"] == 100
    assert max(int(name) for name in facts["confusion"]["labels"]) <= 40
    assert len(facts["labels"]) == 100


def test_the_confusion_matrix_is_that_of_scikit_learn():
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    one = answers_of("classify")
    facts = evaluation_facts(one)
    assert facts["confusion"]["counts"] == confusion_matrix(one.truth, one.predicted).tolist()
    expected = precision_recall_fscore_support(one.truth, one.predicted)
    for row in facts["labels"]:
        c = one.labels.index(row["label"])
        assert [row["precision"], row["recall"], row["f1"], row["rows"]] == pytest.approx(
            [part[c] for part in expected]
        )


@pytest.mark.parametrize("task", TASKS)
def test_facts_are_strict_json_and_the_same_twice(task):
    first, second = (json.dumps(evaluation_facts(answers_of(task)), allow_nan=False) for _ in range(2))
    assert first == second


def test_points_are_few_and_the_worst_come_first():
    facts = evaluation_facts(answers_of("regress"))
    assert [len(one["points"]) for one in facts["numbers"]] == [2000, 2000]
    one = answers_of("classify")
    losses = [row["loss"] for row in evaluation_facts(one)["worst"]]
    chance = one.probability[np.arange(60), one.truth]
    assert losses == sorted(losses, reverse=True) and losses[0] == pytest.approx(-np.log(chance.min()), rel=1e-4)


@pytest.mark.parametrize("task", ["lm", "classify", "regress", "tag", "translate"])
def test_no_rows_no_crash(task):
    empty = Answers(task, truth=np.array([], int) if task in ("classify", "regress") else [], predicted=[])
    facts = evaluation_facts(empty)
    assert facts["metrics"] == {} and facts["worst"] == []


def test_infinite_and_missing_numbers_become_null():
    facts = evaluation_facts(Answers("regress", np.array([1.0, 2.0, np.nan]), np.array([np.inf, 2.0, 1.0])))
    assert facts["metrics"]["rmse"] is None and json.dumps(facts, allow_nan=False)


# ---------------------------------------------------------------- words and lines


def test_the_verdict_says_worse_as_readily_as_better():
    other = {
        "trivial": {"name": "the mean", "metrics": {"rmse": 2.0}},
        "strong": {"name": "trees", "metrics": {"rmse": 1.0}},
    }
    assert verdict("rmse", 1.5, other) == "better than the mean (2), worse than trees (1)"
    assert verdict("rmse", 3.0, other) == "worse than the mean (2), worse than trees (1)"
    assert verdict("rmse", 1.0, other).endswith("the same as trees (1)")
    assert (
        verdict("rmse", 1.0, {"strong": {"name": "no simple baseline translates", "metrics": {}}})
        == "no simple baseline translates"
    )


def test_a_difference_that_chance_explains_is_called_that():
    assert "within chance" in relation("accuracy", 0.90, 0.89, rows=100)
    assert relation("accuracy", 0.90, 0.89, rows=1_000_000) == "better than"
    assert relation("rmse", 0.90, 0.89, rows=100) == "worse than"


def test_lines_are_thinned_without_losing_their_ends():
    line = [(float(i), float(i % 7)) for i in range(10_000)]
    thin = thin_line(line, 100)
    assert len(thin) == 100 and thin[0] == line[0] and thin[-1] == line[-1]
    assert [x for x, _ in thin] == sorted(x for x, _ in thin)
    assert smooth_line([(0, 4.0), (1, 4.0)]) == [(0, 4.0), (1, 4.0)]


def test_a_resumed_run_counts_its_later_lines(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "loss": 2}\n{"step": 2, "loss": 9}\n{"step": 2, "loss": 1}\nnull\n'
    )
    assert read_run(tmp_path).line("loss") == [(1, 2.0), (2, 1.0)]
