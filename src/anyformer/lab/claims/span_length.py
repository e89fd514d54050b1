"""The length of corrupted spans: T5's 1, 3 and 10 tokens, what an encoder learns and what a step costs (L3; R36)."""

from __future__ import annotations

from torch import Tensor

from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict
from anyformer.lab.fit import lab_device
from anyformer.lab.library_text import VOCAB, library_blocks
from anyformer.lab.pretraining import pretrain, probe
from anyformer.objectives import Spans
from anyformer.presets.pairs import t5

SPANS = (1, 3, 10)
LENGTH, PROBED = 48, 256
WIDTH, DEPTH, STEPS = 64, 2, 250
WIDTH_FULL, DEPTH_FULL, STEPS_FULL = 256, 4, 5000
EQUAL = 0.005  # of all tokens: probes that differ by less are equally good
TEXT = 500  # tokens of T5's own texts, for the lengths of input and target


def cases(full: bool) -> list[Case]:
    seeds = range(5 if full else 3)
    return [{"span": span, "seed": seed, "full": full} for span in (0, *SPANS) for seed in seeds]


def measure(case: Case) -> Result:
    """The probe accuracy of an encoder trained with spans of one length; 0 is an untrained encoder."""
    full, span = case["full"], case["span"]
    steps, width, depth = (STEPS_FULL, WIDTH_FULL, DEPTH_FULL) if full else (STEPS, WIDTH, DEPTH)
    learned, held_out = library_blocks(LENGTH)
    net = t5(width, depth, 4, size=width // 4, vocab=VOCAB, dropout=0.0).build(
        seed=case["seed"], device=lab_device(full)
    )

    def features(tokens: Tensor) -> Tensor:
        return net.encode(tokens.to(next(net.parameters()).device))

    if span:
        pretrain(net, Spans(mean_length=span), learned, steps=steps, seed=case["seed"], lr=2e-3)
        net.eval()
    read, written = Spans(mean_length=span or 1).longest(TEXT)
    return {"probe": probe(features, learned.some(PROBED), held_out), "read": read, "written": written}


def judge(found: Measurements) -> Finding:
    probes = {span: found.where(span=span) for span in (0, *SPANS)}
    tokens = {span: probes[span].values("read")[0] + probes[span].values("written")[0] for span in SPANS}
    means = {span: each.mean("probe") for span, each in probes.items()}
    learned = min(means[span] for span in SPANS) > means[0]
    cheaper = tokens[3] < tokens[1] and tokens[10] < tokens[3]
    as_good = means[3] >= means[1] - EQUAL
    too_long = means[10] < means[3] - EQUAL
    if learned and cheaper and as_good:
        verdict = Verdict.HOLDS if too_long else Verdict.IN_PART
    else:
        verdict = Verdict.NOT_HERE
    return Finding(
        measured="probe "
        + ", ".join(f"span {span} {each.spread('probe', '.1%')}" for span, each in probes.items() if span)
        + f"; untrained {probes[0].spread('probe', '.1%')}",
        verdict=verdict,
        reason=f"a text of {TEXT} tokens is {tokens[1]}, {tokens[3]} and {tokens[10]} read and written with spans of "
        f"1, 3 and 10, so {'longer spans cost less' if cheaper else 'longer spans do not cost less'}; 3 against 1 is "
        f"{100 * (means[3] - means[1]):+.1f} points and 10 against 3 {100 * (means[10] - means[3]):+.1f}, where less "
        f"than {100 * EQUAL:g} counts as equal",
        table=ResultTable(
            ("mean span", "read", "written", "probe"),
            [row(span, probes[span]) for span in (0, *SPANS)],
        ),
        plots=[
            Plot(
                "What an encoder learned", "mean length of a lost span", "tokens told right",
                {
                    "pretrained": [(span, means[span]) for span in SPANS],
                    "untrained": [(span, means[0]) for span in SPANS],
                },
                log_across=True,
            )
        ],
    )  # fmt: skip


def row(span: int, each: Measurements) -> tuple[str, ...]:
    lengths = [str(each.values(name)[0]) if span else "-" for name in ("read", "written")]
    return (str(span) if span else "untrained", *lengths, each.spread("probe", ".1%"))


CLAIM = Claim(
    name="span-length",
    claim="Corrupted spans of about 3 tokens teach as much as single tokens and cost less; 10 is too long",
    lecture="L3",
    source="1910.10683, table 7",
    quoted="GLUE 83.28 with single tokens, 83.54, 83.49, 83.40 and 82.85 with spans of 2, 3, 5 and 10",
    method="a T5 of width 64, trained for as many steps with each span length on the source of Python's library; then "
    "a linear probe of its encoder for tokens inside strings and comments, in other files",
    cost="4 min of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)
