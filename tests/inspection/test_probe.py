"""Probes in training: their figures equal plain loops over the maps, and looking changes nothing of the training."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
import torch

import anyformer
from anyformer import LM, Attention, Block, Model, Rope, Stack, Tokens
from anyformer.data.reopen import reopen
from anyformer.errors import UserError
from anyformer.inspection.maps import prepared
from anyformer.inspection.probe_figures import probe_figures
from anyformer.objectives import Batch
from anyformer.training.probe import Probe
from anyformer.training.run.folder import RunFolder
from anyformer.training.run.history import history
from anyformer.training.settings import Training
from anyformer.training.setup.request import replace_paths
from tests.inspection.models import t5
from tests.inspection.runs import text_run

IDS = torch.tensor([[5, 6, 7, 5, 6, 7, 5, 6], [1, 2, 3, 4, 1, 0, 0, 0]])
MASK = torch.tensor([[True] * 8, [True] * 5 + [False] * 3])


def network():
    block = Block(mixer=Attention(heads=2, kv_heads=1), relative=Rope())
    stack = Stack(width=16, depth=2, causal=True, block=block)
    return Model(embed=Tokens(vocab=16), stack=stack, head=LM(tied=True)).build(seed=3)


def batch_of(ids, **named):
    return Batch((ids,), torch.zeros(len(ids)), torch.arange(len(ids)), named=named)


def naive(model, ids, mask):
    """Logits and weights of every layer by hand: q.k / sqrt(C), later keys and padding hidden, softmax."""
    found = {}
    for number, (_, calls) in enumerate(sorted(prepared(model, ids, options={"mask": mask}).items())):
        q, k = calls[0].q, calls[0].k.repeat_interleave(2, 1)
        entropies, logits, previous, first, induction = [], [], [[], []], [], [[], []]
        for b in range(len(ids)):
            for head in range(2):
                for i in range(int(mask[b].sum())):
                    scores = [float(q[b, head, i] @ k[b, head, j]) / math.sqrt(q.shape[-1]) for j in range(i + 1)]
                    total = sum(math.exp(score) for score in scores)
                    row = [math.exp(score) / total for score in scores]
                    logits += scores
                    entropies.append(-sum(p * math.log2(p) for p in row))
                    if i:
                        previous[head].append(row[i - 1])
                        first.append(row[0])
                    after = [j + 1 for j in range(i - 1) if ids[b, j] == ids[b, i]]
                    if after:
                        induction[head].append(sum(row[j] for j in after))
        mean = lambda values: sum(values) / len(values)  # noqa: E731
        found[f"layer-{number}"] = {
            "entropy": mean(entropies), "largest_logit": max(logits), "previous": max(map(mean, previous)),
            "first": mean(first), "induction": max(map(mean, induction)),
        }  # fmt: skip
    return found


def test_figures_equal_loops_over_the_maps():
    model = network()
    found = probe_figures(model, batch_of(IDS, mask=MASK))
    wanted = naive(model, IDS, MASK)
    for layer, figures in wanted.items():
        assert found[f"{layer}/entropy"] == pytest.approx(figures["entropy"], abs=1e-4)
        assert found[f"{layer}/largest_logit"] == pytest.approx(figures["largest_logit"], rel=1e-4)
    layers = list(wanted.values())
    assert found["entropy"] == pytest.approx(sum(one["entropy"] for one in layers) / 2, abs=1e-4)
    assert found["first"] == pytest.approx(sum(one["first"] for one in layers) / 2, abs=1e-4)
    for name in ("largest_logit", "previous", "induction"):
        assert found[name] == pytest.approx(max(one[name] for one in layers), abs=1e-4), name
    # Control: with padding counted as tokens, the figures are others.
    assert found["entropy"] != pytest.approx(probe_figures(model, batch_of(IDS))["entropy"], abs=1e-3)


def test_the_stream_is_measured_after_every_layer():
    model = network()
    found = probe_figures(model, batch_of(IDS[:1]))
    seen = []
    handles = [block.register_forward_hook(lambda _, given, out: seen.append(out[0])) for block in model.stack.blocks]
    model.eval()(IDS[:1])
    for handle in handles:
        handle.remove()
    norms = [float(x.detach().norm(dim=-1).mean()) for x in seen]
    assert [found[f"layer-{i}/residual_norm"] for i in (0, 1)] == pytest.approx(norms, rel=1e-4)
    assert found["residual_norm"] == pytest.approx(norms[-1], rel=1e-4)


def test_chosen_layers_alone_are_measured():
    found = probe_figures(network(), batch_of(IDS), layers=(1,))
    assert "layer-1/entropy" in found and "layer-0/entropy" not in found and "layer-0/residual_norm" in found


def test_an_encoder_decoder_has_layers_of_both_sides():
    model = t5().model
    both = Batch((IDS, IDS), torch.zeros(2), torch.arange(2))
    found = probe_figures(model, both)
    assert {"encoder-0/entropy", "decoder-1/entropy", "decoder-0-cross/entropy"} <= found.keys()


def lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_training_writes_its_probes_beside_the_loss_and_learns_the_same(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    plain = text_run(tmp_path / "a" / "run")
    probed = text_run(tmp_path / "b" / "run", training__probe=Probe(every=10, rows=2))
    found = {line["step"]: line for line in lines(probed) if "probe/entropy" in line}
    assert sorted(found) == [10, 20, 30] and all("loss" in line for line in found.values())
    without = [{k: v for k, v in line.items() if not k.startswith("probe/")} for line in lines(probed)]
    assert without == lines(plain)  # to the bit
    model = anyformer.load(probed / "checkpoints" / "step-000020").model
    again = probe_figures(model, reopen(probed / "data").valid.batch([0, 1]))
    for name, value in again.items():
        assert found[20][f"probe/{name}"] == pytest.approx(value, rel=1e-4, abs=1e-5)
    assert found[10]["probe/entropy"] != found[30]["probe/entropy"]
    assert history(probed).curve("probe/entropy")[0][0] == 10


def test_a_probe_that_fails_does_not_stop_the_training(tmp_path, monkeypatch):
    def broken(model, batch, layers=None):
        raise RuntimeError("no such layer")

    monkeypatch.setattr("anyformer.inspection.probe_figures.probe_figures", broken)
    run = text_run(tmp_path / "run", steps=10, training__probe=Probe(every=5))
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "probe failed"] == [5, 10]
    assert RunFolder.open(run).facts["status"] == "done"


@pytest.mark.parametrize("wrong", [{"every": 0}, {"rows": 0}, {"layers": (-1,)}])
def test_settings_are_checked(wrong):
    with pytest.raises(UserError, match=r"training\.probe"):
        Training(probe=Probe(**wrong))


def test_it_is_set_by_its_name():
    """As `--set training.probe=Probe --set training.probe.every=50` has it."""
    made = replace_paths(Training(), {"probe": "Probe", "probe.every": 50}, "training")
    assert made.probe == Probe(every=50) and Training().probe is None


LONG_ROWS = """
import re
from pathlib import Path
import torch
from anyformer import LM, Attention, Block, Model, Rope, Stack, Tokens
from anyformer.inspection.capture import look

torch.set_num_threads(1)
# Not getrusage: what it says of a new process can be its parent's.
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 2**10
block = Block(mixer=Attention(heads=2), relative=Rope())
model = Model(embed=Tokens(vocab=16), stack=Stack(width=16, depth=1, causal=True, block=block), head=LM(tied=True))
ids = torch.randint(16, (1, 16_384), generator=torch.Generator().manual_seed(0))
capture = look(model.build(seed=0), ids, budget="4GB")
before = peak()
few = capture.weights(0, rows=slice(16_000, 16_032))
assert tuple(few.shape) == (2, 32, 16_384) and float((few.sum(-1) - 1).abs().max()) < 1e-4
first = peak() - before
capture.weights(0, rows=slice(0, 2_048))
print(before, first, peak() - before)
"""


def test_chosen_rows_of_a_long_input_need_no_whole_map():
    done = subprocess.run([sys.executable, "-c", LONG_ROWS], capture_output=True, text=True, check=True)
    start, few, many = map(float, done.stdout.split())
    assert few < 100  # MiB; both whole maps are 2,048
    assert start < 1500
    assert many > 250  # control: 2,048 rows are 256 MiB, and the measurement sees them
