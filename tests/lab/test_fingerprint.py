"""What a kept result belongs to: the code that measured it, not its comments."""

from __future__ import annotations

from pathlib import Path

from anyformer.lab.claims import rnn_bottleneck, vanishing_gradients
from anyformer.lab.runner import code_of, fingerprint, measuring_files

CODE = '''"""{doc}"""
BOUND = {bound}  # {comment}


def measure(case):
    """{doc}"""
    return {{"figure": BOUND}}


CLAIM = Claim(name="figure", claim="{claim}", measure=measure)
'''


def written(folder: Path, **words: object) -> str:
    path = folder / "claim_file.py"
    path.write_text(CODE.format(**({"doc": "One.", "bound": 1, "comment": "why", "claim": "It is one"} | words)))
    return code_of(path)


def test_comments_and_documentation_do_not_count_and_code_does(tmp_path: Path) -> None:
    assert written(tmp_path) == written(tmp_path, doc="Another sentence.", comment="because", claim="It is 1")
    assert written(tmp_path) != written(tmp_path, bound=2)


def test_what_a_claim_imports_of_the_lab_counts_too() -> None:
    names = [path.name for path in measuring_files(Path(rnn_bottleneck.__file__))]
    assert names == ["rnn_bottleneck.py", "bahdanau_alignment.py", "fit.py"]
    alone = [path.name for path in measuring_files(Path(vanishing_gradients.__file__))]
    assert alone == ["vanishing_gradients.py"]
    assert fingerprint(rnn_bottleneck.CLAIM) != fingerprint(vanishing_gradients.CLAIM)
