"""Fine-tuning by four settings of ULMFiT, by freezing and by LoRA, on every kind of network: what learns, how fast, and
that what does not learn keeps its bits."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyformer
from anyformer import UserError
from anyformer.checkpoints import tensors
from anyformer.checkpoints.operations import QKV
from anyformer.nets.batch_norm import BatchNorm
from anyformer.presets import preset
from anyformer.training.freezing import Gradual, freeze
from anyformer.training.layers import layer_rates, layers_of
from anyformer.training.lora import LoRA, LoRALinear, add_adapters, remove_adapters
from anyformer.training.optim import AdamW, Muon
from anyformer.training.run.folder import RunFolder
from anyformer.training.schedule import Slanted
from anyformer.training.train import Run
from tests.cli import made
from tests.training.nursery import Nursery
from tests.training.tiny import differing, resume

KINDS: dict[str, tuple[Callable[[Path], Path], str, dict[str, Any]]] = {
    "text, Transformer": (made.reviews, "encoder-mini-tiny", {"data.target": "label"}),
    "text, LSTM": (made.book, "lstm-lm-tiny", {"data.tokenizer.max_length": 16}),
    "images, ViT": (made.photos, "vit-mini-tiny", {}),
    "table, FT-Transformer": (made.flowers, "ft-transformer-tiny", {"data.target": "kind"}),
    "several parts": (made.mixed, "encoder-mini-tiny", {"data.target": "y"}),
}
QUICK = {"training.batch_size": 64, "training.threads": 1, "training.workers": 0, "training.compile": False}


def train(source: Path, out: Path, model: str | None = None, **settings: Any) -> Run:
    """A run in this process; settings have __ for the dot."""
    start = settings.pop("start", None)
    chosen = QUICK | {name.replace("__", "."): value for name, value in settings.items()}
    return anyformer.train([source], model=model, out=out, device="cpu", quiet=True, start=start, settings=chosen)


def command(**settings: Any) -> list[str]:
    """The words behind a `train` of 8 steps; settings have __ for the dot."""
    chosen = QUICK | {"training.steps": 8, "training.save_every": 2, "training.eval_every": 4}
    chosen |= {name.replace("__", "."): value for name, value in settings.items()}
    sets = [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]
    return ["--progress", "none", "--device", "cpu", *sets]


def saved(run: Run, step: int) -> dict[str, Tensor]:
    """The weights after a step."""
    folder = run.path / "checkpoints" / f"step-{step:06}"
    return {name: entry.read() for name, entry in tensors.read_folder(folder).items()}


def beginning(run: Run) -> dict[str, Tensor]:
    """The weights before the first step, of a run that starts from nothing."""
    config = run.folder.config()
    return {name: p.detach() for name, p in config.model.build(seed=config.training.seed).named_parameters()}


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in after if not torch.equal(before[name], after[name])}


# ---------------------------------------------------------------- learning rates


@pytest.mark.quick
def test_w16_the_table_of_rates_is_that_of_the_paper() -> None:
    """1000 steps, cut .1, ratio 32, full rate .01, each layer 2.6 times slower than the one above."""
    expected = {0: 0.0003125, 50: 0.0051563, 100: 0.01, 550: 0.0051563, 1000: 0.0003125}
    found = {step: 0.01 * Slanted(cut=0.1, ratio=32).factor(step, 1000) for step in expected}
    assert found == pytest.approx(expected, abs=5e-8)
    for name in ("lstm-lm-tiny", "encoder-mini-tiny", "vit-mini-tiny", "ft-transformer-tiny"):
        model = preset(name).build(device="meta")
        lines = layer_rates(model, AdamW(lr=0.01, layer_lr_decay=1 / 2.6).build(model))
        assert [line.lr for line in lines] == [pytest.approx((0.01 * 2.6**-n,)) for n in range(len(lines))]
        assert [round(line.lr[0], 6) for line in lines[:3]] == [0.01, 0.003846, 0.001479]
        assert all(line.frozen == 0 < line.trained for line in lines)


@pytest.mark.parametrize("name", [name for name in anyformer.preset_names() if name.endswith("-tiny")])
def test_every_parameter_is_in_one_layer_and_layers_follow_the_computation(name: str) -> None:
    model = preset(name).build(device="meta")
    layers = layers_of(model)
    assert sorted(n for layer in layers for n in layer.parameters) == sorted(n for n, _ in model.named_parameters())
    places = {n: at for at, layer in enumerate(layers) for n in layer.parameters}
    for parameter, at in places.items():
        if "embed" in parameter.split("."):
            assert at == 0
        if "head" in parameter.split("."):
            assert at == len(layers) - 1
        if parameter.startswith("encoder.stack."):
            assert all(at < other for n, other in places.items() if n.startswith("decoder.stack."))


def test_muon_has_the_same_shares() -> None:
    model = preset("encoder-mini-tiny").build(device="meta")
    groups = [
        g for part in Muon(lr=0.1, others=AdamW(lr=0.01, layer_lr_decay=0.5)).build(model) for g in part.param_groups
    ]
    lines = layer_rates(model, Muon(lr=0.1, others=AdamW(lr=0.01, layer_lr_decay=0.5)).build(model))
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    assert lines[0].lr == (0.01,) and lines[1].lr == (0.05, 0.005) and lines[2].lr == (0.025, 0.0025)


def test_rates_are_printed_before_the_first_step_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "anyformer")
    run = anyformer.train([made.reviews(tmp_path)], model="encoder-mini-tiny", out=tmp_path / "run", device="cpu",
                          progress="none", settings=QUICK | {"data.target": "label", "training.steps": 2,
                          "training.optimizer.lr": 0.01, "training.optimizer.layer_lr_decay": 1 / 2.6})  # fmt: skip
    kept = json.loads((run.path / "layers.json").read_text())["layers"]
    assert [line["lr"][0] for line in kept] == pytest.approx([0.01 * 2.6**-n for n in range(len(kept))])
    said = [line for line in caplog.text.splitlines() if "layer    " in line]
    assert len(said) == len(kept) and "head" in said[0] and "lr 0.01 " in said[0] and "lr 0.003846" in said[1]
    plain = anyformer.train([made.reviews(tmp_path)], model="encoder-mini-tiny", out=tmp_path / "plain", device="cpu",
                            quiet=True, settings=QUICK | {"data.target": "label", "training.steps": 1})  # fmt: skip
    assert not (plain.path / "layers.json").exists()  # one rate for all is no table


# ---------------------------------------------------------------- unfreezing


@pytest.mark.parametrize("kind", KINDS)
def test_layers_learn_one_after_the_other_and_keep_their_bits_until_then(kind: str, tmp_path: Path) -> None:
    make, model, settings = KINDS[kind]
    source = make(tmp_path)
    more = settings | {"training.keep": 50, "training.optimizer.weight_decay": 0.5, "training.ema": 0.5}
    run = train(source, tmp_path / "run", model, training__unfreeze={"type": "Gradual", "epochs": 0.5},
                training__epochs=1.5, training__save_every=1, training__optimizer__lr=0.01, **more)  # fmt: skip
    start, layers = beginning(run), layers_of(run.folder.config().model.build(device="meta"))
    events = [
        e for e in map(json.loads, (run.path / "events.jsonl").read_text().splitlines()) if e["event"] == "unfreeze"
    ]
    assert [len(event["layers"]) for event in events] == [1, 2, 3]
    for number, event in enumerate(events):
        until = events[number + 1]["step"] if number + 1 < len(events) else run.facts["step"]
        trained = {name for layer in layers if layer.name in event["layers"] for name in layer.parameters}
        changed = moved(start, saved(run, until))
        assert changed <= trained  # all else has the bits it began with, weight decay and running mean or not
        assert {layer.name for layer in layers if changed & set(layer.parameters)} == set(event["layers"])
    # Two steps: behind a layer that says nothing at first, the layers below learn from the second on.
    control = train(source, tmp_path / "control", model, training__steps=2, training__optimizer__lr=0.01, **settings)
    assert {layer.name for layer in layers if moved(start, saved(control, 2)) & set(layer.parameters)} == {
        layer.name for layer in layers
    }


def test_killed_between_two_layers_it_goes_on_to_the_bit(tmp_path: Path, nursery: Nursery) -> None:
    made.reviews(tmp_path)
    words = ["train", "reviews.csv", "--target", "label", "--preset", "encoder-mini-tiny", *command(
        training__unfreeze="Gradual", training__unfreeze__epochs=1, training__optimizer__layer_lr_decay=0.4,
        training__ema=0.9,
    )]  # fmt: skip
    assert nursery.run([*words, "--out", "whole"], tmp_path)[0] == 0
    code, said = nursery.run([*words, "--out", "run"], tmp_path, "kill@step:6")
    assert code == -signal.SIGKILL, said
    code, said = nursery.run(resume("run"), tmp_path)
    assert code == 0, said
    assert differing(tmp_path / "whole", tmp_path / "run") == []


# ---------------------------------------------------------------- freezing by path


def test_frozen_paths_keep_their_bits(tmp_path: Path) -> None:
    settings = {"data.target": "label", "training.steps": 3, "training.optimizer.weight_decay": 0.5,
                "training.ema": 0.5, "training.optimizer.lr": 0.01}  # fmt: skip
    source = made.reviews(tmp_path)
    run = train(source, tmp_path / "run", "encoder-mini-tiny", training__freeze=["embed", "*.mixer"], **settings)
    changed = moved(beginning(run), saved(run, 3))
    assert changed and not [name for name in changed if name.startswith("embed") or ".mixer." in name]
    memory = tensors.read_header(run.path / "checkpoints" / "step-000003" / "optim.safetensors")
    assert not [name for name in memory if name.startswith("opt.") and ("embed" in name or ".mixer." in name)]
    control = train(source, tmp_path / "control", "encoder-mini-tiny", **settings)
    changed = moved(beginning(control), saved(control, 3))
    assert any(name.startswith("embed") for name in changed) and any(".mixer." in name for name in changed)


def test_the_statistics_of_a_frozen_batch_norm_stay() -> None:
    def stay(pattern: str) -> bool:
        model = preset("resnet-50-tiny").build(seed=0).train()
        freeze(model, [pattern])
        before = {name: p.detach().clone() for name, p in model.named_parameters() if "embed.backbone" in name}
        model(torch.randn(4, 3, 32, 32))
        assert any(isinstance(module, BatchNorm) for module in model.modules())
        return all(torch.equal(value, model.get_parameter(name)) for name, value in before.items())

    assert stay("embed") and not stay("head")


@pytest.mark.parametrize(("settings", "said"), [
    ({"training.freeze": "stack.block.0"}, "the network has no 'stack.block.0'; did you mean 'stack.blocks.0'?"),
    ({"training.freeze": "*"}, "nothing is left to train"),
    ({"training.lora": "LoRA"}, "there is none to start from; give --from FOLDER"),
    ({"training.lora": {"type": "LoRA", "rank": 0}}, "rank 0 is below 1"),
    ({"training.lora": "LoRA", "training.average": 2}, "adapters cannot be averaged"),
    ({"training.unfreeze": {"type": "Gradual", "epochs": 0}}, "epochs 0.0 is not positive"),
    ({"training.schedule": {"type": "Slanted", "cut": 1.0}}, "cut 1.0 is outside (0, 1)"),
])  # fmt: skip
def test_what_cannot_be_is_refused(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        anyformer.train([made.reviews(tmp_path)], model="encoder-mini-tiny", target="label", out=tmp_path / "run",
                        device="cpu", quiet=True, settings=QUICK | settings)  # fmt: skip
    assert said in str(caught.value)
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- concat pooling


@pytest.mark.parametrize(("make", "target", "name"), [
    (made.reviews, "label", "lstm-lm-tiny"), (made.flowers, "kind", "ft-transformer-tiny"),
    (made.houses, "price", "ft-transformer-tiny"), (made.photos, None, "vit-mini-tiny"),
])  # fmt: skip
def test_concat_pooling_reads_last_highest_and_mean(
    make: Callable[[Path], Path], target: str | None, name: str, tmp_path: Path
) -> None:
    more = {} if target is None else {"data.target": target}
    source = make(tmp_path)
    run = train(source, tmp_path / "run", name, model__head__pool="concat", training__steps=2, **more)
    head = run.folder.config().model.head  # type: ignore[attr-defined]
    assert head.pool == "concat"
    predictor = anyformer.load(run.path)
    assert predictor.model.head.out.in_features == 3 * predictor.spec.stack.width
    folder = predictor.save(tmp_path / "again")
    again = anyformer.load(folder)
    for one, other in zip(predictor.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert again.spec == predictor.spec


# ---------------------------------------------------------------- LoRA


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with reviews, and a model that was trained on them."""
    home = tmp_path_factory.mktemp("lora")
    train(made.reviews(home), home / "base", "bert-base-tiny", data__target="label", training__steps=3)
    made.topics(home)
    return home


def test_only_adapters_and_the_new_head_learn(base: Path, tmp_path: Path) -> None:
    settings = {"data.target": "labels", "training.steps": 4, "training.optimizer.lr": 0.02, "start": base / "base"}
    lora = {"type": "LoRA", "rank": 2, "alpha": 4.0, "dropout": 0.1}
    run = train(base / "topics.csv", tmp_path / "run", training__lora=lora, **settings)
    config = run.folder.config()
    assert config.training.lora is not None and config.training.lora.trained == (
        "head.out",
    )  # other labels: a new head
    memory = tensors.read_header(run.path / "checkpoints" / "step-000004" / "optim.safetensors")
    remembered = {name.split(".", 2)[2] for name in memory if name.startswith("opt.")}
    assert remembered and all(".lora_" in name or name.startswith("head.out") for name in remembered)
    before = {name: entry.read() for name, entry in tensors.read_header(run.path / "start.safetensors").items()}
    after = saved(run, 4)
    changed = moved(before, {name: after[name] for name in before})
    assert changed and all(".blocks." in name and name.endswith(".weight") for name in changed)
    for name in changed:  # what was added has the rank of its adapter, 2 for each of q, k and v
        rank = torch.linalg.matrix_rank((after[name] - before[name]).double(), rtol=1e-4)
        assert 0 < rank <= (6 if "qkv" in name else 2)
    control = train(base / "topics.csv", tmp_path / "control", **settings)
    whole = saved(control, 4)
    assert len(moved(before, {name: whole[name] for name in before})) > len(changed)


def test_the_folder_of_an_adapter_is_the_run(base: Path, tmp_path: Path) -> None:
    run = train(base / "topics.csv", tmp_path / "run", training__lora="LoRA", data__target="labels", training__steps=3,
                training__optimizer__lr=0.02, training__ema=0.5, start=base / "base")  # fmt: skip
    merged, adapted = anyformer.load(run.path), anyformer.load(run.path / "adapter")
    assert adapted.labels == merged.labels and adapted.spec == merged.spec
    ids = torch.arange(3, 15)[None]
    with torch.no_grad():
        one, other = merged.model(ids).logits, adapted.model(ids).logits
        bare = anyformer.load(base / "base").model(ids).hidden
    assert (one - other).abs().max() < 1e-5
    assert (merged.model(ids).hidden - bare).abs().max() > 1e-3  # control: it has learned something
    more = train(
        base / "reviews.csv", tmp_path / "more", data__target="label", training__steps=1, start=run.path / "adapter"
    )
    assert more.facts["status"] == "done"  # and may be started from as any model folder


def test_queries_and_values_alone_learn(base: Path, tmp_path: Path) -> None:
    settings = {"data.target": "labels", "training.steps": 3, "training.optimizer.lr": 0.02, "start": base / "base",
                "training.lora.rank": 2, "training.lora.projections": ["q", "v"]}  # fmt: skip
    run = train(base / "topics.csv", tmp_path / "run", training__lora="LoRA", **settings)
    before = {name: entry.read() for name, entry in tensors.read_header(run.path / "start.safetensors").items()}
    after = saved(run, 3)
    changed = moved(before, {name: value for name, value in after.items() if name in before})
    assert changed and all(name.endswith(".mixer.qkv.weight") for name in changed)
    model = preset("bert-base-tiny").build(device="meta")
    for name in changed:
        owner = model.get_submodule(name.removesuffix(".qkv.weight"))
        parts = QKV.push((after[name] - before[name]).abs().amax(1), owner)
        assert [bool((part > 0).any()) for part in parts] == [True, False, True]
    held = tensors.read_header(run.path / "adapter" / "adapter_model.safetensors")
    assert {name.split(".")[-3] for name in held if ".lora_" in name} == {"query", "value"}


def test_a_projection_that_is_not_there_is_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no layer of the targets has a projection 'w'.*use q, k, v, out, up, down"):
        train(base / "topics.csv", tmp_path / "run", data__target="labels", training__lora="LoRA", start=base / "base",
              training__lora__projections=["q", "w"])  # fmt: skip
    with pytest.raises(UserError, match=r"LoRA\.projections: \(\) does not fit"):
        LoRA(projections=())


@pytest.mark.parametrize("more", [{}, {"training__lora__projections": "[q, v]"}], ids=["all", "queries-values"])
def test_lora_killed_goes_on_to_the_bit(more: dict[str, Any], base: Path, tmp_path: Path, nursery: Nursery) -> None:
    words = ["train", str(base / "topics.csv"), "--target", "labels", "--from", str(base / "base"), *command(
        training__lora="LoRA", training__lora__dropout=0.2, training__ema=0.9, training__optimizer__lr=0.01, **more,
    )]  # fmt: skip
    assert nursery.run([*words, "--out", "whole"], tmp_path)[0] == 0
    code, said = nursery.run([*words, "--out", "run"], tmp_path, "kill@step:6")
    assert code == -signal.SIGKILL, said
    code, said = nursery.run(resume("run"), tmp_path)
    assert code == 0, said
    assert differing(tmp_path / "whole", tmp_path / "run") == []
    names = [f"adapter/{name}" for name in ("adapter_model.safetensors", "adapter_network.json", "preprocess.json")]
    assert all((tmp_path / "whole" / name).read_bytes() == (tmp_path / "run" / name).read_bytes() for name in names)


@pytest.mark.parametrize("name", [
    "bert-base-tiny", "gpt2-tiny", "llama2-7b-tiny", "vit-mini-tiny", "ft-transformer-tiny", "t5-small-tiny",
    "hyena-small-tiny", "switch-small-tiny",
])  # fmt: skip
def test_adapters_come_and_go(name: str) -> None:
    """Fresh adapters change nothing, and removed ones leave the network it was."""
    plain, model = (preset(name).build(seed=3) for _ in range(2))
    add_adapters(model, LoRA(rank=2), seed=0)
    adapted = [module for module in model.modules() if isinstance(module, LoRALinear)]
    assert adapted and all(not bool(module.lora_B.any()) and bool(module.lora_A.any()) for module in adapted)
    assert all((".lora_" in path) is p.requires_grad for path, p in model.named_parameters())
    x = torch.randn(2, adapted[0].in_features)
    assert torch.equal(adapted[0](x), nn.functional.linear(x, adapted[0].weight, adapted[0].bias))
    remove_adapters(model)
    assert [type(module) for module in model.modules()] == [type(module) for module in plain.modules()]
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


def test_unfreezing_is_a_function_of_the_step() -> None:
    rule = Gradual(epochs=0.5)
    assert [rule.trained_layers(step / 10, count=4) for step in (0, 4, 5, 9, 10, 14, 15, 99)] == [
        1,
        1,
        2,
        2,
        3,
        3,
        4,
        4,
    ]


def test_a_run_folder_says_what_it_began_from(base: Path, tmp_path: Path) -> None:
    run = train(base / "topics.csv", tmp_path / "run", data__target="labels", training__steps=1, start=base / "base")
    assert RunFolder.open(run.path).facts["start"]["model_type"] == ""


def test_frozen_paths_hold_for_adapters_too(base: Path, tmp_path: Path) -> None:
    run = train(base / "topics.csv", tmp_path / "run", training__lora="LoRA", training__freeze=["stack.blocks.0"],
                data__target="labels", training__steps=2, training__optimizer__lr=0.02,
                start=base / "base")  # fmt: skip
    before = {name: entry.read() for name, entry in tensors.read_header(run.path / "start.safetensors").items()}
    changed = moved(before, {name: value for name, value in saved(run, 2).items() if name in before})
    assert {name.split(".")[2] for name in changed} == {"1", "2"}
