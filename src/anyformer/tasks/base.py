"""Task: what a model is trained to do, its whole life from data to answer in one file.

A task is a subclass with a `name`; that it is imported makes it known (`find`, `all_tasks`), here or in a module of
your own. It has no state. Generic code (preparing data, training, evaluation, reports, prediction, serving, the command
line) asks the task and never compares its name.

Most tasks answer rows of a table: those are a `RowTask`, which needs a target, an objective, a head and a few lines on
metrics and answers; the rest is inherited. `docs/how-to/own-task.md` walks through one.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from anyformer.data.calibration import Calibration
from anyformer.data.columns.cells import factorize
from anyformer.data.columns.kinds import only_modality
from anyformer.data.columns.look import Facts
from anyformer.data.datasets.rows import RowExamples
from anyformer.data.decision import Decision, Input
from anyformer.data.examples import Examples
from anyformer.data.frame import Frame
from anyformer.data.gather import Gathered
from anyformer.data.given_rows import OnBadRows
from anyformer.data.images.preprocessing import ImageSteps
from anyformer.data.prepared import Prepared, Say, StartModelConstraints
from anyformer.data.preprocess import Preprocess
from anyformer.data.settings import Data
from anyformer.data.sizes import Sizes
from anyformer.data.targets import ABSENT, Target
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.errors import UserError
from anyformer.evaluation.answers import Answers, RowMetrics
from anyformer.evaluation.baseline_rows import RawRows, raw_rows
from anyformer.evaluation.baseline_time import expected_seconds, learn_in_time
from anyformer.evaluation.bootstrap import Interval, RowSums, compare_rows, estimate_interval
from anyformer.evaluation.facts import digits, plain, short
from anyformer.evaluation.learners import load_learners
from anyformer.evaluation.metrics import MOST_NATS, SMALLER
from anyformer.objectives import Objective
from anyformer.own_parts import UnknownPart
from anyformer.slots import Network
from anyformer.tasks.habits import TrainingDefaults, habit_for
from anyformer.tasks.network import fit_row_network, preset_for_parts
from anyformer.tasks.target_look import Match, TargetLook

if TYPE_CHECKING:
    from anyformer.tasks.evaluator import Evaluator


WORST = 20  # rows of a report that were answered worst


class TrainedModel(Protocol):
    """What a task asks of a trained model: the network, and how rows and images become its inputs."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def spec(self) -> Network: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def images(self) -> ImageSteps | None: ...

    @property
    def tokenizer(self) -> Tokenizer | None: ...

    @property
    def preprocess(self) -> Preprocess | None: ...  # None: it was not trained on columns


def preprocess_of(predictor: TrainedModel) -> Preprocess:
    """How rows become inputs, of a model that was trained on columns, as all that a task predicts with are."""
    assert predictor.preprocess is not None
    return predictor.preprocess


LEAST_SECONDS = 0.5  # below it no learner is even begun


class TunedSetting(NamedTuple):
    """A setting that a search draws: some factors of what the defaults have there, or some values."""

    path: str
    factors: tuple[float, ...] = ()
    values: tuple[float, ...] = ()

    def options(self, usual: Any) -> list[Any]:
        """What may stand there; whole numbers stay whole and above zero.

        >>> TunedSetting("model.stack.depth", factors=(0.5, 1.0, 2.0)).options(3)
        [2, 3, 6]
        """
        if self.values:
            return list(self.values)
        found = [usual * factor for factor in self.factors]
        return [max(1, round(one)) for one in found] if isinstance(usual, int) else found


class Baseline(NamedTuple):
    """A baseline's name, its metrics and the seconds it took; without metrics the name says why there are none.

    `difference` is the model's main metric less the baseline's, on the same rows; None where it is not known by rows.
    `beside` are the differences of further metrics.
    """

    name: str
    metrics: dict[str, float]
    seconds: float
    difference: Interval | None = None
    beside: Mapping[str, Interval] = {}

    def facts(self) -> dict[str, Any]:
        """As evaluation.json holds it."""
        found = {"name": self.name, "metrics": self.metrics, "seconds": round(self.seconds, 2)}
        if self.difference is not None:
            found["difference"] = self.difference.facts()
        if self.beside:
            found["beside"] = {name: one.facts() for name, one in self.beside.items()}
        return found


class Task:
    """What a model is trained to do. The methods are in the order of a run's life."""

    name: ClassVar[str] = ""  # on the command line: --task NAME
    other_names: ClassVar[tuple[str, ...]] = ()  # by which --task finds it too
    title: ClassVar[str] = ""  # for people, in reports: "classification"
    objective: ClassVar[type[Objective]]
    origin: ClassVar[str] = "table"  # what its files hold: table, text, sentences or pairs (see data.gather)
    verb: ClassVar[str] = ""  # what its model does, for messages: "names classes"
    needs: ClassVar[tuple[str, ...]] = ()  # optional packages that it cannot do without
    has_target: ClassVar[bool] = True  # whether --target names something
    needs_teacher: ClassVar[bool] = False  # whether it is nothing without --teacher
    writes_text: ClassVar[bool] = False  # whether `generate` runs its models
    answers_texts: ClassVar[bool] = False  # whether `predict` answers texts though it was not trained on columns
    decodes: ClassVar[bool] = False  # whether a final evaluation writes texts, which takes long
    max_eval_rows: ClassVar[int | None] = None  # rows of a final evaluation, where not all of them are evaluated
    draws_anew: ClassVar[bool] = False  # whether each pass asks something else of its rows, so that many passes help
    counts_tokens: ClassVar[bool] = False  # whether speed is in tokens rather than rows
    scales_numbers: ClassVar[bool] = False  # whether settings of number columns matter without such a column
    gives_probabilities: ClassVar[bool] = False  # whether `predict_proba` has something to say
    has_plain_logits: ClassVar[bool] = False  # whether they are classes or numbers: they have a mean and a regression
    weighs_classes: ClassVar[bool] = False  # whether training.class_weights has an effect
    smaller_is_better: ClassVar[tuple[str, ...]] = ()  # metrics of its own of which less is better
    own_suffixes: ClassVar[tuple[str, ...]] = ()  # prediction files that `prediction_file` writes: ".png"

    def __init_subclass__(cls) -> None:
        """A task that is imported is known, and so is which way its metrics are good."""
        super().__init_subclass__()
        SMALLER.update(cls.smaller_is_better)

    # ------------------------------------------------------------ data

    def recognise(self, paths: Sequence[Path] | None, settings: Data) -> str:
        """Why these files are for this task where nobody named one; "" where they are not."""
        return ""

    def recognise_rows(self, frame: Frame, settings: Data) -> str:
        """The same for a table that has been read and whose target nobody named."""
        return ""

    def default_data(self, network: Network | None) -> Data:
        """How data is read where nothing is said; `network` is the one to be trained, where it was named."""
        return Data()

    def prepare(
        self,
        source: Any,
        settings: Data,
        *,
        seed: int,
        cache: Path,
        given: StartModelConstraints,
        say: Say,
        why: str = "",
    ) -> Prepared:
        """Files or Python data, ready to train on; `why` is how the task was recognised."""
        raise NotImplementedError

    def prepare_gathered(self, gathered: Gathered, settings: Data, *, cache: Path, say: Say, why: str) -> Prepared:
        """The same for rows that were read already, of a task that recognises rows."""
        raise NotImplementedError

    def read_new_files(self, paths: Sequence[Path], settings: Data, cache: Path) -> Frame | None:
        """Files of new rows that are not read like tables; None where they are."""
        return None

    # ------------------------------------------------------------ the model and its training

    @abstractmethod
    def default_preset(self, sizes: Sizes, *, gpu: bool) -> str:
        """The preset where none is named."""
        raise NotImplementedError

    @abstractmethod
    def fit_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        """A preset's spec with vocabulary, lengths, columns and head as the data needs them; `name` is for messages."""
        raise NotImplementedError

    def adapt_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        """The spec of a trained network to start from, with the head of this task."""
        return self.fit_network(spec, name, sizes)

    def extend_network(self, spec: Network, name: str, objective: Objective) -> Network:
        """The spec with what an objective asks of it beside the task's own head; `name` is for messages."""
        return spec

    def check_changes(self, changes: Mapping[str, Any]) -> None:
        """Refuse changes of the network (`--set model.…`) that the task cannot live with."""

    def taught_by(self, teacher: TrainedModel) -> Task:
        """The task of a student of this teacher: this one, or the teacher's where it was left to that."""
        return self

    def fit_weights(self, spec: Network, data: Prepared, say: Say) -> dict[str, torch.Tensor]:
        """Weights that the training rows give without a step, by name, such as those of least squares; often none."""
        return {}

    def habit(self, sizes: Sizes, *, start: bool) -> TrainingDefaults:
        """How such data is usually trained; `start` is whether there is a model to start from."""
        return habit_for(sizes.parts, start=start, rows=sizes.rows)

    def tuned(self, sizes: Sizes) -> list[TunedSetting]:
        """What a search tries beside the defaults; settings that a network does not have are passed over."""
        return [
            TunedSetting("training.optimizer.lr", factors=(0.2, 0.5, 1.0, 2.0, 5.0)),
            TunedSetting("training.optimizer.weight_decay", factors=(0.1, 1.0, 10.0)),
            TunedSetting("model.stack.depth", factors=(0.5, 1.0, 1.5)),
            TunedSetting("model.stack.block.dropout", values=(0.0, 0.1, 0.3)),
            TunedSetting("model.stack.feed.dropout", values=(0.0, 0.15, 0.3, 0.5)),  # of a stack of feeds, for tables
        ]

    def default_objective(self, sizes: Sizes, counts: Sequence[int] | None, *, balanced: bool) -> Objective:
        """The objective where nothing is said; `counts` are training rows of each class."""
        return self.objective()

    def objective_of(self, preprocess: Preprocess) -> Objective:
        """The objective for evaluating a trained model, of which no training settings are known."""
        return self.objective()

    def fit_objective(self, objective: Objective, spec: Network) -> Objective:
        """The objective with what the network says about it, such as the size of its patches."""
        return objective

    def has_one_shape(self, sizes: Sizes) -> bool:
        """Whether all batches have one shape, so that a step is compiled once."""
        alone = only_modality(sizes.parts)
        return alone is not None and alone.fixed_shape

    def generation_config(self, objective: Objective, data: Prepared, spec: Network) -> dict[str, Any] | None:
        """What `generate` does with the model unless told otherwise; None where it writes no text."""
        return None

    def write_sample(self, model: nn.Module, data: Prepared, *, seed: int) -> str | bytes | None:
        """What the model makes while it learns, kept in the run: a text or a PNG file; None where it makes none."""
        return None

    def next_command(self, run: Path) -> str:
        """What a user would do with a finished run."""
        return f"anyformer predict {run} new.csv -o out.csv"

    # ------------------------------------------------------------ evaluation

    @abstractmethod
    def answer(
        self, evaluator: Evaluator, model: nn.Module, examples: Examples, rows: np.ndarray, *, decode: bool
    ) -> Answers:
        """The model's answers for some rows beside the truth; `decode` also writes texts, which takes long."""
        raise NotImplementedError

    @abstractmethod
    def compute_metrics(self, answers: Answers) -> dict[str, float]:
        """Every metric that is defined for these answers, the main one first; none without rows."""
        raise NotImplementedError

    def metrics(self, answers: Answers) -> dict[str, float]:
        """The metrics, with those that came with the answers."""
        return RowMetrics(self.compute_metrics(answers) | answers.extra, answers)

    def all_metrics(self, answers: Answers) -> dict[str, float]:
        """The metrics and the loss; texts that were not written have a loss alone."""
        found = self.metrics(answers) if answers.predicted is not None else {}
        if answers.tokens:
            found.setdefault("loss", answers.nats / answers.tokens)
            found.setdefault("perplexity", math.exp(min(MOST_NATS, found["loss"])))
        elif answers.losses is not None and len(answers.losses):
            found.setdefault("loss", float(answers.losses.mean()))
        return found

    @abstractmethod
    def main_metric(self, *, multi: bool = False, labels: Sequence[str] = ()) -> str:
        """The metric the task is evaluated by."""
        raise NotImplementedError

    def selection_metric(self, *, multi: bool = False, labels: Sequence[str] = ()) -> str:
        """The metric that chooses the best checkpoint, computed at every evaluation."""
        return self.main_metric(multi=multi, labels=labels)

    def metrics_beside(self, preprocess: Preprocess) -> tuple[str, ...]:
        """Metrics that tell more of this data than the main one: the first chooses the checkpoint in its place, and all
        are compared with the baselines; none where the main one does."""
        return ()

    def selection_loss(self, answers: Answers) -> float | None:
        """The loss that decides between checkpoints whose metrics are too close to call."""
        return self.all_metrics(answers).get("loss")

    def row_sums(self, answers: Answers, metric: str) -> RowSums | None:
        """A metric taken apart by rows, for its standard error and interval; None where it is no sum over rows."""
        return None

    def fit_temperatures(self, answers: Answers) -> tuple[float, ...] | None:
        """What logits should be divided by, as validation rows say; None where there are no probabilities to fit."""
        return None

    def has_threshold(self, preprocess: Preprocess) -> bool:
        """Whether an answer is yes from some probability on, so that a threshold can be chosen."""
        return False

    def calibrate(self, answers: Answers, calibration: Calibration) -> Answers:
        """The same answers by other temperatures and another threshold; only of tasks that fit them."""
        return answers

    def notes(self, answers: Answers) -> list[str]:
        """What a reader of the metrics should know: what was left out, and why."""
        return []

    def has_truth(self, answers: Answers) -> np.ndarray:
        """Which rows can be evaluated: their true answer is known."""
        return np.ones(len(answers.truth), dtype=bool)

    def examples_of(self, frame: Frame, preprocess: Preprocess, say: Say) -> Examples | None:
        """Examples of a whole table with known answers, such as windows of a series; None where each row is one."""
        return None

    def evaluate_files(
        self, evaluator: Evaluator, predictor: TrainedModel, files: Sequence[Path], say: Say
    ) -> Answers | None:
        """Answers on files with known answers that are not rows of a table; None where they are."""
        return None

    # ------------------------------------------------------------ baselines

    def truth(self, examples: Examples) -> Any:
        """The targets of the rows, in the form that `Answers` hold them."""
        return []

    def raw_rows(self, examples: Examples) -> RawRows:
        """What a simple learner is given for the same rows."""
        return RawRows()

    @abstractmethod
    def trivial_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows
    ) -> tuple[str, dict[str, float]]:
        """The answer that needs no input: its name, in words that finish "better than ...", and its metrics.

        `truth` are the training targets; `test` the raw rows of `answers`. No metrics where it cannot be given.
        """
        raise NotImplementedError

    @abstractmethod
    def strong_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, *, seed: int = 0
    ) -> tuple[str, dict[str, float]]:
        """A strong simple learner for this kind of data; without metrics the name says why there are none."""
        raise NotImplementedError

    def baselines(
        self, answers: Answers, train: Examples, *, strong: bool = True, seconds: float | None = None,
        metric: str | None = None, beside: Sequence[str] = (),
    ) -> dict[str, Any]:  # fmt: skip
        """Both baselines on the rows of `answers`, as evaluation.json holds them; the strong one within `seconds`. By
        how much the model is ahead is told of `metric`, or of the main one, and of those `beside` it."""
        truth, before, after = self.truth(train), self.raw_rows(train), self.raw_rows(answers.examples)
        started = time.perf_counter()
        name, scores = self.trivial_baseline(truth, answers, before, after)
        took = time.perf_counter() - started

        def stand(name: str, scores: Mapping[str, float], took: float) -> dict[str, Any]:
            others = {one: self.compare(answers, scores, one) for one in beside if one in scores}
            known = {one: difference for one, difference in others.items() if difference is not None}
            return Baseline(name, dict(scores), took, self.compare(answers, scores, metric), known).facts()

        found = {"trivial": stand(name, scores, took)}
        if strong:
            started = time.perf_counter()
            name, scores = "not learned: the time of the run was up", {}
            if seconds is None or seconds > LEAST_SECONDS:
                name, scores = self.strong_in_time(truth, answers, before, after, seconds)
            took = time.perf_counter() - started
            found["strong"] = stand(name, scores, took)
        return found

    def find_interval(self, answers: Answers, metric: str | None = None) -> Interval | None:
        """A metric, or the main one, with its interval by bootstrap; None where it is no function of row sums."""
        main = metric or next(iter(self.all_metrics(answers)), "")
        sums = None if answers.predicted is None else self.row_sums(answers, main)
        return None if sums is None else estimate_interval(sums)

    def compare(self, answers: Answers, others: Mapping[str, float], metric: str | None = None) -> Interval | None:
        """A metric of the model, or the main one, less that of others on the same rows, by paired bootstrap."""
        if not isinstance(others, RowMetrics) or answers.predicted is None or others.answers.predicted is None:
            return None
        main = metric or next(iter(others), "")
        ours, theirs = (self.row_sums(side, main) for side in (answers, others.answers))
        if ours is None or theirs is None or len(ours.values) != len(theirs.values):
            return None
        return compare_rows(ours, theirs)

    def baseline_seconds(self, train: Examples) -> float:
        """About how long the strong baseline wants to learn, where it learns from rows: so much of a limited time is
        kept for it."""
        return 0.0

    def strong_in_time(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, seconds: float | None
    ) -> tuple[str, dict[str, float]]:
        """The strong baseline with what it can learn in `seconds`, where it takes long enough to ask."""
        return self.strong_baseline(truth, answers, train, test)

    # ------------------------------------------------------------ the report

    def facts(self, answers: Answers) -> dict[str, Any]:
        """What the report shows of the answers, as JSON holds it: confusion, calibration, labels, numbers."""
        return {"rows": len(answers.predicted)}

    def report_facts(self, answers: Answers) -> dict[str, Any]:
        """Metrics, facts and worst rows, small and plain enough for evaluation.json."""
        found: dict[str, Any] = {"task": self.name, "multi": answers.multi, "metrics": self.metrics(answers)}
        found |= {"notes": self.notes(answers)} | self.facts(answers)
        return plain(found | {"worst": self.worst_rows(answers), "worst_by": self.worst_by(answers)})

    def row_errors(self, answers: Answers) -> Sequence[float] | np.ndarray:
        """How badly each row was answered, where losses are not known."""
        return []

    def error_name(self, answers: Answers) -> str:
        """What `row_errors` are, in a word for the head of a column."""
        return "loss"

    def worst_by(self, answers: Answers) -> str:
        """What the worst rows are chosen by."""
        return "loss" if answers.losses is not None else self.error_name(answers)

    def describe(self, answers: Answers, row: int) -> dict[str, Any]:
        """What was true and what was answered of one row, in words."""
        return {"truth": short(answers.truth[row]), "predicted": short(answers.predicted[row])}

    def worst_rows(self, answers: Answers, most: int = WORST) -> list[dict[str, Any]]:
        """The rows that were answered worst, worst first; by loss where it is known, else by how far off they are."""
        errors = self.row_errors(answers) if answers.losses is None else answers.losses
        badness = np.asarray(errors, np.float64)
        badness = np.where(np.isfinite(badness), badness, -np.inf)
        found = []
        for row in np.argsort(-badness, kind="stable")[:most].tolist():
            if not badness[row] > 0:
                break
            entry: dict[str, Any] = {"row": row, "loss": digits(float(badness[row]))}
            if answers.examples is not None:
                entry |= {"place": short(answers.examples.place(row)), "shown": short(answers.examples.shown(row))}
            found.append(entry | self.describe(answers, row))
        return found

    # ------------------------------------------------------------ new rows

    def predictions(self, answers: Answers) -> list[Any]:
        """One answer a row, as a person would write it."""
        return list(answers.predicted)

    def prediction_columns(self, answers: Answers) -> dict[str, list[Any]]:
        """The columns that a prediction file gets beside those of the rows."""
        return {"prediction": self.predictions(answers)}

    def default_suffix(self, *, lines: bool) -> str:
        """How predictions are printed where no file is named; `lines` is whether the rows are lines of text."""
        return ".txt" if lines else ".csv"

    def to_conll(self, answers: Answers, preprocess: Preprocess) -> str:
        """Predictions as CoNLL writes words with tags."""
        raise UserError("only words with tags are written as CoNLL", where=".conll", fix="name it .csv or .jsonl")

    def predict(self, predictor: TrainedModel, source: Any, *, batch: int, on_bad_rows: OnBadRows) -> list[Any] | None:
        """One answer an input where inputs are not rows of a table; None where they are."""
        return None

    def prediction_table(
        self,
        predictor: TrainedModel,
        files: Sequence[Path],
        settings: Data,
        *,
        batch: int,
        on_bad_rows: OnBadRows,
        say: Say,
    ) -> Any | None:
        """A whole prediction file as a table, where it is not the input rows with an answer beside each."""
        return None

    def prediction_file(self, predictor: TrainedModel, files: Sequence[Path], suffix: str) -> bytes:
        """A prediction file that is not a table, of one of the `own_suffixes`."""
        raise NotImplementedError

    # ------------------------------------------------------------ serving

    def to_json(self, answers: Answers) -> list[dict[str, Any]]:
        """One answer a row in plain words and numbers: what a server says."""
        return [{"prediction": plain(value)} for value in self.predictions(answers)]

    def parse_request(self, row: Any, preprocess: Preprocess) -> Any | None:
        """One row of a request, where it is not an object of cells; None where it is."""
        return None

    def answer_requests(self, rows: Sequence[Any], predictor: TrainedModel, *, batch: int) -> list[Any] | None:
        """What JSON says to each parsed row, or a `UserError` of its own; None where rows are cells of columns."""
        return None

    def network_inputs(self, predictor: TrainedModel, source: Any) -> tuple[torch.Tensor, ...] | None:
        """What the network is given for what `predict` takes, or for an example of it where `source` is None.

        None where rows are cells of columns, which need no task to be read.
        """
        return None

    def describe_request(self, preprocess: Preprocess) -> str:
        """What a row of a request is, in words, where it is not an object of cells."""
        return ""

    def example_request(self, preprocess: Preprocess) -> Any | None:
        """A row that the model answers, where it is not an object of cells."""
        return None


class RowTask(Task):
    """A task whose examples are rows of a table: any mixture of columns in, one answer a row out."""

    reads: ClassVar[str] = ""  # which inputs alone are read, for messages
    unread: ClassVar[str] = ""  # why the other inputs are left out
    takes_lines: ClassVar[bool] = False  # whether the lines of a text file are rows
    splits_by_time: ClassVar[bool] = False  # whether the latest rows test where a column of dates runs regularly
    origin_reason: ClassVar[str] = ""  # why files of its `origin` are for this task

    # ------------------------------------------------------------ which data

    @abstractmethod
    def match(self, seen: TargetLook, *, asked: bool) -> Match | None:
        """Whether a target is for this task. `asked`: somebody named the task, so that what is wrong is an error."""
        raise NotImplementedError

    def match_or_none(self, seen: TargetLook) -> Match | None:
        """Whether the task would fit, if it were asked for."""
        try:
            return self.match(seen, asked=True)
        except UserError:
            return None

    def decide_without_target(
        self, frame: Frame, facts: Mapping[str, Facts], settings: Data, *, asked: bool
    ) -> Decision | None:
        """A decision about a table in which no target is named; None where one is needed."""
        return None

    def choose_inputs(self, seen: TargetLook) -> tuple[list[Input], list[Input]]:
        """The inputs that are read, and those that are not."""
        return list(seen.inputs), []

    def settle_inputs(self, inputs: list[Input], settings: Data, given: StartModelConstraints) -> list[Input]:
        """The inputs with kinds that suit the network to be trained, where it was named or is started from."""
        return inputs

    def target_problems(self, frame: Frame, decision: Decision) -> list[tuple[str, np.ndarray]]:
        """Reasons a row has no target that can be used, each with a mask over the rows."""
        return [(ABSENT, factorize(frame.column(decision.target[0]))[0] < 0)]

    def strata(self, frame: Frame, decision: Decision) -> np.ndarray | None:
        """The class of each row, by which a random split keeps the shares; None where rows have none."""
        return None

    def default_group(self, frame: Frame, decision: Decision) -> str | None:
        """The column whose equal values stay on one side of a split where nobody says how to split."""
        return None

    def check_training_rows(self, frame: Frame, decision: Decision, rows: np.ndarray, counts: str) -> None:
        """Refuse training rows that nothing can be learned from."""

    @abstractmethod
    def fit_target(self, frame: Frame, decision: Decision, settings: Data, labels: Sequence[str] | None) -> Target:
        """What is predicted, as the training rows in `frame` have it; `labels` are those of a model to start from."""
        raise NotImplementedError

    # ------------------------------------------------------------ the model

    def default_preset(self, sizes: Sizes, *, gpu: bool) -> str:
        return preset_for_parts(sizes.parts, gpu=gpu, rows=sizes.rows)

    def fit_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        return fit_row_network(self, spec, name, sizes)

    def adapt_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        made = self.fit_network(spec, name, sizes)
        alone = only_modality(sizes.parts)
        kept = alone is not None and alone.keeps_embedding  # such as a trained vocabulary and its positions
        return made.replace(embed=spec.embed) if kept else made  # type: ignore[attr-defined]

    @abstractmethod
    def head(self, own: Any, pool: str, sizes: Sizes) -> Any:
        """The head for this task's answers; `own` is the preset's, `pool` how a row becomes one vector."""
        raise NotImplementedError

    # ------------------------------------------------------------ evaluation

    def answer(
        self, evaluator: Evaluator, model: nn.Module, examples: Examples, rows: np.ndarray, *, decode: bool
    ) -> Answers:
        """One forward pass over all rows; `read_logits` says what it means."""
        logits, truth, losses, order = [], [], [], []
        for batch, out in evaluator.passes(model, examples, rows):
            logits.append(out.logits.float().cpu())
            truth.append(batch.targets.cpu())
            losses.append(evaluator.objective.row_losses(out, batch).float().cpu().numpy())
            order.append(batch.rows.numpy())
        back = np.argsort(np.concatenate(order), kind="stable")
        found = self.read_logits(torch.cat(logits)[back], torch.cat(truth)[back].numpy(), evaluator.preprocess)
        found.losses, found.examples = np.concatenate(losses)[back], examples
        return found

    def read_logits(self, logits: torch.Tensor, truth: np.ndarray, preprocess: Preprocess) -> Answers:
        """What the model's outputs for some rows mean, beside their targets as batches hold them."""
        raise NotImplementedError

    def truth(self, examples: Examples) -> Any:
        assert isinstance(examples, RowExamples)
        return np.asarray(examples.arrays["targets"][examples.rows])

    def raw_rows(self, examples: Examples) -> RawRows:
        assert isinstance(examples, RowExamples)
        return raw_rows(examples)

    def baseline_seconds(self, train: Examples) -> float:
        return expected_seconds(len(train))

    def strong_in_time(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, seconds: float | None
    ) -> tuple[str, dict[str, float]]:
        """With all training rows, or a sample of as many as there is time for."""
        if seconds is None:
            return self.strong_baseline(truth, answers, train, test)
        began = time.perf_counter()
        load_learners()  # seconds of imports would be taken for seconds of learning
        left = seconds - (time.perf_counter() - began)
        return learn_in_time(lambda some, rows: self.strong_baseline(some, answers, rows, test), truth, train, left)


# ---------------------------------------------------------------- finding tasks


def all_tasks() -> list[Task]:
    """Every task that has been imported, in the order of their definition."""
    kinds: list[Any] = subclasses(Task)  # type: ignore[type-abstract]
    return [kind() for kind in kinds if kind.name]


def subclasses(kind: type[Task]) -> list[type[Task]]:
    """All classes below one, each before its own subclasses."""
    found: list[type[Task]] = []
    for each in kind.__subclasses__():
        found += [each, *subclasses(each)]
    return list(dict.fromkeys(found))  # one that stands below two others comes once


def title_of(name: str) -> str:
    """A task's name for people; one that nobody knows any more goes by its own."""
    return next((task.title for task in all_tasks() if task.name == name), name)


def find(name: str) -> Task:
    """The task of that name, its own or another that it goes by."""
    for task in all_tasks():
        if name == task.name or name in task.other_names:
            return task
    names = [task.name for task in all_tasks()]
    raise UnknownPart.named(name, f"unknown task {name!r}", names, where="--task")
