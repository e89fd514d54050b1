"""The demo's text: the Python standard library, present on every machine with Python.

The list of files and the held-out part are fixed; only the contents differ between Python versions.
"""

from __future__ import annotations

import gzip
import lzma
import sysconfig
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from anyformer.errors import UserError
from anyformer.safe_files import writing

TRAINING_BYTES = 2_000_000  # read in the order of TRAINING_FILES, the last one truncated
LEAST_BYTES = 200_000  # with less, this is no standard library with sources
LEARNED, HELD_OUT = "python", "held-out"  # folders of the text on disk

# Files in Python 3.11, 3.12 and 3.13, including Debian's own Python. Tables and tests are left out.
HELD_OUT_FILES = """
asyncio/queues.py csv.py email/policy.py queue.py shlex.py urllib/robotparser.py
""".split()

TRAINING_FILES = """
abc.py asyncio/events.py asyncio/futures.py asyncio/locks.py asyncio/runners.py asyncio/streams.py
asyncio/taskgroups.py asyncio/tasks.py calendar.py cmd.py code.py collections/__init__.py concurrent/futures/_base.py
concurrent/futures/process.py concurrent/futures/thread.py configparser.py contextlib.py copy.py dataclasses.py
email/feedparser.py email/generator.py email/header.py email/utils.py filecmp.py fractions.py functools.py getopt.py
gettext.py glob.py graphlib.py gzip.py hashlib.py heapq.py html/parser.py http/client.py http/cookies.py http/server.py
importlib/util.py json/__init__.py json/decoder.py linecache.py logging/__init__.py logging/config.py
logging/handlers.py multiprocessing/connection.py multiprocessing/pool.py multiprocessing/queues.py
multiprocessing/util.py os.py pickle.py pkgutil.py plistlib.py posixpath.py pprint.py random.py re/_compiler.py
re/_parser.py sched.py selectors.py shutil.py socket.py socketserver.py string.py subprocess.py tempfile.py
threading.py timeit.py tokenize.py traceback.py unittest/case.py unittest/loader.py unittest/runner.py
unittest/suite.py urllib/parse.py warnings.py weakref.py
""".split()


@dataclass(frozen=True)
class Corpus:
    """Training and held-out text by file name, disjoint."""

    training: dict[str, str]
    held_out: dict[str, str]

    @cached_property
    def training_text(self) -> str:
        return "".join(self.training.values())

    @cached_property
    def held_out_text(self) -> str:
        return "".join(self.held_out.values())

    @property
    def training_bytes(self) -> int:
        return len(self.training_text.encode())

    @property
    def held_out_bytes(self) -> int:
        return len(self.held_out_text.encode())

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write the text into a new folder, file by file; returns the training and the held-out folder."""
        sides = folder / LEARNED, folder / HELD_OUT
        with writing(folder, self.training_bytes + self.held_out_bytes):
            for side, texts in zip(sides, (self.training, self.held_out), strict=True):
                for name, text in texts.items():
                    path = side / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text, encoding="utf-8")
        return sides

    def gzip_bits(self) -> float:
        """Bits per byte of the concatenated held-out files with gzip level 9, without the header's time stamp."""
        return 8 * len(gzip.compress(self.held_out_text.encode(), 9, mtime=0)) / self.held_out_bytes

    def lzma_bits(self) -> float:
        """The same with xz: lzma, preset 9 extreme."""
        packed = lzma.compress(self.held_out_text.encode(), preset=9 | lzma.PRESET_EXTREME)
        return 8 * len(packed) / self.held_out_bytes


def corpus(folder: Path | None = None) -> Corpus:
    """The fixed files of the standard library in `folder`, by default that of the running Python."""
    folder = Path(sysconfig.get_paths()["stdlib"]) if folder is None else folder
    training: dict[str, str] = {}
    room = TRAINING_BYTES
    for name, text in read(folder, TRAINING_FILES).items():
        raw = text.encode()[:room]
        training[name] = raw.decode(errors="ignore")
        room -= len(raw)
        if room <= 0:
            break
    found = Corpus(training, read(folder, HELD_OUT_FILES))
    if found.training_bytes < LEAST_BYTES or not found.held_out_text:
        raise UserError(
            f"{folder} holds {found.training_bytes:,} bytes of the standard library's source",
            fix="use a Python that was installed with its .py files",
        )
    return found


def read(folder: Path, names: list[str]) -> dict[str, str]:
    """Read the files that exist, in the order of the list; another Python may lack a few."""
    paths = {name: folder / name for name in names}
    return {name: path.read_text(encoding="utf-8") for name, path in paths.items() if path.is_file()}
