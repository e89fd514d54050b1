"""Text written from what is read: translation, summaries, answers; captions of images and answers about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from anyformer.data.columns.cells import as_words, factorize, texts
from anyformer.data.columns.look import Facts
from anyformer.data.datasets.rows import RowExamples
from anyformer.data.decision import Decision, Input, name_of
from anyformer.data.examples import Examples
from anyformer.data.file_tasks import tasks_of_files
from anyformer.data.frame import Frame
from anyformer.data.gather import Gathered, gather, origin_of
from anyformer.data.prepared import Prepared
from anyformer.data.preprocess import Preprocess
from anyformer.data.settings import Data, ImageSettings
from anyformer.data.sizes import Sizes
from anyformer.data.targets import ABSENT, Answer, TaskAnswer
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.errors import UserError
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.baseline_rows import RawRows, raw_rows
from anyformer.evaluation.bootstrap import RowSums
from anyformer.evaluation.facts import short
from anyformer.evaluation.metrics import text_metrics
from anyformer.evaluation.row_sums import text_sums
from anyformer.evaluation.text_baselines import COPY, copy_or_lead, translate_words
from anyformer.evaluation.text_scores import NO_BLEU, bleu_available, bleu_chrf, row_scores, several
from anyformer.generation import Generation, generate
from anyformer.generation.prompts import decoder_of, max_positions
from anyformer.objectives import Objective
from anyformer.objectives import Translate as TranslationLoss
from anyformer.slots import Network
from anyformer.tasks.habits import FINE_TUNE, TrainingDefaults
from anyformer.tasks.network import adapt_encoder_decoder, fit_encoder_decoder, size_for
from anyformer.tasks.row_task import RowTask
from anyformer.tasks.target_look import FEW, Match, TargetLook

if TYPE_CHECKING:
    from anyformer.tasks.evaluator import Evaluator

SOURCE_NAMES = ("source", "src", "input", "question", "prompt", "text", "document", "article")
TASK_NAMES = ("task", "prefix", "instruction")
MOST_TASKS = 50  # whose metrics are given one by one
STEP = 16  # tokens to which a source's length is rounded up, so that texts of about one length are written together
SAVED = ("num_beams", "length_penalty", "max_new_tokens", "decoder_start_token_id", "eos_token_id", "pad_token_id")


class TranslateTask(RowTask):
    """Text that the model writes, by beam search."""

    name = "translate"
    title = "text to text"
    verb = "writes text"
    objective = TranslationLoss
    origin = "pairs"
    origin_reason = "each line of one text belongs to a line of the other"
    reads = "a translator reads one text, one image, or both"
    unread = "only one text, one image, or both are read"
    writes_text = True
    decodes = True

    # ------------------------------------------------------------ which data

    def default_data(self, network: Network | None) -> Data:
        """Images as they are, but for a shift: a text may say left and right, and name the colours."""
        return Data(images=ImageSettings(flip=False, randaugment=0))

    def match(self, seen: TargetLook, *, asked: bool) -> Match | None:
        if seen.several:
            if asked:
                raise UserError("one text is written, not several", where="--target", fix="name one column")
            return None
        if seen.is_list:
            fits = asked or (seen.sentences is None and not seen.few_labels)
            return Match("one", f"{seen.name} is text in pieces") if fits else None
        if asked:
            return Match()
        if seen.is_numeric or seen.separator is not None:
            return None
        many = len(seen.values[1]) > max(FEW, seen.used // 2)
        # About images only where asked for: `default_data` leaves them as they are, and was not asked here.
        fits = many and seen.facts[seen.name].column.is_text and len(seen.texts) == 1 and not seen.images
        return Match("one", f"{seen.name} is text, nearly every row another") if fits else None

    def choose_inputs(self, seen: TargetLook) -> tuple[list[Input], list[Input]]:
        """One text, one image or both, and what says the task; of several texts the one named like a source."""
        asked = [Input(column.name, "text", column.facts) for column in seen.inputs if is_task_column(column.name)][:1]
        found = [column for column in seen.texts if not is_task_column(column.name)]
        if seen.images and not found:  # questions that come again look like categories
            named = [column for column in seen.inputs if column.name.lower() in SOURCE_NAMES]
            found = [Input(column.name, "text", column.facts) for column in named if column not in seen.images]
        named = [column for column in found if column.name.lower() in SOURCE_NAMES]
        found = named if len(found) > 1 and len(named) == 1 else found
        if len(found) > 1:
            raise UserError(f"{len(found)} columns of text to read", where=name_of(seen.frame),
                            fix=f"choose with --inputs {found[0].name}")  # fmt: skip
        read = [*seen.images, *(asked if found else ()), *found]
        return read, [column for column in seen.inputs if column.name not in {one.name for one in read}]

    def decide_without_target(
        self, frame: Frame, facts: Mapping[str, Facts], settings: Data, *, asked: bool
    ) -> Decision | None:
        """A table of two texts, or of an image and one or two: the last text is written, the rest is read."""
        from anyformer.tasks.decide import refuse_named

        tasks = [name for name in frame.names if is_task_column(name)][:1]
        written_in = [name for name in frame.names if facts[name].column.is_text and name not in tasks]
        pictures = [name for name in frame.names if facts[name].column.is_image]
        found = [*pictures, *written_in]
        enough = len(written_in) == 2 or (len(written_in) == 1 and pictures)
        if not enough or len(pictures) > 1 or not (asked or len(frame.names) == len(written_in) == 2):
            return None
        *read, written = found
        tasks = tasks if len(written_in) == 2 else []
        others = [name for name in frame.names if name not in (*found, *tasks)]
        refuse_named(settings, others, self.reads)
        kinds = "an image and text" if pictures else "two columns of text"
        why = f"{kinds} and no target: {' and '.join(read)} {'are' if read[1:] else 'is'} read, {written} is written"
        inputs = [Input(name, facts[name].kind, facts[name]) for name in read]
        inputs[-1:-1] = [Input(name, "text", facts[name]) for name in tasks]
        return Decision(self, (written,), tuple(inputs), why, dropped=tuple((name, self.unread) for name in others))

    def target_problems(self, frame: Frame, decision: Decision) -> list[tuple[str, np.ndarray]]:
        return [(ABSENT, as_words(frame.column(decision.target[0])).is_null().to_numpy())]

    def fit_target(self, frame: Frame, decision: Decision, settings: Data, labels: Sequence[str] | None) -> Answer:
        task = task_column(decision)
        if task is None:
            return Answer(names=decision.target)
        found = tasks_of_files(frame, settings.mixture) if settings.mixture.names_files else {}
        files = tuple(f"{name}={said}" for name, said in found.items())
        return TaskAnswer(names=decision.target, task=task, files=files or None)

    def strata(self, frame: Frame, decision: Decision) -> np.ndarray | None:
        """The task of each row: every side gets its share of all."""
        task = task_column(decision)
        return None if task is None else factorize(frame.column(task))[0]

    def remark_on(self, gathered: Gathered, settings: Data) -> str:
        if gathered.origin != "table" or any(is_task_column(name) for name in gathered.frame.names):
            return ""
        return "files    all one task; --set data.mixture.by_file=true makes each a task, named after its file"

    def read_new_files(self, paths: Sequence[Path], settings: Data, cache: Path) -> Frame | None:
        """Two files may be a source and its references."""
        if len(paths) != 2:
            return None
        return gather(list(paths), origin_of(paths, self.origin), settings, cache).frame

    # ------------------------------------------------------------ the model

    def default_preset(self, sizes: Sizes, *, gpu: bool) -> str:
        return f"{'translator' if sizes.image is None else 'captioner'}-{size_for(gpu)}"

    def fit_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        return fit_encoder_decoder(spec, name, sizes, self.default_preset(sizes, gpu=False))

    def adapt_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        return adapt_encoder_decoder(self.fit_network(spec, name, sizes), spec, sizes)

    def habit(self, sizes: Sizes, *, start: bool) -> TrainingDefaults:
        lr = 2e-3 if sizes.image is None else 1e-3
        return (
            FINE_TUNE
            if start
            else TrainingDefaults(epochs=40, batch_size=64, lr=lr, weight_decay=0.01, gpu_batch_size=128, gpu_lr=lr)
        )

    def has_one_shape(self, sizes: Sizes) -> bool:
        return False

    def generation_config(self, objective: Objective, data: Prepared, spec: Network) -> dict[str, Any] | None:
        if data.tokenizer is None:
            return None
        chosen = beam_search(objective, data.preprocess, data.tokenizer, spec)
        return {name: getattr(chosen, name) for name in SAVED if getattr(chosen, name) is not None}

    # ------------------------------------------------------------ evaluation

    def answer(
        self, evaluator: Evaluator, model: nn.Module, examples: Examples, rows: np.ndarray, *, decode: bool
    ) -> Answers:
        """The loss of the true text and, with `decode`, the text the model writes itself."""
        assert isinstance(examples, RowExamples)
        nats, tokens, losses = evaluator.sum_tokens(model, examples, rows)
        answers = Answers(self.name, nats=nats, tokens=tokens, examples=examples, losses=losses)
        if not decode:
            return answers
        target = evaluator.preprocess.target
        name = target.names[0] if target else "target"
        known = name in examples.frame.names  # new texts come without
        truth = [str(examples.cells(row)[name]) for row in rows.tolist()] if known else None
        tasks = examples.tasks
        groups = None if tasks is None else [tasks[row] for row in rows.tolist()]
        return replace(answers, truth=truth, groups=groups, predicted=write_texts(evaluator, model, examples, rows))

    def compute_metrics(self, answers: Answers) -> dict[str, float]:
        """Those of all rows, then those of each task."""
        found = text_metrics(answers)
        for name in sorted(set(answers.groups or ()))[:MOST_TASKS]:
            rows = [row for row, group in enumerate(answers.groups or ()) if group == name]
            truth, predicted = ([side[row] for row in rows] for side in (answers.truth, answers.predicted))
            own = Answers(self.name, truth, predicted)
            found |= {f"{metric}.{name}": value for metric, value in text_metrics(own).items()}
        return found

    def row_sums(self, answers: Answers, metric: str) -> RowSums | None:
        return text_sums(answers, metric)

    def main_metric(self, *, multi: bool = False, labels: Sequence[str] = ()) -> str:
        return "bleu" if bleu_available() else "rouge_l"

    def selection_metric(self, *, multi: bool = False, labels: Sequence[str] = ()) -> str:
        """The loss: writing all texts at every evaluation would take too long."""
        return "loss"

    def notes(self, answers: Answers) -> list[str]:
        return [] if bleu_available() else [NO_BLEU]

    def truth(self, examples: Examples) -> Any:
        assert isinstance(examples, RowExamples) and examples.preprocess.target is not None
        return texts(examples.frame.take(examples.rows).column(examples.preprocess.target.names[0]))

    def raw_rows(self, examples: Examples) -> RawRows:
        assert isinstance(examples, RowExamples)
        found, tasks = raw_rows(examples), examples.tasks
        if tasks is None:
            return RawRows(sources=found.texts, images=found.images)
        source = examples.frame.take(examples.rows).column(examples.preprocess.texts[-1].name)
        return RawRows(sources=texts(source), images=found.images, tasks=tasks)

    # ------------------------------------------------------------ baselines

    def trivial_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows
    ) -> tuple[str, dict[str, float]]:
        """The source copied, or its first sentences where that is too long; of images, the most frequent text."""
        if test.images is not None:
            ((usual, _),) = Counter(references[0] for references in several(truth)).most_common(1)
            found = self.metrics(Answers(self.name, answers.truth, [usual] * len(answers.truth), groups=answers.groups))
            return "always writing the most frequent text", found
        if test.sources is None:
            return COPY, {}
        name, said = copy_or_lead(train, [references[0] for references in several(truth)], test)
        return name, self.metrics(Answers(self.name, answers.truth, said, groups=answers.groups))

    def strong_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, *, seed: int = 0
    ) -> tuple[str, dict[str, float]]:
        """Every word by its most probable translation in the training pairs; of images, the text of the nearest one."""
        if train.images is not None and test.images is not None:
            said = [several(truth)[row][0] for row in nearest_images(train, test)]
            name = "the text of the nearest training image" + (" with the same question" if train.sources else "")
            return name, self.metrics(Answers(self.name, answers.truth, said))
        if not train.sources or not test.sources:
            return "no sentences to learn words from", {}
        said = translate_words(train, [references[0] for references in several(truth)], test)
        scores = self.metrics(Answers(self.name, answers.truth, said, groups=answers.groups))
        return "IBM Model 1, word by word", scores

    # ------------------------------------------------------------ the report

    def facts(self, answers: Answers) -> dict[str, Any]:
        found: dict[str, Any] = {"rows": len(answers.predicted)}
        if len(answers.predicted) and bleu_available():
            found["signature"] = bleu_chrf(answers.predicted, answers.truth)[2]
        return found

    def error_name(self, answers: Answers) -> str:
        return "1 − ROUGE-L"

    def row_errors(self, answers: Answers) -> Sequence[float] | np.ndarray:
        return [1 - score for score in row_scores(answers.predicted, answers.truth)]

    def describe(self, answers: Answers, row: int) -> dict[str, Any]:
        references = several(answers.truth[row : row + 1])[0]
        return {"truth": short(" | ".join(references)), "predicted": short(answers.predicted[row])}

    # ------------------------------------------------------------ new rows

    def default_suffix(self, *, lines: bool) -> str:
        return ".txt"

    def to_json(self, answers: Answers) -> list[dict[str, Any]]:
        return [{"text": text} for text in answers.predicted]


def task_column(decision: Decision) -> str | None:
    """The column among the inputs that says what is to be done with each row."""
    return next((column.name for column in decision.inputs if is_task_column(column.name)), None)


def is_task_column(name: str) -> bool:
    """Whether a column says what is to be done with the text of its row, by its name."""
    return name.lower() in TASK_NAMES


def write_texts(evaluator: Evaluator, model: nn.Module, examples: RowExamples, rows: np.ndarray) -> list[str]:
    """What an encoder-decoder writes for each row, by beam search."""
    tokenizer, lengths = evaluator.tokenizer, examples.lengths
    assert tokenizer is not None
    settings = beam_search(evaluator.objective, evaluator.preprocess, tokenizer, model.spec)
    device = next(model.parameters()).device
    found: dict[int, str] = {}
    order = rows if lengths is None else rows[np.argsort(lengths[rows], kind="stable")]
    longest = np.full(len(examples), settings.max_new_tokens or 256)
    if lengths is not None and examples.images is None:
        # How long a text may get follows from its own source, not from the longest one beside it.
        longest = np.minimum(longest, 2 * STEP * -(-lengths // STEP) + STEP)
    for chosen in batches_of_equals(order, longest, evaluator.batch_size):
        batch = examples.batch(chosen).to(device)
        source, mask, most = batch.inputs[0], batch.named["source_mask"], int(longest[chosen[0]])
        result = generate(model, source, mask, settings=replace(settings, max_new_tokens=most))
        for row, ids in zip(batch.rows.tolist(), result.rows(), strict=True):
            found[row] = tokenizer.decode(ids)
    return [found[row] for row in rows.tolist()]


def nearest_images(train: RawRows, test: RawRows) -> list[int]:
    """For each test row the training row whose image has the nearest pixels, among those with its question if any."""
    assert train.images is not None and test.images is not None
    before, after = (rows.reshape(len(rows), -1).astype(np.float32) for rows in (train.images, test.images))
    by_question: dict[str, list[int]] = {}
    for row, question in enumerate(train.sources or [""] * len(before)):
        by_question.setdefault(question, []).append(row)
    found = []
    for row, question in enumerate(test.sources or [""] * len(after)):
        among = np.asarray(by_question.get(question, range(len(before))))
        found.append(int(among[((before[among] - after[row]) ** 2).sum(1).argmin()]))
    return found


def batches_of_equals(order: np.ndarray, values: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Rows in their order, at most `size` at once, no two of which have different values."""
    edges = np.flatnonzero(np.diff(values[order])) + 1
    for rows in np.split(order, edges):
        for start in range(0, len(rows), size):
            yield rows[start : start + size]


def beam_search(objective: Objective, preprocess: Preprocess, tokenizer: Tokenizer, spec: Any) -> Generation:
    """How a translator writes: by beam, from its start token to its end token, within its decoder's positions."""
    beams, penalty = (
        (objective.num_beams, objective.length_penalty) if isinstance(objective, TranslationLoss) else (1, 1.0)
    )
    longest, (places, _) = preprocess.length or 256, max_positions(decoder_of(spec))
    if places is not None:
        longest = min(longest, places - 1)  # the start token has a position too
    return Generation(
        num_beams=beams, length_penalty=penalty, max_new_tokens=longest,
        decoder_start_token_id=preprocess.start, eos_token_id=tokenizer.eos, pad_token_id=tokenizer.pad,
    )  # fmt: skip
