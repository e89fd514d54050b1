"""Distillation as a task: the student learns its teacher's task."""

from __future__ import annotations

from anyformer.core.model import Model, Seq2Seq
from anyformer.errors import UserError
from anyformer.heads import LM, Pooled, Regress, TokenHead
from anyformer.objectives import Distill
from anyformer.tasks.base import Task
from anyformer.tasks.known_tasks import find
from anyformer.tasks.trained_model import TrainedModel


class DistillTask(Task):
    """A smaller model for the teacher's task. The run has the task of the teacher, which evaluates both.

    Every other task takes a teacher too; with this one the teacher's task need not be known.
    """

    name = "distill"
    title = "distillation"
    verb = "does what its teacher does"
    objective = Distill
    needs_teacher = True

    def taught_by(self, teacher: TrainedModel) -> Task:
        return task_of(teacher)


HEADS: dict[type, str] = {Pooled: "classify", Regress: "regress", TokenHead: "tag"}


def task_of(model: TrainedModel) -> Task:
    """The task of a model: as saved in its folder, or inferred from its head if it was trained elsewhere."""
    if model.preprocess is not None:
        return find(model.preprocess.task)
    spec = model.spec
    if isinstance(spec, Seq2Seq) and isinstance(spec.head, LM):
        return find("translate")
    if isinstance(spec, Model) and isinstance(spec.head, LM):
        return find("lm" if spec.stack.causal else "masked")
    if isinstance(spec, Model) and type(spec.head) in HEADS:
        return find(HEADS[type(spec.head)])
    raise UserError("what the teacher was trained for is not known", where="--teacher",
                    fix="give a language model, a classifier, a regressor or a tagger")  # fmt: skip
