"""Every part there is, with small examples: the laws run on what `every` finds, so a new part is tested unasked.

A part whose settings all have defaults needs no line here. Any other needs one, and `test_every_part_has_an_example`
says so by name. Several examples of one part are the variants that behave differently.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Any

import pytest

import anyformer
from anyformer import (
    LM,
    MLP,
    Alibi,
    Attention,
    Buckets,
    Cross,
    Distilled,
    DynamicScaling,
    Embed,
    Feed,
    Grid,
    Head,
    Joint,
    LayerNorm,
    Learned,
    LinearScaling,
    Llama3Scaling,
    Mixer,
    NoNorm,
    NoRelative,
    Norm,
    NTKScaling,
    Patches,
    PeriodicCurve,
    PiecewiseCurve,
    Pooled,
    Position,
    Regress,
    Relative,
    RMSNorm,
    Rope,
    Shaw,
    Sinusoid,
    Span,
    Spec,
    Table,
    TokenHead,
    Tokens,
    UserError,
    YarnScaling,
)  # fmt: skip
from anyformer.positions import Scaling
from anyformer.slots import NumberCurve
from anyformer.spec import subclasses
from tests.laws.examples import gathered

FOLDERS = ("norms", "positions", "feeds", "mixers", "embeds", "heads")
for _folder in FOLDERS:  # a part left out of its folder's __init__ is a part all the same
    _package = importlib.import_module(f"anyformer.{_folder}")
    for _module in pkgutil.iter_modules(_package.__path__):
        importlib.import_module(f"{_package.__name__}.{_module.name}")

SLOTS: tuple[type[Spec], ...] = (Norm, Position, Relative, Scaling, Mixer, Feed, Embed, Head, NumberCurve)
VOCAB, WIDTH, HEADS, LIMIT = 17, 16, 4, 24  # of every small model; a head has 4 channels
MEMORY_WIDTH = 12  # of what cross-attention looks at

EXAMPLES: dict[type[Spec], dict[str, Spec]] = {
    LayerNorm: {"layer": LayerNorm(), "layer-no-bias": LayerNorm(bias=False)},
    RMSNorm: {"rms": RMSNorm()},
    NoNorm: {"no-norm": NoNorm()},
    Learned: {"learned": Learned(LIMIT), "learned-offset": Learned(LIMIT, offset=2)},
    Sinusoid: {"sinusoid": Sinusoid(), "sinusoid-half": Sinusoid(layout="half")},
    Grid: {"grid": Grid()},
    NoRelative: {"no-relative": NoRelative()},
    Rope: {
        "rope": Rope(),
        "rope-interleaved": Rope(layout="interleaved"),
        "rope-partial": Rope(width=2),
        "rope-linear": Rope(scaling=LinearScaling(factor=4.0)),
        "rope-ntk": Rope(scaling=NTKScaling(factor=4.0)),
        "rope-yarn": Rope(scaling=YarnScaling(factor=4.0, original=8)),
        "rope-llama3": Rope(scaling=Llama3Scaling(original=8)),
        "rope-dynamic": Rope(scaling=DynamicScaling(factor=2.0, original=64)),
    },
    LinearScaling: {"linear": LinearScaling(factor=4.0)},
    NTKScaling: {"ntk": NTKScaling(factor=4.0)},
    YarnScaling: {"yarn": YarnScaling(factor=4.0, original=8)},
    DynamicScaling: {"dynamic": DynamicScaling(factor=2.0, original=8)},
    Alibi: {"alibi": Alibi()},
    Buckets: {"buckets": Buckets(buckets=8, distance=16)},
    Shaw: {"shaw": Shaw(3), "shaw-keys-only": Shaw(3, values_too=False)},
    Attention: {
        "mha": Attention(heads=HEADS),
        "gqa": Attention(heads=HEADS, kv_heads=2),
        "mqa": Attention(heads=HEADS, kv_heads=1),
        "wide-values": Attention(heads=HEADS, key_size=2, value_size=6),
        "wide-keys-gqa": Attention(heads=HEADS, kv_heads=2, key_size=6, value_size=3),
        "odd-keys": Attention(heads=HEADS, key_size=3, value_size=4),
        "window": Attention(heads=HEADS, window=3),
        "window-gqa": Attention(heads=HEADS, kv_heads=2, window=2),
        "soft-cap": Attention(heads=HEADS, soft_cap=2.0),
        "qk-norm": Attention(heads=HEADS, qk_norm=RMSNorm()),
        "unscaled": Attention(heads=HEADS, scale="none", bias=False),
        "out-bias": Attention(heads=HEADS, scale=0.3, bias=False, out_bias=True),
    },
    Cross: {
        "cross": Cross(heads=HEADS),
        "cross-gqa": Cross(heads=HEADS, kv_heads=2, key_size=3, value_size=5, bias=False, scale="none"),
    },
    MLP: {
        **{f"mlp-{act}": MLP(act=act) for act in ("relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "relu2")},
        **{f"mlp-{act}": MLP(act=act, width=8) for act in ("sigmoid", "tanh")},
        "swiglu": MLP(act="silu", gated=True, bias=False, width=10),
        "geglu": MLP(gated=True),
    },
    Tokens: {
        "tokens": Tokens(vocab=VOCAB),
        "tokens-segments": Tokens(vocab=VOCAB, position=Learned(LIMIT), segments=2, norm=LayerNorm()),
        "tokens-inner": Tokens(vocab=VOCAB, position=Sinusoid(), inner=6),
        "tokens-scaled": Tokens(vocab=VOCAB, scale=True),
        "tokens-frozen": Tokens(vocab=VOCAB, frozen=True),
    },
    Patches: {
        "patches": Patches(size=8, patch=4, channels=2),
        "patches-registers": Patches(size=(8, 12), patch=4, channels=2, distill=True, registers=2, norm=LayerNorm()),
        "patches-bare": Patches(size=8, patch=4, channels=2, cls=False, position=None, bias=False),
        "patches-sinusoid": Patches(size=8, patch=4, channels=2, position=Sinusoid()),
    },
    Table: {
        "table": Table(numbers=3, categories=(4, 2)),
        "table-numbers": Table(numbers=4, missing=True),
        "table-categories": Table(categories=(5, 3), cls=False, missing=True),
        "table-piecewise": Table(numbers=3, categories=(4, 2), missing=True, curve=PiecewiseCurve(bins=5)),
        "table-periodic": Table(numbers=3, curve=PeriodicCurve(frequencies=3)),
        "table-joined": Table(numbers=3, categories=(4, 2), cls=False, joined=4, missing=True),
    },
    Joint: {
        "joint": Joint(parts=(Patches(size=8, patch=4, channels=2), Tokens(vocab=VOCAB, position=Learned(LIMIT)))),
        "joint-table": Joint(parts=(Tokens(vocab=VOCAB), Table(numbers=3)), kinds=False),
    },
    LM: {
        "lm": LM(),
        "lm-untied": LM(tied=False, vocab=VOCAB),
        "lm-bert": LM(transform="gelu", norm=LayerNorm(), bias=True),
        "lm-capped": LM(soft_cap=3.0, scale=0.5),
    },
    Pooled: {
        **{f"pooled-{pool}": Pooled(classes=3, pool=pool) for pool in ("first", "mean", "max", "last", "concat")},
        "pooler": Pooled(dense=True, act="tanh", norm=LayerNorm()),
    },
    TokenHead: {"tags": TokenHead(classes=3), "tags-dense": TokenHead(classes=3, dense=True, act="gelu")},
    Span: {"span": Span()},
    Distilled: {"distilled": Distilled(classes=3)},
    Regress: {"regress": Regress(outputs=2, pool="mean"), "regress-dense": Regress(dense=True, act="relu")},
    **gathered("EXAMPLES"),
}  # fmt: skip


def ours(slot: type[Spec]) -> list[type[Spec]]:
    """The concrete parts of a slot that the package itself defines; tests and examples in docstrings define others."""
    home = f"{anyformer.__name__}."
    return [
        part
        for part in subclasses(slot)
        if part.__module__.startswith(home) and vars(sys.modules[part.__module__]).get(part.__name__) is part
    ]


def examples(part: type[Spec]) -> dict[str, Any]:
    """Named examples of one part: those of the table, or the part with its defaults."""
    if part in EXAMPLES:
        return dict(EXAMPLES[part])
    try:
        return {part.__name__.lower(): part()}
    except (UserError, TypeError):
        return {}


def named(slot: type[Spec]) -> dict[str, Any]:
    """Every example of every part of a slot, by a readable name."""
    return {name: spec for part in ours(slot) for name, spec in examples(part).items()}


def every(*slots: type[Spec]) -> list[Any]:
    """The same as parameters of a test; without those that a theme holds to the laws in a place of their own."""
    found = ((name, spec) for slot in slots for name, spec in named(slot).items())
    return [pytest.param(spec, id=name) for name, spec in found if name not in gathered("APART")]


def of_images(part: Any) -> bool:
    """Whether it is a position that has nothing to say about text."""
    if not isinstance(part, Position):
        return False
    try:
        part.build(WIDTH)
    except UserError as error:
        return "for images" in str(error)
    return False


def mixers(*, causal: bool | None = None, text: bool = True) -> list[Any]:
    """Mixers as parameters of a test: those that can be causal, those that read text."""
    return [
        pytest.param(spec, id=name)
        for name, spec in named(Mixer).items()
        if not (causal and not spec.causal_form) and not (text and spec.needs_grid)
    ]
