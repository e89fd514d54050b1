"""Wide and deep: a linear model of the text's n-grams added to another head."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.linear import LinearLayer
from anyformer.core.own_init import Starting, constant, normal
from anyformer.errors import UserError, check_range
from anyformer.heads.pooled import Pooled
from anyformer.heads.regress import Regress
from anyformer.slots import Head, HeadOutput

MULTIPLIER = 1_000_003  # of the rolling hash of ids; a prime, as is the modulus
MODULUS = 2**31 - 1  # the product of two numbers below it still fits 64 bits
WIDEST = 64  # outputs up to which trained n-grams have a direct weight per output
MOST_FITTED = 2**26  # limit on weights fitted by regression: 256 MiB


class WideAndDeep(Head):
    """The logits of `deep` and, added to them, those of a linear model of the n-grams of the token ids.

    Repeated n-grams count once, and a row's n-gram vector has length 1, as in TF-IDF; if `fitted`, rare ones weigh
    more. Weights start at 0, in `buckets` rows indexed by hash; two n-grams may share a row. With `pair` the two texts
    of a row are distinguished by `segments`: an n-gram has different weights in the first text, in the second and in
    both, and a small network sees which fraction of each text's n-grams the other contains.
    """

    about: ClassVar[About | None] = About(
        "logits = deep(x) + scale sum_g r[h(g)] w[h(g)] / sqrt(sum_g r[h(g)]^2), g the different n-grams, h a hash",
        "1606.07792; hashing 0902.2206",
        "n T classes",
    )

    deep: Pooled | Regress
    """The head on the hidden states."""
    order: int = 2
    """Tokens of the longest n-gram."""
    buckets: int = 2**17
    """Number of hash buckets for n-grams."""
    scale: float = 30.0
    """Factor on the n-grams' logits, which multiplies their effective learning rate."""
    pair: bool = False
    """Whether rows are two texts, whose common n-grams have separate weights."""
    alone: float = 0.0
    """Fraction of training rows that train only the n-grams, while `deep` learns their residual on the others; 0: both
    learn from their sum. If the n-grams are `fitted`: the fraction on which `deep` is trained without them."""
    fitted: bool = False
    """Whether the n-grams' weights are fitted by regression before the first step, and then frozen."""

    def check(self) -> None:
        check_range("WideAndDeep", "order", self.order, 1, 8, fix="use 2")
        check_range("WideAndDeep", "buckets", self.buckets, 2, 2**30, fix="use 131072")
        check_range("WideAndDeep", "alone", self.alone, 0, 1, fix="use 0.5, or 0 for never")
        if not self.scale > 0:
            raise UserError(f"scale {self.scale} is not positive", where="WideAndDeep", fix="use 30")
        if self.fitted and self.outputs is not None and self.outputs * self.buckets > MOST_FITTED:
            what = f"{self.buckets:,} buckets of {self.outputs} outputs are too many weights for a regression"
            raise UserError(what, where="WideAndDeep.fitted", fix=f"use buckets={max(2, MOST_FITTED // self.outputs)}")
        if self.outputs is None:
            raise UserError("a head without logits has nothing to add to", where="WideAndDeep.deep", fix="give classes")

    @property
    def outputs(self) -> int | None:
        """Number of logits or regression outputs."""
        return self.deep.outputs if isinstance(self.deep, Regress) else self.deep.classes

    @property
    def answers(self) -> Literal["classes", "numbers"] | None:
        return self.deep.answers

    def different_n_grams(self, context: Context) -> tuple[Tensor, Tensor]:
        """The codes (B,G) of a row's n-grams and their weights: normalised to length 1, repeated ones 0."""
        found = [n_grams(context, order) for order in range(1, self.order + 1)]
        if self.pair:
            segments = segments_of(context, found)
            found = [(code_by_text(codes, is_in_other(codes, there, segments), segments), there)
                     for codes, there in found]  # fmt: skip
        return count_once(*(torch.cat(part, 1) for part in zip(*found, strict=True)))

    def build(self, width: int, vocabulary: tuple[int, int | None] | None) -> nn.Module:
        if vocabulary is None:
            raise UserError("there are no token ids to make n-grams of", where="WideAndDeep", fix="use its deep head")
        return WideAndDeepModule(self, width, vocabulary)


class WideAndDeepModule(nn.Module):
    def __init__(self, spec: WideAndDeep, width: int, vocabulary: tuple[int, int | None]) -> None:
        super().__init__()
        assert spec.outputs is not None
        self.spec = spec
        self.deep = spec.deep.build(width, vocabulary)
        self.wide = NGramWeights(spec.buckets, spec.outputs, learns=not spec.fitted)
        self.common = CommonNGrams(spec.order, spec.outputs) if spec.pair else None

    def forward(self, hidden: Tensor, context: Context, table: Tensor | None) -> HeadOutput:
        found = self.deep(hidden, context, table)
        assert found.logits is not None
        deep = found.logits
        wide = (self.spec.scale * self.wide(*self.spec.different_n_grams(context))).to(deep.dtype)
        if self.common is not None:
            shares = self.common(self.common.shares(context)).to(deep.dtype)
            wide, deep = (wide, deep + shares) if self.spec.fitted else (wide + shares, deep)
        both = wide + deep
        if self.training and self.spec.alone:
            both = learn_apart(wide, deep, self.spec.alone, fitted=self.spec.fitted)
        return HeadOutput(pooled=found.pooled, logits=both)  # (B,outputs)


def learn_apart(wide: Tensor, deep: Tensor, alone: float, *, fitted: bool) -> Tensor:
    """Logits (B,outputs), from one path only for a random fraction `alone` of the rows, from both for the others.

    If the n-grams are trained, these rows use only their logits, and on the others `deep` learns the residual, so that
    its overfitting does not affect them. If they were `fitted` on these rows, their residual is too small: these rows
    use only `deep`.
    """
    drawn = torch.rand(wide.shape[0], 1, device=wide.device)
    return torch.where(drawn < alone, deep if fitted else wide, wide.detach() + deep)


class NGramWeights(Starting):
    """A row of weights for each bucket; with many outputs trained rows are low-rank, followed by a linear layer.

    `rarity` is the relative weight of a bucket's n-grams; it is set by the fit and not trained.
    """

    def __init__(self, buckets: int, outputs: int, *, learns: bool) -> None:
        super().__init__()
        direct = outputs <= WIDEST or not learns  # fitted weights are not factorised
        self.weight = nn.Parameter(torch.empty(buckets, outputs if direct else WIDEST), requires_grad=learns)
        self.starts["weight"] = constant(0.0) if direct else normal(0.01)
        self.rarity = None if learns else nn.Parameter(torch.empty(buckets), requires_grad=False)
        if self.rarity is not None:
            self.starts["rarity"] = constant(1.0)
        self.out = None if direct else LinearLayer(WIDEST, outputs, bias=False)

    def forward(self, codes: Tensor, share: Tensor) -> Tensor:
        """Codes (B,G) of n-grams and their weights to (B,outputs)."""
        buckets = codes % len(self.weight)
        rows = F.embedding(buckets, self.weight).float()  # (B,G,outputs)
        if self.rarity is not None:
            share = unit_length(share * self.rarity[buckets].float())
        total = (rows * share[..., None]).sum(1)
        return total if self.out is None else self.out(total.to(self.out.weight.dtype))


class CommonNGrams(Starting):
    """A small MLP on the fraction of each text's n-grams that the other contains, for every order."""

    HIDDEN: ClassVar[int] = 32

    def __init__(self, order: int, outputs: int) -> None:
        super().__init__()
        self.order = order
        self.up = LinearLayer(2 * order, self.HIDDEN)
        self.down = LinearLayer(self.HIDDEN, outputs)

    def shares(self, context: Context) -> Tensor:
        """For each order and text, the fraction of its n-grams in the other text, (B,2 order), scaled to -1 to 1."""
        found = [n_grams(context, order) for order in range(1, self.order + 1)]
        segments = segments_of(context, found)
        shares = []
        for codes, there in found:
            both = is_in_other(codes, there, segments)
            for text in (0, 1):
                own = there & (segments == text)
                shares.append((own & both).sum(1) / own.sum(1).clamp(min=1))
        return 2 * torch.stack(shares, 1) - 1

    def forward(self, shares: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(shares.to(self.up.weight.dtype))))


def n_grams(context: Context, order: int) -> tuple[Tensor, Tensor]:
    """A hash of the n-gram that starts at each token (B,T), and whether it lies within one text."""
    ids = context.tokens
    if ids is None:
        raise UserError("n-grams are of token ids, and these inputs have none", fix="use the head without WideAndDeep")
    real = ids >= 0 if context.mask is None else (ids >= 0) & context.mask
    codes, there = torch.full_like(ids, order), real
    for step in range(order):
        codes = (codes * MULTIPLIER + ahead(ids, step) + 1) % MODULUS
        there = there & ahead(real, step)
    if context.segments is not None:
        there = there & (context.segments == ahead(context.segments, order - 1))
    return codes, there


def ahead(x: Tensor, steps: int) -> Tensor:
    """Shift left by `steps` (B,T), zero-padded."""
    return F.pad(x, (0, steps))[:, steps:]


def segments_of(context: Context, found: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The text each token belongs to (B,T); the first by default."""
    return torch.zeros_like(found[0][0]) if context.segments is None else context.segments


def count_once(codes: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted codes, with equal weights of total length 1 for distinct ones."""
    codes, there = keep_different(codes, there)
    return codes, there / there.sum(1, keepdim=True).clamp(min=1).sqrt()


def unit_length(share: Tensor) -> Tensor:
    """L2-normalise rows; zero rows stay zero."""
    return share / share.square().sum(1, keepdim=True).sqrt().clamp(min=1e-12)


def keep_different(codes: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted codes, and a mask of the first occurrence of each existing code."""
    codes = codes.masked_fill(~there, MODULUS).sort(1).values
    first = F.pad(codes[:, 1:] != codes[:, :-1], (1, 0), value=True)
    return codes, first & (codes != MODULUS)


def is_in_other(codes: Tensor, there: Tensor, segments: Tensor) -> Tensor:
    """Whether an n-gram of one text (B,T) also occurs in the other."""
    equal = codes[:, :, None] == codes[:, None, :]  # (B,T,T)
    other = segments[:, :, None] != segments[:, None, :]
    return there & (equal & other & there[:, None, :]).any(2)


def code_by_text(codes: Tensor, shared: Tensor, segments: Tensor) -> Tensor:
    """Different codes for an n-gram of the first text, of the second and of both."""
    return (codes * 3 + torch.where(shared, 2, segments)) % MODULUS
