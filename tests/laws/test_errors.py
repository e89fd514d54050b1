"""Bad settings: one clear error when they are made, with the smallest fix."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from anyformer import (
    LM,
    MLP,
    Attention,
    Block,
    Buckets,
    Cross,
    DynamicScaling,
    Grid,
    Joint,
    LayerNorm,
    Learned,
    LinearScaling,
    Llama3Scaling,
    Mixer,
    NTKScaling,
    Patches,
    Pooled,
    Regress,
    RMSNorm,
    Rope,
    Seq2Seq,
    Shaw,
    Sinusoid,
    Span,
    Stack,
    Table,
    TokenHead,
    Tokens,
    UserError,
    YarnScaling,
    preset,
    replace_in,
)  # fmt: skip
from tests.laws.nets import block, language, model, pair

pytestmark = pytest.mark.quick

# What is asked for, and what the message must say: the trouble, then the fix behind a semicolon.
SETTINGS: dict[str, tuple[Callable[[], Any], str]] = {
    "width-770": (
        lambda: language(width=770, mixer=Attention(heads=12)),
        "width 770 is not divisible by heads 12; try width 768",
    ),
    "cross-width": (
        lambda: language(width=16, cross=Cross(heads=3)),
        "width 16 is not divisible by heads 3; try width 15",
    ),
    "no-heads": (lambda: Attention(heads=0), "heads 0 is below 1; use 1 or more"),
    "kv-heads": (lambda: Attention(heads=12, kv_heads=5), "kv_heads 5 does not divide heads 12; use kv_heads 4"),
    "cross-kv-heads": (lambda: Cross(heads=4, kv_heads=3), "kv_heads 3 does not divide heads 4; use kv_heads 2"),
    "key-size": (lambda: Attention(heads=4, key_size=0), "key_size 0 is below 1; use 1 or more"),
    "cross-size": (lambda: Cross(heads=4, value_size=-1), "value_size -1 is below 1; use 1 or more"),
    "window": (lambda: Attention(heads=4, window=0), "window 0 is below 1; use 1 or more"),
    "soft-cap": (lambda: Attention(heads=4, soft_cap=0.0), "soft_cap 0.0 is not positive; use 50"),
    "scale": (lambda: Attention(heads=4, scale=-1.0), 'scale -1.0 is not positive; use "sqrt"'),
    "scale-name": (lambda: Attention(heads=4, scale="sqr"), "'sqr' is not a choice; did you mean 'sqrt'"),
    "attention-dropout": (lambda: Attention(heads=4, dropout=1.0), "dropout 1.0 is outside [0, 1); use 0.1"),
    "block-dropout": (lambda: block(dropout=-0.1), "dropout -0.1 is outside [0, 1); use 0.1"),
    "drop-path": (lambda: block(drop_path=1.5), "drop_path 1.5 is outside [0, 1)"),
    "mlp-dropout": (lambda: MLP(dropout=2), "dropout 2.0 is outside [0, 1)"),
    "span-dropout": (lambda: Span(dropout=1.0), "dropout 1.0 is outside [0, 1)"),
    "tags-dropout": (lambda: TokenHead(classes=3, dropout=-1), "dropout -1.0 is outside [0, 1)"),
    "regress-dropout": (lambda: Regress(dropout=1.0), "dropout 1.0 is outside [0, 1)"),
    "pooled-dropout": (lambda: Pooled(dropout=1.0), "dropout 1.0 is outside [0, 1)"),
    "table-dropout": (lambda: Table(numbers=1, dropout=1.0), "dropout 1.0 is outside [0, 1)"),
    "patches-dropout": (lambda: Patches(size=8, patch=4, dropout=1.0), "dropout 1.0 is outside [0, 1)"),
    "tokens-dropout": (lambda: Tokens(vocab=3, dropout=1.0), "dropout 1.0 is outside [0, 1)"),
    "mlp-width": (lambda: MLP(width=0), "width 0 is below 1; leave it out"),
    "activation": (lambda: MLP(act="geluu"), "'geluu' is not a choice; did you mean 'gelu'"),
    "place": (lambda: block(place="before"), "'before' is not a choice; expected one of"),
    "eps": (lambda: LayerNorm(eps=-1.0), "eps -1.0 is negative; use 1e-5"),
    "rms-eps": (lambda: RMSNorm(eps=-1.0), "eps -1.0 is negative"),
    "odd-rope": (
        lambda: language(width=12, relative=Rope()),
        "a head has 3 channels, an odd number; Rope turns pairs; use Rope(width=2)",
    ),
    "odd-rope-width": (lambda: Rope(width=3), "width 3 is not an even number of channels; use 4"),
    "wide-rope": (lambda: language(relative=Rope(width=8)), "Rope turns 8 channels but a head has 4; use width 4"),
    "one-pair-ntk": (
        lambda: language(relative=Rope(width=2, scaling=NTKScaling(factor=2))),
        "Rope turns one pair only; use LinearScaling",
    ),
    "one-pair-dynamic": (
        lambda: language(relative=Rope(width=2, scaling=DynamicScaling(factor=2, original=9))),
        "Rope turns one pair only",
    ),
    "theta": (lambda: Rope(theta=0.0), "theta 0.0 is not above 1; use 10000"),
    "factor": (lambda: LinearScaling(factor=0.5), "factor 0.5 is below 1; use 1 or more"),
    "original": (lambda: YarnScaling(factor=2.0, original=0), "original 0 is below 1"),
    "llama3": (lambda: Llama3Scaling(low=4.0, high=1.0), "high 1.0 is not above low 4.0; use low 1, high 4"),
    "shaw": (lambda: Shaw(0), "k 0 is below 1; use 16"),
    "buckets": (lambda: Buckets(buckets=3), "buckets 3 is below 4; use 32"),
    "bucket-distance": (
        lambda: Buckets(buckets=32, distance=16),
        "distance 16 is not above the 16 exact buckets; use 128",
    ),
    "relative-of-cross": (
        lambda: block(mixer=Cross(heads=4), relative=Rope()),
        "Cross takes no relative positions such as Rope; use relative=NoRelative()",
    ),
    "learned": (lambda: Learned(0), "length 0 is below 1; give the longest text"),
    "offset": (lambda: Learned(4, offset=-1), "offset -1 is negative; use 0"),
    "grid-of-text": (
        lambda: language(position=Grid()),
        "Grid positions are for images; use Learned(length) or Sinusoid()",
    ),
    "grid": (lambda: Grid(rows=0), "rows 0 is below 1"),
    "patch": (lambda: Patches(size=30, patch=16), "size 30 x 30 does not cut into 16 x 16 pixel patches; try size 32"),
    "distill": (
        lambda: Patches(size=8, patch=4, cls=False, distill=True),
        "a distillation token comes with a class token; use cls=True",
    ),
    "registers": (
        lambda: Patches(size=8, patch=4, registers=1, position=Sinusoid()),
        "register tokens have no place among other positions than Grid; use Grid()",
    ),
    "too-many-patches": (
        lambda: Patches(size=8, patch=4, position=Learned(4)),
        "5 tokens do not fit 4 positions; use Grid()",
    ),
    "vocab": (lambda: Tokens(vocab=0), "vocab 0 is below 1; give the number of token ids"),
    "empty-table": (lambda: Table(), "a table needs at least one column; give numbers= or categories="),
    "empty-category": (lambda: Table(categories=(3, 0)), "a category column has no values; leave the column out"),
    "empty-joint": (lambda: Joint(parts=()), "() does not fit; expected a list, each a Embed"),
    "lm-vocab": (lambda: LM(tied=False, vocab=-2), "vocab -2 is below 1; give the number of token ids"),
    "tied-vocab": (lambda: LM(vocab=9), "a tied head takes its vocabulary from the embedding; leave vocab out"),
    "lm-of-images": (
        lambda: model(embed=Patches(size=8, patch=4), head=LM()),
        "the embedding has no vocabulary to score; use LM(tied=False, vocab=...)",
    ),
    "narrow-table": (
        lambda: model(embed=Tokens(vocab=9, inner=4), head=LM()),
        'a table of 4 channels cannot score 16-wide tokens; use LM(transform="gelu")',
    ),
    "lm-cap": (lambda: LM(soft_cap=-1.0), "soft_cap -1.0 is not positive; use 30"),
    "classes": (lambda: Pooled(classes=0), "classes 0 is below 1; give 2 or more"),
    "token-classes": (lambda: TokenHead(classes=0), "classes 0 is below 1; give the number of labels"),
    "outputs": (lambda: Regress(outputs=0), "outputs 0 is below 1; use 1"),
    "depth": (lambda: language(depth=-1), "Stack.depth: depth -1 is below 0; use 4"),
    "no-block": (lambda: Stack(width=16, depth=2), "a stack of depth 2 has no block; give block=Block(...)"),
    "too-many-groups": (
        lambda: language(depth=2, stack={"groups": 4}),
        "groups 4 is not between 1 and depth 2; use groups 1",
    ),
    "mixed-groups": (
        lambda: Stack(width=16, depth=2, groups=1, block=(block(relative=Rope()), block(relative=Shaw(2)))),
        "layers that share weights have different blocks; use one block",
    ),
    "no-tiles": (lambda: Stack(width=16, depth=2, block=()), "() does not fit; expected a Block"),
    "parallel-feed": (
        lambda: block(order="parallel", feed=None),
        "a parallel block without a feed has one branch; use serial",
    ),
    "parallel-cross": (
        lambda: block(order="parallel", cross=Cross(heads=4)),
        "no place for cross-attention; use serial",
    ),
    "cross-that-does-not": (
        lambda: block(cross=Attention(heads=4)),
        "Attention does not look at an encoder's output; use Cross(heads=...)",
    ),
    "blind-decoder": (
        lambda: Seq2Seq(encoder=model(causal=False), decoder=model()),
        "no block of the decoder looks at the encoder; use Block(cross=Cross(heads=...))",
    ),
    "two-heads": (
        lambda: Seq2Seq(encoder=language(causal=False), decoder=model(cross=Cross(heads=4))),
        "encoder and decoder have no heads of their own; give the head to Seq2Seq",
    ),
    "two-vocabularies": (
        lambda: pair().replace(encoder=model(embed=Tokens(vocab=5), causal=False)),
        'one table cannot serve two vocabularies; use share="none"',
    ),
    "slot": (lambda: Mixer(), "Mixer is a slot, not a part; use one of AttendingRecurrent, Attention"),
    "wrong-slot": (lambda: Block(mixer=LayerNorm()), "LayerNorm() does not fit; expected a Mixer"),
    "wrong-type": (lambda: Attention(heads="4"), "'4' does not fit; expected a whole number"),
    "bool-for-number": (lambda: Attention(heads=True), "True does not fit; expected a whole number"),
    "nan": (lambda: Rope(theta=float("nan")), "nan does not fit; expected a number"),
    "misspelt": (lambda: Attention(haeds=4), "Attention has no setting 'haeds'; did you mean 'heads'"),
    "preset": (lambda: preset("gpt-2"), "unknown preset 'gpt-2'; did you mean 'gpt2'"),
    "path": (lambda: replace_in(language(), {"stack.block[3].norm": "NoNorm"}), "block has no item 3"),
}


@pytest.mark.parametrize(("make", "said"), SETTINGS.values(), ids=SETTINGS)
def test_bad_settings_are_refused_when_they_are_made(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        make()
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.fix, "the message has no fix"


def test_there_are_many_cases_and_good_settings_pass() -> None:
    """The control: the nearest good neighbours of some cases above are made without a word."""
    assert len(SETTINGS) >= 60
    for good in (
        lambda: language(width=768, mixer=Attention(heads=12)), lambda: Attention(heads=12, kv_heads=4),
        lambda: language(width=12, relative=Rope(width=2)), lambda: Patches(size=32, patch=16), lambda: MLP(act="gelu"),
        lambda: Stack(width=16, depth=2, groups=1, block=block(relative=Rope())),
    ):  # fmt: skip
        good()


def test_errors_are_value_errors_that_say_where() -> None:
    with pytest.raises(ValueError, match=re.escape("stack.block.mixer")) as caught:
        replace_in(language(), {"stack.block.mixer.kv_heads": 3})
    assert "Attention" in str(caught.value)
