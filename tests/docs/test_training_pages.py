"""The pages on training: every command is run as it stands, and what they say is printed is what is printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli import made
from tests.cli.trying import run, standing_in
from tests.training.nursery import Nursery

DOCS = Path(__file__).parents[2] / "docs" / "how-to"
README = DOCS.parents[1] / "README.md"
SMALL = ["--steps", "4", "--set", "model.stack.depth=1"]  # so that a page takes seconds
WHOLE = ("--steps", "--minutes", "--config", "--dry-run")  # a line that says how long it takes stays as it is


def blocks(page: Path, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that the page names."""
    folder = tmp_path_factory.mktemp("page")
    for make in (made.book, made.reviews, made.topics, made.lines, made.tagged, made.parallel, made.pairs, made.flowers,
                 made.houses, made.photos, made.mixed, made.facts):  # fmt: skip
        make(folder)
    head, *rows = (folder / "reviews.csv").read_text().splitlines()
    for name, part in (("valid.csv", rows[:20]), ("test.csv", rows[20:40])):
        (folder / name).write_text("\n".join([head, *part]) + "\n")
    (folder / "new.csv").write_text("text\na great film\na dull story\n")
    (folder / "new.txt").write_text("one two\n")
    (folder / "classes.txt").write_text("down\nacross\n")
    days = [[row.rpartition(",")[0], f"p{at % 40}", f"2024-01-{1 + at % 28:02}", ("train", "valid", "test")[at % 3],
             row.rpartition(",")[2]] for at, row in enumerate(rows)]  # fmt: skip
    made.table(folder / "visits.csv", ["text", "person", "day", "part", "label"], days)
    (yaml,) = blocks(DOCS / "train.md", "yaml")
    (folder / "run.yaml").write_text(yaml)
    return folder


def commands(page: Path) -> list[str]:
    return [line for block in blocks(page, "sh") for line in block.strip().splitlines() if line]


@pytest.fixture(scope="module")
def ran(home: Path) -> Path:
    """The folder after every command of the page."""
    lines = commands(DOCS / "train.md")
    with standing_in(home):
        for line in lines:
            words = shlex.split(line, comments=True)[1:]
            if words[0] == "train":
                words += [] if any(word in WHOLE for word in words) else made_small(words)
                words += ["--progress", "none"]
            said = run(*words)
            assert said.code == 0, (line, said.err.splitlines()[-4:])
    return home


def test_every_command_of_the_page_runs(ran: Path) -> None:
    lines = commands(DOCS / "train.md")
    verbs = {shlex.split(line, comments=True)[1] for line in lines}
    assert verbs == {"train", "check", "predict", "evaluate", "generate", "runs", "resume"} and len(lines) >= 30
    for name in ("out.csv", "tags.conll", "new.de", "images.png"):
        assert (ran / name).stat().st_size > 0


def made_small(words: list[str]) -> list[str]:
    """A translator has two stacks, a generator of images none; one that starts from a run keeps its size."""
    if words[1].endswith((".en", "pairs.tsv")):
        return ["--steps", "4", "--set", "objective.num_beams=1"]
    return SMALL[:2] if {"--from", "--valid", "adversarial"} & set(words) else SMALL


def test_what_the_page_shows_is_printed(ran: Path) -> None:
    """Some of the lines ask about the runs that the commands made."""
    shown = 0
    with standing_in(ran):
        for block in blocks(DOCS / "train.md", "text"):
            for part in re.split(r"^\$ anyformer ", block, flags=re.MULTILINE)[1:]:
                line, _, wanted = part.partition("\n")
                said = run(*shlex.split(line))
                errors = [text for text in said.err.splitlines() if text.startswith("error:")]
                assert said.out + "\n".join(errors) == wanted.rstrip("\n") + ("\n" if said.out else ""), line
                shown += 1
    assert shown >= 4


def test_settings_of_the_page_exist() -> None:
    from anyformer.training.setup.setting_paths import is_setting

    page = (DOCS / "train.md").read_text()
    named = set(re.findall(r"`((?:data|model|objective|training)\.[a-z_.]+[a-z])", page))
    assert len(named) > 20
    assert [name for name in sorted(named) if not is_setting(name)] == []


def test_files_of_a_run_are_those_the_page_names(ran: Path) -> None:
    page = (DOCS / "train.md").read_text().partition("## The folder of a run")[2].partition("## Stop")[0]
    missing = [path.name for path in sorted((ran / "runs" / "reviews").iterdir())
               if not path.name.startswith(".") and path.name not in page]  # fmt: skip
    assert missing == []


def test_the_loop_runs_as_it_stands(tmp_path: Path, nursery: Nursery) -> None:
    (code,) = blocks(DOCS / "loop.md", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 32
    made.book(tmp_path)
    done = nursery.python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    losses = [float(text) for text in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert len(losses) == 4 and losses[-1] < losses[0] / 2


def test_the_commands_of_the_readme_are_those_of_the_page() -> None:
    """What the README says of training is run here or is the same line."""
    text = README.read_text()
    lines = re.findall(r"`anyformer ((?:train|predict|evaluate|resume|check) [^`]*)`", text)
    names = ("train", "other-parts", "question-answering", "images-and-text", "pretrain")  # all are run, line by line
    pages = [command for name in names for command in commands(DOCS / f"{name}.md")]
    known = {" ".join(shlex.split(line, comments=True)) for line in pages}
    assert len(lines) >= 8
    for line in lines:
        assert any(whole.startswith(f"anyformer {line.replace('/', '')}") or f"anyformer {line}" in whole
                   for whole in known), line  # fmt: skip
