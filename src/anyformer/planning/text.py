"""A plan as text for the terminal, and explanations of its figures."""

from __future__ import annotations

from collections.abc import Callable

from anyformer.amounts import binary_bytes, count_text
from anyformer.errors import UserError, did_you_mean
from anyformer.planning.model_plan import ModelPlan
from anyformer.planning.scaling import LAWS, Optimum

WIDTH = 14  # of the left column


def duration(seconds: float) -> str:
    """A readable duration.

    >>> duration(0.0612), duration(7200.0)
    ('61.2 ms', '2 h')
    """
    for name, unit in (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= (2 if name == "days" else 1) * unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e6:.3g} us"


def line(name: str, words: str) -> str:
    return f"{name:<{WIDTH}} {words}"


def plan_text(plan: ModelPlan) -> str:
    """The whole plan, a few lines per topic."""
    lines = [line("model", f"{plan.name}: {plan.batch} x {plan.length} tokens, "
                  f"{str(plan.dtype).removeprefix('torch.')}, {plan.device.title}")]  # fmt: skip
    for _, make in SECTIONS.values():
        lines += make(plan)
    return "\n".join(lines)


def parameters_text(plan: ModelPlan) -> list[str]:
    count = plan.parameters
    shares = [f"{name} {count_text(number)} ({number / max(1, count.total):.0%})"
              for name, number in count.by_part.items() if number]  # fmt: skip
    found = [line("parameters", f"{count.total:,}: {', '.join(shares)}")]
    if count.active != count.total:
        found.append(line("", f"{count.active:,} active for each token"))
    if count.learning != count.total:
        found.append(line("", f"{count.learning:,} learn"))
    return found


def flops_text(plan: ModelPlan) -> list[str]:
    each = ", ".join(f"{name} {count_text(number, 'FLOP')}" for name, number in plan.flops.items())
    found = [line("a token", each)]
    total = max(1, plan.costs.forward.flops)
    shares = [f"{name} {number / total:.0%}" for name, number in plan.costs.forward.by_part().items() if number]
    found.append(line("", f"forward: {', '.join(shares)}"))
    if plan.costs.forward.fourier:
        found.append(line("", f"beside them {count_text(plan.costs.forward.fourier, 'FLOP')} of Fourier transforms"))
    return found


def memory_text(plan: ModelPlan) -> list[str]:
    memory = plan.memory
    verdict = "fits" if plan.fits else "does not fit"
    found = [
        line("training", f"{binary_bytes(memory.peak)} at the peak, {verdict} in {binary_bytes(plan.device.memory)}; "
             f"{binary_bytes(memory.peak_recomputed)} with recomputation"),
        line("", f"weights {binary_bytes(memory.weights)}, gradients {binary_bytes(memory.gradients)}, optimizer "
             f"{binary_bytes(memory.optimizer)}, activations {binary_bytes(memory.activations)} (recomputed "
             f"{binary_bytes(memory.recomputed)})" + (f", logits {binary_bytes(memory.loss)}" if memory.loss else "")),
    ]  # fmt: skip
    return found


def cache_text(plan: ModelPlan) -> list[str]:
    if plan.decode is None:
        return []
    each = plan.costs.cache / plan.batch / plan.length
    found = [
        line("KV cache", f"{binary_bytes(each)} a token and row, {binary_bytes(plan.caches[0].bytes)} for this batch")
    ]
    found += [line("", f"{cache.kind}: {binary_bytes(cache.bytes)}, {cache.note}") for cache in plan.caches[1:]]
    alone, full = plan.compute_bound_batch, plan.compute_bound_batch_with_cache
    with_cache = f"with full caches from {full:,}" if full is not None else "with full caches never"
    found.append(line("decoding", f"bound by products from {alone:,} rows, {with_cache}"))
    return found


def time_text(plan: ModelPlan) -> list[str]:
    step = plan.step
    found = [
        line("step", f"{duration(step.total)}: {count_text(plan.tokens_per_second)} tokens a second, "
             f"MFU {plan.mfu:.0%}"),
        line("", f"products {duration(step.products)}, attention {duration(step.attention)}, traffic "
             f"{duration(step.traffic)}, launches {duration(step.launches)}, update {duration(step.update)}"),
        line("prefill", f"{duration(plan.prefill.total)} for {plan.tokens:,} tokens"),
    ]  # fmt: skip
    if plan.decode is not None:
        found.append(line("decode step", f"{duration(plan.decode.total)}: {plan.decode_tokens_per_second:,.0f} "
                          "tokens a second"))  # fmt: skip
    if plan.hours is not None and plan.train_tokens is not None and plan.train_flops is not None:
        cost = "" if plan.cost is None else f", {plan.cost:,.2f} dollars at {plan.price} an hour"
        parts = f"{plan.parts} x " if plan.parts > 1 else ""
        steps = "" if plan.steps is None else f"{plan.steps:,} steps of {parts}{plan.tokens:,}: "
        found.append(line("whole run", f"{steps}{count_text(plan.train_tokens)} tokens, {plan.train_flops:.3g} FLOPs, "
                          f"in {duration(plan.hours * 3600)}{cost}"))  # fmt: skip
    return found


def split_text(plan: ModelPlan) -> list[str]:
    found = []
    for split in plan.splits:
        low, high = split.seconds
        found.append(line(split.kind, f"{plan.processes} processes: {binary_bytes(split.memory)} each, "
                          f"{binary_bytes(split.sent)} sent a step, {split.rows} rows in {duration(low)} "
                          f"to {duration(high)}"))  # fmt: skip
    return found


def budget_text(optima: list[Optimum]) -> str:
    """The compute-optimal size and tokens for a budget, by each law."""
    lines = [line("budget", f"{optima[0].flops:.3g} FLOPs")]
    for one in optima:
        loss = "" if one.loss is None else f", loss {one.loss:.3f}"
        lines.append(line(one.law, f"{count_text(one.parameters)} parameters, {count_text(one.tokens)} tokens "
                          f"({one.ratio:.1f} a parameter){loss}"))  # fmt: skip
        lines.append(line("", LAWS[one.law].source))
    return "\n".join(lines)


# Each topic with an explanation of its figures.
SECTIONS: dict[str, tuple[str, Callable[[ModelPlan], list[str]]]] = {
    "parameters": (
        "Counted from the network built on meta: every stored number once, under the part that stores it. Of a "
        "mixture of experts, active leaves out the experts that a token does not choose.", parameters_text),
    "flops": (
        "Two for every multiply-add of products, convolutions and attention, from the shapes of a pass on meta; "
        "attention counts all pairs of queries and keys, hidden ones too, as torch's counter does. Training is forward "
        "and backward. Norms, activations and softmaxes are bytes, not FLOPs.", flops_text),
    "memory": (
        "Weights in the type of the products, with a master copy in float32 where that is bf16; gradients in float32; "
        "two means of AdamW in float32; activations: every tensor that autograd keeps, each storage once. The peak is "
        "the larger of two moments: all activations and no gradient yet, or the other way round. Recomputed keeps the "
        "input of every layer and the inside of one.", memory_text),
    "cache": (
        "The decoding state after a pass on meta: 2 x layers x key/value heads x channels x bytes a token. Products "
        "bind a decode step once reading the weights takes less time than multiplying them for all rows; a cache is "
        "read by its own row alone, so long texts may never get there.", cache_text),
    "time": (
        "Every product takes (FLOPs / rate + bytes / bandwidth) / share; attention its visible pairs at a share of "
        "that rate; all other operations a share of their bytes, as they are fused on a GPU; each product a launch; "
        "the optimizer its bytes.", time_text),
    "split": (
        "DDP averages gradients: 2 (n-1)/n of their bytes. FSDP2 gathers weights twice and scatters gradients. Tensor "
        "parallelism sums the stream twice a layer, forward and backward. The first time hides sending behind work, "
        "the second hides nothing.", split_text),
}  # fmt: skip


def explain(plan: ModelPlan, part: str) -> str:
    """One topic: the explanation and the figures."""
    if part not in SECTIONS:
        raise UserError(f"nothing is called {part!r}", where="--explain", fix=did_you_mean(part, SECTIONS))
    rule, make = SECTIONS[part]
    source = [line("ceilings", plan.device.source)] if part in ("time", "cache", "split") else []
    found = make(plan) or [line(part, "nothing for this model; --processes 4 shows a split" if part == "split"
                                else "nothing for this model")]  # fmt: skip
    return "\n".join([rule, "", *found, *source])
