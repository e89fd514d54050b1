"""Tasks that hide a part of a text live a whole life: train, resume to the bit, evaluate, predict, serve, hand over."""

from __future__ import annotations

import csv
import json
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import anyformer
from anyformer import UserError
from anyformer.data.sizes import Sizes
from anyformer.heads import LM
from anyformer.presets import preset
from anyformer.serving.predict_rows import predict_what
from anyformer.tasks import find
from tests.cli.trying import done, run, standing_in
from tests.families.parity import quietly
from tests.serving.server import Server
from tests.training.nursery import Nursery

SMALL = ["data.tokenizer.max_length=32", "training.threads=1", "training.save_every=50", "training.batch_size=16",
         "training.optimizer.lr=2e-3", "training.eval_every=50"]  # fmt: skip
STEPS = 100
CASES = {
    "masked": ["--task", "masked", "--preset", "bert-base-tiny", "--set", "objective.rate=0.3"],
    "pairs": ["--task", "masked", "--preset", "bert-base-tiny", "--set", "objective.pairs=next",
              "--set", "objective.whole_words=true"],
    "replaced": ["--task", "replaced", "--set", "objective.masked.rate=0.2"],
}  # fmt: skip


def write_book(path: Path, lines: int = 500) -> Path:
    """Sentences of which most words follow from their neighbours."""
    draw = random.Random(0)
    verbs = {"cat": "sat", "dog": "ran", "bird": "flew", "horse": "stood"}
    again = ["", "today ", "once more "]
    made = [f"The {name} {draw.choice(again)}{verbs[name]} on the {draw.choice(['mat', 'hill', 'road'])}."
            for name in draw.choices(list(verbs), k=lines)]  # fmt: skip
    path.write_text("\n".join(made) + "\n")
    return path


def train_words(case: str, out: str) -> list[str]:
    sets = [word for setting in SMALL for word in ("--set", setting)]
    return ["train", "book.txt", *CASES[case], "--steps", str(STEPS), *sets, "--quiet", "--out", out]


Runs = Callable[[str], Path]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The folder of a case, with a trained run in it."""
    found: dict[str, Path] = {}

    def made_run(case: str) -> Path:
        if case not in found:
            made = tmp_path_factory.mktemp(case)
            write_book(made / "book.txt")
            with standing_in(made):
                done(*train_words(case, "run"))
            found[case] = made
        return found[case]

    return made_run


@pytest.mark.parametrize("case", ["pairs", "replaced"])
def test_a_killed_run_resumes_to_the_bit(case: str, runs: Runs, nursery: Nursery) -> None:
    folder = runs(case)
    dead = nursery.command(*train_words(case, "killed"), where=folder, fault="kill@saved:1")
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    again = nursery.command("resume", "killed", "--quiet", where=folder)
    assert again.returncode == 0, again.stderr
    weights = [next((folder / run / "checkpoints").glob(f"*{STEPS}/model*.safetensors")).read_bytes()
               for run in ("run", "killed")]  # fmt: skip
    assert weights[0] == weights[1]


@pytest.mark.parametrize("case", CASES)
def test_it_is_judged_beside_two_baselines_and_by_its_own_objective(case: str, runs: Runs) -> None:
    folder = runs(case)
    found = json.loads((folder / "run" / "evaluation.json").read_text())
    ours, baselines = found["metrics"][found["split"]], found["baselines"]
    slack = 1.1 if case == "pairs" else 1.0  # so few steps for two questions only begin to answer one
    assert ours["loss"] < slack * baselines["trivial"]["metrics"]["loss"]
    measure = "auc" if case == "replaced" else "accuracy"
    assert baselines["strong"]["metrics"][measure] > baselines["trivial"]["metrics"].get(measure, 0.5)
    worst = found["facts"]["worst"][0]
    assert worst["truth"] and worst["predicted"]
    with standing_in(folder):
        again = done("evaluate", "run", "--json").json
        of_file = done("evaluate", "run", "book.txt", "--json").json
    assert again["loss"] == pytest.approx(ours["loss"], abs=1e-6)  # with the run's own share of hidden tokens
    assert of_file["loss"] < slack * baselines["trivial"]["metrics"]["loss"]


def test_another_share_of_hidden_tokens_gives_another_loss(runs: Runs) -> None:
    """The control of the test above: judged with the settings that nobody chose, a run has another loss."""
    from anyformer.inference.evaluate import own_rows
    from anyformer.inference.predict import evaluator_for
    from anyformer.objectives import Masked

    predictor = anyformer.load(runs("masked") / "run")
    assert predictor.objective == Masked(rate=0.3)
    _, rows = own_rows(runs("masked") / "run")
    own = evaluator_for(predictor, batch_size=8)(predictor.model, rows)
    predictor.objective = None
    other = evaluator_for(predictor, batch_size=8)(predictor.model, rows)
    assert own.tokens > 1.5 * other.tokens


def test_pairs_are_judged_too(runs: Runs) -> None:
    found = json.loads((runs("pairs") / "run" / "evaluation.json").read_text())
    assert 0 <= found["metrics"][found["split"]]["pair_accuracy"] <= 1


@pytest.mark.parametrize("case", ["masked", "pairs"])
def test_gaps_are_filled_by_predict_in_python_and_by_a_server(case: str, runs: Runs) -> None:
    folder = runs(case)
    texts = ["The [MASK] sat on the <mask>.", "The dog [MASK] on the hill."]
    (folder / "new.txt").write_text("\n".join(texts) + "\n")
    with standing_in(folder):
        said = done("predict", "run", "new.txt")
        bad = run("predict", "run", "book.txt")
        wrong = run("generate", "run", "The")
    rows = list(csv.DictReader(said.out.splitlines()))
    assert [row["text"] for row in rows] == texts
    assert [len(row["probabilities"].split()) for row in rows] == [2, 1]
    assert all(0 < float(share) <= 1 for row in rows for share in row["probabilities"].split())
    predictor = anyformer.load(folder / "run")
    assert predictor.predict(texts) == [row["prediction"] for row in rows]
    assert all("[MASK]" not in row["prediction"] and "<mask>" not in row["prediction"] for row in rows)
    assert bad.code == 2 and "has no gap; write [MASK]" in bad.err
    assert wrong.code == 2 and "fills gaps and does not write text" in wrong.err
    if case == "pairs":
        return
    with Server(folder / "run") as server:
        answer = server.post("/v1/predict", {"rows": [*texts, {"text": "no gap"}]})
        right = server.post("/v1/predict", {"rows": texts})
    assert answer.status_code == 400 and "no gap" in answer.text
    data = right.json()["data"]
    assert [one["prediction"] for one in data] == [row["prediction"] for row in rows]
    assert len(data[0]["gaps"]) == 2 and data[0]["gaps"][0][0].keys() == {"token", "probability"}


@pytest.mark.parametrize("case", CASES)
def test_the_folder_opens_in_transformers_and_a_classifier_starts_from_it(case: str, runs: Runs) -> None:
    import transformers

    folder = runs(case)
    predictor = anyformer.load(folder / "run")
    target = folder / "theirs"
    predictor.export(target)
    config = transformers.AutoConfig.from_pretrained(target)
    kind = {"masked": "BertForMaskedLM", "pairs": "BertForPreTraining", "replaced": "ElectraForPreTraining"}[case]
    assert config.architectures == [kind]
    with quietly():
        theirs, info = getattr(transformers, kind).from_pretrained(target, output_loading_info=True)
    assert not any(info.values()), info
    words = transformers.AutoTokenizer.from_pretrained(target)
    ids = torch.tensor([words("The dog ran")["input_ids"]])
    assert ids[0].tolist() == predictor.tokenizer.encode("The dog ran")  # type: ignore[union-attr]
    with torch.no_grad():
        out = theirs.eval()(input_ids=ids)
        wanted = out.prediction_logits if case == "pairs" else out.logits
        assert (predictor.model(ids).logits.reshape(wanted.shape) - wanted).abs().max() < 1e-5
    rows = "".join(
        f"{line},{'cat' in line}\n" for line in dict.fromkeys((folder / "book.txt").read_text().splitlines())
    )
    (folder / "labels.csv").write_text(f"text,pet\n{rows}")
    with standing_in(folder):
        done("train", "labels.csv", "--target", "pet", "--types", "text=text", "--from", "run", "--steps", "3",
             "--quiet", "--out", "classifier")  # fmt: skip
    start = predictor.model.discriminator if case == "replaced" else predictor.model
    if case == "pairs":  # its pooler is the classifier's
        theirs_dense = anyformer.load(folder / "classifier").model.head.dense.weight
        assert (theirs_dense - predictor.model.head.pair.dense.weight).abs().max() < 0.02
    body, before = (model.embed.table.weight for model in (anyformer.load(folder / "classifier").model, start))
    other = start.spec.build(seed=9).embed.table.weight
    assert (body - before).abs().max() < 0.02 < (body - other).abs().max()


def test_a_discriminator_is_written_with_its_generator_and_tells_what_was_replaced(runs: Runs) -> None:
    import transformers

    folder = runs("replaced")
    predictor = anyformer.load(folder / "run")
    target = predictor.export(folder / "with generator")
    with quietly():
        theirs, info = transformers.ElectraForMaskedLM.from_pretrained(target / "generator", output_loading_info=True)
    assert not any(info.values()), info
    ids = torch.tensor([predictor.encode("The dog ran on the hill.")])
    with torch.no_grad():
        out = predictor.model.read_hidden(ids)
        ours = predictor.model.name_tokens(out.hidden, out.context)
        assert (theirs.eval()(input_ids=ids).logits - ours).abs().max() < 1e-5
    (folder / "new.txt").write_text("The dog ran on the hill.\nThe dog ran ~# the hill.\n")
    with standing_in(folder):
        rows = list(csv.DictReader(done("predict", "run", "new.txt").out.splitlines()))
    assert rows[0].keys() == {"text", "prediction", "probability"}
    fine, odd = (float(row["probability"]) for row in rows)
    assert fine < odd
    answers = predict_what(predictor)(["The dog ran.", {"text": "The hill."}, {"no": "text"}])
    assert len(answers[0]["tokens"]) == len(predictor.encode("The dog ran.")) - 2
    assert isinstance(answers[2], UserError)


def test_check_says_what_would_be_trained(runs: Runs) -> None:
    with standing_in(runs("masked")):
        said = done("check", "book.txt", "--task", "masked")
    assert "masked" in said.out + said.err


def test_a_network_without_feeds_gives_its_head_no_activation() -> None:
    """`masked` takes a plain head then; `replaced` needs one and says so."""
    sizes, spec = Sizes(parts=["text"], vocab=64, length=16), preset("bert-base-tiny")
    bare = spec.replace(head=None, stack=spec.stack.replace(block=spec.stack.block.replace(feed=None)))
    made = find("masked").fit_network(bare, "bare", sizes)
    assert made.head == LM(tied=True)
    with pytest.raises(UserError, match="bare has blocks without a feed.*use electra-small-tiny"):
        find("replaced").fit_network(bare, "bare", sizes)
    whole = find("masked").fit_network(spec.replace(head=None), "bert-base-tiny", sizes)
    assert whole.head.transform == "gelu"  # control: with feeds it is theirs
    find("replaced").fit_network(spec, "bert-base-tiny", sizes)
