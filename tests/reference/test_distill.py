"""Distillation's three terms against their formula: loops over float64 numbers, and transformers' own models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer import LM, Pooled, Regress, TokenHead, UserError, load
from anyformer.checkpoints.surgery import pick_layers
from anyformer.objectives import Batch, Causal, Classify, Detect, Distill, Masked, Objective, Regression, Tag
from anyformer.objectives.distill import hash_model
from tests.laws.nets import EXACT, build, model, tokens

HIDDEN = torch.full((3, 8), -100)
HIDDEN[0, 2], HIDDEN[0, 5], HIDDEN[1, 1], HIDDEN[2, 7] = 4, 1, 9, 0
MASK = torch.ones(3, 8, dtype=torch.bool)
MASK[1, 6:] = False


def pair(head: Any, causal: bool = False, width: int | None = None) -> tuple[Any, Any]:
    """A student and a teacher of other weights; the teacher may be wider."""
    student = model(head=head, causal=causal)
    other = student if width is None else student.replace(stack=student.stack.replace(width=width))
    return build(student).double(), other.build(seed=7).double().eval()


def batch_of(targets: Tensor, most: int | None = None) -> Batch:
    return Batch((tokens(3, 8),), targets, torch.arange(3), {"mask": MASK}, most_targets=most)


def log_shares(logits: list[float], temperature: float) -> list[float]:
    """Logarithms of the softmax of a few numbers, one by one."""
    highest = max(logits)
    total = math.log(sum(math.exp((x - highest) / temperature) for x in logits))
    return [(x - highest) / temperature - total for x in logits]


def kl(student: list[float], teacher: list[float], temperature: float) -> float:
    mine, theirs = log_shares(student, temperature), log_shares(teacher, temperature)
    return temperature**2 * sum(math.exp(q) * (q - p) for p, q in zip(mine, theirs, strict=True))


def angle(one: list[float], other: list[float]) -> float:
    dot, a, b = (sum(x * y for x, y in zip(u, v, strict=True)) for u, v in ((one, other), (one, one), (other, other)))
    return 1 - dot / math.sqrt(a * b)


def terms(objective: Objective, batch: Batch, student: Any, teacher: Any, temperature: float) -> list[float]:
    """What each of the three terms is alone."""
    weights = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    made = [Distill(student=objective, alpha=a, beta=b, gamma=c, temperature=temperature) for a, b, c in weights]
    return [each.loss_beside(teacher, student, batch).item() for each in made]


WORDS = [(Causal(), True, None), (Masked(), False, None), (Masked(), False, 2), (Tag(), False, None)]


@pytest.mark.parametrize("objective, causal, most", WORDS, ids=["causal", "masked", "masked-few", "tag"])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_every_term_is_its_formula_summed_over_the_targets(
    objective: Objective, causal: bool, most: int | None, temperature: float
) -> None:
    head = TokenHead(classes=17) if isinstance(objective, Tag) else LM(tied=True)
    student, teacher = pair(head, causal)
    batch = batch_of(HIDDEN, most)
    mine, theirs = (net(*batch.inputs, **batch.named) for net in (student, teacher))
    places = [(row, at) for row, at in (HIDDEN != -100).nonzero().tolist()]
    hard = sum(-log_shares(mine.logits[i, t].tolist(), 1.0)[int(HIDDEN[i, t])] for i, t in places)
    soft = sum(kl(mine.logits[i, t].tolist(), theirs.logits[i, t].tolist(), temperature) for i, t in places)
    apart = sum(angle(mine.hidden[i, t].tolist(), theirs.hidden[i, t].tolist()) for i, t in places)
    found = terms(objective, batch, student, teacher, temperature)
    assert found == pytest.approx([hard, soft, apart], rel=1e-10)
    assert soft != pytest.approx(
        sum(kl(theirs.logits[i, t].tolist(), mine.logits[i, t].tolist(), temperature) for i, t in places), rel=1e-3
    )  # control: the other direction of KL is another number
    whole = Distill(student=objective, alpha=0.3, beta=0.5, gamma=0.2, temperature=temperature)
    expected = 0.3 * hard + 0.5 * soft + 0.2 * apart
    assert whole.loss_beside(teacher, student, batch).item() == pytest.approx(expected, rel=1e-10)


def test_rows_with_one_class_several_labels_or_numbers() -> None:
    student, teacher = pair(Pooled(classes=4, pool="mean"))
    mine, theirs = (net(tokens(3, 8), mask=MASK) for net in (student, teacher))
    vectors = [(net.hidden * MASK[..., None]).sum(1) / MASK.sum(1, keepdim=True) for net in (mine, theirs)]
    apart = [angle(*(vector[row].tolist() for vector in vectors)) for row in range(3)]
    batch = batch_of(torch.tensor([2, -100, 0]))  # the second row has no label, so it counts for nothing
    hard = sum(-log_shares(mine.logits[row].tolist(), 1.0)[label] for row, label in ((0, 2), (2, 0)))
    soft = sum(kl(mine.logits[row].tolist(), theirs.logits[row].tolist(), 2.0) for row in (0, 2))
    assert terms(Classify(), batch, student, teacher, 2.0) == pytest.approx([hard, soft, apart[0] + apart[2]], rel=1e-9)
    several = batch_of(torch.tensor([[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 1, 0]]))
    soft = sum(kl([x, 0.0], [y, 0.0], 2.0) / 4 for row in range(3)
               for x, y in zip(mine.logits[row].tolist(), theirs.logits[row].tolist(), strict=True))  # fmt: skip
    assert terms(Classify(multi=True), several, student, teacher, 2.0)[1:] == pytest.approx([soft, sum(apart)])
    student, teacher = pair(Regress(outputs=2))
    mine, theirs = (net(tokens(3, 8), mask=MASK).logits for net in (student, teacher))
    wanted = torch.tensor([[0.5, math.nan], [1.0, -1.0], [0.0, 2.0]], dtype=torch.float64)
    known = ~wanted.isnan()
    hard = (mine - wanted)[known].square().sum().item()
    soft = (mine - theirs)[known].square().sum().item()
    assert terms(Regression(), batch_of(wanted), student, teacher, 9.0)[:2] == pytest.approx([hard, soft], rel=1e-9)


def test_hidden_states_of_other_widths_are_not_compared() -> None:
    student, teacher = pair(LM(tied=True), causal=True, width=64)
    found = terms(Causal(), batch_of(HIDDEN), student, teacher, 1.0)
    assert found[2] == 0.0 and found[1] > 0


def test_parts_of_a_batch_add_up_and_the_teacher_gets_no_gradients() -> None:
    student, teacher = pair(LM(tied=True), causal=True)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    objective, whole = Distill(student=Causal()), batch_of(HIDDEN)
    total = objective.loss_beside(teacher, student, whole)
    total.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert all(torch.equal(before[name], value) for name, value in teacher.state_dict().items())
    at_once = {name: p.grad.clone() for name, p in student.named_parameters() if p.grad is not None}
    student.zero_grad()
    parts = 0.0
    for rows in (slice(0, 1), slice(1, 3)):  # two targets, and one each
        part = Batch((whole.inputs[0][rows],), HIDDEN[rows], torch.arange(3)[rows], {"mask": MASK[rows]})
        found = objective.loss_beside(teacher, student, part)
        found.backward()
        parts += found.item()
    assert parts == pytest.approx(total.item(), rel=1e-12)
    assert all(torch.allclose(p.grad, at_once[name], atol=EXACT) for name, p in student.named_parameters()
               if p.grad is not None)  # fmt: skip


def test_distilbert_learns_from_bert_as_with_transformers_models(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 50, "max_position_embeddings": 16}
    bert = transformers.BertForMaskedLM(transformers.BertConfig(
        **sizes, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=64))  # fmt: skip
    small = transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(
        **sizes, dim=32, n_layers=2, n_heads=4, hidden_dim=64))  # fmt: skip
    for name, theirs in (("teacher", bert), ("student", small)):
        theirs.eval().save_pretrained(tmp_path / name)
    ids = torch.randint(5, 50, (4, 12), generator=torch.Generator().manual_seed(0))
    seen = torch.ones(4, 12, dtype=torch.long)
    seen[2, 9:] = 0
    targets = torch.full((4, 12), -100)
    targets[:, 3], targets[:2, 7] = ids[:, 3], ids[:2, 7]
    with torch.no_grad():
        mine, theirs = (net(ids, attention_mask=seen, output_hidden_states=True) for net in (small, bert))
    chosen = targets != -100
    cross = torch.nn.functional.cross_entropy(mine.logits[chosen], targets[chosen], reduction="sum")
    soft = torch.nn.KLDivLoss(reduction="sum")(
        (mine.logits[chosen] / 2).log_softmax(-1), (theirs.logits[chosen] / 2).softmax(-1)
    )
    ones = torch.ones(int(chosen.sum()))
    cosine = torch.nn.CosineEmbeddingLoss(reduction="sum")(
        mine.hidden_states[-1][chosen], theirs.hidden_states[-1][chosen], ones
    )
    expected = 5.0 * 2.0**2 * soft + 2.0 * cross + 1.0 * cosine  # DistilBERT's weights
    objective = Distill(student=Masked(), teacher=str(tmp_path / "teacher"), sha256=hash_model(tmp_path / "teacher"),
                        alpha=2.0, beta=5.0, gamma=1.0, temperature=2.0)  # fmt: skip
    batch = Batch((ids,), targets, torch.arange(4), {"mask": seen.bool()})
    found = objective.loss(load(tmp_path / "student").model.eval(), batch)
    assert found.item() == pytest.approx(float(expected), rel=1e-5)
    teacher = objective.load_teacher(torch.device("cpu"))
    assert not teacher.training and not any(p.requires_grad for p in teacher.parameters())


def test_layers_are_taken_as_distilbert_takes_them() -> None:
    assert pick_layers(12, 6) == [0, 2, 4, 7, 9, 11]  # as the authors' script for extracting the student lists them
    assert pick_layers(4, 4) == [0, 1, 2, 3] and pick_layers(4, 1) == [0] and pick_layers(3, 2) == [0, 2]


def test_what_cannot_be_taught_is_refused() -> None:
    with pytest.raises(UserError, match="a teacher cannot answer what Detect asks"):
        Distill(student=Detect())
    with pytest.raises(UserError, match="temperature 0.0 is not positive"):
        Distill(temperature=0)
    with pytest.raises(UserError, match="beta -1.0 is below 0"):
        Distill(beta=-1)
    with pytest.raises(UserError, match="no teacher given"):
        Distill().loss(pair(LM(tied=True), causal=True)[0], batch_of(HIDDEN))
