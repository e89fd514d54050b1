"""A network's loss on some data, for repeated measurement under ablations.

A model trained by anyformer is evaluated by its own objective on rows with targets. Others are evaluated by next-token
loss if they generate text, else by the loss against their own unablated predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.head_names import network_of
from anyformer.errors import UserError
from anyformer.inspection.capture import Capture
from anyformer.inspection.given import NetworkInputs, given_to
from anyformer.log import silence

if TYPE_CHECKING:
    from anyformer.inference.predictor import Predictor
    from anyformer.inspection.recorded_batches import BatchRecorder
    from anyformer.objectives import Batch

Loss = Callable[[Any], Tensor]  # the summed loss of a network's output


@dataclass
class Question:
    """One call of a network, and the loss of its output."""

    args: tuple[Any, ...]
    options: dict[str, Any]
    loss: Loss  # summed
    weight: float  # number of targets in the sum

    def ask(self, network: nn.Module) -> Tensor:
        """The summed loss."""
        return self.loss(network(*self.args, **self.options))


@dataclass
class Measure:
    """The mean loss over all calls."""

    network: nn.Module
    questions: list[Question] = field(default_factory=list)
    what: str = "loss"

    @torch.no_grad()
    def __call__(self) -> float:
        return float(sum(question.ask(self.network).double() for question in self.questions)) / self.weight

    @property
    def weight(self) -> float:
        return sum(question.weight for question in self.questions)


@contextmanager
def in_eval_mode(model: Any) -> Iterator[None]:
    """Eval mode inside a `with` block."""
    network = network_of(model, "model")
    was = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was)


def measure_on(
    model: Any, data: Any, *, batch_size: int = 32, max_rows: int = 256, loss: Loss | None = None
) -> Measure:  # fmt: skip
    """The loss of a predictor or a network on `data`.

    For a predictor: files or rows with targets if it was trained by anyformer, else texts, images or a list of them.
    For a network: the tensors of one call, or a list of such. For either: a capture from `look`. `loss(output)`
    replaces the model's default loss.
    """
    network = network_of(model, "data")
    predictor = None if isinstance(model, nn.Module) else model
    if isinstance(data, Capture):
        return Measure(network, [own_question(network, data.given, loss)], what_is_lost(network, loss))
    data = as_path(data)
    rows = predictor is not None and (predictor.has_columns() or as_files(data) is not None)
    if predictor is not None and predictor.preprocess is not None and rows and loss is None:
        questions = [
            question_of(batch, objective) for batch, objective in batches_of(predictor, data, batch_size, max_rows)
        ]
        if not questions:
            raise UserError("there are no rows to measure on", where="data", fix="give rows with their answers")
        return Measure(network, questions)
    given = [given_to(predictor, network, one, None) for one in listed(predictor, data)[:max_rows]]
    if not given:
        raise UserError("there is nothing to measure on", where="data", fix="give at least one input")
    return Measure(network, [own_question(network, one, loss) for one in given], what_is_lost(network, loss))


def listed(predictor: Predictor | None, data: Any) -> list[Any]:
    """The inputs as a list; a text file gives its lines."""
    if isinstance(data, Path) and predictor is not None and predictor.images is None:
        try:
            return [line for line in data.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"it cannot be read as text ({type(error).__name__})", where=str(data),
                            fix="give a file with a text a line") from None  # fmt: skip
    return list(data) if isinstance(data, list) else [data]


# ---------------------------------------------------------------- models trained by anyformer


def batches_of(predictor: Predictor, data: Any, batch_size: int, most: int) -> Iterator[tuple[Batch, Any]]:
    """Batches with targets, and their objective."""
    from anyformer.inference.predict import evaluator_for
    from anyformer.inspection.recorded_batches import BatchRecorder
    from anyformer.tasks import find

    assert predictor.preprocess is not None
    recorder = BatchRecorder(evaluator_for(predictor, batch_size=batch_size), most)
    files = as_files(data)
    found = None if files is None else find(predictor.preprocess.task).evaluate_files(
        recorder, predictor, files, silence
    )  # fmt: skip
    if found is None:
        record_rows(predictor, data if files is None else files, recorder)
    for batch in recorder.kept:
        yield batch, recorder.objective


def as_path(data: Any) -> Any:
    """An existing file name as a Path; anything else unchanged."""
    short = isinstance(data, str) and len(data) < 1000 and "\n" not in data
    return Path(data) if short and Path(data).is_file() else data


def as_files(data: Any) -> list[Path] | None:
    """A list of paths, if the data is one or several paths."""
    parts = data if isinstance(data, list | tuple) else [data]
    return [Path(part) for part in parts] if parts and all(isinstance(part, Path) for part in parts) else None


def record_rows(predictor: Predictor, source: Any, recorder: BatchRecorder) -> None:
    """Run one evaluation over rows with targets, for their batches."""
    from anyformer.data.given_rows import given_rows, is_files, report_bad, room_for
    from anyformer.data.new_rows import parse_rows, parse_table
    from anyformer.data.prepare_rows import examples_for
    from anyformer.data.settings import Data
    from anyformer.inference.predict import check_target
    from anyformer.tasks import find
    from anyformer.tasks.prepare import frame_of_model, read_new_rows

    preprocess = predictor.preprocess
    assert preprocess is not None
    rows = given_rows([source] if isinstance(source, Mapping) else source, preprocess, with_truth=True)
    with room_for(is_files(rows)) as cache:
        if is_files(rows):
            assert cache is not None
            new = parse_table(read_new_rows(rows, preprocess, Data(), cache)[0], preprocess)
        elif isinstance(rows, Sequence):
            new = parse_rows(rows, preprocess)
        else:
            new = parse_table(frame_of_model(rows, preprocess)[0], preprocess)
        check_target(new.frame, preprocess)
        examples = find(preprocess.task).examples_of(new.frame, preprocess, silence)
        if examples is None:
            examples, counts = examples_for(new.frame, preprocess, predictor.tokenizer, cache, images=predictor.images)
            report_bad(dict(sorted((counts.unread | new.bad).items())), "error", silence)
        recorder(predictor.model, examples)


def question_of(batch: Batch, objective: Any) -> Question:
    """A batch with its targets; each row is weighted by its number of targets."""
    answers = (batch.targets != -100).flatten(1).sum(1) if batch.targets.dim() == 2 else None
    per_token = answers is not None and not batch.targets.is_floating_point()
    each = answers.double() if per_token and answers is not None else torch.ones(len(batch), dtype=torch.float64)

    def loss(output: Any) -> Tensor:
        losses: Tensor = objective.row_losses(output, batch)
        return (losses * each.to(losses)).sum()

    return Question(batch.inputs, batch.named, loss, float(each.sum()))


# ---------------------------------------------------------------- any other network


def own_question(network: nn.Module, given: NetworkInputs, loss: Loss | None) -> Question:
    """Next-token loss of a text, or the loss against the current predictions of the whole network."""
    if loss is not None:
        return Question(given.args, given.options, loss, 1.0)
    if writes(network):
        ids = given.args[-1]
        return Question(given.args, given.options, lambda out: next_token(out.logits, ids), float(ids[:, 1:].numel()))
    with torch.no_grad():
        logits = network(*given.args, **given.options).logits
    if not isinstance(logits, Tensor):
        raise UserError("the network has no head whose answers could be compared", where="data", fix="give loss=")
    if is_number(network):
        return Question(
            given.args, given.options, lambda out: (out.logits - logits).square().sum(), float(logits.numel())
        )
    best = logits.argmax(-1).flatten()
    return Question(
        given.args, given.options,
        lambda out: F.cross_entropy(out.logits.flatten(0, -2).float(), best, reduction="sum"), float(best.numel()),
    )  # fmt: skip


def next_token(logits: Tensor, ids: Tensor) -> Tensor:
    """The summed next-token loss."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="sum")


def writes(network: Any) -> bool:
    """Whether the network is a causal language model."""
    from anyformer.heads import LM

    spec = network.spec
    side = getattr(spec, "decoder", spec)
    return isinstance(getattr(spec, "head", None), LM) and bool(getattr(side.stack, "causal", False))


def is_number(network: Any) -> bool:
    return getattr(getattr(network.spec, "head", None), "answers", None) == "numbers"


def what_is_lost(network: nn.Module, loss: Loss | None) -> str:
    """The name of the loss."""
    if loss is not None:
        return "loss"
    if writes(network):
        return "loss of the next token"
    return "squared change of the answers" if is_number(network) else "loss of the model's own answers"
