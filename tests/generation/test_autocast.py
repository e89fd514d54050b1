"""Text is decoded in the precision of the weights, whatever autocast says around it: every runner, the same bits.

A float32 translator judged under bf16 autocast once met a float32 KV cache with bf16 keys.
"""

from __future__ import annotations

import pytest
import torch

from anyformer import compiled
from anyformer.generation import Generation, generate, score
from anyformer.generation.runners import on_device
from tests.generation.nets import POSITIONS, build, decoder, ids, pair

HALF = {"device_type": "cpu", "dtype": torch.bfloat16}
SETTINGS = {
    "greedy": Generation(max_new_tokens=13, decoder_start_token_id=1),
    "sampled": Generation(max_new_tokens=13, decoder_start_token_id=1, do_sample=True, seed=5),
    "beams": Generation(max_new_tokens=13, decoder_start_token_id=1, num_beams=3),
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("runner", ["eager", "fixed places", "compiled"])
def test_autocast_around_generate_changes_no_bit(
    kind: str, settings: str, runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build((decoder if kind == "decoder" else pair)(*POSITIONS["rope"])).float()
    if runner == "fixed places":  # what a GPU records, called plainly
        monkeypatch.setattr(on_device, "DEVICES", ("cpu",))
    if runner == "compiled":
        if kind != "decoder":
            return  # an encoder-decoder is not compiled
        model = compiled(model)
    wanted = generate(model, ids(3, 6), settings=SETTINGS[settings])
    with torch.autocast(**HALF):
        found = generate(model, ids(3, 6), settings=SETTINGS[settings])
    assert torch.equal(found.ids, wanted.ids) and torch.equal(found.scores, wanted.scores)


def test_control_the_model_itself_does_feel_autocast() -> None:
    model, tokens = build(decoder()).float(), ids(2, 6)
    with torch.no_grad():
        wanted = model(tokens).logits
        with torch.autocast(**HALF):
            found = model(tokens).logits
    assert not torch.equal(found.float(), wanted)


def test_scores_are_those_without_autocast() -> None:
    model, tokens = build(decoder()).float(), ids(2, 6)
    wanted = score(model, tokens).logprobs
    with torch.autocast(**HALF):
        assert torch.equal(score(model, tokens).logprobs, wanted)
