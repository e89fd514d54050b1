"""The teacher of a distillation: its constraints on task and data, and compatibility with the student."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from anyformer.amounts import millions
from anyformer.core.model import Model, Seq2Seq
from anyformer.data.prepared import Prepared, StartModelConstraints
from anyformer.errors import UserError
from anyformer.inference.opening import best_of, load
from anyformer.inference.predictor import Predictor
from anyformer.objectives import Distill, Objective
from anyformer.objectives.distill import hash_model
from anyformer.slots import Network
from anyformer.tasks import find
from anyformer.tasks.distill import task_of
from anyformer.tasks.network import longest
from anyformer.training.setup.request import Request


@dataclass(frozen=True)
class Teacher:
    """A trained teacher model: the folder of its weights, and the loaded model."""

    folder: Path
    predictor: Predictor

    @classmethod
    def open(cls, path: Path) -> Teacher:
        """Load the teacher from a model folder or a run's best checkpoint."""
        try:
            return cls(best_of(path).resolve(), load(path))
        except UserError as error:
            raise UserError(error.what, where=f"--teacher {error.where}", fix=error.fix) from None

    def choose_task(self, request: Request) -> Request:
        """The request with the student's task."""
        if request.task is None:
            return request
        return dataclasses.replace(request, task=find(request.task).taught_by(self.predictor).name)

    def complete(self, given: StartModelConstraints) -> StartModelConstraints:
        """Add the teacher's constraints on the data: it reads the same batches as the student."""
        own = self.predictor
        if given.tokenizer is not None and own.tokenizer is not None and given.tokenizer.sha256 != own.tokenizer.sha256:
            raise UserError("the teacher has another tokenizer than the model to start from", where="--teacher",
                            fix="give one of --from and --teacher, or two with one tokenizer")  # fmt: skip
        lengths = [length for length in (given.length, longest(own.spec)) if length is not None]
        rows = own.preprocess if own.preprocess is not None and own.preprocess.columns else None
        return dataclasses.replace(
            given, tokenizer=given.tokenizer or own.tokenizer, images=given.images or own.images, labels=own.labels,
            length=min(lengths, default=None), preprocess=rows,
        )  # fmt: skip

    def settle(self, objective: Objective, prepared: Prepared, student: Network) -> Distill:
        """The objective with the teacher's folder and hash, after checking that both models' outputs are comparable."""
        if not isinstance(objective, Distill):
            raise UserError(f"{type(objective).__name__} cannot be distilled from a teacher", where="--teacher",
                            fix="leave it out")  # fmt: skip
        self.check_task(prepared)
        self.check_labels(prepared)
        self.check_vocabulary(student)
        return objective.replace(teacher=str(self.folder), sha256=self.same_hash(objective))

    def same_hash(self, objective: Distill) -> str:
        """The hash of the teacher's files, which must match the hash in the settings, if any."""
        found = hash_model(self.folder)
        if objective.sha256 and objective.sha256 != found:
            raise UserError("the teacher is not the one that these settings name", where="objective.sha256",
                            fix="put its files back, or leave the hash out")  # fmt: skip
        return found

    def check_labels(self, prepared: Prepared) -> None:
        """Reject a teacher with different classes, or the same in another order."""
        labels = prepared.preprocess.labels
        if labels is not None and self.predictor.labels is not None and list(labels) != self.predictor.labels:
            raise UserError(f"the teacher knows other labels: {', '.join(self.predictor.labels[:5])}",
                            where="--teacher", fix=f"give one trained on {', '.join(labels[:5])}")  # fmt: skip

    def check_task(self, prepared: Prepared) -> None:
        """Reject a teacher of another task."""
        known = task_of(self.predictor)
        if known.name != prepared.task:
            raise UserError(f"the teacher is for {known.name}, the student for {prepared.task}", where="--teacher",
                            fix=f"give another teacher, or --task {known.name}")  # fmt: skip

    def check_vocabulary(self, student: Network) -> None:
        """Reject a teacher with a smaller vocabulary than the student's."""
        mine, theirs = (words_scored(spec) for spec in (student, self.predictor.spec))
        if mine is not None and theirs is not None and theirs < mine:
            raise UserError(f"the teacher knows {theirs:,} tokens, the student {mine:,}", where="--teacher",
                            fix="give a teacher with the tokenizer of the student")  # fmt: skip

    def describe(self) -> str:
        """The teacher in a few words."""
        count = sum(parameter.numel() for parameter in self.predictor.model.parameters())
        return f"{millions(count)} parameters, frozen"


def words_scored(spec: Network) -> int | None:
    """Vocabulary size of a network, if it has one."""
    writer = spec.decoder if isinstance(spec, Seq2Seq) else spec
    known = writer.embed.vocabulary if isinstance(writer, Model) else None
    return None if known is None else known[0]
