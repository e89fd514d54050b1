"""Local, block-sparse, low-rank and linear attention: each is its own formula, and none makes a T x T tensor."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer import (
    Alibi,
    Attention,
    BlockSparse,
    Buckets,
    LinearAttention,
    Local,
    LowRank,
    Mixer,
    NoRelative,
    Relative,
    Rope,
    Shaw,
    UserError,
)
from anyformer.kernels import pieces
from anyformer.kernels.bands import attend_in_bands
from anyformer.mixers import linear_attention
from anyformer.mixers.local import LocalModule
from tests.laws.nets import build, gap, language, leak, stepwise, tokens
from tests.reference import naive
from tests.reference.copying import agree, context_of, deviation, parts_of, real_tokens, seeded, shaken
from tests.reference.watching import Largest

WIDTH, HEADS, T = 8, 2, 13
both_orders = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
RELATIVES = {"none": NoRelative(), "rope": Rope(), "alibi": Alibi(), "buckets": Buckets(buckets=8, distance=16),
             "shaw": Shaw(3)}  # fmt: skip
HOLES = torch.ones(2, T, dtype=torch.bool)
HOLES[0, :4] = HOLES[1, 5:9] = HOLES[1, 11:] = False
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 8, [0] * 2 + [7] * 3 + [2] * 8])


def module(spec: Mixer, causal: bool, relative: Relative | None = None) -> Any:
    return shaken(spec.build(WIDTH, causal=causal, relative=relative or NoRelative()))


def twin(spec: Mixer, like: Any, causal: bool, relative: Relative | None = None) -> Any:
    """Another module with the same weights."""
    made = module(spec, causal, relative)
    made.load_state_dict(like.state_dict())
    return made


def given(kind: str) -> tuple[Any, Tensor]:
    """A context of two rows, and which tokens count."""
    mask = None if kind in ("plain", "documents") else HOLES if kind != "right" else real_tokens((T, 7), T)
    context = context_of(seeded(2, T, 1), mask, DOCUMENTS if "documents" in kind else None)
    return context, (torch.ones(2, T, dtype=torch.bool) if mask is None else mask)[..., None]


KINDS = ("plain", "right", "holes", "documents", "holes and documents")


# ---------------------------------------------------------------- local


@both_orders
@pytest.mark.parametrize("relative", RELATIVES.values(), ids=RELATIVES)
def test_local_is_attention_with_a_window(relative: Relative, causal: bool) -> None:
    """Its chunks, which other devices than a CPU run, and all pairs compared at once."""
    for window, kind in itertools.product((1, 3, 5, T - 1), KINDS):
        local = module(Local(heads=HEADS, window=window), causal, relative)
        whole = twin(Attention(heads=HEADS, window=window), local, causal, relative)
        x = seeded(2, T, WIDTH)
        context, real = given(kind)
        tables: Any = ()
        made = relative.build(HEADS, 4, 4, causal)
        if made is not None:
            tables = shaken(made)(context, torch.float64)
        leaves = [x, *local.parameters()]
        theirs = torch.func.functional_call(whole, dict(local.named_parameters()), (x, context, None, tables))
        agree(local(x, context, None, tables), theirs, leaves, where=real)
        agree(in_chunks(local, x, context, tables), theirs, leaves, where=real)


def in_chunks(local: Any, x: Tensor, context: Any, tables: Any) -> Tensor:
    q, k, v, scores = local.prepare(x, context, None, tables)
    return local.out(attend_in_bands(q, k, v, scores).transpose(1, 2).flatten(2))


@pytest.mark.quick
@both_orders
def test_local_with_a_wide_window_is_full_attention_and_a_narrow_one_is_not(causal: bool) -> None:
    x = seeded(2, T, WIDTH)
    for window in (T, T + 1, 1000):
        wide = module(Local(heads=HEADS, window=window), causal)
        full = twin(Attention(heads=HEADS), wide, causal)
        agree(wide(x, context_of(x), None, ()), full(x, context_of(x), None, ()), [x])
    narrow = twin(Local(heads=HEADS, window=T - 2), wide, causal)
    assert deviation(narrow(x, context_of(x), None, ()), full(x, context_of(x), None, ())) > 1e-6


# ---------------------------------------------------------------- block-sparse


def blocks_see(spec: BlockSparse, causal: bool) -> Any:
    def sees(b: int, h: int, i: int, j: int) -> bool:
        mine, theirs = i // spec.block, j // spec.block
        near = abs(mine - theirs) <= spec.local or theirs < spec.leading or (not causal and mine < spec.leading)
        return near and (j <= i or not causal)

    return sees


@both_orders
@pytest.mark.parametrize(("block", "local", "leading"), [(2, 1, 1), (1, 0, 2), (3, 1, 0), (3, 0, 1), (5, 2, 2)])
def test_block_sparse_is_a_masked_softmax(block: int, local: int, leading: int, causal: bool) -> None:
    spec = BlockSparse(heads=HEADS, block=block, local=local, leading=leading)
    x, sparse = seeded(1, T, WIDTH), module(spec, causal)
    wanted = naive.attend(x, sparse, scale=4**-0.5, sees=blocks_see(spec, causal))
    agree(sparse(x, context_of(x), None, ()), wanted, [x, *sparse.parameters()])
    full = naive.attend(x, sparse, scale=4**-0.5, sees=lambda b, h, i, j: j <= i or not causal)
    assert block == 5 or deviation(sparse(x, context_of(x), None, ()), full) > 1e-3  # control: something is hidden


@both_orders
@pytest.mark.parametrize("relative", RELATIVES.values(), ids=RELATIVES)
def test_block_sparse_in_blocks_is_its_own_rule_between_all_pairs(relative: Relative, causal: bool) -> None:
    """Padding, holes and documents too: blocks are counted from the first token of each text."""
    from anyformer.core.attend import attend

    for kind, kv_heads in itertools.product(KINDS, (None, 1)):
        sparse = module(BlockSparse(heads=HEADS, block=2, kv_heads=kv_heads), causal, relative)
        x = seeded(2, T, WIDTH)
        context, real = given(kind)
        made = relative.build(HEADS, 4, 4, causal)
        tables = () if made is None else shaken(made)(context, torch.float64)
        q, k, v, scores = sparse.prepare(x, context, None, tables)
        assert scores.allowed is not None
        pairs = sparse.out(attend(q, k, v, scores).transpose(1, 2).flatten(2))
        agree(sparse(x, context, None, tables), pairs, [x, *sparse.parameters()], where=real)


# ---------------------------------------------------------------- low rank


def test_low_rank_is_its_formula() -> None:
    x = seeded(2, T, WIDTH)
    for rank, longest in ((3, T), (4, 20), (30, 30)):
        low = module(LowRank(heads=HEADS, rank=rank, longest=longest), False)
        e, f = low.mix.keys[:, :T], low.mix.values[:, :T]
        for kind in ("plain", "right", "holes"):
            context, real = given(kind)
            rows = []
            for b in range(2):
                text = x[b][real[b, :, 0]]  # a text is as long as it has tokens
                n = text.shape[0]
                heads = []
                for w_q, w_k, w_v, b_q, b_k, b_v in zip(
                    *parts_of(low.qkv.weight, 2, 2, 4, 4), *parts_of(low.qkv.bias, 2, 2, 4, 4), strict=True
                ):
                    q, k, v = text @ w_q.T + b_q, e[:, :n] @ (text @ w_k.T + b_k), f[:, :n] @ (text @ w_v.T + b_v)
                    heads.append((q @ k.T / 4**0.5).softmax(-1) @ v)
                rows.append(torch.cat(heads, -1) @ low.out.weight.T + low.out.bias)
            got = low(x, context, None, ())
            agree(torch.cat([got[b][real[b, :, 0]] for b in range(2)]), torch.cat(rows), [x, *low.parameters()])
    with pytest.raises(UserError, match=r"13 tokens meet a LowRank made for 12.*longest=13"):
        module(LowRank(heads=HEADS, rank=2, longest=12), False)(x, context_of(x), None, ())


# ---------------------------------------------------------------- linear


def kernel(x: Tensor, linear: Any, sees: Any) -> Tensor:
    """kappa(q, k) = phi(q).phi(k), normalised, one query at a time."""
    w_q, w_k, w_v = parts_of(linear.qkv.weight, 2, 2, 4, 4)
    b_q, b_k, b_v = parts_of(linear.qkv.bias, 2, 2, 4, 4)
    rows = []
    for b in range(x.shape[0]):
        heads = []
        for h in range(2):
            q, k = (linear.kernel.phi(x[b] @ w[h].T + c[h]) for w, c in ((w_q, b_q), (w_k, b_k)))
            v = x[b] @ w_v[h].T + b_v[h]
            answers = []
            for i in range(x.shape[1]):
                seen = [j for j in range(x.shape[1]) if sees(b, i, j)]
                kappa = torch.stack([q[i] @ k[j] for j in seen]) if seen else q.new_zeros(0)
                answers.append(kappa @ v[seen] / kappa.sum() if seen else v[0] * 0)
            heads.append(torch.stack(answers))
        rows.append(torch.cat(heads, -1) @ linear.out.weight.T + linear.out.bias)
    return torch.stack(rows)


@both_orders
@pytest.mark.parametrize("feature", ["elu", "softplus"])
@pytest.mark.parametrize("chunk", [64, 3])
def test_linear_is_its_kernel(feature: str, chunk: int, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_attention, "CHUNK", chunk)
    monkeypatch.setattr(linear_attention, "SEGMENT", 2 * chunk)
    x = seeded(2, T, WIDTH)
    linear = module(LinearAttention(heads=HEADS, feature=feature), causal)
    for kind in KINDS:
        context, real = given(kind)

        def sees(b: int, i: int, j: int, kind: str = kind, real: Tensor = real) -> bool:
            together = "documents" not in kind or bool(DOCUMENTS[b, i] == DOCUMENTS[b, j])
            return together and bool(real[b, j, 0]) and (j <= i or not causal)

        agree(linear(x, context, None, ()), kernel(x, linear, sees), [x, *linear.parameters()], where=real)
        weights = linear.weights(x, context, None, (), slice(None))
        sums = weights.sum(-1)[real.expand(2, T, 2).transpose(1, 2)]
        agree(sums, torch.ones_like(sums))


def test_linear_in_chunks_decodes_and_keeps_the_order_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_attention, "CHUNK", 3)
    monkeypatch.setattr(linear_attention, "SEGMENT", 6)
    net, given = build(language(mixer=LinearAttention(heads=4))), tokens(2, 11)
    with torch.no_grad():
        assert leak(net, given) == 0.0
        full = net(given).logits
        documents = torch.tensor([[0] * 4 + [1] * 7]).expand(2, -1)
        for rolling in (True, False):
            assert gap(stepwise(net, given, [0, 5, 6, 7], net.state(2, rolling=rolling)), full) < 1e-9
            state = net.state(2, rolling=rolling)
            cuts = itertools.pairwise([0, 3, 5, 10, 11])
            parts = [net(given[:, a:b], documents=documents[:, a:b], state=state).logits for a, b in cuts]
            assert gap(torch.cat(parts, 1), net(given, documents=documents).logits) < 1e-9


@torch.no_grad()
def test_memory_of_a_state_is_flat_for_linear_and_local() -> None:
    for mixer in (LinearAttention(heads=4), Local(heads=4, window=4)):
        net = build(language(mixer=mixer))
        state = net.state(1)
        net(tokens(1, 20), state=state)
        sizes = []
        for t in range(200):
            net(tokens(1, 1, seed=t), state=state)
            sizes.append(state.bytes)
        assert sizes[0] == sizes[-1] and max(sizes) == sizes[0]
    net = build(language(mixer=BlockSparse(heads=4, block=2)))
    state = net.state(1)
    before = (net(tokens(1, 20), state=state), state.bytes)[1]
    net(tokens(1, 20), state=state)
    assert state.bytes == 2 * before  # control: it keeps all keys


# ---------------------------------------------------------------- cost


@both_orders
@pytest.mark.parametrize("mixer", [
    pytest.param(Local(heads=2, window=16), id="local"),
    pytest.param(BlockSparse(heads=2, block=16), id="block-sparse"),
    pytest.param(LowRank(heads=2, rank=16, longest=4096), id="low-rank"),
    pytest.param(LinearAttention(heads=2), id="linear"),
])  # fmt: skip
def test_the_largest_tensor_grows_as_the_text(mixer: Mixer, causal: bool) -> None:
    causal = causal and mixer.causal_form
    net = mixer.build(WIDTH, causal=causal, relative=NoRelative())
    largest = []
    for length in (1024, 2048):
        x = torch.randn(1, length, WIDTH, requires_grad=True)
        with Largest() as seen:
            net(x, context_of(x), None, ()).sum().backward()
        largest.append(seen.entries)
    assert largest[1] <= 2 * largest[0] + 4096 and largest[1] < 2048**2 // 8
    full = Attention(heads=2, soft_cap=9.0).build(WIDTH, causal=causal, relative=NoRelative())
    with Largest() as seen:  # control: plain maths over all pairs
        full(x, context_of(x), None, ())
    assert seen.entries >= 2048**2


@pytest.mark.parametrize("relative", [NoRelative(), Alibi()], ids=["none", "alibi"])
def test_many_chunks_are_done_in_pieces_and_give_the_same(relative: Relative, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 2 chunks, the last one shorter, forward and backward; a bias is made again in the backward pass."""
    x = seeded(2, T, WIDTH)
    context, real = given("holes and documents")
    made = relative.build(HEADS, 4, 4, True)
    tables = () if made is None else made(context, torch.float64)
    calls: list[int] = []
    counted = pieces.attend

    def counting(*given: Any, **options: Any) -> Tensor:
        calls.append(1)
        return counted(*given, **options)

    for spec in (Local(heads=HEADS, window=3), BlockSparse(heads=HEADS, block=2)):
        mixer = module(spec, True, relative)
        leaves = [x, *mixer.parameters()]

        def run(mixer: Any = mixer) -> Tensor:
            if isinstance(mixer, LocalModule):  # local attention, in the chunks that a CPU only needs for a bias
                return in_chunks(mixer, x, context, tables)
            return mixer(x, context, None, tables)

        whole = run()
        monkeypatch.setattr(pieces, "ROWS", 4 * 3 * 6 * 4)  # four times what a piece may hold on a processor
        monkeypatch.setattr(pieces, "attend", counting)
        calls.clear()
        agree(run(), whole, leaves, where=real)
        assert len(calls) >= 3
        monkeypatch.undo()
