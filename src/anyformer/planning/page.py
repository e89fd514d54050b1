"""A plan as a self-contained HTML page, with a roofline."""

from __future__ import annotations

import math
from pathlib import Path

from anyformer.amounts import binary_bytes, count_text
from anyformer.evaluation.page import Cell, document, picture, section, table, words
from anyformer.evaluation.svg import figure, label, tag
from anyformer.planning.model_plan import ModelPlan
from anyformer.planning.scaling import LAWS, Optimum
from anyformer.planning.text import SECTIONS, duration
from anyformer.safe_files import replace_file

BOX = (720.0, 340.0)
LEFT, TOP, RIGHT, BOTTOM = 70.0, 20.0, 20.0, 50.0


def plan_page(plan: ModelPlan, optima: list[Optimum] | None = None) -> str:
    """The HTML of a plan."""
    title = f"Plan: {plan.name}"
    what = f"{plan.batch} x {plan.length} tokens, {str(plan.dtype).removeprefix('torch.')}, {plan.device.title}"
    source = f"<p>Ceilings: {words(plan.device.source)}.</p>"
    parts = [
        ("parameters", "Parameters", parameters_table(plan) + rule("parameters")),
        ("flops", "FLOPs", flops_table(plan) + rule("flops")),
        ("memory", "Memory in training", memory_table(plan) + rule("memory")),
        ("cache", "KV cache", cache_table(plan)),
        ("time", "Time", time_table(plan) + roofline(plan) + rule("time") + source),
        ("split", "Over several processes", split_table(plan)),
        ("budget", "Scaling laws", budget_table(optima or [])),
    ]
    links = [(name, heading) for name, heading, inside in parts if inside]
    body = "".join(section(name, heading, inside) for name, heading, inside in parts)
    foot = "<p>One file, no script, nothing loaded from elsewhere. Nothing was allocated to make it.</p>"
    head = f"<h1>{words(title)}</h1><p>{words(what)}</p>"
    return document(title, head, links, body, foot)


def write_page(plan: ModelPlan, path: str | Path, optima: list[Optimum] | None = None) -> Path:
    """Write the page to a file."""
    replace_file(Path(path), plan_page(plan, optima))
    return Path(path)


def rule(name: str) -> str:
    return f"<p>{words(SECTIONS[name][0])}</p>"


def n(value: str) -> Cell:
    """A right-aligned table cell."""
    return words(value), "n"


def parameters_table(plan: ModelPlan) -> str:
    count = plan.parameters
    rows = [(words(name), n(f"{number:,}"), n(f"{number / max(1, count.total):.1%}"))
            for name, number in count.by_part.items() if number]  # fmt: skip
    rows.append((words("all"), n(f"{count.total:,}"), n("100%")))
    if count.active != count.total:
        rows.append((words("active for a token"), n(f"{count.active:,}"), n(f"{count.active / count.total:.1%}")))
    return table(("part", "parameters", "share"), rows)


def flops_table(plan: ModelPlan) -> str:
    each = table(
        ("a token", "FLOPs"), [(words(name), n(count_text(number, "FLOP"))) for name, number in plan.flops.items()]
    )
    total = max(1, plan.costs.forward.flops)
    rows = [(words(name), n(count_text(number, "FLOP")), n(f"{number / total:.1%}"))
            for name, number in plan.costs.forward.by_part().items() if number]  # fmt: skip
    return each + table(("part, forward", "FLOPs of the batch", "share"), rows)


def memory_table(plan: ModelPlan) -> str:
    memory = plan.memory
    rows = [(words(name), n(binary_bytes(number))) for name, number in (
        ("weights", memory.weights), ("gradients", memory.gradients), ("optimizer", memory.optimizer),
        ("activations", memory.activations), ("activations, recomputed", memory.recomputed), ("logits", memory.loss),
        ("peak", memory.peak), ("peak with recomputation", memory.peak_recomputed), ("device", plan.device.memory),
    )]  # fmt: skip
    return table(("what", "size"), rows)


def cache_table(plan: ModelPlan) -> str:
    if plan.decode is None:
        return ""
    rows = [(words(cache.kind), n(binary_bytes(cache.bytes)), words(cache.note)) for cache in plan.caches]
    alone, full = plan.compute_bound_batch, plan.compute_bound_batch_with_cache
    says = f"Products bind decoding from {alone:,} rows"
    says += f", with full caches from {full:,}." if full is not None else "; with full caches never."
    return table(("cache", "size", ""), rows) + f"<p>{words(says)}</p>" + rule("cache")


def time_table(plan: ModelPlan) -> str:
    step = plan.step
    rows = [(words(name), n(duration(value))) for name, value in (
        ("products", step.products), ("attention", step.attention), ("traffic", step.traffic),
        ("launches", step.launches), ("optimizer", step.update), ("training step", step.total),
        ("prefill", plan.prefill.total),
    )]  # fmt: skip
    if plan.decode is not None:
        rows.append((words("decode step"), n(duration(plan.decode.total))))
    rows.append((words("tokens a second, training"), n(count_text(plan.tokens_per_second))))
    if plan.decode_tokens_per_second is not None:
        rows.append((words("tokens a second, decoding"), n(count_text(plan.decode_tokens_per_second))))
    rows.append((words("MFU"), n(f"{plan.mfu:.0%}")))
    if plan.hours is not None:
        rows.append((words("whole run"), n(duration(plan.hours * 3600))))
    if plan.cost is not None:
        rows.append((words(f"dollars at {plan.price} an hour"), n(f"{plan.cost:,.2f}")))
    return table(("what", "time"), rows)


def split_table(plan: ModelPlan) -> str:
    rows = [(words(split.kind), n(binary_bytes(split.memory)), n(binary_bytes(split.sent)), n(f"{split.rows:,}"),
             n(f"{duration(split.seconds[0])} to {duration(split.seconds[1])}"), words(split.note))
            for split in plan.splits]  # fmt: skip
    heads = (f"{plan.processes} processes", "memory of each", "sent a step", "rows", "step", "")
    return table(heads, rows) + rule("split") if rows else ""


def budget_table(optima: list[Optimum]) -> str:
    rows = [(words(one.law), n(count_text(one.parameters)), n(count_text(one.tokens)), n(f"{one.ratio:.1f}"),
             n("–" if one.loss is None else f"{one.loss:.3f}"), words(LAWS[one.law].source))
            for one in optima]  # fmt: skip
    heads = ("law", "parameters", "tokens", "tokens a parameter", "loss", "source")
    said = f"<p>The best use of {words(f'{optima[0].flops:.3g}')} FLOPs.</p>" if optima else ""
    return said + table(heads, rows) if rows else ""


def roofline(plan: ModelPlan) -> str:
    """Roofline plot: FLOP/s against FLOPs per byte, with the points of training, prefill and decoding."""
    device = plan.device
    named = [("training", plan.costs.step, plan.step.total), ("prefill", plan.costs.forward, plan.prefill.total)]
    if plan.decode is not None:
        named.append(("decode", plan.costs.decode, plan.decode.total))
    points = [(name, max(0.01, cost.flops / max(1, sum(count * op.bytes for op, count in cost.ops.items()
                                                      if op.kind != "pointwise"))), cost.flops / seconds)
              for name, cost, seconds in named if cost.flops]  # fmt: skip
    if not points:
        return ""
    low = min(0.1, *(x for _, x, _ in points))
    high = max(10 * device.balance, *(x for _, x, _ in points))
    top, floor = device.products * 2, min(device.bandwidth * low, *(y for _, _, y in points)) / 2
    width, height = BOX

    def across(x: float) -> float:
        return LEFT + (width - LEFT - RIGHT) * math.log(x / low) / math.log(high / low)

    def up(y: float) -> float:
        return height - BOTTOM - (height - TOP - BOTTOM) * math.log(y / floor) / math.log(top / floor)

    ridge = device.balance
    roof = [(low, device.bandwidth * low), (ridge, device.products), (high, device.products)]
    path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in roof)
    drawn = [
        tag("line", x1=LEFT, y1=height - BOTTOM, x2=width - RIGHT, y2=height - BOTTOM, class_="axis"),
        tag("line", x1=LEFT, y1=TOP, x2=LEFT, y2=height - BOTTOM, class_="axis"),
        tag("polyline", points=path, fill="none", stroke="currentColor", stroke_width=1.5),
        label(across(ridge), up(device.products) - 8, count_text(device.products, "FLOP/s"), anchor="middle"),
        label(width / 2, height - 12, "FLOPs a byte of products and attention", class_="name", anchor="middle"),
        label(16, height / 2, "FLOPs a second", class_="name", anchor="middle", turn=-90),
    ]
    for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1):
        drawn.append(label(across(10.0**power), height - BOTTOM + 16, count_text(10.0**power), anchor="middle"))
    for power in range(math.ceil(math.log10(floor)), math.floor(math.log10(top)) + 1):
        drawn.append(label(LEFT - 6, up(10.0**power) + 4, count_text(10.0**power, "F"), anchor="end"))
    for name, x, y in points:
        drawn.append(tag("circle", cx=across(x), cy=up(y), r=4.5, fill="currentColor"))
        above = name == "prefill"  # its point is close to that of training
        drawn.append(label(across(x) - 8 if above else across(x) + 8, up(y) + (4 if above else 14), name,
                           anchor="end" if above else "start"))  # fmt: skip
    said = "; ".join(f"{name} {x:.0f} FLOPs a byte, {count_text(y, 'FLOP/s')}" for name, x, y in points)
    return picture(figure(width, height, drawn, f"Roofline of {device.title}: {said}"),
                   words(f"The roof is what {device.title} reaches; left of its edge memory is the limit, right of it "
                         f"products are. {said}."))  # fmt: skip
