"""A linear-chain conditional random field: the tag of a word also depends on the previous tag."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.linear import LinearLayer
from anyformer.core.own_init import Starting, constant
from anyformer.errors import check_fraction, check_range
from anyformer.slots import Head, HeadOutput

Scores = Callable[[Tensor, Tensor, Tensor], Tensor]  # of logits, transitions and a mask


class CRF(Head):
    """`classes` logits per token, and transition scores between tags, including start and end of a sequence.

    p(tags) = exp(sum of logits and transitions along them) / Z, where Z sums over all tag sequences. Every token has a
    tag: padding is only allowed at the end.
    """

    about: ClassVar[About | None] = About(
        "p(y) = exp(sum_t logits_t[y_t] + A[y_{t-1}, y_t]) / Z", "Lafferty et al. 2001; 1603.01360", "T classes^2"
    )

    classes: int
    """Number of tags."""
    dropout: float = 0.0
    """Dropout probability."""

    def check(self) -> None:
        check_range("CRF", "classes", self.classes, 1, fix="give the number of tags")
        check_fraction("CRF", "dropout", self.dropout, fix="use 0.1")

    def build(self, width: int, vocabulary: tuple[int, int | None] | None) -> nn.Module:
        return CRFModule(self, width)


class CRFModule(Starting):
    def __init__(self, spec: CRF, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.out = LinearLayer(width, spec.classes)
        self.transitions = nn.Parameter(torch.empty(spec.classes, spec.classes))  # from the row's tag to the column's
        self.first = nn.Parameter(torch.empty(spec.classes))
        self.last = nn.Parameter(torch.empty(spec.classes))
        self.starts = dict.fromkeys(("transitions", "first", "last"), constant(0.0))

    def forward(self, hidden: Tensor, context: Context, table: Tensor | None) -> HeadOutput:
        logits = self.out(F.dropout(hidden, self.spec.dropout, self.training))  # (B,T,classes)
        return HeadOutput(logits=logits, transitions=pack_transitions(self.transitions, self.first, self.last))


def pack_transitions(transitions: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """One table (C+1,C+1): its last row has the start scores, its last column the end scores."""
    side = torch.cat([transitions, last[:, None]], 1)  # (C,C+1)
    return torch.cat([side, F.pad(first, (0, 1))[None]])


# ---------------------------------------------------------------- sums and maxima over all sequences of tags
#
# Logits are (B,T,C), transitions (C+1,C+1); the mask (B,T) is True for real tokens, padding is on the right.


def uncompiled(function: Scores) -> Scores:
    """Keep a loop over tokens eager: the compiler would unroll it, again for every length."""
    return torch.compiler.disable(function) if torch.compiler.is_compiling() else function


def log_partition(logits: Tensor, transitions: Tensor, mask: Tensor) -> Tensor:
    """log Z (B,) by the forward algorithm; a logit of -inf excludes a tag."""
    scores = uncompiled(forward_scores)(logits, transitions, mask)
    return torch.logsumexp(scores[:, -1] + transitions[:-1, -1], -1)


def forward_scores(logits: Tensor, transitions: Tensor, mask: Tensor) -> Tensor:
    """Forward scores (B,T,C): for every token and tag, the log of the sum over all earlier tags; padding repeats
    them."""
    step = transitions[:-1, :-1]
    found = [logits[:, 0] + transitions[-1, :-1]]
    for t in range(1, logits.shape[1]):
        after = torch.logsumexp(found[-1][:, :, None] + step, 1) + logits[:, t]  # (B,C)
        found.append(torch.where(mask[:, t, None], after, found[-1]))
    return torch.stack(found, 1)


def backward_scores(logits: Tensor, transitions: Tensor, mask: Tensor) -> Tensor:
    """Backward scores (B,T,C): for every token and tag, the log of the sum over all later tags."""
    step, last = transitions[:-1, :-1], transitions[:-1, -1].expand(len(logits), -1)
    found = [last]
    for t in range(logits.shape[1] - 1, 0, -1):
        before = torch.logsumexp(step + (found[-1] + logits[:, t])[:, None], -1)
        found.append(torch.where(mask[:, t, None], before, last))
    return torch.stack(found[::-1], 1)


def log_likelihood(logits: Tensor, transitions: Tensor, mask: Tensor, tags: Tensor) -> Tensor:
    """log p (B,) of tags (B,T); negative tags are unknown and summed over."""
    known = (tags >= 0)[..., None] & mask[..., None]
    other = known & (F.one_hot(tags.clamp(min=0), logits.shape[-1]) == 0)
    both = torch.cat([logits.masked_fill(other, -torch.inf), logits])  # in one pass, since its steps are sequential
    allowed, total = log_partition(both, transitions, mask.repeat(2, 1)).chunk(2)
    return allowed - total


def log_marginals(logits: Tensor, transitions: Tensor, mask: Tensor) -> Tensor:
    """Marginal log-probabilities of each token's tag, (B,T,C)."""
    before = uncompiled(forward_scores)(logits, transitions, mask)
    behind = uncompiled(backward_scores)(logits, transitions, mask)
    return (before + behind).log_softmax(-1)


def viterbi(logits: Tensor, transitions: Tensor, mask: Tensor) -> Tensor:
    """The most likely tag sequence (B,T); arbitrary at padding."""
    step = transitions[:-1, :-1]
    best = logits[:, 0] + transitions[-1, :-1]  # (B,C)
    stay = torch.arange(logits.shape[-1], device=logits.device).expand_as(best)
    came: list[Tensor] = []
    for t in range(1, logits.shape[1]):
        top, source = (best[:, :, None] + step).max(1)
        best = torch.where(mask[:, t, None], top + logits[:, t], best)
        came.append(torch.where(mask[:, t, None], source, stay))
    tags = [(best + transitions[:-1, -1]).argmax(-1)]
    for source in reversed(came):
        tags.append(source.gather(1, tags[-1][:, None])[:, 0])
    return torch.stack(tags[::-1], 1)
