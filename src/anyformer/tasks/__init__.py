"""Tasks: what a model can be trained to do, one file each.

`base.py` says what a task answers; generic code asks it. To add one, write a file like `classify.py`, here or in a
module of your own.
"""

from anyformer.tasks.adversarial import AdversarialTask
from anyformer.tasks.base import RowTask, Task, all_tasks, find
from anyformer.tasks.classify import ClassifyTask
from anyformer.tasks.detect import DetectTask
from anyformer.tasks.evaluator import Evaluator
from anyformer.tasks.forecast import ForecastTask
from anyformer.tasks.image_text import ImageTextTask
from anyformer.tasks.language import LanguageTask
from anyformer.tasks.masked import MaskedTask
from anyformer.tasks.patches import PatchesTask
from anyformer.tasks.regress import RegressTask
from anyformer.tasks.tag import TagTask
from anyformer.tasks.translate import TranslateTask

__all__ = [
    "AdversarialTask",
    "ClassifyTask",
    "DetectTask",
    "Evaluator",
    "ForecastTask",
    "ImageTextTask",
    "LanguageTask",
    "MaskedTask",
    "PatchesTask",
    "RegressTask",
    "RowTask",
    "TagTask",
    "Task",
    "TranslateTask",
    "all_tasks",
    "find",
]
