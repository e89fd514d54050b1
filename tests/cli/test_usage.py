"""A wrong word on the command line is answered with the right one, whichever option of whichever verb was meant."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from anyformer.cli import every_option, main
from anyformer.commands.usage import OTHER_OPTIONS, explain_usage
from anyformer.other_names import OTHER_NAMES
from anyformer.training.setup.setting_paths import is_setting
from tests.cli.test_bad_requests import one_slip
from tests.cli.trying import run

OPTIONS = every_option()
VERBS = sorted(set(OPTIONS) - {""})


def answer(*words: str) -> str:
    """The one error line of a command that is refused."""
    said = run(*words)
    assert said.code == 2 and len(said.errors) == 1 and not said.out, (words, said)
    return said.errors[0].removeprefix("error: ")


def test_one_slip_in_an_option_is_answered_with_the_right_one() -> None:
    rng, right, tried = random.Random(0), 0, 0
    for verb in VERBS:
        for option in (name for name in OPTIONS[verb] if name.startswith("--")):
            for wrong in {f"--{one_slip(option[2:], rng)}" for _ in range(8)} - set(OPTIONS[verb]):
                line = explain_usage(f"No such option: {wrong}", [verb, wrong], OPTIONS)
                tried, right = tried + 1, right + (f"did you mean '{option}'?" in line)
    print(f"{right} of {tried} suggestions are right")
    assert tried > 800 and right / tried >= 0.9, (right, tried)


def test_one_slip_in_a_verb_is_answered_with_the_right_one() -> None:
    rng = random.Random(0)
    wrong = {(verb, one_slip(verb, rng)) for verb in VERBS for _ in range(8)}
    tried = [(verb, word) for verb, word in wrong if word not in VERBS]
    right = sum(f"did you mean '{verb}'?" in explain_usage(f"No such command '{word}'", [word], OPTIONS)
                for verb, word in tried)  # fmt: skip
    assert len(tried) > 60 and right / len(tried) >= 0.9, (right, len(tried))


@pytest.mark.quick
@pytest.mark.parametrize(
    "words, expected",
    [
        ("train x --wd 1e-3", "--wd; write --set training.optimizer.weight_decay=1e-3"),
        ("train x --learning-rate=1e-3", "did you mean '--lr'?"),
        ("train x --micro-batch-size 16", "write --set training.micro_batch_size=16"),
        ("train x --weight-decay 0.1", "write --set training.optimizer.weight_decay=0.1"),
        ("train x --grad-clip 1", "write --set training.grad_clip=1"),
        ("train x --max-seq-len 64", "did you mean '--max-length'?"),
        ("train x --dropout 0.1", "write --set model.stack.block.dropout=0.1"),
        ("train x --max-steps 3", "did you mean '--steps'?"),
        ("train x --num-epochs 3", "did you mean '--epochs'?"),
        ("train x --output o", "did you mean '--out'?"),
        ("train x --model m", "did you mean '--preset'?"),
        ("train x --batch", "did you mean '--batch-size'?"),
        ("resume r --grad-clip 5", "write --set training.grad_clip=5"),
        ("evaluate r --batch 3", "did you mean '--batch-size'?"),
        ("predict r x --output o", "did you mean '--out'?"),
        ("predict r x --target y", "it belongs to 'anyformer train'"),
        ("generate f x --max-length 3", "did you mean '--max-new-tokens'?"),
        ("serve f --max-model-len 9", "did you mean '--context'?"),
        ("--json presets", "write it after the command: anyformer presets ... --json"),
        ("finetune x", "did you mean 'train'?"),
        ("train x --steps many", "'--steps': 'many' should be a valid integer"),
        ("demo --seed=-1", "'--seed': '-1' should be greater than or equal to 0"),
        ("demo --qqqqq", "see 'anyformer demo --help'"),
    ],
)
def test_what_people_type_by_habit(words: str, expected: str) -> None:
    assert expected in answer(*words.split())


def test_every_other_name_leads_to_something_that_exists() -> None:
    assert all(is_setting(path) for path in OTHER_NAMES)
    known = {option for options in OPTIONS.values() for option in options}
    assert set(OTHER_OPTIONS) <= known, set(OTHER_OPTIONS) - known
    for names in (*OTHER_NAMES.values(), *OTHER_OPTIONS.values()):
        assert all(name == name.lower() and "-" not in name for name in names), names


def test_no_option_has_an_own_name_among_the_others() -> None:
    """An option that exists is never answered with another one."""
    for option, names in OTHER_OPTIONS.items():
        for verb, known in OPTIONS.items():
            both = {f"--{name.replace('_', '-')}" for name in names} & set(known)
            assert not both or option not in known, (verb, option, both)


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_h_is_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for word in ("-h", "--help"):
        assert main([*verb.split(), word]) == 0
        said.append(capsys.readouterr())
    assert said[0] == said[1] and said[0].out.startswith("Usage: anyformer") and not said[0].err


def test_python_m_anyformer_is_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "anyformer", "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == run("--version").out
    wrong = subprocess.run([sys.executable, "-m", "anyformer", "demmo"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 2 and wrong.stderr == "error: no such command 'demmo'; did you mean 'demo'?\n"
