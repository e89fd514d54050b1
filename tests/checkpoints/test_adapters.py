"""LoRA folders both ways for every family: ours opens in peft and answers the same there, and theirs here."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from torch import Tensor, nn

import anyformer
from anyformer import UserError
from anyformer.checkpoints.adapters import write_adapter
from anyformer.checkpoints.folder import Opened, open_folder, save_own
from anyformer.checkpoints.operations import QKV
from anyformer.training.lora import LoRA, adapter_names, add_adapters, low_rank_adapters, merge
from tests.attack.tiny_models import TINY
from tests.cli import made
from tests.families.parity import quietly, save, their_answer

WHOLE = ("clip", "detr")  # their answers are no logits of words or classes

TARGETS = {"mixtral": ("*.mixer.*",)}  # experts are no modules there


def ids() -> Tensor:
    return torch.randint(2, 20, (2, 9), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def ask_theirs(model: Any) -> Tensor:
    """The logits of a model of transformers, or of peft around one."""
    config = model.config
    if hasattr(config, "image_size"):
        return their_answer(model(pixel_values=pixels()))
    given = {"input_ids": ids()} | ({"decoder_input_ids": ids()} if config.is_encoder_decoder else {})
    return their_answer(model(**given))


@torch.no_grad()
def ask_ours(model: nn.Module, spec: Any) -> Tensor:
    if isinstance(spec, anyformer.Seq2Seq):
        return model(ids(), ids()).logits
    return model(pixels() if isinstance(spec.embed, anyformer.Patches) else ids()).logits


def pixels() -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def their_base(family: str, folder: Path) -> Any:
    torch.manual_seed(0)
    model = TINY[family]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    return type(model).from_pretrained(save(model, folder)).eval()


def far(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / max(1.0, float(b.abs().max())))


def adapted(opened: Opened, lora: LoRA) -> nn.Module:
    """The model with adapters that do something."""
    add_adapters(opened.model, lora, seed=0)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in opened.model.named_parameters():
            if name in adapter_names(opened.model):
                parameter.normal_(0, 0.2)
    return opened.model


@pytest.mark.parametrize("family", sorted(set(TINY) - set(WHOLE)))
def test_an_adapter_answers_the_same_in_peft(family: str, tmp_path: Path) -> None:
    compare_with_peft(family, LoRA(rank=2, alpha=3.0, targets=TARGETS.get(family, ("*.blocks.*",))), tmp_path)


# The names of queries and values there; GPT-2 and GPT-NeoX keep queries, keys and values in one module.
QUERY_VALUE = {"bert": {"query", "value"}, "llama": {"q_proj", "v_proj"}, "t5": {"q", "v"},
               "bart": {"q_proj", "v_proj"}, "gpt2": {"c_attn"}, "gpt_neox": {"query_key_value"}}  # fmt: skip


@pytest.mark.parametrize("family", QUERY_VALUE)
def test_an_adapter_of_queries_and_values_alone_answers_the_same_in_peft(family: str, tmp_path: Path) -> None:
    compare_with_peft(family, LoRA(rank=2, alpha=3.0, projections=("q", "v")), tmp_path)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert {name.rpartition(".")[2] for name in config["target_modules"]} == QUERY_VALUE[family]
    base, own = (
        dict(anyformer.load(path).model.named_parameters()) for path in (tmp_path / "base", tmp_path / "adapter")
    )
    changed = [name for name in base if not torch.equal(base[name], own[name])]
    assert changed and all(name.endswith((".qkv.weight", ".q.weight", ".kv.weight")) for name in changed)


def test_queries_and_values_have_as_many_parameters_as_in_peft(tmp_path: Path) -> None:
    """And keys keep their bits, which is the control of the comparison with peft: there they are left out as well."""
    with quietly(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = their_base("bert", tmp_path / "base")
        wrapped = peft.get_peft_model(theirs, peft.LoraConfig(r=2, target_modules=["query", "value"]))
        there = sum(p.numel() for name, p in wrapped.named_parameters() if ".lora_" in name)
    opened = open_folder(tmp_path / "base")
    plain = {name: p.detach().clone() for name, p in opened.model.named_parameters()}
    model = adapted(opened, LoRA(rank=2, projections=("q", "v")))
    weights = {name: p.detach() for name, p in model.named_parameters()}
    assert sum(weights[name].numel() for name in adapter_names(model)) == there
    path = "stack.blocks.0.mixer"
    rows = dict(
        zip("qkv", QKV.push(torch.arange(len(plain[f"{path}.qkv.weight"])), model.get_submodule(path)), strict=True)
    )
    same = (merge(model, weights)[f"{path}.qkv.weight"] == plain[f"{path}.qkv.weight"]).all(1)
    assert bool(same[rows["k"]].all()) and not bool(same[rows["q"]].any() or same[rows["v"]].any())


def compare_with_peft(family: str, lora: LoRA, tmp_path: Path) -> None:
    """Ours, ours in peft, and ours opened again answer alike."""
    with quietly():
        theirs = their_base(family, tmp_path / "base")
    opened = open_folder(tmp_path / "base")
    assert opened.family is not None
    before = ask_theirs(theirs)
    ours = ask_ours(adapted(opened, lora), opened.spec)
    weights = {name: p.detach() for name, p in opened.model.named_parameters()}
    held = {name: weights[name] for name in adapter_names(opened.model)}
    (tmp_path / "adapter").mkdir()
    adapters = low_rank_adapters(opened.spec, lora, held)
    write_adapter(tmp_path / "adapter", opened.spec, adapters, {}, base=str(tmp_path / "base"),
                  model_type=opened.family.model_type)  # fmt: skip
    with quietly(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of peft's own about layers it is not told to expect
        there = ask_theirs(peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval())
    assert far(ours, there) < 1e-5 < 1e-3 < far(ours, before)
    plain = opened.spec.build(seed=5).eval()
    plain.load_state_dict(merge(opened.model, weights))
    assert far(ask_ours(plain, opened.spec), ours) < 1e-5
    for loaded in (
        anyformer.load(tmp_path / "base", adapter=tmp_path / "adapter"),
        anyformer.load(tmp_path / "adapter"),
    ):
        assert far(ask_ours(loaded.model, loaded.spec), ours) < 1e-5


@pytest.mark.parametrize("family", WHOLE)
def test_adapters_of_two_networks_side_by_side_come_back(family: str, tmp_path: Path) -> None:
    with quietly():
        their_base(family, tmp_path / "base")
    opened = open_folder(tmp_path / "base")
    assert opened.family is not None
    lora = LoRA(rank=2)
    model = adapted(opened, lora)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    held = {name: weights[name] for name in adapter_names(model)}
    (tmp_path / "adapter").mkdir()
    write_adapter(tmp_path / "adapter", opened.spec, low_rank_adapters(opened.spec, lora, held), {}, base="../base",
                  model_type=opened.family.model_type)  # fmt: skip
    expected, again = merge(model, weights), anyformer.load(tmp_path / "adapter")
    plain = dict(open_folder(tmp_path / "base").model.named_parameters())
    for name, value in again.model.named_parameters():
        assert (value - expected[name]).abs().max() < 1e-6
    assert sum(not torch.equal(plain[name], value) for name, value in again.model.named_parameters()) == len(held) // 2


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "t5", "vit", "gpt_neox"])
def test_an_adapter_of_peft_opens_here(family: str, tmp_path: Path) -> None:
    with quietly(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = their_base(family, tmp_path / "base")
        config = peft.LoraConfig(r=3, lora_alpha=5, target_modules="all-linear", use_rslora=family == "bert",
                                 init_lora_weights=False)  # fmt: skip
        wrapped = peft.get_peft_model(theirs, config).eval()
        wrapped.save_pretrained(tmp_path / "adapter")
        there = ask_theirs(wrapped)
    loaded = anyformer.load(tmp_path / "base", adapter=tmp_path / "adapter")
    assert far(ask_ours(loaded.model, loaded.spec), there) < 1e-5
    plain = anyformer.load(tmp_path / "base")
    assert far(ask_ours(plain.model, plain.spec), there) > 1e-3  # control: without it the answers are others


def test_a_network_of_no_family_keeps_its_own_names(tmp_path: Path) -> None:
    spec = anyformer.preset("lstm-lm-tiny").replace(head=anyformer.Pooled(classes=3, pool="concat", dense=True))
    model = spec.build(seed=0).eval()
    save_own(tmp_path / "base", spec, model)
    lora = LoRA(rank=2, targets=("head.dense",), trained=("head.out",))
    opened = open_folder(tmp_path / "base")
    ours = ask_ours(adapted(opened, lora), spec)
    weights = {name: p.detach() for name, p in opened.model.named_parameters()}
    held = {name: weights[name] for name in adapter_names(opened.model)}
    whole = {name: value + 1.0 for name, value in weights.items() if name.startswith("head.out.")}
    (tmp_path / "adapter").mkdir()
    write_adapter(tmp_path / "adapter", spec, low_rank_adapters(spec, lora, held), whole, base="../base")
    again = anyformer.load(tmp_path / "adapter")
    with torch.no_grad():
        opened.model.get_parameter("head.out.bias").add_(1.0)
        opened.model.get_parameter("head.out.weight").add_(1.0)
    assert (
        far(ask_ours(again.model, spec), ask_ours(opened.model, spec)) < 1e-5 < far(ask_ours(opened.model, spec), ours)
    )


def test_what_is_wrong_with_an_adapter_is_said(tmp_path: Path) -> None:
    spec = anyformer.preset("gpt2-tiny")
    save_own(tmp_path / "base", spec, spec.build(seed=0))
    lora = LoRA(rank=2)
    opened = open_folder(tmp_path / "base")
    model = adapted(opened, lora)
    held = {name: p.detach() for name, p in model.named_parameters() if name in adapter_names(model)}
    (tmp_path / "adapter").mkdir()
    write_adapter(tmp_path / "adapter", spec, low_rank_adapters(spec, lora, held), {}, base="nowhere")
    with pytest.raises(UserError, match="nowhere.* is not there; give its folder"):
        anyformer.load(tmp_path / "adapter")
    config = tmp_path / "adapter" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": "../adapter"}))
    with pytest.raises(UserError, match="the adapter is its own base"):
        anyformer.load(tmp_path / "adapter")
    with pytest.raises(UserError, match="no adapter found"):
        anyformer.load(tmp_path / "base", adapter=tmp_path / "base")
    wide = spec.replace(stack=spec.stack.replace(width=2 * spec.stack.width))
    save_own(tmp_path / "wide", wide, wide.build(seed=0))
    with pytest.raises(UserError, match="the model has no .* of shape"):  # never a model of random weights
        anyformer.load(tmp_path / "wide", adapter=tmp_path / "adapter")
    network = json.loads((tmp_path / "adapter" / "adapter_network.json").read_text())
    network["stack"]["depth"] = 10**6
    (tmp_path / "adapter" / "adapter_network.json").write_text(json.dumps(network))
    with pytest.raises(UserError, match="do not belong together"):
        anyformer.load(tmp_path / "base", adapter=tmp_path / "adapter")
    (tmp_path / "adapter" / "adapter_network.json").unlink()
    small = spec.replace(stack=spec.stack.replace(depth=2))
    save_own(tmp_path / "small", small, small.build(seed=0))
    with pytest.raises(UserError, match="belongs to no layer of the model"):
        anyformer.load(tmp_path / "small", adapter=tmp_path / "adapter")
    path = tmp_path / "adapter" / "adapter_config.json"
    for change, said in (({"peft_type": "IA3"}, "IA3"), ({"use_dora": True}, "use_dora"), ({"bias": "all"}, "biases")):
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        with pytest.raises(UserError, match=said):
            anyformer.load(tmp_path / "base", adapter=tmp_path / "adapter")
        path.write_text(
            json.dumps(json.loads(path.read_text()) | {"peft_type": "LORA", "use_dora": False, "bias": "none"})
        )
    path.write_text(json.dumps(json.loads(path.read_text()) | {"lora_alpha": "much", "alpha_pattern": {}}))
    with pytest.raises(UserError, match="'much' is not a number"):
        anyformer.load(tmp_path / "base", adapter=tmp_path / "adapter")
    with pytest.raises(UserError, match="has adapters of .* expected"):
        anyformer.load(tmp_path / "wide", adapter=tmp_path / "adapter")
    (tmp_path / "adapter" / "adapter_model.safetensors").unlink()
    with pytest.raises(UserError, match="save the adapter as safetensors"):
        anyformer.load(tmp_path / "base", adapter=tmp_path / "adapter")


def test_a_run_with_lora_is_the_same_in_transformers_and_in_peft(tmp_path: Path) -> None:
    """From a folder of transformers, with other labels than it had: the new head is in the adapter."""
    quick = {"training.steps": 3, "training.threads": 1, "training.workers": 0, "training.optimizer.lr": 0.02}
    first = anyformer.train([made.reviews(tmp_path)], model="bert-base-tiny", target="label", out=tmp_path / "first",
                            device="cpu", quiet=True, settings=quick)  # fmt: skip
    base = anyformer.load(first.path).export(tmp_path / "base")
    run = anyformer.train([made.topics(tmp_path)], target="labels", start=base, out=tmp_path / "run", device="cpu",
                          quiet=True, settings=quick | {"training.lora": {"type": "LoRA", "rank": 3}})  # fmt: skip
    predictor = anyformer.load(run.path)
    merged = predictor.export(tmp_path / "merged")
    config = json.loads((run.path / "adapter" / "adapter_config.json").read_text())
    assert (
        config["modules_to_save"] == ["classifier"]
        and "bert.encoder.layer.0.attention.self.query" in config["target_modules"]
    )
    kind = transformers.AutoModelForSequenceClassification
    with quietly(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = kind.from_pretrained(base, num_labels=len(predictor.labels or ()), ignore_mismatched_sizes=True)
        there = ask_theirs(peft.PeftModel.from_pretrained(plain, run.path / "adapter").eval())
        exported = ask_theirs(kind.from_pretrained(merged).eval())
    ours = ask_ours(predictor.model, predictor.spec)
    fitted = None if predictor.preprocess is None else predictor.preprocess.calibration
    heat = torch.tensor((1.0,) if fitted is None else fitted.temperature)  # an export answers as the run does
    assert far(ours, there) < 1e-5 and far(ours / heat, exported) < 1e-5
    with quietly(), torch.no_grad():
        before = kind.from_pretrained(base).eval().bert(ids()).last_hidden_state
        after = predictor.model(ids()).hidden
    assert far(after, before) > 1e-3  # control: the adapters do something
