"""One masked pass trains all positions at once: it equals T separate passes, and is faster (L3; R79)."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core.block import Block
from anyformer.core.model import Model, ModelModule
from anyformer.core.stack import Stack
from anyformer.embeds import Tokens
from anyformer.heads import LM
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict
from anyformer.mixers import Attention
from anyformer.positions import Sinusoid

VOCAB, WIDTH, DEPTH = 50, 32, 2
EXACT, CLEAR, FASTER = 1e-6, 1e-2, 2.0


def cases(full: bool) -> list[Case]:
    lengths = (8, 32, 128, 512) if full else (8, 32, 128)
    return [{"length": length, "seed": seed} for length in lengths for seed in range(5 if full else 3)]


def network(causal: bool) -> Model:
    stack = Stack(width=WIDTH, depth=DEPTH, causal=causal, block=Block(mixer=Attention(heads=4)))
    return Model(embed=Tokens(vocab=VOCAB, position=Sinusoid()), stack=stack, head=LM(tied=False))


def fresh(seed: int, *, causal: bool) -> ModelModule:
    net = network(causal).build(seed=seed, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():  # weights as large as trained ones: at initialisation all losses are near chance
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return net


def measure(case: Case) -> Result:
    tokens = torch.randint(VOCAB, (1, case["length"] + 1), generator=torch.Generator().manual_seed(case["seed"]))
    net = fresh(case["seed"], causal=True)
    whole, whole_gradients, whole_seconds = timed(net, lambda: at_once(net, tokens))
    apart, apart_gradients, apart_seconds = timed(net, lambda: one_by_one(net, tokens))
    unmasked = fresh(case["seed"], causal=False)
    with torch.no_grad():
        # compared token by token: in a sum over the text, errors of opposite sign would cancel
        seen = (at_once(unmasked, tokens) - one_by_one(unmasked, tokens)).abs().mean().item()
    return {
        "loss": abs(whole - apart) / abs(apart),
        "gradient": ((whole_gradients - apart_gradients).abs().max() / apart_gradients.abs().max()).item(),
        "unmasked": seen * case["length"] / abs(apart),
        "speed_up": apart_seconds / whole_seconds,
    }


def at_once(net: ModelModule, tokens: Tensor) -> Tensor:
    """The losses (T,) of all next tokens in one pass."""
    logits = net(tokens[:, :-1]).logits
    assert logits is not None
    return F.cross_entropy(logits[0], tokens[0, 1:], reduction="none")


def one_by_one(net: ModelModule, tokens: Tensor) -> Tensor:
    """The same from a separate pass for every next token, which is given only the tokens before it."""
    losses = []
    for end in range(1, tokens.shape[1]):
        logits = net(tokens[:, :end]).logits
        assert logits is not None
        losses.append(F.cross_entropy(logits[0, -1:], tokens[0, end : end + 1], reduction="none"))
    return torch.cat(losses)


def timed(net: ModelModule, losses_of: Callable[[], Tensor]) -> tuple[float, Tensor, float]:
    """Summed loss, all gradients as one vector, and the seconds of the fastest of five forward and backward passes."""
    seconds = []
    for _ in range(5):
        net.zero_grad()
        began = time.perf_counter()
        loss = losses_of().sum()
        loss.backward()
        seconds.append(time.perf_counter() - began)
    gradients = [parameter.grad.flatten() for parameter in net.parameters() if parameter.grad is not None]
    return loss.item(), torch.cat(gradients), min(seconds)


def judge(found: Measurements) -> Finding:
    lengths = sorted({case["length"] for case, _ in found.entries})
    loss, gradient = max(found.values("loss")), max(found.values("gradient"))
    unmasked, longest = min(found.values("unmasked")), found.where(length=lengths[-1])
    slowest = min(longest.values("speed_up"))
    equal = loss <= EXACT and gradient <= EXACT and unmasked >= CLEAR
    faster = slowest >= FASTER
    verdict = Verdict.HOLDS if equal and faster else Verdict.IN_PART if equal else Verdict.NOT_HERE
    return Finding(
        measured=f"loss equal to {loss:.1e}, gradients to {gradient:.1e}; "
        f"{longest.spread('speed_up')} times as fast at {lengths[-1]} tokens",
        verdict=verdict,
        reason=f"largest difference {max(loss, gradient):.1e} (bound {EXACT:g}), {unmasked:.2g} without the mask "
        f"(at least {CLEAR:g}), lowest speed-up at {lengths[-1]} tokens {slowest:.3g} (bound {FASTER:g})",
        table=ResultTable(
            ("tokens", "loss differs", "gradients differ", "loss differs unmasked", "speed-up"), rows(found)
        ),
        plots=[plot(found, lengths)],
    )


def rows(found: Measurements) -> list[tuple[str, ...]]:
    out = []
    for length in sorted({case["length"] for case, _ in found.entries}):
        some = found.where(length=length)
        worst = [f"{max(some.values(name)):.1e}" for name in ("loss", "gradient")]
        out.append((str(length), *worst, f"{min(some.values('unmasked')):.2g}", some.spread("speed_up")))
    return out


def plot(found: Measurements, lengths: list[int]) -> Plot:
    measured = [(float(length), found.where(length=length).mean("speed_up")) for length in lengths]
    # Separate passes compute 1 + 2 + ... + T tokens, one pass computes T.
    counted = [(float(length), (length + 1) / 2) for length in lengths]
    lines = {"measured": measured, "tokens computed": counted}
    return Plot("Speed-up of one masked pass", "tokens", "times", lines, log_across=True, log_up=True)


CLAIM = Claim(
    name="all-positions",
    claim="With a causal mask, one pass trains all positions of a text",
    lecture="L3",
    source="HSE and Yandex Research, masked self-attention",
    quoted="no figure; the loss is the sum over all next tokens",
    method="two causal blocks in float64: loss, gradients and seconds of one pass against a separate pass for every "
    "next token; without the mask as a control",
    cost="4 s of one core",
    cases=cases,
    measure=measure,
    judge=judge,
    measures_time=lambda case: True,
)
