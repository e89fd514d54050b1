"""RowTask: a task whose examples are rows of a table, with everything that such tasks share.

A subclass needs a target, an objective, a head, metrics and predictions; the rest is inherited.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn

from anyformer.core.model import Model
from anyformer.data.columns.cells import factorize
from anyformer.data.columns.kinds import only_modality
from anyformer.data.columns.look import Facts
from anyformer.data.datasets.rows import RowExamples
from anyformer.data.decision import Decision, Input
from anyformer.data.examples import Examples
from anyformer.data.frame import Frame
from anyformer.data.prepared import StartModelConstraints
from anyformer.data.preprocess import Preprocess
from anyformer.data.settings import Data
from anyformer.data.sizes import Sizes
from anyformer.data.targets import ABSENT, Target
from anyformer.errors import UserError
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.baseline_rows import RawRows, raw_rows
from anyformer.evaluation.baseline_time import expected_seconds, learn_in_time
from anyformer.evaluation.learners import load_learners
from anyformer.slots import Network
from anyformer.tasks.base import Task
from anyformer.tasks.network import fit_row_network, keep_trained_embedding, preset_for_parts, require_model
from anyformer.tasks.target_look import Match, TargetLook

if TYPE_CHECKING:
    from anyformer.tasks.evaluator import Evaluator


class RowTask(Task):
    """A task whose examples are rows of a table: any mixture of input columns, one prediction per row."""

    reads: ClassVar[str] = ""  # the inputs that it is restricted to, in messages
    unread: ClassVar[str] = ""  # why other inputs are left out
    takes_lines: ClassVar[bool] = False  # whether lines of a text file are rows
    splits_by_time: ClassVar[bool] = False  # whether the latest rows become the test split if a date column is regular
    origin_reason: ClassVar[str] = ""  # why files of its `origin` are for this task

    # ------------------------------------------------------------ which data

    @abstractmethod
    def match(self, seen: TargetLook, *, asked: bool) -> Match | None:
        """Whether the task fits a target. `asked`: the user named the task, so that a mismatch is an error."""
        raise NotImplementedError

    def match_or_none(self, seen: TargetLook) -> Match | None:
        """The match if the user named the task, or None."""
        try:
            return self.match(seen, asked=True)
        except UserError:
            return None

    def decide_without_target(
        self, frame: Frame, facts: Mapping[str, Facts], settings: Data, *, asked: bool
    ) -> Decision | None:
        """A decision for a table without a named target; None if the task needs one."""
        return None

    def choose_inputs(self, seen: TargetLook) -> tuple[list[Input], list[Input]]:
        """The inputs that are used, and those that are not."""
        return list(seen.inputs), []

    def settle_inputs(self, inputs: list[Input], settings: Data, given: StartModelConstraints) -> list[Input]:
        """The inputs with kinds that suit the network to be trained, if it is named or pretrained."""
        return inputs

    def target_problems(self, frame: Frame, decision: Decision) -> list[tuple[str, np.ndarray]]:
        """Reasons for which a row has no usable target, each with a mask over the rows."""
        return [(ABSENT, factorize(frame.column(decision.target[0]))[0] < 0)]

    def strata(self, frame: Frame, decision: Decision) -> np.ndarray | None:
        """The stratum of each row for a random split; None if rows have none."""
        return None

    def default_group(self, frame: Frame, decision: Decision) -> str | None:
        """The column whose equal values stay in one split by default."""
        return None

    def check_training_rows(self, frame: Frame, decision: Decision, rows: np.ndarray, counts: str) -> None:
        """Reject training rows that nothing can be learned from."""

    @abstractmethod
    def fit_target(self, frame: Frame, decision: Decision, settings: Data, labels: Sequence[str] | None) -> Target:
        """Fit the target to the training rows in `frame`; `labels` are those of a pretrained model."""
        raise NotImplementedError

    # ------------------------------------------------------------ the model

    def default_preset(self, sizes: Sizes, *, gpu: bool) -> str:
        return preset_for_parts(sizes.parts, gpu=gpu, rows=sizes.rows)

    def fit_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        return fit_row_network(self, spec, name, sizes)

    def adapt_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        made = self.fit_network(spec, name, sizes)
        if not isinstance(made, Model):
            return made
        trained = require_model(spec, name, self, sizes).embed
        alone = only_modality(sizes.parts)
        whole = alone is not None and alone.keeps_embedding and isinstance(trained, alone.embeds)
        return made.replace(embed=trained if whole else keep_trained_embedding(made.embed, trained))

    @abstractmethod
    def head(self, own: Any, pool: str, sizes: Sizes) -> Any:
        """The head for this task; `own` is the preset's, `pool` the pooling of a row to one vector."""
        raise NotImplementedError

    # ------------------------------------------------------------ evaluation

    def answer(
        self, evaluator: Evaluator, model: nn.Module, examples: Examples, rows: np.ndarray, *, decode: bool
    ) -> Answers:
        """One forward pass over all rows; `read_logits` interprets it."""
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
        """Answers from the model's outputs for some rows and their targets as batches have them."""
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
        """With all training rows, or with a sample of as many as the time allows."""
        if seconds is None:
            return self.strong_baseline(truth, answers, train, test)
        began = time.perf_counter()
        load_learners()  # the time of the imports must not count as training time
        left = seconds - (time.perf_counter() - began)
        return learn_in_time(lambda some, rows: self.strong_baseline(some, answers, rows, test), truth, train, left)
