"""The CRF's sums and maxima against every sequence of tags written out, one after the other."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from anyformer import CRF, Attention, Block, Model, Stack, Tokens
from anyformer.data.tag_schemes import impossible_transitions
from anyformer.heads.crf import log_likelihood, log_marginals, log_partition, viterbi
from anyformer.objectives import Batch, Tag
from anyformer.tasks.tag import NEVER

LENGTHS, TAGS = (4, 1, 3), 3
MASK = torch.arange(4) < torch.tensor(LENGTHS)[:, None]
SMALL = 1e-10


def drawn(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 4, TAGS, generator=generator, dtype=torch.float64)
    transitions = torch.randn(TAGS + 1, TAGS + 1, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), transitions.requires_grad_()


def every_path(logits: Tensor, transitions: Tensor, length: int) -> dict[tuple[int, ...], Tensor]:
    """The score of every sequence of tags of one row (T,C), summed term by term."""
    found = {}
    for tags in product(range(TAGS), repeat=length):
        steps = zip((TAGS, *tags), (*tags, TAGS), strict=True)
        found[tags] = sum(logits[t, tag] for t, tag in enumerate(tags)) + sum(transitions[a, b] for a, b in steps)
    return found


def close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() < SMALL)


def test_the_partition_and_its_gradients_are_sums_over_all_sequences() -> None:
    logits, transitions = drawn()
    ours = log_partition(logits, transitions, MASK)
    rows = [torch.stack(list(every_path(logits[row], transitions, size).values())) for row, size in enumerate(LENGTHS)]
    theirs = torch.stack([scores.logsumexp(0) for scores in rows])
    assert close(ours, theirs)
    assert not close(ours, log_partition(logits, transitions, torch.ones_like(MASK)))  # control: padding counted
    for mine, written_out in zip(
        torch.autograd.grad(ours.sum(), (logits, transitions)),
        torch.autograd.grad(theirs.sum(), (logits, transitions)), strict=True,
    ):  # fmt: skip
        assert close(mine, written_out)
    assert torch.autograd.gradcheck(lambda a, b: log_partition(a, b, MASK), (logits, transitions))


def test_marginals_and_the_best_sequence_are_those_of_all_sequences() -> None:
    logits, transitions = (part.detach() for part in drawn(1))
    marginals = log_marginals(logits, transitions, MASK).exp()
    best = viterbi(logits, transitions, MASK)
    by_word = 0
    for row, size in enumerate(LENGTHS):
        paths = every_path(logits[row], transitions, size)
        chances = torch.stack(list(paths.values())).softmax(0)
        for t, tag in product(range(size), range(TAGS)):
            share = sum(p for p, tags in zip(chances, paths, strict=True) if tags[t] == tag)
            assert abs(float(marginals[row, t, tag] - share)) < SMALL
        top = max(paths, key=lambda tags: float(paths[tags]))
        assert tuple(best[row, :size].tolist()) == top
        by_word += tuple(logits[row, :size].argmax(-1).tolist()) == top
    assert by_word < len(LENGTHS)  # control: the best tag of each word alone is another sequence


def test_tags_that_are_not_known_are_summed_over() -> None:
    logits, transitions = drawn(2)
    tags = torch.tensor([[0, -100, 2, 1], [1, -100, -100, -100], [-100, -100, -100, -100]])
    found = log_likelihood(logits, transitions, MASK, tags).exp()
    ours = found.detach()
    for row, size in enumerate(LENGTHS):
        paths = every_path(logits[row].detach(), transitions.detach(), size)
        chances = torch.stack(list(paths.values())).softmax(0)
        fits = [all(want in (-100, got) for want, got in zip(tags[row].tolist(), path, strict=False)) for path in paths]
        assert abs(float(ours[row] - chances[torch.tensor(fits)].sum())) < SMALL
    assert abs(float(ours[2]) - 1) < SMALL and float(ours[0]) < 0.9
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(found.sum(), (logits, transitions)))


def test_impossible_transitions_are_never_taken() -> None:
    labels = ["B-x", "I-x", "B-y", "I-y", "O"]
    never = torch.from_numpy(impossible_transitions(labels))
    generator = torch.Generator().manual_seed(3)
    logits = 5 * torch.randn(50, 12, 5, generator=generator)
    mask = torch.arange(12) < torch.randint(1, 13, (50, 1), generator=generator)

    def broken(transitions: Tensor) -> int:
        found = 0
        for row, real in zip(viterbi(logits, transitions, mask).tolist(), mask.sum(1).tolist(), strict=True):
            steps = zip([5, *row[:real]], [*row[:real], 5], strict=True)
            found += sum(bool(never[a, b]) for a, b in steps)
        return found

    free = torch.zeros(6, 6)
    assert broken(free.masked_fill(never, NEVER)) == 0
    assert broken(free) > 50  # control


@pytest.mark.quick
def test_the_objective_is_the_likelihood_of_each_sentence() -> None:
    spec = Model(embed=Tokens(vocab=7), stack=Stack(width=8, depth=1, block=Block(mixer=Attention(heads=2))),
                 head=CRF(classes=TAGS))  # fmt: skip
    net = spec.build(seed=0, dtype=torch.float64)
    torch.nn.init.normal_(net.head.transitions)
    tokens, tags = torch.randint(0, 7, (3, 4)), torch.randint(0, TAGS, (3, 4))
    batch = Batch((tokens,), tags.where(MASK, -100), torch.arange(3), {"mask": MASK})
    out = net(tokens, mask=MASK)
    wanted = []
    for row, size in enumerate(LENGTHS):
        paths = every_path(out.logits[row], out.transitions, size)
        wanted.append(torch.stack(list(paths.values())).logsumexp(0) - paths[tuple(tags[row, :size].tolist())])
    assert close(Tag().loss(net, batch), sum(wanted))
    assert close(Tag().row_losses(out, batch), torch.stack(wanted) / torch.tensor(LENGTHS))
    pair = Batch((tokens[:2],), batch.targets[:2], torch.tensor([0, 1]), {"mask": MASK[:2]})
    alone = Batch((tokens[2:],), batch.targets[2:], torch.tensor([2]), {"mask": MASK[2:]})
    assert close(Tag().loss(net, pair) + Tag().loss(net, alone), sum(wanted))
    learned = Tag().hard_losses(Tag().target_outputs(net, batch), batch)  # of a student: the marginal of each word
    assert learned.shape == (3, 4) and bool((learned[~MASK] == 0).all()) and bool((learned[MASK] > 0).all())


def test_schemes_say_what_may_follow_what() -> None:
    bio, bioes = ["B-x", "I-x", "I-y", "O"], ["B-x", "I-x", "E-x", "S-x", "O"]

    def refused(labels: list[str]) -> set[tuple[str, str]]:
        names = [*labels, "|"]
        return {(names[a], names[b]) for a, b in np.argwhere(impossible_transitions(labels)).tolist()}

    assert refused(bio) == {("B-x", "I-y"), ("I-x", "I-y"), ("I-y", "I-x"), ("O", "I-x"), ("O", "I-y"), ("|", "I-x"),
                            ("|", "I-y")}  # fmt: skip
    after_open = {(a, b) for a in ("B-x", "I-x") for b in ("B-x", "S-x", "O", "|")}
    assert refused(bioes) == after_open | {(a, b) for a in ("E-x", "S-x", "O", "|") for b in ("I-x", "E-x")}


def test_a_compiled_loss_is_the_eager_one_at_any_length() -> None:
    """The steps stay out of the graph, which would otherwise be another one for each length."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(log_likelihood, backend="eager", dynamic=True)
    generator = torch.Generator().manual_seed(4)
    for length in range(2, 14):
        logits = torch.randn(2, length, TAGS, generator=generator)
        transitions, mask = (
            torch.randn(TAGS + 1, TAGS + 1, generator=generator),
            torch.ones(2, length, dtype=torch.bool),
        )
        tags = torch.randint(0, TAGS, (2, length), generator=generator)
        assert (
            compiled(logits, transitions, mask, tags) - log_likelihood(logits, transitions, mask, tags)
        ).abs().max() < 1e-5
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 6
    torch._dynamo.reset()
