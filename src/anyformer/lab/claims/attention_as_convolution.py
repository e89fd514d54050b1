"""Self-attention expresses every convolution: a head for each cell of the kernel (L4; R87)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from anyformer.inspection.convolution import attention_from_convolution
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict

KERNELS = (1, 3, 5)
SHARPNESS = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 1000.0)
EXACT, CLEAR = 1e-9, 1e-2


def cases(full: bool) -> list[Case]:
    seeds = range(10 if full else 3)
    return [{"kernel": k, "sharpness": s, "seed": seed} for k in KERNELS for s in SHARPNESS for seed in seeds]


def measure(case: Case) -> Result:
    kernel, generator = case["kernel"], torch.Generator().manual_seed(case["seed"])
    weight = torch.randn(4, 3, kernel, kernel, generator=generator, dtype=torch.float64)
    bias = torch.randn(4, generator=generator, dtype=torch.float64)
    pixels = torch.randn(2, 3, 8, 9, generator=generator, dtype=torch.float64)
    layer = attention_from_convolution(weight, bias, sharpness=case["sharpness"])
    with torch.no_grad():
        wanted = F.conv2d(pixels, weight, bias, padding="same")
        gap = (layer(pixels) - wanted).abs().max().item()
        layer.attention.out.weight[:, :3] = 0.0  # the control: the first of the K x K heads is ablated
        without = (layer(pixels) - wanted).abs().max().item()
    return {"gap": gap, "without_a_head": without, "heads": layer.attention.spec.heads}


def judge(found: Measurements) -> Finding:
    by_kernel = {kernel: found.where(kernel=kernel) for kernel in KERNELS}
    hard = found.where(sharpness=SHARPNESS[-1])
    exact, needed = max(hard.values("gap")), min(hard.values("without_a_head"))
    soft = min(found.where(kernel=3, sharpness=SHARPNESS[0]).values("gap"))
    heads = all(set(each.values("heads")) == {kernel**2} for kernel, each in by_kernel.items())
    holds = exact <= EXACT and needed >= CLEAR and soft >= CLEAR and heads
    said = f"a head less is off by {needed:.2g} or more, soft heads (sharpness {SHARPNESS[0]:g}) by {soft:.2g} or more"
    if holds:
        reason = f"K x K heads are the convolution within {EXACT:g}, borders too; {said}"
    else:
        reason = f"a bound is broken: {EXACT:g} for hard heads ({exact:.1e}), {CLEAR:g} for the controls; {said}"
    lines = {
        f"{kernel} x {kernel}": [(s, max(each.where(sharpness=s).values("gap"))) for s in SHARPNESS]
        for kernel, each in by_kernel.items()
        if kernel > 1  # a single cell is exact at any sharpness; its line would lie on the axis
    }
    return Finding(
        measured=f"|attention - convolution| {exact:.1e} at most for kernels {', '.join(map(str, KERNELS))}",
        verdict=Verdict.HOLDS if holds else Verdict.IN_PART if exact <= EXACT else Verdict.NOT_HERE,
        reason=reason,
        table=ResultTable(
            ("kernel", "heads", "|attention - convolution|", "with a head less"),
            [
                (f"{k} x {k}", str(k**2), each.spread("gap", ".2g"), each.spread("without_a_head", ".2g"))
                for k, each in ((k, hard.where(kernel=k)) for k in KERNELS)
            ],
        ),
        plots=(
            Plot(
                "Harder heads come nearer", "sharpness of the heads", "largest difference from the convolution",
                lines, log_across=True, log_up=True,
            ),
        ),
    )  # fmt: skip


CLAIM = Claim(
    name="attention-as-convolution",
    claim="Self-attention can express any convolution",
    lecture="L4",
    source="1911.03584, theorem 1",
    quoted="K x K heads with relative positions express a K x K convolution",
    method="random kernels of size 1, 3 and 5 with bias, on whole 8 x 9 images in float64; attention heads from soft "
    "to sharp",
    cost="1 s of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)
