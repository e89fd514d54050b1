"""The kernel for rows of different length against the definition, on a GPU and, where Triton is there, interpreted.

Without pytest on the machine: `PYTHONPATH=src:. python tests/device/test_decode_kernel.py`.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from anyformer import Alibi, Buckets, NoRelative, Shaw
from anyformer.core.attend import ENGINES, Scores, choose
from anyformer.core.context import Context

try:
    import pytest

    pytestmark = [
        pytest.mark.device,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    ]
except ModuleNotFoundError:  # the device machine may have no pytest
    pass

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BOUNDS = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}  # of the largest deviation
Case = tuple[int, int, int, int, int, int, int, torch.dtype, str, tuple[int, ...]]


def described(case: str, index: Tensor, columns: int, channels: int, heads: int) -> Scores:
    """Rows in fixed places whose queries stand at `index` (B,T)."""
    places = torch.arange(columns, device=index.device)[None]
    context = Context(positions=index, index=index, key_positions=places, key_index=places, ordered=False, gaps=True)
    relative = Alibi() if case in ("alibi", "all") else Buckets() if case == "buckets" else NoRelative()
    relative = Shaw(4) if case == "shaw" else relative
    module = relative.build(heads, channels, channels, True)
    tables = () if module is None else module.to(index.device)(context, torch.float32)
    return Scores.among(
        context, columns, scale=channels**-0.5, causal=True, window=37 if case in ("window", "all") else None,
        soft_cap=3.0 if case in ("cap", "all") else None, relative=relative, tables=tables,
    )  # fmt: skip


def inputs(
    heads: int, groups: int, queries: int, channels: int, value_channels: int, columns: int, dtype: torch.dtype,
    reach: tuple[int, ...], seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Fresh numbers, and nan in every column that a row has not reached: whoever reads one shows it."""
    torch.manual_seed(seed)
    batch = len(reach)
    q = torch.randn(batch, queries, heads, channels, device=DEVICE).to(dtype).transpose(1, 2)
    k = torch.randn(batch, groups, columns, channels, device=DEVICE).to(dtype)
    v = torch.randn(batch, groups, columns, value_channels, device=DEVICE).to(dtype)
    last = torch.tensor(reach, device=DEVICE)
    hidden = torch.arange(columns, device=DEVICE)[None] > last[:, None]
    k.masked_fill_(hidden[:, None, :, None], torch.nan)
    v.masked_fill_(hidden[:, None, :, None], torch.nan)
    index = last[:, None] + torch.arange(1 - queries, 1, device=DEVICE)
    return q, k, v, index.clamp(min=0)


def right(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
    """The definition in float64; what no row reached is 0 there, as a mask cannot take nan away."""
    exact = (x.double().nan_to_num(0.0) for x in (q, k, v))
    return ENGINES["reference"](*exact, scores)


def grid(small: bool = False) -> Iterator[tuple[int, int, int, int, int, int, torch.dtype, str, tuple[int, ...]]]:
    """Heads, groups, queries, channels, value channels, columns, dtype, rule, how far the rows reach."""
    half = torch.bfloat16
    for (heads, groups), queries in itertools.product(((4, 4), (8, 2), (6, 1)), (1, 5)):
        for case in ("plain", "window", "cap", "alibi", "all"):
            for columns in (100, 1100):
                reach = (queries - 1, columns - 1, columns // 3, 63, 64)
                yield heads, groups, queries, 64, 64, columns, torch.float32, case, reach
    sizes = (
        ((16, 16), (24, 40), (80, 80), (128, 128), (256, 256))
        if small
        else itertools.product((16, 80, 256), (32, 96, 128))
    )
    for (channels, value_channels), (heads, groups) in itertools.product(sizes, ((2, 2), (6, 2))):
        yield heads, groups, 1, channels, value_channels, 600, torch.float32, "plain", (599, 0, 255, 256)
    for dtype in (torch.float16, torch.float32) if small else (torch.float16, half, torch.float32):  # no bf16 in numpy
        for case, queries in itertools.product(("plain", "all"), (1, 8)):
            yield 12, 12, queries, 64, 64, 321, dtype, case, (320, 64, 100)
            yield 32, 4, queries, 64, 64, 2049, dtype, case, (2048, 64, 1000)


def check(small: bool = False) -> dict[torch.dtype, float]:
    """The largest gap to the definition for each dtype; every case within its bound."""
    from anyformer.kernels.decode import attend_static_cache, why_unsupported

    worst: dict[torch.dtype, float] = {}
    for number, (heads, groups, queries, channels, wide, columns, dtype, case, reach) in enumerate(grid(small)):
        q, k, v, index = inputs(heads, groups, queries, channels, wide, columns, dtype, reach, seed=number)
        scores = described(case, index, columns, channels, heads)
        assert why_unsupported(q, k, v, scores) is None, why_unsupported(q, k, v, scores)
        ours, wanted = attend_static_cache(q, k, v, scores).double(), right(q, k, v, scores)
        assert ours.shape == wanted.shape and torch.isfinite(ours).all(), (number, case)
        gap = ((ours - wanted).abs().max() / wanted.abs().max()).item()
        worst[dtype] = max(worst.get(dtype, 0.0), gap)
        assert gap <= BOUNDS[dtype], (heads, groups, queries, channels, wide, columns, dtype, case, gap)
    return worst


def test_every_row_equals_the_definition() -> None:
    print("largest gaps", check())


def test_the_newest_column_is_put_and_seen() -> None:
    check_put(((4, 4), (8, 2), (6, 1)), (100, 600, 1100), ("plain", "all"), (torch.float32, torch.float16))


def check_put(
    heads_and_groups: tuple[tuple[int, int], ...], widths: tuple[int, ...], rules: tuple[str, ...],
    dtypes: tuple[torch.dtype, ...],
) -> None:  # fmt: skip
    """One kernel for putting and attending: the answers of two, and the buffers as they would be."""
    from anyformer.kernels.decode import rows_attention_put

    cases = itertools.product(heads_and_groups, widths, rules, dtypes)
    for number, ((heads, groups), columns, rule, dtype) in enumerate(cases):
        reach = (columns - 1, 0, 64, 256 % columns, 255 % columns)
        q, k, v, index = inputs(heads, groups, 1, 24, 16, columns, dtype, reach, seed=number)
        batch, rows = len(reach), torch.arange(len(reach), device=DEVICE)[:, None]
        new_k = torch.randn(batch, groups, 1, 24, device=DEVICE).to(dtype)
        new_v = torch.randn(batch, groups, 1, 16, device=DEVICE).to(dtype)
        keys, values = k.clone(), v.clone()
        keys[rows, :, index], values[rows, :, index] = new_k.transpose(1, 2), new_v.transpose(1, 2)
        scores = described(rule, index, columns, 24, heads)
        slopes = None if scores.relative is None else scores.relative.slopes(scores.tables)
        k[rows, :, index] = torch.nan  # what stood there is not looked at
        ours = rows_attention_put(
            q, new_k, new_v, k, v, index, slopes, scores.scale, scores.window or 0, scores.soft_cap or 0.0
        )
        wanted = right(q, keys, values, scores)
        gap = ((ours.double() - wanted).abs().max() / wanted.abs().max()).item()
        assert gap <= BOUNDS[dtype], (heads, groups, columns, rule, dtype, gap)
        assert torch.equal(k.nan_to_num(7.0), keys.nan_to_num(7.0)), "the keys"
        assert torch.equal(v.nan_to_num(7.0), values.nan_to_num(7.0)), "the values"


def test_control_a_row_that_reaches_too_far_is_seen() -> None:
    from anyformer.kernels.decode import attend_static_cache

    q, k, v, index = inputs(4, 2, 1, 64, 64, 300, torch.float32, (10, 200))
    scores = described("plain", index + 1, 300, 64, 4)
    assert attend_static_cache(q, k, v, scores).isnan().any()


def test_neighbours_change_no_bit() -> None:
    from anyformer.kernels.decode import attend_static_cache

    for columns in (321, 1025):
        q, k, v, index = inputs(8, 2, 1, 64, 64, columns, torch.float32, (columns - 1, 64, 7, 200))
        together = attend_static_cache(q, k, v, described("plain", index, columns, 64, 8))
        for row in range(4):
            one = slice(row, row + 1)
            alone = attend_static_cache(q[one], k[one], v[one], described("plain", index[one], columns, 64, 8))
            assert torch.equal(alone, together[one])


def test_it_is_chosen_for_what_it_can_do_and_for_nothing_else() -> None:
    from anyformer.kernels.decode import try_out

    assert try_out(torch.device("cuda", 0)), "the kernel is not chosen before it was tried"
    q, k, v, index = inputs(4, 2, 1, 64, 64, 300, torch.float32, (10, 200))
    for case in ("plain", "window", "cap", "alibi", "all"):
        assert choose(q, k, v, described(case, index, 300, 64, 4)).engine == "rows"
    for case in ("buckets", "shaw"):
        assert choose(q, k, v, described(case, index, 300, 64, 4)).engine != "rows"
    plain = described("plain", index, 300, 64, 4)
    assert choose(q.double(), k.double(), v.double(), plain).engine == "sdpa"
    assert choose(q, k, v, plain, dropout=0.1).engine == "sdpa"


def test_a_graph_holds_it_and_follows_the_rows() -> None:
    from anyformer.core.attend import attend
    from anyformer.kernels.decode import attend_static_cache, try_out

    assert try_out(torch.device("cuda", 0))
    q, k, v, index = inputs(8, 2, 1, 64, 64, 700, torch.float32, (699, 699))
    scores = described("plain", index, 700, 64, 8)
    step = torch.compile(lambda q, k, v, index: attend(q, k, v, replace(scores, query_index=index)), fullgraph=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's, about itself
        for _ in range(2):
            step(q, k, v, index)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = step(q, k, v, index)
    for reach in ((5, 699), (300, 0), (255, 256)):
        index.copy_(torch.tensor(reach, device=DEVICE)[:, None])
        graph.replay()
        assert torch.equal(out, attend_static_cache(q, k, v, described("plain", index, 700, 64, 8)))


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("passed", name)
