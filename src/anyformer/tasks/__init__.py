"""Tasks: what a model can be trained to do, one file each.

`base.py` defines what a task provides, `task_evaluation.py` how its answers are evaluated; generic code calls these
methods. To add a task, write a file like `classify.py`, here or in a module of your own.
"""

from anyformer.tasks.adversarial import AdversarialTask
from anyformer.tasks.base import Task
from anyformer.tasks.classify import ClassifyTask
from anyformer.tasks.contrast import ContrastTask
from anyformer.tasks.deshuffle import DeshuffleTask
from anyformer.tasks.detect import DetectTask
from anyformer.tasks.distill import DistillTask
from anyformer.tasks.drop_tokens import DropTokensTask
from anyformer.tasks.evaluator import Evaluator
from anyformer.tasks.forecast import ForecastTask
from anyformer.tasks.image_text import ImageTextTask
from anyformer.tasks.known_tasks import all_tasks, find
from anyformer.tasks.language import LanguageTask
from anyformer.tasks.masked import MaskedTask
from anyformer.tasks.mass import MassTask
from anyformer.tasks.patches import PatchesTask
from anyformer.tasks.prefix import PrefixTask
from anyformer.tasks.qa import QATask
from anyformer.tasks.regress import RegressTask
from anyformer.tasks.replaced import ReplacedTask
from anyformer.tasks.row_task import RowTask
from anyformer.tasks.spans import SpansTask
from anyformer.tasks.tag import TagTask
from anyformer.tasks.translate import TranslateTask

__all__ = [
    "AdversarialTask",
    "ClassifyTask",
    "ContrastTask",
    "DeshuffleTask",
    "DetectTask",
    "DistillTask",
    "DropTokensTask",
    "Evaluator",
    "ForecastTask",
    "ImageTextTask",
    "LanguageTask",
    "MaskedTask",
    "MassTask",
    "PatchesTask",
    "PrefixTask",
    "QATask",
    "RegressTask",
    "ReplacedTask",
    "RowTask",
    "SpansTask",
    "TagTask",
    "Task",
    "TranslateTask",
    "all_tasks",
    "find",
]
