"""Trust checks: do the recomputed maps and the lens agree with the recorded pass?

A map is computed from queries and keys after the pass, not by the kernel that ran. So each capture is checked: the row
sums of its maps, the maps times the values against each mixer's output, and the last layer's lens against the logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core.attend import spread
from anyformer.inspection.lens import readout_of, why_no_lens

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture
    from anyformer.inspection.site import Site
    from anyformer.mixers.attention import AttentionInputs

# Largest difference relative to the largest value. Maps are computed in float32 whatever the model's dtype: what
# remains is half precision's rounding in the kernel and the output projection, three or four units.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
ROW_SUM = 1e-5  # of weights in float32, for every dtype of the model
MOST_ROWS = 256  # checked queries per site: the first and the last of a longer input


@dataclass(frozen=True)
class TrustCheck:
    """One check: the largest difference, and its tolerance."""

    name: str
    value: float
    tolerance: float
    where: str = ""  # where the largest difference is

    @property
    def ok(self) -> bool:
        return self.value <= self.tolerance  # nan is not


@dataclass(frozen=True)
class Trust:
    """All checks of a capture."""

    checks: tuple[TrustCheck, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def text(self) -> str:
        """One line per check."""
        return "\n".join(
            f"{'ok ' if check.ok else 'no '} {check.name:<44}{check.value:>10.1e}  of {check.tolerance:.0e}"
            + (f"  {check.where}" if check.where else "")
            for check in self.checks
        )


@torch.no_grad()
def trust_of(capture: Capture) -> Trust:
    """Check a capture; what cannot be checked (a mixer without values, a network without a lens) is left out."""
    tolerance = TOLERANCE.get(dtype_of(capture), 1e-5)
    sums, outputs = [], []
    for site in capture.sites:
        if site.kind == "other":
            continue
        given = capture.inputs_of(site.index)
        for rows in measured_rows(len(capture.axes[site.queries])):
            weights = capture.weights(site.index, rows=rows)  # (H,t,S)
            sums.append((row_error(weights), site.label))
            if given is not None:
                outputs.append((output_error(capture, site, given, weights, rows), site.label))
    checks = [worst("Rows of the maps sum to 1", sums, ROW_SUM)] if sums else []
    checks += [worst("Maps times values give the mixers' outputs", outputs, tolerance)] if outputs else []
    if why_no_lens(capture.model) is None:
        checks.append(TrustCheck("Lens of the last layer gives the logits", lens_error(capture), tolerance))
    return Trust(tuple(checks))


def dtype_of(capture: Capture) -> torch.dtype:
    """The model's compute dtype."""
    return next((call.out.dtype for call in capture.found.mixers if call.out is not None), torch.float32)


def measured_rows(queries: int) -> Iterator[slice]:
    """All queries, or the first and the last of many."""
    if queries <= MOST_ROWS:
        yield slice(0, queries)
    else:
        yield slice(0, MOST_ROWS // 2)
        yield slice(queries - MOST_ROWS // 2, queries)


def worst(name: str, found: list[tuple[float, str]], tolerance: float) -> TrustCheck:
    value, where = max(found, key=lambda one: float("inf") if one[0] != one[0] else one[0])
    return TrustCheck(name, value, tolerance, where)


def row_error(weights: Tensor) -> float:
    """Largest deviation of row sums from 1; rows of zeros, from fully masked queries, are valid."""
    total = weights.double().sum(-1)
    return float(torch.where(total == 0, 0.0, (total - 1).abs()).max())


def output_error(capture: Capture, site: Site, given: AttentionInputs, weights: Tensor, rows: slice) -> float:
    """Error of weights times values through the output projection, against the mixer's recorded output."""
    module: Any = capture.found.mixers[site.index].module
    own = capture.fused(site.index)
    own = own[min(capture.row, len(own) - 1), rows]  # (t,D)
    values = spread(given.v, given.q.shape[1])[0].float()  # (H,S,C')
    weights = weights.to(values.device)
    mixed = weights @ values  # (H,t,C')
    relative, scores = given.scores.relative, given.scores
    if relative is not None and relative.needs_weights:
        assert scores.query_positions is not None and scores.key_positions is not None
        here = scores.query_positions[:, rows]
        extra = relative.values(weights[None], scores.tables, here, scores.key_positions)
        mixed = mixed if extra is None else mixed + extra[0]
    made = module.out(mixed.transpose(0, 1).flatten(1).to(own.dtype))  # (t,D)
    return relative_error(made, own)


def lens_error(capture: Capture) -> float:
    """Error of the head's logits from the last residual stream, against the recorded logits."""
    readout = readout_of(capture.model, capture.output.context)
    own = capture.output.logits
    made = readout.logits(capture.residuals(readout.stack)[-1])
    return relative_error(made.reshape(own.shape), own)


def relative_error(made: Tensor, own: Tensor) -> float:
    """The largest difference relative to the largest value."""
    made, own = made.double(), own.double()
    return float((made - own).abs().max() / own.abs().max().clamp(min=1e-12))
