"""The demo end to end: collect the text, train like `anyformer train`, show the result."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from rich.text import Text

from anyformer.amounts import steady_bytes
from anyformer.commands.words import note_line
from anyformer.demo import FOLDER, PRESET, PROMPTS, SETTINGS
from anyformer.demo.boxes import boxes
from anyformer.demo.data import Corpus, corpus
from anyformer.demo.inside import bracket_head
from anyformer.demo.learned import DemoResult
from anyformer.demo.sampling import complete
from anyformer.demo.show import Show
from anyformer.demo.words import next_lines, train_line
from anyformer.errors import UserError
from anyformer.inference.devices import pick_device
from anyformer.terminal import visible
from anyformer.training.display.format import duration, whole
from anyformer.training.run.folder import RUN_FILE, check_new
from anyformer.training.setup.request import Request
from anyformer.training.train import Run, run_request


class Job:
    """One demo run. Arguments are validated before any work."""

    def __init__(self, show: Show, *, device: str, seed: int, out: Path | None) -> None:
        pick_device(device)
        self.show, self.device, self.seed = show, device, seed
        self.out = free(FOLDER) if out is None else out
        check_new(self.out)
        self.text = text_folder(self.out)
        if self.text.exists():
            raise UserError("the text of a demo is there already", where=str(self.text), fix="give another --out")

    def run(self, seconds: float, steps: int | None) -> float:
        """Run everything; returns the final held-out bits per byte."""
        text = corpus()
        self.gzip_bits, self.xz_bits = text.gzip_bits(), text.lzma_bits()
        self.say_text(text)
        run = self.train(text, seconds, steps)
        learned = DemoResult.of(run)
        self.draw(run, learned)
        self.say_result(run, learned)
        self.show.write(self.show.title("Lines to copy"))
        self.show.copy(*next_lines(self.out))
        return learned.bits

    # ------------------------------------------------------------------------------------------------ before

    def say_text(self, text: Corpus) -> None:
        many, few = len(text.training), len(text.held_out)
        learns = f"{many} files of the standard library, {text.training_bytes:,} bytes"
        held_out = f"{few} other files, {text.held_out_bytes:,} bytes: {', '.join(text.held_out)}"
        others = (
            f"gzip -9 packs those {few} files, joined, into {self.gzip_bits:.2f} bits a byte, xz -9e into "
            f"{self.xz_bits:.2f}; they start from nothing, the model will have read the other {many}"
        )
        self.show.news(
            "", self.show.facts([("learns from", learns), ("evaluated on", held_out), ("to compare", others)])
        )

    def train(self, text: Corpus, seconds: float, steps: int | None) -> Run:
        """Write the text beside the run's folder and train on it; if no run is created, the text is removed."""
        made = [parent for parent in self.text.parents if not parent.exists()]
        try:
            request = self.request(*text.write(self.text), seconds, steps)
            self.show.news("", "The same as typing:")
            if not self.show.quiet:
                self.show.copy(request.command, "")
            return run_request(request, log=self.log, quiet=self.show.quiet)
        except BaseException:
            if not (self.out / RUN_FILE).is_file():
                shutil.rmtree(self.text, ignore_errors=True)
                with suppress(OSError):
                    for parent in made:
                        parent.rmdir()
            raise

    def request(self, learned: Path, held_out: Path, seconds: float, steps: int | None) -> Request:
        """The equivalent request of `anyformer train`."""
        settings = {"data.split.valid_file": (held_out.as_posix(),), **SETTINGS, "training.seed": self.seed}
        length = {"training.minutes": round(seconds / 60, 4)} if steps is None else {"training.steps": steps}
        request = Request([learned], preset=PRESET, out=self.out, device=self.device, settings=settings | length)
        request.command = train_line(request)
        return request

    def log(self, line: str) -> None:
        """A log line of the training, to the same stream as `anyformer train`."""
        if not self.show.quiet:
            note_line(line)

    # ------------------------------------------------------------------------------------------------ after

    def draw(self, run: Run, learned: DemoResult) -> None:
        """Show the curve, samples during training, completions of the final model, and one attention head."""
        show = self.show
        show.write(show.title("Bits per byte"), show.key(learned, self.gzip_bits, self.xz_bits))
        show.write(show.curve(learned, self.gzip_bits, 13))
        if len(learned.samples) > 1:
            show.write(show.title("The same beginning, continued at growing steps"), show.samples(learned.samples))
        predictor = run.predictor()
        assert predictor.tokenizer is not None
        net, tokenizer = predictor.model, predictor.tokenizer.core
        texts = [complete(net, tokenizer, prompt, tokens=110, seed=self.seed + i) for i, prompt in enumerate(PROMPTS)]
        show.write(show.title("What it writes now"), show.completions(texts), show.scale())
        found = bracket_head(net, tokenizer)
        closing, opening = found.pairs[-1]
        where = f"Layer {found.layer}, head {found.head} of {found.heads}"
        pair = f"{visible(found.words[closing])} at {visible(found.words[opening])}"
        show.news(show.title("The model"), boxes(predictor.spec, net))
        show.write(
            show.title(f"{where}: which earlier token each token looks at"),
            show.head(found),
            Text(
                f"rows look at columns; [] marks a closing bracket looking at its opening one, as {pair}: "
                f"weight {found.score:.2f} on average, {found.even:.2f} if it looked evenly"
            ),
        )

    def say_result(self, run: Run, learned: DemoResult) -> None:
        """Print the held-out bits per byte beside the baselines', the cost, and the folder."""
        others = [("guessing by frequency", learned.guessing), ("gzip", self.gzip_bits), ("xz", self.xz_bits),
                  ("xz after the files it learned from", learned.primed)]  # fmt: skip
        beside = ", ".join(f"{name} {bits:.2f}" for name, bits in others if bits is not None)
        cost = f"{learned.total:,} steps in {duration(learned.seconds)}"
        if learned.per_second and learned.step_seconds:
            cost += f", {whole(learned.per_second)} tokens/s, {whole(1000 * learned.step_seconds)} ms a step"
        if learned.memory:
            cost += f", {steady_bytes(learned.memory)} of memory at most"
        rows = [
            ("bits per byte", f"{learned.bits:.2f} on the held-out files; {beside}"),
            ("cost", cost),
            ("saved", f"{run.path.as_posix()}/  (checkpoints, curves, texts, report.html)"),
        ]
        self.show.write(self.show.title("Result"), self.show.facts(rows))


def text_folder(run: Path) -> Path:
    """The folder of a run's text, beside the run."""
    if not run.name:
        raise UserError(f"{run} has no name of its own", where="--out", fix="name a new folder")
    return run.with_name(f"{run.name}-text")


def free(folder: Path) -> Path:
    """The folder, or the first unused one of folder-2, folder-3 and so on."""
    number, path = 1, folder
    while path.exists() or text_folder(path).exists():
        number += 1
        path = folder.with_name(f"{folder.name}-{number}")
    return path
