"""Machine code of our own for plain decoders: the model's tokens, the same bits in any company, nothing made twice."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from anyformer import LM, MLP, Alibi, Attention, Block, Experts, Learned, Model, RMSNorm, Rope, Stack, Tokens, UserError
from anyformer.generation import Generation, generate, proposers
from anyformer.generation.cache.compiled_store import CompiledStore
from anyformer.generation.runners.compiled import Compiled, compiled
from anyformer.generation.runners.cpu_step import is_plain
from anyformer.kernels import cpu
from anyformer.kernels.cpu import FewRows
from anyformer.kernels.quantise import quantise
from tests.generation.test_compiled import count

GREEDY = Generation(max_new_tokens=12)
DRAWN = Generation(max_new_tokens=12, do_sample=True, temperature=1.3, top_k=20, top_p=0.95, seed=7)
LLAMA: dict[str, Any] = {
    "mixer": Attention(heads=4, kv_heads=2, bias=False), "norm": RMSNorm(), "relative": Rope(),
    "feed": MLP(width=44, act="silu", gated=True, bias=False),
}  # fmt: skip
BLOCKS: dict[str, dict[str, Any]] = {
    "gpt2": {"mixer": Attention(heads=4), "feed": MLP(act="gelu_tanh")},
    "llama": LLAMA,
    "window": {"mixer": Attention(heads=4, kv_heads=1, window=5), "relative": Rope(), "feed": MLP(act="relu")},
    "odd": {
        "mixer": Attention(heads=3, key_size=10, value_size=7), "relative": Rope(width=6, layout="interleaved"),
        "feed": MLP(width=33, act="quick_gelu"),
    },
}  # fmt: skip


def small(seed: int = 0, depth: int = 2, width: int = 40, **block: Any) -> Any:
    stack = Stack(width=width, depth=depth, causal=True, block=Block(**(block or LLAMA)))
    position = None if "relative" in (block or LLAMA) else Learned(256)
    model = Model(embed=Tokens(vocab=61, position=position), stack=stack, head=LM()).build(seed=seed).eval()
    for weight in model.stack.blocks.parameters():  # or a fresh model would repeat one token on and on
        weight.data.mul_(4.0 if weight.dim() == 2 else 1.0)
    return model


def prompts(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 61, (rows, length), generator=torch.Generator().manual_seed(seed))


def padded(rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = prompts(rows, length)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, : length // 2] = False
    return ids, mask


def build(name: str, kind: str) -> Any:
    model = small(**BLOCKS[name])
    return quantise(model) if kind == "int8" else model


# ---------------------------------------------------------------- products


def test_products_of_any_shape_and_the_same_bits_whatever_comes_with_a_row() -> None:
    draw = torch.Generator().manual_seed(0)
    threads = torch.get_num_threads()
    for outs, width in ((70, 33), (5, 3), (9, 1030), (130, 256), (1, 16)):
        weight, bias = torch.randn(outs, width, generator=draw), torch.randn(outs, generator=draw)
        values, scales = (weight * 20).round().clamp(-127, 127).to(torch.int8), torch.rand(outs, generator=draw)
        x = torch.randn(50, width, generator=draw)
        for rounded in (False, True):
            held, by = (values, scales) if rounded else (weight, None)
            wide = held.double() * (1 if by is None else by.double()[:, None])
            alone = torch.stack([cpu.few_rows(row, held, by, bias) for row in x])
            assert torch.allclose(alone.double(), x.double() @ wide.T + bias, atol=1e-3, rtol=1e-4)
            for rows in (2, 3, 5, 8, 16, 49, 50):
                for number in {1, threads}:
                    torch.set_num_threads(number)
                    assert torch.equal(cpu.few_rows(x[:rows], held, by, bias), alone[:rows]), (outs, width, rows)
                    torch.set_num_threads(threads)
            assert not torch.equal(cpu.few_rows(x[1:3], held, by, bias), alone[:2])  # the comparison sees rows


def test_only_a_few_rows_of_float32_are_taken_over() -> None:
    weight, taken = torch.randn(8, 4), []

    def spy(*given: Any) -> torch.Tensor:
        taken.append(given[0].shape)
        return F.linear(given[0], given[1], given[3])

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(cpu, "few_rows", spy)
        with FewRows():
            for x in (torch.randn(2, 3, 4), torch.randn(cpu.FEW + 1, 4), torch.randn(2, 4).double()):
                assert F.linear(x, weight.to(x.dtype)).shape == (*x.shape[:-1], 8)
            F.linear(torch.randn(1, 8), weight.T)  # rows that do not lie one after the other
    assert taken == [(2, 3, 4)]


# ---------------------------------------------------------------- whole steps


@pytest.mark.parametrize("kind", ["float", "int8"])
@pytest.mark.parametrize("name", BLOCKS)
def test_the_tokens_of_the_model(name: str, kind: str) -> None:
    model = build(name, kind)
    code = compiled(model)
    for settings, chunk in ((GREEDY, None), (DRAWN, 4)):
        asked = Generation(**{**vars(settings), "prefill_chunk_size": chunk})
        for given in ((prompts(1, 9), None), padded(3, 9)):
            want, got = (generate(one, *given, settings=asked) for one in (model, code))
            assert torch.equal(want.ids, got.ids)
            assert (want.logprobs - got.logprobs).abs().max() < 1e-4
    assert code.is_cpp and not code.lost


def filled(code: Compiled, count: int) -> CompiledStore:
    """A store with so many sequences that have not begun."""
    store = CompiledStore(code, capacity=count, limit=20)
    for _ in range(count):
        store.add([0])
    return store


@pytest.mark.parametrize("kind", ["float", "int8"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
@torch.no_grad()
def test_a_row_gets_the_same_bits_in_any_company(name: str, kind: str) -> None:
    """One token at a time, all at once, beside other rows: what makes proposals and batches change nothing at all."""
    code, text, other = compiled(build(name, kind)), prompts(1, 8)[0].tolist(), prompts(1, 5, seed=3)[0].tolist()
    lone, together, beside = (filled(code, rows) for rows in (1, 1, 3))
    single = torch.cat([lone.extend({0: [token]})[0] for token in text])
    assert torch.equal(together.extend({0: text})[0], single)
    beside.extend({0: other[:2], 2: other})
    found = torch.cat([beside.extend({0: other[2:], 1: text[:3]})[1], beside.extend({1: text[3:], 2: other[:1]})[0]])
    assert torch.equal(found, single)
    assert torch.equal(code.logits(single), torch.cat([code.logits(row[None]) for row in single]))
    text[0] = (text[0] + 1) % 61
    assert not torch.equal(filled(code, 1).extend({0: text})[0], single)  # the control: bits can differ


def test_no_shape_is_made_anew() -> None:
    """Batches of 1 to 32 rows, texts of one to several blocks of columns, float32 and 8 bits: one library for all."""
    codes = [compiled(build("gpt2", kind)) for kind in ("float", "int8")]
    made, held = count(), cpu.load_library.cache_info().misses
    for code in codes:
        for rows in (1, 2, 3, 8, 17, 32):
            for length in (1, 62, 131):
                new = generate(code, prompts(rows, length), settings=Generation(max_new_tokens=4)).new
                assert new.shape == (rows, 4)
        assert code.is_cpp and "attempts" not in vars(code)  # torch's compiler was not even asked
    assert made == count() and cpu.load_library.cache_info().misses <= max(held, 1)


def test_weights_are_read_anew() -> None:
    model = small(seed=1)
    code, ids = compiled(model), prompts(1, 5)
    before = generate(code, ids, settings=GREEDY).ids
    model.load_state_dict(small(seed=2).state_dict())
    after = generate(code, ids, settings=GREEDY).ids
    assert torch.equal(after, generate(small(seed=2), ids, settings=GREEDY).ids) and not torch.equal(after, before)
    assert generate(compiled(quantise(model)), ids, settings=GREEDY).ids.shape == after.shape


def test_what_is_not_plain() -> None:
    """Left to torch's compiler: every difference the code does not know."""
    assert is_plain(small()) and not is_plain(small().double()) and not is_plain(small().bfloat16())
    mixer = {"mixer": Attention(heads=4)}
    for block in (
        {"mixer": Attention(heads=4, soft_cap=30.0)}, {"mixer": Attention(heads=4, qk_norm=RMSNorm())},
        {**mixer, "place": "post"}, {**mixer, "order": "parallel"}, {**mixer, "layer_scale": 0.1},
        {**mixer, "residual": False}, {**mixer, "feed": Experts(count=2)}, {**mixer, "feed": None},
        {**mixer, "relative": Alibi()}, {**mixer, "feed": MLP(act="relu2")},
    ):  # fmt: skip
        assert not is_plain(small(**block)), block


# ---------------------------------------------------------------- drafted by its own weights


@pytest.mark.parametrize("name", BLOCKS)
def test_its_own_draft_changes_nothing(name: str) -> None:
    """Greedy and drawn; rows of different length that end at different tokens; copies of a row."""
    model = build(name, "float")
    for settings in (GREEDY, DRAWN, Generation(max_new_tokens=12, do_sample=True, seed=2, num_return_sequences=3)):
        for given in ((prompts(1, 9), None), padded(3, 9)):
            plain = generate(model, *given, settings=settings)
            ends = sorted({int(plain.new[0, 5]), int(plain.new[-1, 2])})
            for more in ({}, {"eos_token_id": ends}, {"num_assistant_tokens": 2}):
                asked = Generation(**{**vars(settings), **more})
                want, got = (generate(model, *given, settings=asked, draft=draft) for draft in (None, "int8"))
                assert torch.equal(want.ids, got.ids) and want.reasons == got.reasons
                assert (want.logprobs - got.logprobs).abs().max() < 1e-4
    assert got.passes is not None and (got.passes < got.lengths).all()


def test_a_draft_that_is_mostly_wrong_changes_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the draft: weights of three levels guess badly, and the text is the model's all the same."""
    model, asked = small(), Generation(max_new_tokens=40)
    want, good = (generate(model, prompts(2, 6), settings=asked, draft=draft) for draft in (None, "int8"))
    monkeypatch.setattr("anyformer.kernels.int8.LARGEST", 1)
    proposers.DRAFTS.clear()
    bad = generate(model, prompts(2, 6), settings=asked, draft="int8")
    assert torch.equal(want.ids, good.ids) and torch.equal(want.ids, bad.ids)
    assert good.passes is not None and bad.passes is not None and bad.passes.sum() > 1.5 * good.passes.sum()


def test_the_draft_is_kept_and_made_anew_when_weights_change() -> None:
    model = small()
    generate(model, prompts(1, 4), settings=GREEDY, draft="int8")
    first = proposers.DRAFTS[model][1]
    assert first.model.stack.final.weight is model.stack.final.weight  # what is not rounded is the model's own
    generate(model, prompts(1, 4), settings=GREEDY, draft="int8")
    assert proposers.DRAFTS[model][1] is first
    with torch.no_grad():
        model.stack.blocks[0].feed.up.weight.mul_(2.0)
    want, got = (generate(model, prompts(1, 4), settings=GREEDY, draft=draft) for draft in (None, "int8"))
    assert proposers.DRAFTS[model][1] is not first and torch.equal(want.ids, got.ids)
    kept = len(proposers.DRAFTS)
    del model, first
    gc.collect()
    assert len(proposers.DRAFTS) < kept


def test_a_model_that_is_not_plain_drafts_itself_too() -> None:
    model = small(mixer=Attention(heads=4), place="post")
    want, got = (generate(model, prompts(2, 5), settings=GREEDY, draft=draft) for draft in (None, "int8"))
    assert torch.equal(want.ids, got.ids) and not is_plain(model)
    assert proposers.DRAFTS[model][1].stack.blocks[0].feed.up.values.dtype == torch.int8


def test_what_is_no_draft() -> None:
    with pytest.raises(UserError, match="unknown draft 'int4'"):
        generate(small(), prompts(1, 4), settings=GREEDY, draft="int4")
    with pytest.raises(UserError, match="in 8 bits itself"):
        generate(quantise(small()), prompts(1, 4), settings=GREEDY, draft="int8")
    with pytest.raises(UserError, match="from a draft or from the prompt"):
        generate(small(), prompts(1, 4), settings=Generation(prompt_lookup_num_tokens=2), draft="int8")
