"""Keys and values shared by groups of heads: quality, cache, decoding speed, and conversion (L3; R13)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from statistics import mean, median

import torch
from torch import Tensor

from anyformer.checkpoints.changes import fewer_kv_heads
from anyformer.core.block import Block
from anyformer.core.model import Model, ModelModule
from anyformer.core.stack import Stack
from anyformer.embeds import Tokens
from anyformer.heads import LM
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict, spread
from anyformer.lab.claims.hyena_crossover import clock
from anyformer.lab.claims.position_lengths import LENGTH, VOCAB, perplexity, train
from anyformer.lab.fit import lab_device
from anyformer.mixers import Attention
from anyformer.positions import Rope

HEADS, SHARED = 8, {"MHA": 8, "GQA": 2, "MQA": 1}
STEPS, LONG = 400, 4000
UPTRAINED, LONGER = 0.05, 0.2  # of the steps of training; the first is the paper's
SPEED_WIDTH, SPEED_DEPTH, SPEED_VOCAB, DECODED = 256, 2, 64, 16
SAME_LOSS = 0.01  # the grouped model's loss may be so much above that of as many key/value heads as heads
FASTER = 1.25  # decoding with one key/value head against eight, where the cache is most of what is read


ByName = dict[str, list[float]]  # losses of each seed


def cases(full: bool) -> list[Case]:
    seeds, steps = (5, LONG) if full else (3, STEPS)
    trained = [{"what": "train", "seed": seed, "steps": steps} for seed in range(seeds)]
    batches, length = ((1, 8, 64), 4096) if full else ((1, 8), 1024)
    sizes = [(batch, heads) for batch in batches for heads in SHARED]
    return [*trained, *({"what": "decode", "heads": h, "batch": b, "length": length, "full": full} for b, h in sizes)]


def measure(case: Case) -> Result:
    if case["what"] == "decode":
        return decode(SHARED[case["heads"]], case["batch"], case["length"], lab_device(case["full"]))
    return trained_and_converted(case["seed"], case["steps"], lab_device(case["steps"] == LONG))


# ---------------------------------------------------------------- quality


def language_model(kv_heads: int, *, vocab: int = VOCAB, width: int = 64, depth: int = 2) -> Model:
    block = Block(mixer=Attention(heads=HEADS, kv_heads=kv_heads), relative=Rope())
    return Model(embed=Tokens(vocab=vocab), stack=Stack(width=width, depth=depth, causal=True, block=block), head=LM())


def trained_and_converted(seed: int, steps: int, device: torch.device) -> Result:
    """Losses of each kind trained from scratch, and of the first converted: at once, and after a little training."""
    scratch, first = {}, None
    for name, kv_heads in SHARED.items():
        net = language_model(kv_heads).build(seed=seed, device=device)
        train(net, steps=steps, seed=seed)
        scratch[name] = held_out(net)
        first = first or net
    assert first is not None
    converted, uptrained, longer = {}, {}, {}
    for name, kv_heads in list(SHARED.items())[1:]:
        for way, prepare in WAYS.items():
            made = fewer_kv_heads(language_model(HEADS), prepare(first, kv_heads, seed), kv_heads).model
            converted[f"{name} {way}"] = held_out(made)
            again = copy.deepcopy(made)
            uptrained[f"{name} {way}"] = trained_on(made, round(UPTRAINED * steps), seed)
            if way == "mean":
                longer[f"{name} {way}"] = trained_on(again, round(LONGER * steps), seed)
    return {"scratch": scratch, "converted": converted, "uptrained": uptrained, "longer": longer}


def trained_on(net: torch.nn.Module, steps: int, seed: int) -> float:
    train(net, steps=steps, seed=100 + seed)
    return held_out(net)


def held_out(net: torch.nn.Module) -> float:
    return math.log(perplexity(net, LENGTH))


def as_trained(net: ModelModule, kv_heads: int, seed: int) -> ModelModule:
    return net


def first_of_group(net: ModelModule, kv_heads: int, seed: int) -> ModelModule:
    """Every head of a group given the keys and values of the group's first: their mean is then that head's."""
    return with_keys_and_values(net, lambda kv: kv.unflatten(0, (kv_heads, -1))[:, :1].expand(
        -1, HEADS // kv_heads, *kv.shape[1:]).flatten(0, 1))  # fmt: skip


def untrained(net: ModelModule, kv_heads: int, seed: int) -> ModelModule:
    """New random keys and values with the size of the trained ones, one draw for each group."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(kv: Tensor) -> Tensor:
        rows = torch.randn(kv_heads, *kv.shape[1:], generator=generator).to(kv.device) * kv.std()
        return rows.repeat_interleave(HEADS // kv_heads, 0)

    return with_keys_and_values(net, drawn)


WAYS: dict[str, Callable[[ModelModule, int, int], ModelModule]] = {
    "mean": as_trained, "first head": first_of_group, "random": untrained,
}  # fmt: skip


def with_keys_and_values(net: ModelModule, change: Callable[[Tensor], Tensor]) -> ModelModule:
    """A copy whose projections of keys and values are changed, head by head (H, 2C, ...)."""
    made = copy.deepcopy(net)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if ".mixer.qkv." in name:
                by_head = parameter.unflatten(0, (HEADS, -1))
                channels = by_head.shape[1] // 3
                by_head[:, channels:] = change(by_head[:, channels:].clone())
    return made


# ---------------------------------------------------------------- cache and speed


def decode(kv_heads: int, batch: int, length: int, device: torch.device) -> Result:
    """Milliseconds of a step after `length` tokens, and the bytes of the cache then."""
    spec = language_model(kv_heads, vocab=SPEED_VOCAB, width=SPEED_WIDTH, depth=SPEED_DEPTH)
    net = spec.build(seed=0, device=device).eval()
    ids = torch.randint(SPEED_VOCAB, (batch, length), generator=torch.Generator().manual_seed(0)).to(device)
    state, taken = net.state(batch, length + DECODED), []
    with torch.no_grad():
        net(ids, state=state)
        held = state.bytes
        for _ in range(DECODED):
            began = clock(device)
            net(ids[:, :1], state=state)
            taken.append(clock(device) - began)
    # keys and values of every layer, head, channel and token, in float32
    exact = 2 * SPEED_DEPTH * kv_heads * (SPEED_WIDTH // HEADS) * 4 * length * batch
    return {"ms": 1e3 * median(taken[2:]), "bytes": held, "exact": exact}


# ---------------------------------------------------------------- judgement


def judge(found: Measurements) -> Finding:
    trained, decoded = found.where(what="train"), found.where(what="decode")
    scratch = {name: [one[name] for one in trained.values("scratch")] for name in SHARED}
    after = {key: [one[key] for one in trained.values("uptrained")] for key in trained.values("uptrained")[0]}
    at_once = {key: [one[key] for one in trained.values("converted")] for key in after}
    longer = {key: [one[key] for one in trained.values("longer")] for key in trained.values("longer")[0]}
    exact = decoded.values("bytes") == decoded.values("exact")
    largest = max(case["batch"] for case, _ in decoded.entries)
    ms = {name: decoded.where(heads=name, batch=largest).mean("ms") for name in SHARED}
    faster = ms["MHA"] / ms["MQA"]
    loss = mean(scratch["MHA"])
    gap = mean(after["GQA mean"]) / loss - 1
    ordered = all(mean(at_once[f"{n} mean"]) < mean(at_once[f"{n} {way}"])
                  for n in ("GQA", "MQA") for way in ("first head", "random"))  # fmt: skip
    good = {"equal": gap <= SAME_LOSS, "ordered": ordered, "faster": faster >= FASTER}
    verdict = Verdict.HOLDS if exact and all(good.values()) else Verdict.IN_PART
    if not exact or not any(good.values()):
        verdict = Verdict.NOT_HERE
    fewer = ", ".join(f"{n} {mean(scratch[n]) / loss - 1:+.1%}" for n in ("GQA", "MQA"))
    return Finding(
        measured=f"loss against MHA: converted GQA {mean(at_once['GQA mean']) / loss - 1:+.1%}, after {UPTRAINED:.0%} "
        f"of the steps {gap:+.1%} (MQA {mean(after['MQA mean']) / loss - 1:+.1%}); a decode step of MQA is "
        f"{faster:.1f} times as fast, the cache {HEADS} times smaller",
        verdict=verdict,
        reason=f"cache bytes are {'exact' if exact else 'not those of the formula'}; GQA converted and tuned is "
        f"{gap:+.1%} from MHA (bound {SAME_LOSS:.0%}); the mean of the heads is {'' if ordered else 'not '}better at "
        f"once than the first head and than new ones; one head of {HEADS} decodes {faster:.2f} times as fast (bound "
        f"{FASTER:g}); from scratch {fewer}; after "
        f"{LONGER:.0%} of the steps converted GQA is {mean(longer['GQA mean']) / loss - 1:+.1%}",
        table=ResultTable(
            ("model", "loss at once", *(f"after {share:.0%} more steps" for share in (UPTRAINED, LONGER))),
            rows(scratch, at_once, after, longer),
        ),
        plots=[speed_plot(decoded), conversion_plot(scratch, at_once, after)],
    )


def rows(scratch: ByName, at_once: ByName, after: ByName, longer: ByName) -> list[tuple[str, ...]]:
    made = [(f"{name} from scratch", spread(each, ".4f"), "", "") for name, each in scratch.items()]
    more = {key: spread(each, ".4f") for key, each in longer.items()}
    return [
        *made,
        *((f"MHA to {k}", spread(at_once[k], ".4f"), spread(after[k], ".4f"), more.get(k, "")) for k in after),
    ]


def speed_plot(decoded: Measurements) -> Plot:
    batches = sorted({case["batch"] for case, _ in decoded.entries})
    lines = {f"batch {batch}": [(heads, decoded.where(heads=name, batch=batch).mean("ms"))
                                for name, heads in SHARED.items()] for batch in batches}  # fmt: skip
    length = decoded.entries[0][0]["length"]
    return Plot(f"a decode step after {length} tokens", "key/value heads", "ms", lines, log_across=True)


def conversion_plot(scratch: ByName, at_once: ByName, after: ByName) -> Plot:
    few = [name for name in SHARED if name != "MHA"]
    lines = {"from scratch": [(SHARED[name], mean(each)) for name, each in scratch.items()]}
    for way in WAYS:
        lines[f"{way}, tuned"] = [(SHARED[name], mean(after[f"{name} {way}"])) for name in few]
    lines["mean, at once"] = [(SHARED[name], mean(at_once[f"{name} mean"])) for name in few]
    return Plot("loss by key/value heads", "key/value heads", "nats", lines, log_across=True)


CLAIM = Claim(
    name="grouped-heads",
    claim="When groups of heads share keys and values, the cache is smaller, decoding is faster, and quality hardly "
    "suffers",
    lecture="L3",
    source="2305.13245, table 1 and figures 3-6: T5-XXL up-trained by 5 % of its steps",
    quoted="MHA 47.2 points; GQA-8 0.1 points less and 5.4 times as fast, MQA 0.6 points less and 6.3 times as fast; "
    "initialising from the mean of the heads is better than from the first, and that better than random",
    method=f"models of {HEADS} heads with {', '.join(map(str, SHARED.values()))} key/value heads are trained on the "
    f"texts of position-lengths; the first is converted by `convert --kv-heads` and trained {UPTRAINED:.0%} longer; "
    f"decode steps of {SPEED_DEPTH} layers of width {SPEED_WIDTH} are timed after a long prompt",
    cost="5 min of one core",
    cases=cases,
    measure=measure,
    judge=judge,
    measures_time=lambda case: case["what"] == "decode",
)
