"""A linear model of the text's n-grams beside a head: wide and deep."""

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
WIDEST = 64  # outputs up to which every n-gram that learns has a weight of its own for each
MOST_FITTED = 2**26  # weights that a regression may be asked to find: 256 MiB


class WideAndDeep(Head):
    """The logits of `deep` and, added to them, those of a linear model of the n-grams of the token ids.

    An n-gram counts once however often it comes, and a row's n-grams together have length 1, as in TF-IDF; where they
    are `fitted`, rare ones count for more. Their weights start at 0 and lie in `buckets` rows, found by hashing; two
    n-grams may share a row. With `pair` the two
    texts of a row are told apart by `segments`: an n-gram has other weights in the first text, in the second and in
    both, and what share of each text is in the other is read by a small network.
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
    """Rows of weights that n-grams are hashed to."""
    scale: float = 30.0
    """Factor on the n-grams' logits: they learn at so many times the learning rate."""
    pair: bool = False
    """Whether rows are two texts, whose common n-grams count apart."""
    alone: float = 0.0
    """Share of the training rows from which the n-grams learn alone, `deep` from the others what they leave; 0: both
    learn from their sum. Where the n-grams are `fitted`: of the rows from which `deep` learns without them."""
    fitted: bool = False
    """Whether the n-grams' weights are found by a regression on the training rows, before the first step, and stay."""

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
        """Logits, or numbers to predict."""
        return self.deep.outputs if isinstance(self.deep, Regress) else self.deep.classes

    @property
    def answers(self) -> Literal["classes", "numbers"] | None:
        return self.deep.answers

    def different_n_grams(self, context: Context) -> tuple[Tensor, Tensor]:
        """The codes (B,G) of a row's n-grams and what each counts: all together 1, those that come again nothing."""
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
    """Logits (B,outputs) of a share `alone` of the rows by one path only, of the others by both.

    Where the n-grams learn too, theirs alone, and `deep` learns what they leave: being the first to overfit it takes
    nothing from them. Where they were `fitted` to these very rows they leave too little: `deep` learns alone as well.
    """
    drawn = torch.rand(wide.shape[0], 1, device=wide.device)
    return torch.where(drawn < alone, deep if fitted else wide, wide.detach() + deep)


class NGramWeights(Starting):
    """A row of weights for each bucket; with many outputs the rows of those that learn are short, and a linear layer
    leads to the outputs.

    `rarity` is what an n-gram of a bucket counts beside the others of its row; a fit gives it, and it does not learn.
    """

    def __init__(self, buckets: int, outputs: int, *, learns: bool) -> None:
        super().__init__()
        direct = outputs <= WIDEST or not learns  # what a regression finds is not a product of two
        self.weight = nn.Parameter(torch.empty(buckets, outputs if direct else WIDEST), requires_grad=learns)
        self.starts["weight"] = constant(0.0) if direct else normal(0.01)
        self.rarity = None if learns else nn.Parameter(torch.empty(buckets), requires_grad=False)
        if self.rarity is not None:
            self.starts["rarity"] = constant(1.0)
        self.out = None if direct else LinearLayer(WIDEST, outputs, bias=False)

    def forward(self, codes: Tensor, share: Tensor) -> Tensor:
        """Codes (B,G) of n-grams and what each counts to (B,outputs)."""
        buckets = codes % len(self.weight)
        rows = F.embedding(buckets, self.weight).float()  # (B,G,outputs)
        if self.rarity is not None:
            share = unit_length(share * self.rarity[buckets].float())
        total = (rows * share[..., None]).sum(1)
        return total if self.out is None else self.out(total.to(self.out.weight.dtype))


class CommonNGrams(Starting):
    """What share of each text's n-grams the other has, for every order, through one hidden layer."""

    HIDDEN: ClassVar[int] = 32

    def __init__(self, order: int, outputs: int) -> None:
        super().__init__()
        self.order = order
        self.up = LinearLayer(2 * order, self.HIDDEN)
        self.down = LinearLayer(self.HIDDEN, outputs)

    def shares(self, context: Context) -> Tensor:
        """For each order and text, the share of its n-grams that the other text has, (B,2 order) between -1 and 1."""
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
    """A code for the `order` ids from each token on (B,T), and whether all of them are tokens of one text."""
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
    """Each token's `steps`-th next one (B,T), zeros behind the last."""
    return F.pad(x, (0, steps))[:, steps:]


def segments_of(context: Context, found: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Which text each token is of (B,T); the first where nobody says."""
    return torch.zeros_like(found[0][0]) if context.segments is None else context.segments


def count_once(codes: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """The codes in order, and what each counts: as much as the others of its row, together of length 1."""
    codes, there = keep_different(codes, there)
    return codes, there / there.sum(1, keepdim=True).clamp(min=1).sqrt()


def unit_length(share: Tensor) -> Tensor:
    """Rows of length 1; a row of zeros stays as it is."""
    return share / share.square().sum(1, keepdim=True).sqrt().clamp(min=1e-12)


def keep_different(codes: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """The codes in order, and which of them are there and the first of their kind."""
    codes = codes.masked_fill(~there, MODULUS).sort(1).values
    first = F.pad(codes[:, 1:] != codes[:, :-1], (1, 0), value=True)
    return codes, first & (codes != MODULUS)


def is_in_other(codes: Tensor, there: Tensor, segments: Tensor) -> Tensor:
    """Whether an n-gram of one text (B,T) comes in the other one too."""
    equal = codes[:, :, None] == codes[:, None, :]  # (B,T,T)
    other = segments[:, :, None] != segments[:, None, :]
    return there & (equal & other & there[:, None, :]).any(2)


def code_by_text(codes: Tensor, shared: Tensor, segments: Tensor) -> Tensor:
    """Another code for an n-gram of the first text, of the second and of both."""
    return (codes * 3 + torch.where(shared, 2, segments)) % MODULUS
