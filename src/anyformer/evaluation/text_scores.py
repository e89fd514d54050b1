"""Scores of generated text against references: BLEU and chrF by sacreBLEU, ROUGE implemented here.

sacreBLEU has no ROUGE, and ROUGE is the fallback if that optional extra is missing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from anyformer.extras import install_command, is_installed

References = Sequence[str | Sequence[str]]

WORD = re.compile(r"\w+")
NGRAMS = 4  # largest n of BLEU
NO_BLEU = f"BLEU and chrF left out: sacrebleu is not installed ({install_command('sacrebleu')})"


def bleu_available() -> bool:
    """Whether sacreBLEU is installed."""
    return is_installed("sacrebleu")


def several(references: References) -> list[list[str]]:
    """Every reference as a list of texts."""
    return [[one] if isinstance(one, str) else list(one) for one in references]


def bleu_chrf(predicted: Sequence[str], references: References) -> tuple[float, float, str]:
    """Corpus BLEU and chrF from 0 to 100, and sacreBLEU's signature."""
    from sacrebleu.metrics import BLEU, CHRF

    texts = several(references)
    most = max((len(one) for one in texts), default=1)
    # One stream per reference; a row with fewer has None, which sacreBLEU ignores.
    streams: list[Any] = [[one[i] if i < len(one) else None for one in texts] for i in range(most)]
    bleu, chrf = BLEU(), CHRF()
    scores = bleu.corpus_score(list(predicted), streams).score, chrf.corpus_score(list(predicted), streams).score
    return float(scores[0]), float(scores[1]), str(bleu.get_signature())


def bleu_counts(predicted: Sequence[str], references: References) -> list[list[int]]:
    """The terms of corpus BLEU per text: matching and all n-grams for n of 1 to 4, its length and its reference's
    length."""
    from sacrebleu.metrics import BLEU

    bleu = BLEU(effective_order=True)  # avoids a warning about single sentences; the counts are the same
    found = []
    for said, texts in zip(predicted, several(references), strict=True):
        score = bleu.sentence_score(said, texts)
        found.append([*score.counts, *score.totals, score.sys_len, score.ref_len])
    return found


def words_of(text: str) -> list[str]:
    """The words for ROUGE: lower-case runs of letters and digits of any script."""
    return WORD.findall(text.lower())


def f_measure(both: int, said: int, true: int) -> float:
    """The harmonic mean of precision and recall."""
    return 2 * both / (said + true) if said + true else 0.0


def rouge_n(predicted: Sequence[str], reference: Sequence[str], n: int) -> float:
    """F-measure of the n-grams that two texts share.

    >>> round(rouge_n("the cat sat".split(), "the cat ran off".split(), 1), 3)
    0.571
    """
    said, true = (Counter(zip(*(words[i:] for i in range(n)), strict=False)) for words in (predicted, reference))
    return f_measure((said & true).total(), said.total(), true.total())


def common_words(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence, with each row of the table as the bits of one integer.

    >>> common_words("a b c d".split(), "b x d".split())
    2
    """
    places: dict[str, int] = {}
    for at, word in enumerate(first):
        places[word] = places.get(word, 0) | 1 << at
    full = (1 << len(first)) - 1
    row = full
    for word in second:
        met = row & places.get(word, 0)
        row = ((row + met) | (row - met)) & full  # the carries of the addition move each match up to the next free bit
    return len(first) - row.bit_count()


def rouge_l(predicted: Sequence[str], reference: Sequence[str]) -> float:
    """F-measure of the longest common subsequence of words."""
    return f_measure(common_words(predicted, reference), len(predicted), len(reference))


ROUGE: dict[str, Callable[[Sequence[str], Sequence[str]], float]] = {
    "rouge_1": lambda predicted, reference: rouge_n(predicted, reference, 1),
    "rouge_2": lambda predicted, reference: rouge_n(predicted, reference, 2),
    "rouge_l": rouge_l,
}


def rouge(predicted: Sequence[str], references: References) -> dict[str, float]:
    """Mean over rows of ROUGE-1, -2 and -L from 0 to 1, each row against its best reference."""
    sums = dict.fromkeys(ROUGE, 0.0)
    for said, texts in zip(predicted, several(references), strict=True):
        words, references_ = words_of(said), [words_of(text) for text in texts]
        for name, score in ROUGE.items():
            sums[name] += max((score(words, reference) for reference in references_), default=0.0)
    return {name: total / max(1, len(predicted)) for name, total in sums.items()}


def row_scores(predicted: Sequence[str], references: References) -> list[float]:
    """ROUGE-L per row, to find the worst rows if there are no losses."""
    return [
        max((rouge_l(words_of(said), words_of(text)) for text in texts), default=0.0)
        for said, texts in zip(predicted, several(references), strict=True)
    ]


def exact_match(predicted: Sequence[str], references: References) -> float:
    """Fraction of rows that equal one of their references after stripping."""
    pairs = zip(predicted, several(references), strict=True)
    return sum(said.strip() in {text.strip() for text in texts} for said, texts in pairs) / max(1, len(predicted))
