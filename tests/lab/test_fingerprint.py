"""What a kept result belongs to: the code that measured it, not its comments, its verdict or its pictures."""

from __future__ import annotations

from pathlib import Path

from anyformer.lab.claims import rnn_bottleneck, vanishing_gradients
from anyformer.lab.fingerprint import fingerprint, measuring_code

CODE = '''"""{doc}"""
from anyformer.core.attend import {part}

BOUND = {bound}  # {comment}
ASKED = {asked}
FACTORS = [BOUND * n for n in range(3)]


def cases(full):
    return [{{"seed": {seed}}}]


def measure(case):
    """{doc}"""
    return {{"figure": helper(case)}}


def helper(case):
    return sum(FACTORS){more}


def judge(found):
    return found.mean("figure") > ASKED


CLAIM = Claim(name="figure", claim="{claim}", measure=measure, judge=judge)
'''
WORDS = {"doc": "One.", "bound": 1, "comment": "why", "claim": "It is one", "asked": 2, "seed": 0, "more": "",
         "part": "attend"}  # fmt: skip


def code(folder: Path, **words: object) -> dict[tuple[str, str], str]:
    path = folder / "claim_file.py"
    path.write_text(CODE.format(**(WORDS | words)))
    return measuring_code(path)


def test_comments_documentation_cases_and_the_verdict_do_not_count(tmp_path: Path) -> None:
    first = code(tmp_path)
    assert {name for _, name in first} == {"measure", "helper", "FACTORS", "BOUND"}
    for words in ({"doc": "Another sentence.", "comment": "because", "claim": "It is 1"}, {"asked": 3}, {"seed": 1}):
        assert code(tmp_path, **words) == first, words


def test_whatever_a_measurement_uses_counts(tmp_path: Path) -> None:
    first = code(tmp_path)
    assert code(tmp_path, bound=2) != first  # through a helper and a list
    assert code(tmp_path, more=" + attend(case)") != first
    assert code(tmp_path, more=" + 1", part="score_steps") == code(tmp_path, more=" + 1")  # an import that is not used


def test_what_a_claim_imports_of_the_lab_counts_too() -> None:
    used = measuring_code(Path(rnn_bottleneck.__file__))
    assert {file for file, _ in used} == {"rnn_bottleneck.py", "bahdanau_alignment.py", "fit.py"}
    assert ("bahdanau_alignment.py", "network") in used and ("fit.py", "fit") in used
    assert ("bahdanau_alignment.py", "judge") not in used
    assert {file for file, _ in measuring_code(Path(vanishing_gradients.__file__))} == {"vanishing_gradients.py"}
    assert fingerprint(rnn_bottleneck.CLAIM) != fingerprint(vanishing_gradients.CLAIM)
