"""Text for claims about pretraining: the source of Python's standard library, available on every machine.

A token is a word, a punctuation mark or the indentation of a line. Each token also has a label that depends on
context: whether it is inside a string or a comment. The list of files is fixed; their text differs a little between
versions of Python, and so do the results.
"""

from __future__ import annotations

import io
import re
import sysconfig
import tokenize
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anyformer.objectives.batch import Batch
from anyformer.objectives.draw import Draw
from anyformer.objectives.token_facts import TokenFacts

# Files that exist in Python 3.11 to 3.14; no file is in both lists.
LEARNED = """
abc.py argparse.py asyncio/events.py asyncio/streams.py asyncio/tasks.py calendar.py cmd.py collections/__init__.py
configparser.py contextlib.py copy.py csv.py dataclasses.py fractions.py functools.py gettext.py glob.py heapq.py
html/parser.py http/client.py http/cookies.py json/decoder.py logging/__init__.py os.py pickle.py pkgutil.py pprint.py
random.py selectors.py shlex.py shutil.py socket.py string.py subprocess.py tempfile.py textwrap.py threading.py
timeit.py traceback.py unittest/case.py urllib/parse.py warnings.py weakref.py
""".split()
HELD_OUT = "asyncio/queues.py bisect.py email/policy.py filecmp.py gzip.py queue.py sched.py tokenize.py".split()

PAD, MASK, END, RARE, SENTINELS, FIRST_WORD = 0, 1, 2, 3, range(4, 36), 36
VOCAB, CHARACTERS = 1024, 160
PIECES, CHARACTER = re.compile(r"\n *|\w+|[^\w\s]"), re.compile(r"(?s).")


@dataclass(frozen=True)
class TextBlocks:
    """Blocks of a text of equal length, the batch source of pretraining objectives."""

    tokens: Tensor  # (N,T)
    quoted: Tensor  # (N,T) 1 in a string or a comment, else 0
    next_word: bool = False  # whether a batch's targets are the next tokens, or the tokens themselves

    @property
    def facts(self) -> TokenFacts:
        ordinary = np.arange(VOCAB) >= FIRST_WORD
        return TokenFacts(
            ordinary, np.ones(VOCAB, bool), mask=MASK, pad=PAD, eos=END, sentinels=tuple(SENTINELS)
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.tokens)

    def batch(self, rows: Sequence[int] | np.ndarray, draw: Draw | None = None) -> Batch:
        """Some blocks with their targets, before an objective's `corrupt`."""
        numbers = torch.as_tensor(np.asarray(rows))
        tokens = self.tokens[numbers]
        return Batch((tokens[:, :-1],), tokens[:, 1:], numbers) if self.next_word else Batch((tokens,), tokens, numbers)

    def for_next_word(self) -> TextBlocks:
        """The same blocks for next-token prediction."""
        return replace(self, next_word=True)

    def some(self, count: int) -> TextBlocks:
        """`count` blocks, evenly spread over the text."""
        chosen = torch.linspace(0, len(self) - 1, count).long()
        return replace(self, tokens=self.tokens[chosen], quoted=self.quoted[chosen])


@cache
def library_blocks(length: int, *, characters: bool = False) -> tuple[TextBlocks, TextBlocks]:
    """Blocks of `length` tokens for training, and for evaluation from other files.

    With `characters` each character is a token, of at most CHARACTERS.
    """
    pieces = CHARACTER if characters else PIECES
    folder = Path(sysconfig.get_paths()["stdlib"])
    learned, held_out = (
        [(folder / name).read_text(encoding="utf-8") for name in names if (folder / name).is_file()]
        for names in (LEARNED, HELD_OUT)
    )
    counts = Counter(piece for text in learned for piece in pieces.findall(text))
    numbers = {
        word: FIRST_WORD + at
        for at, (word, _) in enumerate(counts.most_common((CHARACTERS if characters else VOCAB) - FIRST_WORD))
    }
    return as_blocks(learned, pieces, numbers, length), as_blocks(held_out, pieces, numbers, length)


def as_blocks(texts: Sequence[str], pieces: re.Pattern[str], numbers: dict[str, int], length: int) -> TextBlocks:
    """All texts concatenated and split into blocks; a word outside the vocabulary is RARE."""
    tokens: list[int] = []
    quoted: list[bool] = []
    for text in texts:
        inside = inside_quotes(text)
        for found in pieces.finditer(text):
            tokens.append(numbers.get(found[0], RARE))
            quoted.append(bool(inside[found.start()]))
    whole = len(tokens) // length * length
    both = (torch.tensor(each[:whole]).view(-1, length) for each in (tokens, quoted))
    return TextBlocks(next(both), next(both).long())


def inside_quotes(text: str) -> np.ndarray:
    """Whether each character of a Python file is part of a string or a comment."""
    starts = np.cumsum([0, *(len(line) for line in io.StringIO(text))])
    inside = np.zeros(len(text) + 1, bool)
    kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            inside[starts[token.start[0] - 1] + token.start[1] : starts[token.end[0] - 1] + token.end[1]] = True
    return inside
