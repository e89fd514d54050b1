"""Sinusoids are a smooth binary counter, and a shift by k is one fixed rotation (L1, L3; R19, R26, W03)."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict
from anyformer.positions.sinusoid import sinusoid

WORKED_EXAMPLE = {  # W03, width 8
    2: (0.909297, -0.416147, 0.198669, 0.980067, 0.019999, 0.999800, 0.002000, 0.999998),
    50: (-0.262375, 0.964966, -0.958924, 0.283662, 0.479426, 0.877583, 0.049979, 0.998750),
}
LENGTH, BITS = 4096, 4
PRINTED, EXACT, FITTED, CLEAR = 1e-6, 1e-9, 1e-6, 0.1
FARTHEST = 64


def cases(full: bool) -> list[Case]:
    widths, steps = ((8, 64, 512), (1, 2, 17, 1000)) if full else ((8, 64), (1, 17))
    return [{"width": width, "step": step} for width in widths for step in steps]


def measure(case: Case) -> Result:
    width, step = case["width"], case["step"]
    table = rows(torch.arange(LENGTH), width)  # (T,D)
    noise = torch.randn(table.shape, generator=torch.Generator().manual_seed(width), dtype=torch.float64)
    turned = table[:-step] @ rotation(step, width).T
    return {
        "rotation": (turned - table[step:]).abs().max().item(),
        "fitted": held_out_error(table, step),
        "fitted_noise": held_out_error(noise / noise.std(), step),
        "printed": max(printed_error(at) for at in WORKED_EXAMPLE),
        "wrong_bits": wrong_bits(),
        "flips": sign_flips(table),
        "similarity": (table[0] @ table[:FARTHEST].T * 2 / width).tolist(),
    }


def rows(positions: Tensor, width: int, base: float = 10000.0) -> Tensor:
    return sinusoid(positions[None], width, torch.float64, base)[0]  # (T,D)


def rotation(step: int, width: int) -> Tensor:
    """The matrix (D,D) that rotates each pair (sin, cos) by step times its frequency, whatever the position."""
    turns = torch.zeros(width, width, dtype=torch.float64)
    for pair in range(0, width, 2):
        angle = step * 10000.0 ** (-pair / width)
        cos, sin = math.cos(angle), math.sin(angle)
        turns[pair : pair + 2, pair : pair + 2] = torch.tensor([[cos, sin], [-sin, cos]], dtype=torch.float64)
    return turns


def held_out_error(table: Tensor, step: int) -> float:
    """Fit one linear map from row p to row p + step on every second p; the error on the others, relative to a row."""
    before, after = table[:-step], table[step:]
    fitted = torch.linalg.lstsq(before[::2], after[::2], driver="gelsd").solution
    missed = before[1::2] @ fitted - after[1::2]
    return (missed.norm() / after[1::2].norm()).item()


def printed_error(position: int) -> float:
    expected = torch.tensor(WORKED_EXAMPLE[position], dtype=torch.float64)
    return (rows(torch.tensor([position]), 8)[0] - expected).abs().max().item()


def counter_signs() -> Tensor:
    """Sinusoids whose frequencies halve from pair to pair, at half-integer positions: bit b is the sign of sine b."""
    halving = rows((torch.arange(2**BITS) + 0.5) * math.pi, 2 * BITS, base=2.0**BITS)
    return halving[:, 0::2]  # (T,bits)


def binary_table() -> Tensor:
    """The bits of 0 .. 15, lowest first."""
    return torch.arange(2**BITS)[:, None] >> torch.arange(BITS) & 1


def wrong_bits() -> int:
    return int(((counter_signs() < 0).long() != binary_table()).sum())


def sign_flips(table: Tensor) -> list[int]:
    """How often each sine changes its sign over all positions: a counter's bit b flips 1/2^b as often as the lowest."""
    signs = table[1:, 0::2] > 0  # position 0 has sine 0, no sign
    return (signs[1:] != signs[:-1]).sum(0).tolist()


def judge(found: Measurements) -> Finding:
    printed, turned, fitted = (max(found.values(name)) for name in ("printed", "rotation", "fitted"))
    noise = min(found.values("fitted_noise"))
    wrong = max(found.values("wrong_bits"))
    fixed = turned <= EXACT and fitted <= FITTED and noise >= CLEAR
    counts = wrong == 0 and all(falls(flips) for flips in found.values("flips"))
    verdict = Verdict.HOLDS if fixed and counts and printed <= PRINTED else Verdict.IN_PART
    if not fixed and not counts:
        verdict = Verdict.NOT_HERE
    reason = (
        f"one matrix a step serves all {LENGTH} positions (bound {EXACT:g}; fitted on half of them, {FITTED:g} on the "
        f"rest), a table of noise has none ({noise:.2g} of its size is missed); {wrong} of {BITS * 2**BITS} bits differ"
    )
    return Finding(
        measured=f"|PE(p+k) - R_k PE(p)| at most {turned:.1e}, fitted map misses {fitted:.1e} against {noise:.2g} for "
        f"noise; signs give {wrong} wrong bits; W03 to {printed:.1e}",
        verdict=verdict,
        reason=reason if verdict is Verdict.HOLDS else f"a bound is broken: {reason}; W03 misses by {printed:.1e}",
        table=ResultTable(
            ("width", "k", "rotation error", "fitted map", "fitted to noise", "sign changes of the sines"),
            [case_row(case, result) for case, result in found.entries],
        ),
        plots=[counter_plot(), similarity_plot(found)],
    )


def falls(flips: list[int]) -> bool:
    """Whether every sine flips at most as often as the one before it."""
    return all(later <= sooner for sooner, later in pairwise(flips))


def case_row(case: Case, result: Result) -> tuple[str, ...]:
    first = ", ".join(str(count) for count in result["flips"][:4])
    errors = (f"{result['rotation']:.1e}", f"{result['fitted']:.1e}", f"{result['fitted_noise']:.2g}")
    return (str(case["width"]), str(case["step"]), *errors, first + " ...")


def counter_plot() -> Plot:
    signs = counter_signs()
    curves = {f"sine of bit {bit}": list(enumerate(signs[:, bit].tolist())) for bit in range(BITS)}
    return Plot("sinusoids as a binary counter (below 0: the bit is 1)", "position", "value", curves)


def similarity_plot(found: Measurements) -> Plot:
    by_width = {f"width {case['width']}": list(enumerate(result["similarity"])) for case, result in found.entries}
    return Plot("dot product by distance", "distance", "share of the largest", by_width)


CLAIM = Claim(
    name="sinusoids",
    claim="Sinusoidal positions are a smooth binary counter, and PE(p+k) is a fixed rotation of PE(p)",
    lecture="L1",
    source="1706.03762, section 3.5; the slide's table of 0 to 15 in binary",
    quoted="PE(pos+k) can be represented as a linear function of PE(pos)",
    method=f"{LENGTH} positions in float64: the rotation from the formula; one linear map fitted on half the "
    "positions and tested on the rest, and the same for noise; the signs of sinusoids with halving frequencies "
    "against the bits of 0 to 15; the values of W03",
    cost="1 s of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)
