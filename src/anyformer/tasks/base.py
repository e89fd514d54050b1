"""Task: what a model is trained to do, from data to the answers for new rows.

A task is a subclass with a `name`; that it is imported makes it known (`known_tasks.py`), here or in a module of
your own. It has no state. Generic code (preparing data, training, evaluation, reports, prediction, serving, the command
line) asks the task and never compares its name.

Here are its data, its network and training, and its answers for new rows; how answers are evaluated is in
`task_evaluation.py`. Most tasks answer rows of a table: those are a `RowTask` (`row_task.py`).
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
    """What a model is trained to do. The methods are in the order of a run's life; evaluation is inherited."""

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
        add_smaller(cls.smaller_is_better)

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

    def prepare(self, request: DataRequest) -> Prepared:
        """Files or Python data, ready to train on."""
        raise NotImplementedError

    def prepare_gathered(self, gathered: Gathered, request: DataRequest) -> Prepared:
        """The same for rows that were read already, of a task that recognises rows."""
        raise NotImplementedError

    def remark_on(self, gathered: Gathered, settings: Data) -> str:
        """A line on how several files were put together, where somebody may have expected something else; or ""."""
        return ""

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

    def fit_weights(self, spec: Network, data: Prepared, log: Log) -> dict[str, torch.Tensor]:
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

    def predict(
        self, predictor: TrainedModel, source: Any, *, batch_size: int, on_bad_rows: OnBadRows
    ) -> list[Any] | None:
        """One answer an input where inputs are not rows of a table; None where they are."""
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

    def answer_requests(self, rows: Sequence[Any], predictor: TrainedModel, *, batch_size: int) -> list[Any] | None:
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
