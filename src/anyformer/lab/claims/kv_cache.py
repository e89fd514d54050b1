"""A KV cache makes decoding faster, and the longer the text, the more so (L3; R14)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from anyformer.core.block import Block
from anyformer.core.model import Model, ModelModule
from anyformer.core.stack import Stack
from anyformer.embeds import Tokens
from anyformer.heads import LM
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict
from anyformer.lab.claims.hyena_crossover import clock
from anyformer.mixers import Attention
from anyformer.positions import Rope

VOCAB, WIDTH, DEPTH = 256, 128, 2
EQUAL, FASTER, GROWS = 1e-4, 2.0, 2.0
ROUNDS = 3


def cases(full: bool) -> list[Case]:
    lengths, repeats = ((64, 128, 256, 512, 1024), 5) if full else ((32, 64, 128, 256, 512), 2)
    return [{"tokens": length, "repeat": repeat} for length in lengths for repeat in range(repeats)]


def network() -> Model:
    block = Block(mixer=Attention(heads=4), relative=Rope())
    return Model(embed=Tokens(vocab=VOCAB), stack=Stack(width=WIDTH, depth=DEPTH, causal=True, block=block), head=LM())


def decode_with_cache(net: ModelModule, ids: Tensor) -> Tensor:
    """Logits of the newest token after each step (T,V): one token a pass."""
    state = net.state(1)
    return torch.cat([net(ids[:, at : at + 1], state=state).logits[0] for at in range(ids.shape[1])])


def decode_anew(net: ModelModule, ids: Tensor) -> Tensor:
    """The same without a KV cache: every pass recomputes the whole text."""
    return torch.cat([net(ids[:, : at + 1]).logits[0, -1:] for at in range(ids.shape[1])])


def measure(case: Case) -> Result:
    net = network().build(seed=0).eval()
    ids = torch.randint(VOCAB, (1, case["tokens"]), generator=torch.Generator().manual_seed(case["repeat"]))
    with torch.no_grad():
        cached, with_cache = timed(lambda: decode_with_cache(net, ids))
        anew, without = timed(lambda: decode_anew(net, ids))
    return {"with_cache": with_cache, "without": without, "speed_up": without / with_cache,
            "difference": (cached - anew).abs().max().item()}  # fmt: skip


def timed(decode: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """Its result, and the CPU seconds of the fastest of several rounds; the first call is a warm-up."""
    found, device = decode(), torch.device("cpu")
    taken = []
    for _ in range(ROUNDS):
        began = clock(device)
        decode()
        taken.append(clock(device) - began)
    return found, min(taken)


def judge(found: Measurements) -> Finding:
    lengths = sorted({case["tokens"] for case, _ in found.entries})
    by_length = {length: found.where(tokens=length) for length in lengths}
    shortest, longest = (by_length[length].mean("speed_up") for length in (lengths[0], lengths[-1]))
    difference = max(found.values("difference"))
    faster, grows, equal = longest >= FASTER, longest >= GROWS * shortest, difference <= EQUAL
    verdict = Verdict.HOLDS if faster and grows and equal else Verdict.IN_PART
    if not equal or not (faster or grows):
        verdict = Verdict.NOT_HERE
    return Finding(
        measured=f"{by_length[lengths[-1]].spread('speed_up', '.1f')} times as fast at {lengths[-1]} tokens, "
        f"{by_length[lengths[0]].spread('speed_up', '.1f')} at {lengths[0]}; logits differ by {difference:.1e}",
        verdict=verdict,
        reason=f"{longest:.1f} times at the longest ({FASTER:g} asked), {longest / shortest:.1f} times the gain of the "
        f"shortest ({GROWS:g} asked), and the logits {'agree' if equal else 'do not agree'} to {EQUAL:g}",
        table=ResultTable(
            ("tokens", "seconds with a cache", "seconds without", "speed-up"),
            [length_row(length, each) for length, each in by_length.items()],
        ),
        plots=[cache_plot(by_length)],
    )


def length_row(length: int, each: Measurements) -> tuple[str, ...]:
    return (str(length), each.spread("with_cache"), each.spread("without"), each.spread("speed_up", ".1f"))


def cache_plot(by_length: dict[int, Measurements]) -> Plot:
    names = {"with a cache": "with_cache", "without": "without"}
    lines = {text: [(length, each.mean(name)) for length, each in by_length.items()] for text, name in names.items()}
    return Plot("time to decode a text", "tokens", "seconds", lines, log_across=True, log_up=True)


CLAIM = Claim(
    name="kv-cache",
    claim="A KV cache makes decoding faster, and the longer the text, the more so",
    lecture="L3",
    source="the lecture's slide on key/value caching",
    quoted="a decode step costs O(T) with a cache and O(T^2) without",
    method=f"{DEPTH} causal rotary layers of width {WIDTH} on the CPU, batch 1: a text processed token by token with "
    f"a growing cache, and recomputed from its beginning at every token; processor time of the fastest of "
    f"{ROUNDS} rounds",
    cost="33 s of one core",
    cases=cases,
    measure=measure,
    judge=judge,
    measures_time=lambda case: True,
)
