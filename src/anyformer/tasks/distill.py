"""Distillation by name: the student is asked what its teacher was trained for."""

from __future__ import annotations

from anyformer.core.model import Model, Seq2Seq
from anyformer.errors import UserError
from anyformer.heads import LM, Pooled, Regress, TokenHead
from anyformer.objectives import Distill
from anyformer.tasks.base import Task
from anyformer.tasks.known_tasks import find
from anyformer.tasks.trained_model import TrainedModel


class DistillTask(Task):
    """Whatever the teacher does, done by a smaller model. A run has the task of the teacher, which evaluates both.

    Every other task takes a teacher too; this one need not know which task that is.
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
    """What a model was trained for: as its folder says, or by its head where it was trained elsewhere."""
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
