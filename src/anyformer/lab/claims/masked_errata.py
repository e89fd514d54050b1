"""Three errors of the slides next to the correct forms: masking, biases and values (L1, L3; errata 14, 7 and 5)."""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.core.attend import Scores, attend
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Result
from anyformer.lab.errata import Erratum, judge_errata

HEADS, LENGTH, CHANNELS = 4, 12, 16
ERRATA = (
    Erratum(
        14, "L3: weights of the future set to 0, which is after the softmax",
        "scores at -inf before the softmax, j <= i visible",
        wrong=("zeroed", "row_sums", "leak"), good=("masked", "right_leak"),
    ),
    Erratum(
        7, "L1: a finite bias inside the 1/sqrt(p) bracket",
        "the bias after scaling, as in L4; -inf may stand inside",
        wrong=("bias_inside",), good=("bias_after", "mask_inside"),
    ),
    Erratum(
        5, "L1: Z_h = V softmax(...), one V for all heads", "each head its own V_h",
        wrong=("shared_values",), good=("own_values",),
    ),
)  # fmt: skip


def cases(full: bool) -> list[Case]:
    return [{"seed": seed} for seed in range(50 if full else 10)]


def measure(case: Case) -> Result:
    """The error of each form against the formula written out, relative to its largest output."""
    generator = torch.Generator().manual_seed(case["seed"])
    q, k, v = torch.randn(3, 1, HEADS, LENGTH, CHANNELS, generator=generator, dtype=torch.float64)  # (B,H,T,C) each
    other_k, other_v = torch.randn(2, 1, HEADS, LENGTH, CHANNELS, generator=generator, dtype=torch.float64)
    other_k[..., :-1, :], other_v[..., :-1, :] = k[..., :-1, :], v[..., :-1, :]  # only the last token differs
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()  # j <= i
    hidden = torch.zeros(LENGTH, LENGTH, dtype=torch.float64).masked_fill(~seen, -torch.inf)
    bias = hidden + alibi()
    masked, biased = truth(q, k, v, hidden), truth(q, k, v, bias)
    return {
        "zeroed": apart(weights_zeroed(q, k, seen) @ v, masked),
        "row_sums": (1 - weights_zeroed(q, k, seen).sum(-1)).max().item(),
        "leak": past_change(weights_zeroed(q, k, seen) @ v, weights_zeroed(q, other_k, seen) @ other_v),
        "masked": apart(ours(q, k, v, allowed=seen), masked),
        "right_leak": past_change(ours(q, k, v, allowed=seen), ours(q, other_k, other_v, allowed=seen)),
        "bias_inside": apart(bracket(q, k, bias) @ v, biased),
        "mask_inside": apart(bracket(q, k, hidden) @ v, masked),
        "bias_after": apart(ours(q, k, v, allowed=seen, added=alibi()), biased),
        "shared_values": apart(ours(q, k, v[:, :1].expand_as(v), allowed=seen), masked),
        "own_values": apart(head_by_head(q, k, v, seen), masked),
    }


def alibi() -> Tensor:
    """-slope * distance (H,T,T): a bias whose entries are finite."""
    slopes = 2.0 ** -torch.arange(1, HEADS + 1, dtype=torch.float64)
    place = torch.arange(LENGTH, dtype=torch.float64)
    return -slopes[:, None, None] * (place[:, None] - place).abs()


def truth(q: Tensor, k: Tensor, v: Tensor, added: Tensor) -> Tensor:
    """softmax(q.k / sqrt(C) + added) v, written out."""
    return (q @ k.mT / CHANNELS**0.5 + added).softmax(-1) @ v


def ours(q: Tensor, k: Tensor, v: Tensor, *, allowed: Tensor, added: Tensor | None = None) -> Tensor:
    rule = None if added is None else added[None]  # (1,H,T,S)
    return attend(q, k, v, Scores(scale=CHANNELS**-0.5, allowed=allowed[None, None], added=rule))


def weights_zeroed(q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
    """L3's form, with the current position kept visible: weights of the future are set to 0, all others stay."""
    return (q @ k.mT * CHANNELS**-0.5).softmax(-1) * seen


def bracket(q: Tensor, k: Tensor, added: Tensor) -> Tensor:
    """L1's form: softmax((q.k + M) / sqrt(p))."""
    return ((q @ k.mT + added) * CHANNELS**-0.5).softmax(-1)


def head_by_head(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Each head alone, with its own values."""
    alone = [ours(q[:, [h]], k[:, [h]], v[:, [h]], allowed=seen) for h in range(HEADS)]
    return torch.cat(alone, 1)


def apart(one: Tensor, right: Tensor) -> float:
    return ((one - right).abs().max() / right.abs().max()).item()


def past_change(before: Tensor, after: Tensor) -> float:
    """The largest change of any token but the last."""
    return apart(after[..., :-1, :], before[..., :-1, :])


def judge(found: Measurements) -> Finding:
    return judge_errata(ERRATA, found)


CLAIM = Claim(
    name="masked-errata",
    claim="Masks are -inf before the softmax, biases are added after the scale, and each head has its own values",
    lecture="L1",
    source="L1 and L3: errors in their formulas of masks and heads (errata 14, 7, 5)",
    quoted="L3: weights i:N set to 0; L1: softmax((QK + M)/sqrt(p)); L1: Z_h = V softmax(...)",
    method="the slide's form and the correct form on random queries, keys and values in float64, against the formula "
    "written out",
    cost="1 s of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)
