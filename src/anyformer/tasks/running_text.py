"""Base of tasks on running text: files or one text column in, rows of tokens out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from anyformer.data.columns.cells import texts
from anyformer.data.columns.look import look
from anyformer.data.datasets.corpus import TaskTokens
from anyformer.data.datasets.text import prepare_text, prepare_texts
from anyformer.data.datasets.windows import Windows
from anyformer.data.examples import Examples
from anyformer.data.files.fasta import by_residue
from anyformer.data.gather import gather, origin_of, paths_of
from anyformer.data.prepared import DataRequest, Prepared, StartModelConstraints
from anyformer.data.settings import Data, Split, TokenizerSettings
from anyformer.data.sizes import Sizes
from anyformer.data.splits import FREE, SIDES, TRAIN
from anyformer.data.unused import refuse_both, refuse_columns
from anyformer.errors import UserError
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.baseline_rows import RawRows
from anyformer.log import Log
from anyformer.safe_files import scratch_folder
from anyformer.tasks.base import Task
from anyformer.tasks.trained_model import TrainedModel

if TYPE_CHECKING:
    from anyformer.tasks.evaluator import Evaluator

MOST_TOKENS = 4 * 10**6  # tokens decoded again for a baseline


class RunningTextTask(Task):
    """A task on raw text without labels; `rows` is how the text is cut."""

    origin = "text"
    has_target = False
    counts_tokens = True
    rows: ClassVar[type[Windows]] = Windows
    tokens: ClassVar[TaskTokens] = TaskTokens()  # special tokens that a tokenizer trained for it needs

    def prepare(self, request: DataRequest) -> Prepared:
        """Running text, or the only text column of a table."""
        settings, paths = request.settings, paths_of(request.source)
        origin = "table" if paths is None else origin_of(paths, self.origin)
        if origin == "fasta":
            settings = by_residue(settings, alone=True)
        if paths is not None and origin == self.origin:
            refuse_columns(settings, "running text")
            request = replace(request, source=paths, settings=settings)
            return prepare_text(request, task=self.name, rows=self.rows, tokens=self.tokens)
        refuse_both(settings, f"a {self.title}")
        refuse_columns(settings, f"a {self.title}", used=("--target", "--inputs", "--types", "--split-column"))
        sides = texts_of(request.source, origin, settings, request.cache, self.name)
        whole = settings.replace(split=settings.split.replace(valid_file=None, test_file=None))  # they are in `sides`
        request = replace(request, source=sides["train"], settings=whole)
        return prepare_texts(request, task=self.name, rows=self.rows, tokens=self.tokens,
                             valid=sides["valid"] or None, test=sides["test"] or None)  # fmt: skip

    def has_one_shape(self, sizes: Sizes) -> bool:
        return True

    # ------------------------------------------------------------ evaluation

    def main_metric(self, *, multi: bool = False, labels: Sequence[str] = ()) -> str:
        return "loss"

    def all_metrics(self, answers: Answers) -> dict[str, float]:
        return self.metrics(answers)

    def evaluate_files(
        self, evaluator: Evaluator, predictor: TrainedModel, files: Sequence[Path], log: Log
    ) -> Answers | None:
        """Evaluate on all of some running text."""
        preprocess = evaluator.preprocess
        settings = Data(split=Split(valid=0.0, test=0.0), tokenizer=TokenizerSettings(max_length=preprocess.length))
        with scratch_folder() as cache:
            given = StartModelConstraints(tokenizer=evaluator.tokenizer, length=preprocess.length)
            request = DataRequest(list(files), settings, cache, given=given, log=log)
            if origin_of(files, None) == "fasta":
                found = self.prepare(request)
            else:
                found = prepare_text(request, task=self.name, rows=self.rows, tokens=self.tokens)
            return evaluator(predictor.model, found.train)

    # ------------------------------------------------------------ baselines

    def raw_rows(self, examples: Examples) -> RawRows:
        """The tokens, and the end of the text decoded again."""
        assert isinstance(examples, Windows)
        ids, tokenizer = np.asarray(examples.ids), examples.tokenizer
        text = None if tokenizer is None else [tokenizer.decode(ids[-MOST_TOKENS:].tolist())]
        return RawRows(tokens=ids, texts=text)

    # ------------------------------------------------------------ the report

    def facts(self, answers: Answers) -> dict[str, Any]:
        return {"tokens": int(answers.tokens), "bytes": int(answers.bytes)}

    def describe(self, answers: Answers, row: int) -> dict[str, Any]:
        return {}


def texts_of(source: Any, origin: str, settings: Data, cache: Path, task: str) -> dict[str, list[str]]:
    """The texts of a table's only text column by split; validation and test files keep theirs."""
    gathered = gather(source, origin, settings, cache / "read")
    frame = gathered.frame
    names = list(settings.inputs or settings.target or ())
    names = names or [name for name, facts in look(frame, settings.kinds()).items() if facts.column.is_text]
    if len(names) != 1 or names[0] not in frame.names:
        first = (names or frame.names)[0]
        raise UserError("no text column given", where=f"--task {task}", fix=f"add --inputs {first}")
    side = np.zeros(len(frame), np.int8) if gathered.fixed is None else gathered.fixed
    side = np.where(side == FREE, TRAIN, side)
    cells = list(zip(texts(frame.column(names[0])), side.tolist(), strict=True))
    return {name: [text for text, at in cells if at == number and text] for number, name in enumerate(SIDES)}
