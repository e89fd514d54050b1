"""Images in, text out: learned from a file of paths, written alike with and without a cache, alone and in a batch."""

from __future__ import annotations

import base64
import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from anyformer import UserError, load, preset
from anyformer.data.sizes import Sizes
from anyformer.generation import Generation, generate
from anyformer.inference.generation_inputs import image_inputs
from anyformer.inference.predictor import Predictor
from anyformer.tasks.translate import nearest_images
from tests.cli import made
from tests.cli.trying import done, run, standing_in
from tests.serving.server import Server
from tests.tasks_by_name import network

SENTENCES = 36  # captions there are: three colours and two shapes, twice
FAST = ["--set", "data.images.crop=0", "--set", "objective.num_beams=1", "--progress", "none"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a captioner and a model that answers questions, which is trained for a moment only."""
    folder = tmp_path_factory.mktemp("captions")
    made.captions(folder, 600, sides=(32, 32, 40))
    made.captions(folder, 60, questions=True, sides=(24, 32, 48))
    with standing_in(folder):
        done("train", "captions.csv", "--task", "translate", "--target", "caption", "--steps", "200", "--out", "run",
             "--set", "data.tokenizer.kind=word", "--set", "model.encoder.embed.patch=8", *FAST)  # fmt: skip
        done("train", "questions.csv", "--task", "translate", "--target", "answer", "--steps", "3", "--out", "asked",
             "--set", "data.images.size=32", *FAST)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def asked(home: Path) -> Predictor:
    return load(home / "asked")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


# ---------------------------------------------------------------- learning


def test_captions_are_learned(home: Path) -> None:
    """Chance is 1 in 36, and the most frequent caption is hardly better; another row's image gives no better."""
    found = json.loads((home / "run" / "evaluation.json").read_text())
    ours, trivial = found["metrics"]["test"]["exact_match"], found["baselines"]["trivial"]["metrics"]["exact_match"]
    assert trivial <= 5 / SENTENCES
    assert ours >= 0.3
    names = {role: entry["name"] for role, entry in found["baselines"].items()}
    assert names == {"trivial": "always writing the most frequent text",
                     "strong": "the text of the nearest training image"}  # fmt: skip
    rows = rows_of(home / "captions.csv")[:150]
    model, paths = load(home / "run"), [str(home / row["image"]) for row in rows]
    told = model.predict([{"image": path} for path in paths[1:] + paths[:1]])
    control = np.mean([text == row["caption"] for text, row in zip(told, rows, strict=True)])
    assert control <= 5 / SENTENCES


def test_the_verbs_agree(home: Path) -> None:
    """`predict`, `evaluate`, `generate` and Python write the same about the same image."""
    first = rows_of(home / "captions.csv")[0]["image"]
    with standing_in(home):
        (home / "new.csv").write_text(f"image\n{first}\n")
        done("predict", "run", "new.csv", "-o", "out.csv")
        told = rows_of(home / "out.csv")[0]["prediction"]
        assert done("generate", "run", "--image", first, "--quiet").out.strip() == told
        model = load("run")
        assert model.generate(image=first) == told == model.generate(image=Path(first).read_bytes())
        assert model.predict([first]) == [told]
        judged = done("evaluate", "run", "captions.csv", "--json").json
        assert judged["rows"] == 600 and judged["exact_match"] >= 0.3


def test_saved_and_opened_it_writes_the_same(home: Path, tmp_path: Path) -> None:
    images = [str(home / row["image"]) for row in rows_of(home / "captions.csv")[:6]]
    before = load(home / "run")
    before.save(tmp_path / "saved")
    assert load(tmp_path / "saved").generate(image=images) == before.generate(image=images)


def test_it_is_served(home: Path) -> None:
    row = rows_of(home / "captions.csv")[0]
    told = load(home / "run").predict([str(home / row["image"])])
    data = base64.b64encode((home / row["image"]).read_bytes()).decode()
    with Server(home / "run") as server:
        answer = server.post("/v1/predict", {"rows": [{"image": f"data:image/png;base64,{data}"}]}).json()
        assert [entry["text"] for entry in answer["data"]] == told
        assert server.post("/v1/completions", {"prompt": "a red"}).status_code == 400


# ---------------------------------------------------------------- cache = full, batch = single


def test_cached_decoding_is_the_full_pass() -> None:
    """An image beside a question of another length in each row: a step at a time gives what one pass gives."""
    torch.manual_seed(0)
    sizes = Sizes(parts=["text", "image"], vocab=40, length=12, image=16, channels=3)
    model = network("captioner-mini", "translate", sizes).build(seed=1).double().eval()
    tokens, pixels = torch.randint(3, 40, (3, 6)), torch.randn(3, 3, 16, 16, dtype=torch.float64)
    real = torch.arange(6) < torch.tensor([[6], [2], [4]])
    seen = torch.tensor([True, True, False])  # the last row has no image

    def largest_difference(read: torch.Tensor) -> float:
        """Between log-probabilities while decoding with `pixels`, and in one pass over the same words with `read`."""
        settings = Generation(max_new_tokens=8, decoder_start_token_id=1, eos_token_id=None)
        written = generate(model, (tokens, pixels), (real, seen), settings=settings)
        with torch.no_grad():
            logits = model((tokens, read), written.ids[:, :-1], source_mask=(real, seen)).logits
        whole = logits.log_softmax(-1).gather(2, written.ids[:, 1:, None])[..., 0]
        return float((whole - written.logprobs).abs().max())

    assert largest_difference(pixels) < 1e-9
    assert largest_difference(pixels.flip(0)) > 1e-4  # control: another image


@pytest.mark.parametrize("beams", [1, 3])
def test_a_batch_writes_what_each_row_writes_alone(home: Path, asked: Predictor, beams: int) -> None:
    """Images of 24, 32 and 48 pixels beside questions of unlike lengths."""
    rows = rows_of(home / "questions.csv")[:8]
    images = [str(home / row["image"]) for row in rows]
    texts = [row["question"] + " please" * (at % 3) for at, row in enumerate(rows)]
    together = asked.run_generation(texts, {"num_beams": beams, "max_new_tokens": 5}, image=images)
    for at, (image, text) in enumerate(zip(images, texts, strict=True)):
        alone = asked.run_generation(text, {"num_beams": beams, "max_new_tokens": 5}, image=image)
        assert asked.texts(alone)[0] == asked.texts(together)[at]
    assert len({image_inputs(asked, text, image)[0][0].shape[1] for image, text in zip(images, texts, strict=True)}) > 1


def test_image_and_question_are_both_read(asked: Predictor) -> None:
    """The encoder's output changes with either."""
    rng = np.random.default_rng(0)
    one, two = (rng.integers(0, 255, (32, 32, 3)).astype(np.uint8) for _ in range(2))

    def read(text: str, image: np.ndarray) -> torch.Tensor:
        source, mask, _ = image_inputs(asked, text, image)
        with torch.no_grad():
            return asked.model.eval().read(source, mask).hidden.mean((0, 1))

    assert torch.equal(read("which colour?", one), read("which colour?", one))
    assert not torch.allclose(read("which colour?", one), read("which colour?", two))
    assert not torch.allclose(read("which colour?", one), read("which shape?", one))


# ---------------------------------------------------------------- data and errors


def test_questions_that_come_again_are_read_as_text(home: Path) -> None:
    """Four different questions look like a category; beside an image they are what is asked."""
    kept = load(home / "asked").preprocess
    assert kept is not None and kept.parts == ("text", "image")
    assert [column.name for column in kept.texts] == ["question"]


def test_text_presets_take_an_image_beside_their_text() -> None:
    sizes = Sizes(parts=["text", "image"], vocab=40, length=12, image=16, channels=3)
    for name in ("translator-mini", "t5-small-tiny"):
        model = network(name, "translate", sizes).build(seed=0)
        out = model((torch.ones(2, 4, dtype=torch.long), torch.randn(2, 3, 16, 16)), torch.ones(2, 3, dtype=torch.long))
        assert out.logits.shape == (2, 3, 40)


def test_the_nearest_image_is_looked_for_among_those_with_the_same_question() -> None:
    from anyformer.evaluation.baseline_rows import RawRows

    dark, light, grey = (np.full((1, 2, 2, 3), level, np.uint8) for level in (0, 250, 90))
    train = RawRows(images=np.concatenate([dark, light]), sources=["colour?", "shape?"])
    assert nearest_images(train, RawRows(images=grey, sources=["shape?"])) == [1]
    assert nearest_images(train, RawRows(images=grey, sources=["size?"])) == [0]  # a new question: all of them


@pytest.mark.parametrize(
    ("give", "says"),
    [
        (lambda model, image: model.generate("which colour?"), "reads an image"),
        (lambda model, image: model.generate("a", text="b", image=image), "both a prompt and a text"),
        (lambda model, image: model.generate(["a", "b"], image=[image]), "1 images and 2 texts"),
        (lambda model, image: model.generate("a", image="nowhere.png"), "nowhere.png"),
    ],
)
def test_what_cannot_be_read_is_told(home: Path, asked: Predictor, give, says: str) -> None:
    with pytest.raises(UserError, match=says):
        give(asked, str(home / "shapes" / "q0.png"))


def test_a_model_of_text_takes_no_image(tmp_path: Path) -> None:
    spec = preset("gpt2-tiny")
    from anyformer.checkpoints.folder import save_own

    save_own(tmp_path, spec, spec.build(seed=0))
    with pytest.raises(UserError, match="reads no image"):
        load(tmp_path).generate(torch.tensor([[1, 2]]), image=io.BytesIO().getvalue())


def test_chat_refuses_a_captioner(home: Path) -> None:
    said = run("chat", home / "run")
    assert said.code != 0 and "--image" in said.err
