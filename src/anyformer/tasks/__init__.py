"""Tasks: what a model can be trained to do, one file each.

`base.py` says what a task answers; generic code asks it. To add one, write a file like `classify.py`, here or in a
module of your own.
"""

from anyformer.tasks.adversarial import Adversarial
from anyformer.tasks.base import RowTask, Task, all_tasks, find
from anyformer.tasks.classify import Classify
from anyformer.tasks.detect import Detect
from anyformer.tasks.evaluator import Evaluator
from anyformer.tasks.forecast import Forecast
from anyformer.tasks.language import Language
from anyformer.tasks.regress import Regress
from anyformer.tasks.tag import Tag
from anyformer.tasks.translate import Translate

__all__ = [
    "Adversarial",
    "Classify",
    "Detect",
    "Evaluator",
    "Forecast",
    "Language",
    "Regress",
    "RowTask",
    "Tag",
    "Task",
    "Translate",
    "all_tasks",
    "find",
]
