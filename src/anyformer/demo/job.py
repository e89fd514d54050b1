"""The demo from end to end: prepare, train, show what was learned."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.text import Text

from anyformer.demo import JUDGED_AT, PROMPT, PROMPTS, SHARE, SHOWN_AT, VOCAB, model
from anyformer.demo.boxes import boxes
from anyformer.demo.data import Corpus, corpus, train_tokenizer
from anyformer.demo.devices import described
from anyformer.demo.estimate import held_at_most, held_now, training_bytes
from anyformer.demo.folder import commands, program, save, snippet
from anyformer.demo.inside import bracket_head
from anyformer.demo.record import Record
from anyformer.demo.sampling import complete, text_of
from anyformer.demo.show import Show
from anyformer.demo.training import Pace, Settings, Windows, bits_per_byte, fastest_threads, step_seconds, train
from anyformer.terminal import visible

MB = 10**6


class Job:
    """One run. The methods are called in the order they stand in."""

    record: Record

    def __init__(self, show: Show, device: torch.device, seed: int, folder: Path, started: float) -> None:
        self.show, self.device, self.seed, self.folder, self.started = show, device, seed, folder, started
        self.settings = Settings()
        self.spec = model(VOCAB)

    # ------------------------------------------------------------------------------------------------ before

    def prepare(self, seconds: float | None, steps: int | None) -> None:
        """Read the files, train the tokenizer, build the network, measure a step, and say all of it."""
        self.text = corpus()
        self.say_files(self.text)
        self.tokenizer = train_tokenizer(list(self.text.training.values()), VOCAB)
        self.tokens = self.ids(list(self.text.training.values()))
        self.held_out = self.ids(list(self.text.held_out.values()))
        self.say_tokens(self.text)
        self.net = self.spec.build(seed=self.seed, device=self.device)
        self.show.news("", boxes(self.spec, self.net), "")
        needed = training_bytes(self.spec, self.settings)
        self.expected_memory = needed + (0 if self.device.type == "cuda" else held_now())
        one = self.measure(min(0.5, (seconds or 10.0) / 20))
        # What happens between the steps is timed by doing it once, before the first step.
        began = time.perf_counter()
        first = bits_per_byte(self.net, self.held_out, self.text.held_out_bytes, self.settings.length)
        self.judging = time.perf_counter() - began
        noise = self.written()
        self.writing = time.perf_counter() - began - self.judging
        self.judge_at, self.write_at = list(JUDGED_AT), list(SHOWN_AT)
        pauses = self.pauses(None if seconds is None else SHARE * seconds)
        pace = Pace(steps=steps, seconds=seconds, step_seconds=one, pauses=pauses)
        training = pace.total * one + pauses if pace.seconds is None else pace.seconds
        self.expected_seconds = time.perf_counter() - self.started + training + self.judging + 6 * self.writing
        self.say_cost(pace, one, needed)
        ratio = len(self.tokens) / self.text.training_bytes
        self.record = Record(pace, self.settings.tokens, ratio / math.log(2), self.gzip_bits, self.xz_bits)
        self.record.held_out.append((0, first))
        self.record.samples.append((0, noise))

    def ids(self, texts: Sequence[str]) -> torch.Tensor:
        """Token ids of all texts, one after another."""
        return torch.tensor([i for encoded in self.tokenizer.encode_batch(list(texts)) for i in encoded.ids])

    def measure(self, least: float) -> float:
        """Seconds a step takes, on a network that is thrown away."""

        def once() -> float:
            trial = self.spec.build(seed=self.seed, device=self.device)
            return step_seconds(trial, Windows(self.tokens, self.settings, self.seed), self.settings, least)

        return fastest_threads(once) if self.device.type == "cpu" else once()

    def pauses(self, allowed: float | None) -> float:
        """Seconds that what is still due between the steps will take, and is allowed to take."""
        due = len(self.judge_at) * self.judging + len(self.write_at) * self.writing
        return due if allowed is None else max(0.0, min(due, allowed))

    def say_files(self, text: Corpus) -> None:
        self.gzip_bits, self.xz_bits = text.gzip_bits(), text.lzma_bits()
        many, few = len(text.training), len(text.held_out)
        learns = f"{many} files of the standard library, {text.training_bytes:,} bytes"
        judged = f"{few} other files, {text.held_out_bytes:,} bytes: {', '.join(text.held_out)}"
        others = (
            f"gzip -9 packs those {few} files, joined, into {self.gzip_bits:.2f} bits a byte, xz -9e into "
            f"{self.xz_bits:.2f}; they start from nothing, the model will have read the other {many}"
        )
        self.show.news("", self.show.facts([("learns from", learns), ("judged on", judged), ("to compare", others)]))

    def say_tokens(self, text: Corpus) -> None:
        count = len(self.tokens)
        words = f"byte-level BPE, {VOCAB} kinds of token: the training files become {count:,} tokens"
        words += f" of {text.training_bytes / count:.1f} bytes"
        self.show.news(self.show.facts([("tokenizer  ", words)]))

    def say_cost(self, pace: Pace, one: float, needed: int) -> None:
        settings, around = self.settings, self.expected_memory - needed
        passes = pace.total * settings.tokens / len(self.tokens)
        steps = (
            f"{pace.total:,} steps of {settings.batch} x {settings.length} tokens, {passes:.1f} times through the text"
        )
        memory = f"{needed / MB:.0f} MB of memory"
        if around:
            memory += f" beside the {around / MB:.0f} MB of Python and torch"
        cost = f"{self.expected_seconds:.0f} s in all ({1000 * one:.0f} ms a step, just measured), {memory}"
        rows = [("training", steps), ("", f"AdamW, {described(self.device)}"), ("expected", cost)]
        self.show.news(self.show.facts(rows))

    # ------------------------------------------------------------------------------------------------ during

    def train(self) -> None:
        """Train, and between the steps judge and write at the shares of JUDGED_AT and SHOWN_AT."""
        record, pace, spent = self.record, self.record.pace, 0.0
        if not self.show.live:
            self.show.news("")
        self.show.line(record, now=True)
        self.show.sample(record.samples[0][1])
        pace.start()
        with self.show.during(record):
            for moment in train(self.net, Windows(self.tokens, self.settings, self.seed), self.settings, pace):
                record.note(moment.step, moment.loss)
                self.show.line(record)
                # A short run cannot afford every reading: what is due waits until its share of the time allows it.
                if pace.done or spent < SHARE * pace.elapsed:
                    began = time.perf_counter()
                    if self.between(moment.step, pace.progress):
                        spent += time.perf_counter() - began
                        pace.resume(self.pauses(None if pace.seconds is None else SHARE * pace.seconds - spent))

    def between(self, step: int, progress: float) -> bool:
        """Judge and write, whichever is due by now; whether anything was."""
        judge = bool(self.judge_at) and progress >= self.judge_at[0] - 1e-9
        write = bool(self.write_at) and progress >= self.write_at[0] - 1e-9
        if judge:
            self.judge_at = [share for share in self.judge_at if share > progress]
            bits = bits_per_byte(self.net, self.held_out, self.text.held_out_bytes, self.settings.length)
            self.record.held_out.append((step, bits))
            self.show.line(self.record, now=True)
        if write:
            self.write_at = [share for share in self.write_at if share > progress]
            self.record.samples.append((step, self.written()))
            self.show.sample(self.record.samples[-1][1])
        return judge or write

    def written(self) -> str:
        """The same prompt, the same luck, another step."""
        return text_of(complete(self.net, self.tokenizer, PROMPT, tokens=80, seed=self.seed))

    # ------------------------------------------------------------------------------------------------ after

    def finish(self) -> None:
        """Save, draw what was learned, and give lines to copy."""
        show, record = self.show, self.record
        save(self.folder, self.spec, self.net, self.tokenizer)
        if not show.live:
            show.news("", show.curve(record, 14))
        texts = [complete(self.net, self.tokenizer, prompt, tokens=110, seed=self.seed + i)
                 for i, prompt in enumerate(PROMPTS)]  # fmt: skip
        show.say(show.title("What it writes now"), show.completions(texts), show.scale())
        found = bracket_head(self.net, self.tokenizer)
        closing, opening = found.pairs[-1]
        where = f"Layer {found.layer}, head {found.head} of {found.heads}"
        pair = f"{visible(found.words[closing])} at {visible(found.words[opening])}"
        show.say(
            show.title(f"{where}: which earlier token each token looks at"),
            show.head(found),
            Text(
                f"rows look at columns; [] marks a closing bracket looking at its opening one, as {pair}: "
                f"weight {found.score:.2f} on average, {found.even:.2f} if it looked evenly"
            ),
        )
        self.say_result()
        show.say(show.title("Lines to copy"))
        show.copy(*commands(self.folder, self.seed), "", f"and in {program('python')}:", *snippet(self.folder))

    def say_result(self) -> None:
        """Expected beside measured, and the figure that counts."""
        record = self.record
        peak, whole = held_at_most(self.device), time.perf_counter() - self.started
        memory = f", {self.expected_memory / MB:.0f} MB expected and {peak / MB:.0f} MB at most" if peak else ""
        bits = (
            f"{record.first:.2f} at first, {record.last:.2f} now; gzip {record.gzip_bits:.2f}, xz {record.xz_bits:.2f}"
        )
        rows = [
            ("bits per byte", f"{bits} on the same held-out files"),
            ("cost", f"{self.expected_seconds:.0f} s expected, {whole:.0f} s taken{memory}"),
            ("saved", f"{self.folder.as_posix()}/  (anyformer.json, model.safetensors, tokenizer.json)"),
        ]
        self.show.say(self.show.title("Result"), self.show.facts(rows))
