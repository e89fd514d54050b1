"""Task: what a model is trained to do, from data to predictions for new rows.

A task is a subclass with a `name`; importing it registers it (`known_tasks.py`), here or in a module of your own. It
has no state. Generic code (preparing data, training, evaluation, reports, prediction, serving, the command line) calls
the task and never compares its name.

This file covers its data, its network and training, and its predictions for new rows; `task_evaluation.py` covers
evaluation. Most tasks have rows of a table as examples: those are a `RowTask` (`row_task.py`).
`docs/how-to/own-task.md` walks through one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from anyformer.data.columns.kinds import only_modality
from anyformer.data.frame import Frame
from anyformer.data.gather import Gathered
from anyformer.data.given_rows import OnBadRows
from anyformer.data.prepared import DataRequest, Prepared
from anyformer.data.preprocess import Preprocess
from anyformer.data.settings import Data
from anyformer.data.sizes import Sizes
from anyformer.errors import UserError
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.facts import plain
from anyformer.evaluation.metric_directions import add_smaller
from anyformer.log import Log
from anyformer.objectives import Objective
from anyformer.slots import Network
from anyformer.tasks.habits import TrainingDefaults, TunedSetting, habit_for
from anyformer.tasks.task_evaluation import TaskEvaluation
from anyformer.tasks.trained_model import TrainedModel


class Task(TaskEvaluation):
    """What a model is trained to do. The methods follow the order of a run; evaluation is inherited."""

    name: ClassVar[str] = ""  # on the command line: --task NAME
    other_names: ClassVar[tuple[str, ...]] = ()  # aliases for --task
    title: ClassVar[str] = ""  # for people, in reports: "classification"
    objective: ClassVar[type[Objective]]
    origin: ClassVar[str] = "table"  # kind of its files: table, text, sentences or pairs (see data.gather)
    verb: ClassVar[str] = ""  # what its model does, in messages: "names classes"
    needs: ClassVar[tuple[str, ...]] = ()  # optional packages that it requires
    has_target: ClassVar[bool] = True  # whether it uses --target
    needs_teacher: ClassVar[bool] = False  # whether it requires --teacher
    writes_text: ClassVar[bool] = False  # whether its models work with `generate`
    answers_texts: ClassVar[bool] = False  # whether `predict` takes texts although it was not trained on columns
    decodes: ClassVar[bool] = False  # whether the final evaluation generates texts, which is slow
    max_eval_rows: ClassVar[int | None] = None  # row limit of the final evaluation, if any
    draws_anew: ClassVar[bool] = False  # whether each pass makes new examples of its rows, so that many passes help
    counts_tokens: ClassVar[bool] = False  # whether throughput is in tokens rather than rows
    scales_numbers: ClassVar[bool] = False  # whether settings of number columns matter without such a column
    gives_probabilities: ClassVar[bool] = False  # whether `predict_proba` is supported
    has_plain_logits: ClassVar[bool] = False  # whether logits are of classes or numbers, which can be averaged
    weighs_classes: ClassVar[bool] = False  # whether training.class_weights has an effect
    smaller_is_better: ClassVar[tuple[str, ...]] = ()  # its own metrics for which lower is better
    own_suffixes: ClassVar[tuple[str, ...]] = ()  # suffixes of files written by `prediction_file`: ".png"

    def __init_subclass__(cls) -> None:
        """Register the metrics for which lower is better."""
        super().__init_subclass__()
        add_smaller(cls.smaller_is_better)

    # ------------------------------------------------------------ data

    def recognise(self, paths: Sequence[Path] | None, settings: Data) -> str:
        """Why these files are for this task if no task is named; "" if they are not."""
        return ""

    def recognise_rows(self, frame: Frame, settings: Data) -> str:
        """The same for a table in memory without a named target."""
        return ""

    def default_data(self, network: Network | None) -> Data:
        """Default data settings; `network` is the one to be trained, if it was named."""
        return Data()

    def prepare(self, request: DataRequest) -> Prepared:
        """Prepare files or Python data for training."""
        raise NotImplementedError

    def prepare_gathered(self, gathered: Gathered, request: DataRequest) -> Prepared:
        """The same for rows already read, for tasks that recognise rows."""
        raise NotImplementedError

    def remark_on(self, gathered: Gathered, settings: Data) -> str:
        """A line on how several files were combined, if somebody may expect otherwise; else ""."""
        return ""

    def read_new_files(self, paths: Sequence[Path], settings: Data, cache: Path) -> Frame | None:
        """Read files of new rows that are not read like tables; None if they are."""
        return None

    # ------------------------------------------------------------ the model and its training

    @abstractmethod
    def default_preset(self, sizes: Sizes, *, gpu: bool) -> str:
        """The preset if none is named."""
        raise NotImplementedError

    @abstractmethod
    def fit_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        """A preset's spec with vocabulary, lengths, columns and head fitted to the data; `name` is for messages."""
        raise NotImplementedError

    def adapt_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        """The spec of a pretrained network with the head of this task."""
        return self.fit_network(spec, name, sizes)

    def extend_network(self, spec: Network, name: str, objective: Objective) -> Network:
        """The spec with what an objective needs in addition to the task's own head; `name` is for messages."""
        return spec

    def check_changes(self, changes: Mapping[str, Any]) -> None:
        """Reject changes of the network (`--set model.…`) that the task cannot work with."""

    def taught_by(self, teacher: TrainedModel) -> Task:
        """The task of this teacher's student: this one, or the teacher's if this one leaves it open."""
        return self

    def fit_weights(self, spec: Network, data: Prepared, log: Log) -> dict[str, torch.Tensor]:
        """Weights by name that are fitted to the training rows before the first step, as by least squares; often
        none."""
        return {}

    def habit(self, sizes: Sizes, *, start: bool) -> TrainingDefaults:
        """Training defaults for such data; `start` is whether there is a model to fine-tune."""
        return habit_for(sizes.parts, start=start, rows=sizes.rows)

    def tuned(self, sizes: Sizes) -> list[TunedSetting]:
        """The search space around the defaults; settings that a network does not have are skipped."""
        return [
            TunedSetting("training.optimizer.lr", factors=(0.2, 0.5, 1.0, 2.0, 5.0)),
            TunedSetting("training.optimizer.weight_decay", factors=(0.1, 1.0, 10.0)),
            TunedSetting("model.stack.depth", factors=(0.5, 1.0, 1.5)),
            TunedSetting("model.stack.block.dropout", values=(0.0, 0.1, 0.3)),
            TunedSetting("model.stack.feed.dropout", values=(0.0, 0.15, 0.3, 0.5)),  # of a stack of feeds, for tables
        ]

    def default_objective(self, sizes: Sizes, counts: Sequence[int] | None, *, balanced: bool) -> Objective:
        """The default objective; `counts` are the training rows of each class."""
        return self.objective()

    def objective_of(self, preprocess: Preprocess) -> Objective:
        """The objective for evaluating a trained model, whose training settings are unknown."""
        return self.objective()

    def fit_objective(self, objective: Objective, spec: Network) -> Objective:
        """The objective with values taken from the network, such as its patch size."""
        return objective

    def has_one_shape(self, sizes: Sizes) -> bool:
        """Whether all batches have the same shape, so that a step is compiled once."""
        alone = only_modality(sizes.parts)
        return alone is not None and alone.fixed_shape

    def generation_config(self, objective: Objective, data: Prepared, spec: Network) -> dict[str, Any] | None:
        """Default generation settings of the model; None if it generates no text."""
        return None

    def write_sample(self, model: nn.Module, data: Prepared, *, seed: int) -> str | bytes | None:
        """A sample of the model's output during training, saved in the run: a text or a PNG file; None without one."""
        return None

    def next_command(self, run: Path) -> str:
        """The next command to run with a finished run."""
        return f"anyformer predict {run} new.csv -o out.csv"

    # ------------------------------------------------------------ new rows

    def predictions(self, answers: Answers) -> list[Any]:
        """One prediction per row, in the user's terms."""
        return list(answers.predicted)

    def prediction_columns(self, answers: Answers) -> dict[str, list[Any]]:
        """The columns that a prediction file adds to those of the rows."""
        return {"prediction": self.predictions(answers)}

    def default_suffix(self, *, lines: bool) -> str:
        """Output format if no file is named; `lines` is whether the rows are lines of text."""
        return ".txt" if lines else ".csv"

    def to_conll(self, answers: Answers, preprocess: Preprocess) -> str:
        """Predictions in CoNLL format, words with tags."""
        raise UserError("only words with tags are written as CoNLL", where=".conll", fix="name it .csv or .jsonl")

    def predict(
        self, predictor: TrainedModel, source: Any, *, batch_size: int, on_bad_rows: OnBadRows
    ) -> list[Any] | None:
        """One prediction per input, if inputs are not rows of a table; None if they are."""
        return None

    def prediction_table(
        self,
        predictor: TrainedModel,
        files: Sequence[Path],
        settings: Data,
        *,
        batch_size: int,
        on_bad_rows: OnBadRows,
        log: Log,
    ) -> Any | None:
        """The whole prediction file as a table, if it is not the input rows with added columns."""
        return None

    def prediction_file(self, predictor: TrainedModel, files: Sequence[Path], suffix: str) -> bytes:
        """Encode a prediction file that is not a table, with one of the `own_suffixes`."""
        raise NotImplementedError

    # ------------------------------------------------------------ serving

    def to_json(self, answers: Answers) -> list[dict[str, Any]]:
        """One JSON answer per row, as returned by the server."""
        return [{"prediction": plain(value)} for value in self.predictions(answers)]

    def parse_request(self, row: Any, preprocess: Preprocess) -> Any | None:
        """Parse one row of a request, if it is not an object of cells; None if it is."""
        return None

    def answer_requests(self, rows: Sequence[Any], predictor: TrainedModel, *, batch_size: int) -> list[Any] | None:
        """A JSON answer to each parsed row, or its own `UserError`; None if rows are cells of columns."""
        return None

    def network_inputs(self, predictor: TrainedModel, source: Any) -> tuple[torch.Tensor, ...] | None:
        """The network's inputs for what `predict` takes, or for an example if `source` is None.

        None if rows are cells of columns, which need no task to be read.
        """
        return None

    def describe_request(self, preprocess: Preprocess) -> str:
        """A description of a request row, if it is not an object of cells."""
        return ""

    def example_request(self, preprocess: Preprocess) -> Any | None:
        """An example request row, if it is not an object of cells."""
        return None
