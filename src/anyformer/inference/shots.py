"""Zero- and few-shot evaluation: accuracy of a language model by number of examples in the prompt.

A prompt is some examples and a question, formatted by one template. Choices are scored by the log-likelihood of each as
the answer; without choices the model generates, and the output must equal the answer.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from anyformer.core.model import Seq2Seq
from anyformer.errors import UserError, did_you_mean
from anyformer.generation.score_continuations import Continuation, room_of, score_continuations
from anyformer.inference.opening import load
from anyformer.inference.prediction_files import check_place, write_or_return
from anyformer.inference.predictor import Predictor
from anyformer.inference.prompt_rows import (
    TEMPLATE,
    PromptRow,
    Template,
    draw_examples,
    majority,
    read_prompt_rows,
)
from anyformer.log import Log, silence

By = Literal["choice", "generate"]
Normalise = Literal["sum", "token", "byte"]
RESAMPLES, INTERVAL = 1000, 0.95
WRITTEN_BEYOND = 4  # tokens generated beyond the longest answer


@dataclass(frozen=True)
class ShotSettings:
    """Settings of a few-shot evaluation."""

    shots: tuple[int, ...]
    template: str = TEMPLATE
    by: By = "choice"
    normalise: Normalise = "sum"  # log-likelihood of a choice: the sum, per token, or per byte
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, known in (("by", self.by, get_args(By)), ("normalise", self.normalise, get_args(Normalise))):
            if value not in known:
                raise UserError(f"{value!r} is not known", where=f"--{name}", fix=did_you_mean(str(value), known))
        if not self.shots or min(self.shots) < 0:
            raise UserError("no number of examples", where="--shots", fix="write 0,1,5")


@dataclass(frozen=True)
class ShotScore:
    """The result for one number of examples."""

    shots: int
    accuracy: float
    low: float  # of the 95 % bootstrap interval
    high: float
    rows: int
    dropped: int  # examples that did not fit
    left_out: int  # rows that did not fit without examples


@dataclass
class ShotReport:
    """The results, with the answer to each row."""

    scores: list[ShotScore]
    majority: float
    majority_name: str
    chance: float | None  # accuracy of random choices
    settings: ShotSettings
    answers: list[dict[str, Any]] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The table as text lines."""
        found = ["shots  accuracy  95 % interval    rows"]
        for one in self.scores:
            more = f"   {one.dropped:,} examples dropped: no room" if one.dropped else ""
            found.append(f"{one.shots:>5}  {one.accuracy:>8.4f}  {one.low:.4f} to {one.high:.4f}  {one.rows:>4}{more}")
        found.append(f"majority {self.majority:.4f} ({self.majority_name})")
        return found if self.chance is None else [*found, f"chance   {self.chance:.4f}"]

    def facts(self) -> dict[str, Any]:
        """JSON data without the single answers."""
        settings = asdict(self.settings) | {"shots": list(self.settings.shots)}
        return {"scores": [asdict(one) for one in self.scores], "majority": self.majority, "chance": self.chance,
                "settings": settings}  # fmt: skip


def evaluate_shots(
    folder: Path, files: Sequence[Path], settings: ShotSettings, *, examples: Path | None, out: Path | None,
    device: str, batch_size: int, log: Log,
) -> ShotReport:  # fmt: skip
    """Evaluate a model folder or run on files of questions; the table is also written to `out`."""
    check_out(out)
    template = Template.parse(settings.template)
    rows = read_prompt_rows(files, choose=settings.by == "choice")
    shown = rows if examples is None else read_prompt_rows([examples], choose=False)
    most = max(settings.shots)
    if most > len(shown) - (examples is None):
        raise UserError(f"{most} examples of {len(shown)} rows, none of them the row itself", where="--shots",
                        fix=f"use at most {len(shown) - (examples is None)}")  # fmt: skip
    predictor = load(folder, device=device)
    check_language_model(predictor, folder)
    log(f"prompt   {settings.template.encode('unicode_escape').decode()}")
    log(f"answers  {how(settings)}")
    report = ask(predictor, rows, shown if examples else None, template, settings, batch_size=batch_size, log=log)
    if out is not None:
        write_or_return(encode_report(report, out.suffix), out)
    return report


def how(settings: ShotSettings) -> str:
    """A description of how answers are determined."""
    if settings.by == "generate":
        return "written greedily, right where the first line is the answer"
    by = {"sum": "its log-likelihood", "token": "its log-likelihood a token", "byte": "its log-likelihood a byte"}
    return f"the choice with the highest score: {by[settings.normalise]}"


def check_language_model(predictor: Predictor, folder: Path) -> None:
    try:
        room_of(predictor.model)
    except UserError as error:
        raise UserError(f"--shots asks a language model: {error.what}", where=str(folder),
                        fix="leave --shots out, or give a decoder or encoder-decoder") from None  # fmt: skip
    predictor.require_tokenizer()


def ask(
    predictor: Predictor, rows: Sequence[PromptRow], shown: Sequence[PromptRow] | None, template: Template,
    settings: ShotSettings, *, batch_size: int, log: Log = silence,
) -> ShotReport:  # fmt: skip
    """Evaluate all rows with each number of examples, drawn from `shown` or from the other rows."""
    writer = PromptWriter(predictor, template, rows, shown, settings.seed, answer_room(predictor, rows))
    answer = choose if settings.by == "choice" else write
    scores, answers = [], []
    for shots in settings.shots:
        prompts = [writer.prompt(at, shots) for at in range(len(rows))]
        kept = [at for at, prompt in enumerate(prompts) if prompt.text is not None]
        left = len(rows) - len(kept)
        if not kept:
            raise UserError("no question fits the model", where=rows[0].place, fix="use a model with more positions")
        if left:
            log(f"left out {left:,} rows: longer than the model takes, the first {first_long(rows, prompts)}")
        said = answer(
            predictor, [rows[at] for at in kept], [prompts[at].text or "" for at in kept], settings, batch_size
        )
        right = np.array([said[i] == rows[at].answer for i, at in enumerate(kept)])
        dropped = sum(shots - prompts[at].shots for at in kept)
        low, high = bootstrap(right, settings.seed)
        scores.append(ShotScore(shots, float(right.mean()), low, high, len(kept), dropped, left))
        answers += [{"shots": shots, "row": rows[at].place, "question": rows[at].cells["question"],
                     "answer": rows[at].answer, "predicted": said[i], "right": bool(right[i])}
                    for i, at in enumerate(kept)]  # fmt: skip
        if dropped:
            log(f"dropped  {dropped:,} examples at {shots} shots: prompts have room for {writer.room} tokens")
    share, name = majority(rows) if rows[0].choices else (most_frequent_share(rows), "always the same answer")
    chance = float(np.mean([1 / len(row.choices) for row in rows])) if rows[0].choices else None
    return ShotReport(scores, share, name, chance, settings, answers)


def first_long(rows: Sequence[PromptRow], prompts: Sequence[Prompt]) -> str:
    return next(row.place for row, prompt in zip(rows, prompts, strict=True) if prompt.text is None)


def most_frequent_share(rows: Sequence[PromptRow]) -> float:
    """The frequency of the most frequent answer."""
    return float(np.unique([row.answer for row in rows], return_counts=True)[1].max() / len(rows))


def bootstrap(right: np.ndarray, seed: int) -> tuple[float, float]:
    """The 95 % bootstrap interval of the accuracy."""
    draws = np.random.default_rng(seed).integers(len(right), size=(RESAMPLES, len(right)))
    low, high = np.quantile(right[draws].mean(1), [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2])
    return float(low), float(high)


# ---------------------------------------------------------------- prompts


@dataclass(frozen=True)
class Prompt:
    """A prompt and its number of examples; text is None if even the question does not fit."""

    text: str | None
    shots: int


class PromptWriter:
    """Builds prompts that leave room for an answer; examples that do not fit are dropped from the front."""

    def __init__(
        self, predictor: Predictor, template: Template, rows: Sequence[PromptRow], shown: Sequence[PromptRow] | None,
        seed: int, kept_free: int,
    ) -> None:  # fmt: skip
        self.words, self.template, self.rows, self.shown, self.seed = (
            predictor.require_tokenizer(), template, rows, shown, seed
        )  # fmt: skip
        limits = [prompt_limit(predictor), None if predictor.preprocess is None else predictor.preprocess.length]
        known = [limit for limit in limits if limit is not None]
        free = 0 if isinstance(predictor.spec, Seq2Seq) else kept_free  # the decoder has its own positions
        self.room = min(known) - free if known else None

    def prompt(self, row: int, shots: int) -> Prompt:
        """The prompt of a row with as many of the examples as fit."""
        source = self.rows if self.shown is None else self.shown
        drawn = draw_examples(len(source), row if self.shown is None else None, shots, self.seed)
        examples = [self.template.example(source[at]) for at in drawn]
        asked = self.template.prompt(self.rows[row])
        for dropped in range(shots + 1):
            text = "".join(examples[dropped:]) + asked
            if self.room is None or len(self.words.encode(text)) <= self.room:
                return Prompt(text, shots - dropped)
        return Prompt(None, 0)


def prompt_limit(predictor: Predictor) -> int | None:
    """Maximal prompt tokens: the encoder's positions, if there is one."""
    spec = predictor.spec
    return spec.encoder.embed.limit if isinstance(spec, Seq2Seq) else room_of(predictor.model)


def answer_room(predictor: Predictor, rows: Sequence[PromptRow]) -> int:
    """Number of tokens of the longest answer or choice."""
    tokenizer = predictor.require_tokenizer().target
    different = {text for row in rows for text in (*row.choices, row.answer)}
    return max(len(tokenizer.encode(f" {text}", special=False)) for text in different) + 1


# ---------------------------------------------------------------- answers


def choose(
    predictor: Predictor, rows: Sequence[PromptRow], prompts: Sequence[str], settings: ShotSettings, batch_size: int
) -> list[str]:
    """The most likely choice of each row."""
    wanted, owners = [], []
    for at, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
        wanted += continuations(predictor, prompt, row.choices)
        owners += [at] * len(row.choices)
    totals = [
        float(logprobs.double().sum())
        for logprobs in score_continuations(predictor.model, wanted, batch_size=batch_size)
    ]
    scores: list[list[float]] = [[] for _ in rows]
    for at, one, total in zip(owners, wanted, totals, strict=True):
        choice = rows[at].choices[len(scores[at])]
        size = {"sum": 1, "token": len(one.tokens), "byte": len(choice.encode())}[settings.normalise]
        scores[at].append(total / size)
    return [row.choices[int(np.argmax(each))] for row, each in zip(rows, scores, strict=True)]


def continuations(predictor: Predictor, prompt: str, choices: Sequence[str]) -> list[Continuation]:
    """The tokens of each choice after a prompt.

    A trailing space of the prompt is moved to the choice, as most tokenizers expect. If a choice changes the
    tokenization of the prompt's end, all choices are scored from before that point.
    """
    tokenizer = predictor.require_tokenizer()
    if isinstance(predictor.spec, Seq2Seq):
        start = predictor.defaults.decoder_start_token_id
        start = next((one for one in (start, tokenizer.bos, tokenizer.pad, tokenizer.eos) if one is not None), 0)
        source = tuple(tokenizer.encode(prompt))
        return [
            Continuation((start,), tuple(tokenizer.target.encode(choice, special=False)), source) for choice in choices
        ]
    bare = prompt.rstrip(" ")
    read = tokenizer.encode(bare)
    whole = [tokenizer.encode(prompt + choice) for choice in choices]
    shared = min(common_length(read, ids) for ids in whole)
    if not shared:  # empty prefix: use the model's start token
        begin = next((one for one in (tokenizer.bos, tokenizer.eos, tokenizer.pad) if one is not None), 0)
        return [Continuation((begin,), tuple(ids)) for ids in whole]
    return [Continuation(tuple(ids[:shared]), tuple(ids[shared:])) for ids in whole]


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common prefix; at least the last token of `other` is left to be scored."""
    equal = 0
    while equal < min(len(one), len(other) - 1) and one[equal] == other[equal]:
        equal += 1
    return equal


def write(
    predictor: Predictor, rows: Sequence[PromptRow], prompts: Sequence[str], settings: ShotSettings, batch_size: int
) -> list[str]:
    """The model's greedy output for each answer, up to the end of the line or example."""
    after = Template.parse(settings.template).after
    end = after.strip() or after[:1] or "\n"
    tokens = answer_room(predictor, rows) + WRITTEN_BEYOND
    limit = prompt_limit(predictor)
    found: list[str] = []
    for start in range(0, len(prompts), batch_size):
        some = [prompt.rstrip(" ") for prompt in prompts[start : start + batch_size]]
        longest = max(len(predictor.encode(prompt)) for prompt in some)
        room = tokens if limit is None or isinstance(predictor.spec, Seq2Seq) else min(tokens, limit - longest)
        written = predictor.generate(some, max_new_tokens=max(1, room), do_sample=False, num_beams=1)
        found += [text.lstrip(" ").partition(end)[0].strip() for text in written]
    return found


# ---------------------------------------------------------------- files


def check_out(out: Path | None) -> None:
    check_place(out)
    if out is not None and out.suffix not in (".csv", ".json"):
        raise UserError(f"no table ends in {out.suffix!r}", where="--out", fix=f"name it {out.stem}.csv or .json")
    if out is not None and out.exists():
        raise UserError("the file is there and is not overwritten", where=str(out), fix="give a new name")


def encode_report(report: ShotReport, suffix: str) -> bytes:
    """The table as CSV, or as JSON with every answer."""
    if suffix == ".json":
        return (json.dumps(report.facts() | {"answers": report.answers}, ensure_ascii=False, indent=1) + "\n").encode()
    sink = io.StringIO(newline="")
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(["shots", "accuracy", "low", "high", "rows", "dropped", "left_out", "majority", "chance"])
    chance = "" if report.chance is None else round(report.chance, 6)
    for one in report.scores:
        figures = [round(value, 6) for value in (one.accuracy, one.low, one.high)]
        writer.writerow([one.shots, *figures, one.rows, one.dropped, one.left_out, round(report.majority, 6), chance])
    return sink.getvalue().encode()
