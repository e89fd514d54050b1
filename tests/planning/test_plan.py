"""`plan` as a whole: the object, the command, the page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from anyformer import preset
from anyformer.commands.planning import plan as command
from anyformer.errors import UserError
from anyformer.planning.devices import DEVICES, find_device
from anyformer.planning.measure import measure_ceilings
from anyformer.planning.model_plan import plan
from anyformer.planning.page import plan_page
from anyformer.planning.scaling import LAWS
from anyformer.planning.sources import spec_in
from anyformer.planning.text import SECTIONS, explain, plan_text

app = typer.Typer()
app.command()(command)


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_decoding_turns_compute_bound_where_rates_balance() -> None:
    """FLOPs over bandwidth of an H200 is 184: a weight is two bytes and two FLOPs a row."""
    found = plan("gpt2", batch=1, length=8)
    assert found.compute_bound_batch == 184 == round(find_device("h200").balance)
    assert plan("gpt2", batch=16, length=8).compute_bound_batch == 184
    # Eight experts are read where a token meets two.
    mixed = plan("mixtral", length=8)
    expected = 183.7 * mixed.parameters.total / mixed.parameters.active
    assert mixed.compute_bound_batch == pytest.approx(expected, rel=0.01)
    assert plan("llama2-7b", length=2048).compute_bound_batch_with_cache is None
    assert plan("bert-base", length=8).compute_bound_batch is None  # nothing is decoded


def test_a_slower_device_takes_longer_and_a_larger_batch_is_more_efficient() -> None:
    h200, a100, l4 = (plan("gpt2", batch=8, length=256, device=name) for name in ("h200", "a100", "l4"))
    assert h200.step.total < a100.step.total < l4.step.total
    assert plan("gpt2", batch=64, length=256).mfu > h200.mfu > plan("gpt2", batch=1, length=256).mfu
    assert h200.mfu < 1


def test_planned_steps_are_near_those_measured_on_an_h200() -> None:
    """Rows of benchmarks/results/torch2.11.0-cuda13.0-h200-2026-11-16-training.csv, in ms; within a fifth."""
    from benchmarks.plan_accuracy import h200_shapes

    measured = {"gpt2-124m": 61.2, "batch-8": 17.6, "length-16384": 133.7, "gpt2-355m": 78.3, "llama-1.1b": 224.7,
                "vit-train": 64.1}  # fmt: skip
    for job, took in measured.items():
        spec, batch, length = h200_shapes()[job]
        assert plan(spec, batch=batch, length=length).step.total * 1e3 == pytest.approx(took, rel=0.2), job


def test_hours_and_cost() -> None:
    found = plan("gpt2-tiny", batch=8, length=64, train_tokens=1e9, price=2.0)
    assert found.hours == pytest.approx(1e9 / found.tokens_per_second / 3600)
    assert found.cost == pytest.approx(2.0 * found.hours)
    assert plan("gpt2-tiny", length=64, device="l4", train_tokens=1e9).cost is None  # no price is known
    assert plan("gpt2-tiny", length=64).hours is None


def test_splits() -> None:
    one, many = plan("gpt2", batch=4, length=256), plan("gpt2", batch=4, length=256, processes=4)
    assert one.splits == []
    ddp, fsdp, tensor = many.splits
    assert (ddp.kind, fsdp.kind, tensor.kind) == ("ddp", "fsdp", "tensor")
    gradients = many.parameters.learning * 2
    assert ddp.sent == round(2 * 3 / 4 * gradients)
    assert fsdp.sent == round(3 / 4 * 3 * gradients)
    assert ddp.memory == many.memory.peak > fsdp.memory
    assert tensor.compute < ddp.compute
    assert (ddp.rows, tensor.rows) == (16, 4)
    for split in many.splits:
        assert split.seconds[0] <= split.seconds[1]


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(UserError, match="positions"):
        plan("gpt2", length=2048)
    with pytest.raises(UserError, match="h200"):
        plan("gpt2-tiny", device="h20")
    with pytest.raises(UserError, match="batch"):
        plan("gpt2-tiny", batch=0)
    with pytest.raises(UserError, match="memory"):
        explain(plan("gpt2-tiny", length=8), "memry")


def test_every_ceiling_has_a_source() -> None:
    for device in DEVICES.values():
        assert device.source and device.price_source
        assert device.products <= device.peak


def test_measured_ceilings_plan_this_machine() -> None:
    here = measure_ceilings("cpu")
    assert here.products > 1e8 and here.bandwidth > 1e8 and here.launch > 0
    assert plan("gpt2-tiny", batch=2, length=16, device=here).step.total > 0


# ---------------------------------------------------------------- the command


def test_the_command_prints_the_plan() -> None:
    done = run("gpt2", "--batch", "2", "--length", "64", "--processes", "4", "--tokens", "1e9")
    assert done.exit_code == 0, done.output
    for words in ("124,439,808", "36 KiB a token", "184 rows", "fsdp", "dollars", "H200"):
        assert words in done.output
    assert plan_text(plan("gpt2", batch=2, length=64, processes=4, train_tokens=1e9)) in done.output


def test_json_is_the_plan() -> None:
    done = run("gpt2-tiny", "--length", "16", "--json", "--flops", "1e18", "--device", "cpu")
    facts = json.loads(done.stdout)
    assert facts["parameters"]["total"] == plan("gpt2-tiny", length=16).parameters.total
    assert facts["dtype"] == "float32"
    assert [one["law"] for one in facts["scaling"]] == list(LAWS)


def test_a_budget_alone() -> None:
    done = run("--flops", "1e18")
    assert "80.6 M parameters, 2.07 B tokens" in done.output
    assert all(law.source in done.output for law in LAWS.values())
    assert run().exit_code != 0


@pytest.mark.parametrize("part", SECTIONS)
def test_every_part_is_explained(part: str) -> None:
    done = run("gpt2-tiny", "--length", "16", "--explain", part)
    assert done.exit_code == 0
    assert SECTIONS[part][0] in done.output


def test_a_folder_needs_no_weights(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "anyformer.json").write_text(preset("gpt2-tiny").to_json(), encoding="utf-8")
    assert spec_in(own) == preset("gpt2-tiny")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 32, "n_layer": 2, "n_head": 4,
              "n_positions": 16, "vocab_size": 50, "n_inner": None, "activation_function": "gelu_new"}  # fmt: skip
    (theirs / "config.json").write_text(json.dumps(config), encoding="utf-8")
    done = run(str(theirs), "--json", "--length", "16")
    assert done.exit_code == 0, done.output
    width = 32
    blocks = 2 * (12 * width**2 + 13 * width)
    assert json.loads(done.stdout)["parameters"]["total"] == 50 * width + 16 * width + blocks + 2 * width
    with pytest.raises(UserError, match="anyformer.json"):
        spec_in(tmp_path)


def test_data_is_planned_as_train_would(tmp_path: Path) -> None:
    data = tmp_path / "reviews.csv"
    rows = [f"{'good' if i % 2 else 'bad'} film number {i},{i % 2}" for i in range(60)]
    data.write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    done = run(str(data), "--json", "--quiet", "--length", "16")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["batch"] > 1


# ---------------------------------------------------------------- the page


class OpenTags(HTMLParser):
    """Tags that are opened and never closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br", "link", "img"):
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass


def test_the_page_is_whole_and_loads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    done = run("gpt2", "--batch", "2", "--length", "64", "--processes", "2", "--flops", "1e18", "--html", str(path))
    assert done.exit_code == 0, done.output
    page = path.read_text(encoding="utf-8")
    parser = OpenTags()
    parser.feed(page)
    assert parser.stack == []
    assert not re.search(r"(src|href)=\"(?!#|data:)", page) and "<script" not in page
    for words in ("124,439,808", "Roofline", "hoffmann", "fsdp", "36"):
        assert words in page
    assert page.count("<circle") == 3  # training, prefill, decode


def test_names_are_escaped_on_the_page() -> None:
    page = plan_page(plan("bert-base-tiny", length=8, name="<b>x</b>"))
    assert "<b>x" not in page and "&lt;b&gt;x" in page
    assert "KV cache</h2>" not in page  # nothing is decoded


def test_dtype_may_be_chosen() -> None:
    half, single = (plan("gpt2-tiny", length=16, dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
    assert single.costs.cache == 2 * half.costs.cache
