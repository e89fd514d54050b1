"""One cell of the grid: a model of chosen parts meets the laws, or is refused when it is made."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from anyformer import (
    MLP,
    Attention,
    Block,
    Embed,
    Feed,
    Head,
    LayerNorm,
    Mixer,
    Model,
    NoRelative,
    Norm,
    Position,
    Relative,
    Stack,
    Tokens,
    UserError,
)  # fmt: skip
from anyformer.checks import answer_of
from tests.laws.examples import gathered
from tests.laws.nets import EXACT, build, gap, inputs, memory, rounding, stepwise, tokens
from tests.laws.parts import HEADS, VOCAB, WIDTH, named
from tests.laws.refusals import shown_true

# Examples that differ from a neighbour only within themselves: the laws of their own slot hold them, the grid leaves
# them out. A new part, or a new example of one, is in the grid until it is named here.
ALIKE = {
    "mlp-gelu_tanh", "mlp-quick_gelu", "mlp-silu", "mlp-relu2", "mlp-sigmoid", "mlp-tanh", "geglu", "layer-no-bias",
    "rope-linear", "rope-llama3", "rope-dynamic", "shaw-keys-only", "learned-offset", "sinusoid-half", "wide-keys-gqa",
    "window-gqa", "unscaled", "out-bias", "cross-gqa", "tokens-scaled", "tokens-frozen", "patches-sinusoid",
    "table-numbers", "table-categories", "joint-table", "lm-capped", "pooled-mean", "pooled-max", "pooled-last",
    "tags-dense", "regress-dense", "pooler", *gathered("ALIKE"),
}  # fmt: skip


def telling(slot: type) -> dict[str, Any]:
    return {name: spec for name, spec in named(slot).items() if name not in ALIKE}


# Every axis of the grid, generated from the parts; the first value of each is the plain one. "own": the embedding's.
AXES: dict[str, dict[str, Any]] = {
    "embed": telling(Embed),
    "position": {"own-position": "own", "no-position": None} | telling(Position),
    "relative": {"no-relative": NoRelative()} | telling(Relative),
    "norm": {"layer": LayerNorm()} | telling(Norm),
    "mixer": {"mha": Attention(heads=HEADS)} | telling(Mixer),
    "feed": {"mlp-gelu": MLP()} | telling(Feed) | {"no-feed": None},
    "head": {"no-head": None} | telling(Head),
    "place": {name: name for name in ("pre", "post", "branch", "sandwich")},
    "order": {name: name for name in ("serial", "parallel")},
    "cross": {"no-cross": None} | {f"cross-is-{name}": named(Mixer)[name] for name in ("cross", "cross-gqa", "mha")},
    "causal": {"causal": True, "both-ways": False},
    "stack": {"apart": {}, "shared": {"groups": 1}, "shared-feed": {"groups": 1, "share": "feed"}},
    "residual": {"residual": True, "no-residual": False},
}
AXES["embed"] = {"tokens": Tokens(vocab=VOCAB)} | AXES["embed"]
GRID = named(Embed)["patches"]  # what a mixer on a grid is plainly beside
PLAIN = {axis: next(iter(values.values())) for axis, values in AXES.items()}
REFUSED = "refused"


def assemble(parts: dict[str, Any]) -> Model:
    embed = parts["embed"] if parts["position"] == "own" else parts["embed"].replace(position=parts["position"])
    names = ("relative", "norm", "mixer", "feed", "place", "order", "cross", "residual")
    block = Block(**{name: parts[name] for name in names})
    depth = 2 if parts["stack"] else 1  # layers share weights only where there are two
    stack = Stack(width=WIDTH, depth=depth, causal=parts["causal"], block=block, **parts["stack"])
    return Model(embed=embed, stack=stack, head=parts["head"], init="xavier")


def walk(chosen: dict[str, Any], cells: Counter, laws: Any) -> str:
    """Make the model of `chosen` parts and hold it to `laws`; or see it refused for a reason that is true."""
    fitting = {} if not chosen.get("mixer", PLAIN["mixer"]).needs_grid else {"embed": GRID, "causal": False}
    parts = PLAIN | fitting | chosen | {"width": WIDTH}
    try:
        spec = assemble(parts)
    except UserError as error:
        assert error.fix, f"refused without a way out: {error}"
        assert shown_true(str(error), parts), f"not true of {chosen}: {error}"
        cells["laws", REFUSED] += 1
        return REFUSED
    laws(spec, parts)
    cells["laws", "run"] += 1
    return "run"


def every_law(spec: Model, parts: dict[str, Any]) -> None:
    """What every model must hold, in as few passes as show it."""
    assert Model.from_json(spec.to_json()) == spec
    net = build(spec)
    given = inputs(spec.embed, batch=2, length=6)
    options = {"memory": memory(2, width=WIDTH)} if looks(parts) else {}
    out = net(*given, **options)
    length = out.hidden.shape[1]
    assert out.hidden.shape == (2, length, WIDTH) and out.hidden.isfinite().all()
    answers = [x for x in (out.logits, out.pooled, out.boxes, out.hidden) if x is not None]
    assert all(x.shape[0] == 2 and x.isfinite().all() for x in answers)
    torch.autograd.backward([x.square().mean() for x in answers])
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())
    with torch.no_grad():
        single = {name: x[:1] for name, x in options.items()}
        alone = net(*(row(part) for part in given), **single)
        assert gap(alone.hidden, out.hidden[:1]) < EXACT
        if isinstance(spec.embed, Tokens):
            # Again without gradients: a bias that needs one goes through another kernel, with another rounding.
            of_text(net, spec, given[0], answer_of(net(*given, **options)), options)


def of_text(net: Any, spec: Model, given: torch.Tensor, full: torch.Tensor, options: dict[str, Any]) -> None:
    mask = torch.ones(2, 8, dtype=torch.bool)
    mask[:, :2] = False
    padded = answer_of(net(torch.cat([tokens(2, 2, seed=3), given], 1), mask=mask, **options))
    assert gap(padded[:, 2:], full) < EXACT, "padding on the left changed a real token"
    if spec.stack.causal:
        changed = torch.cat([given[:, :3], (given[:, 3:] + 1) % VOCAB], 1)
        moved = gap(answer_of(net(changed, **options))[:, :3], full[:, :3])
        assert moved <= rounding(spec.stack.mixers[0]), "the future reached the past"
        steps = stepwise(net, given, [0, 3, 4, 5], net.state(2), **options)
        assert gap(steps, full) < EXACT, "stepwise decoding is not the full pass"


def forward_and_decode(spec: Model, parts: dict[str, Any]) -> None:
    """The three laws that positions, norms and mixers can break together."""
    net = build(spec)
    given = inputs(spec.embed, batch=2, length=6)
    options = {"memory": memory(2, width=WIDTH)} if looks(parts) else {}
    with torch.no_grad():
        full = answer_of(net(*given, **options))
        assert full.isfinite().all()
        if isinstance(spec.embed, Tokens):
            of_text(net, spec, given[0], full, options)


def looks(parts: dict[str, Any]) -> bool:
    return parts["cross"] is not None or parts["mixer"].looks_at_memory


def row(part: Any) -> Any:
    if part is None:
        return None
    return tuple(row(piece) for piece in part) if isinstance(part, tuple) else part[:1]
