"""A search over settings by successive halving, on the same machinery as every run.

`RUN/tune/trial-00` and so on are complete runs, the first of them with the defaults. All train for a short time, the
best third is resumed, and so on until one is left, which becomes the run itself and trains to its end. Selection uses
validation rows only. `tune.json` holds the decisions and is rewritten after every step of the search: a search that was
killed is resumed by `anyformer resume RUN`.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anyformer.checkpoints.store import writing
from anyformer.data.reopen import reopen
from anyformer.errors import Stopped, UserError
from anyformer.evaluation.metric_directions import gain
from anyformer.log import Log, silence
from anyformer.safe_files import read_json, replace_file
from anyformer.tasks.habits import TunedSetting
from anyformer.training.best import EvaluationResult, choosing_metric
from anyformer.training.run.folder import CACHE, CHECKPOINTS, RUN_FILE, RunFolder, check_new
from anyformer.training.settings import Config
from anyformer.training.setup.budget import sizes_for
from anyformer.training.setup.changes import value_at
from anyformer.training.setup.new_run import create
from anyformer.training.setup.request import Request
from anyformer.training.trainer import Session

TUNE_FOLDER, TUNE_FILE = "tune", "tune.json"
DEFAULTS = "trial-00"
TRIES = 50  # draws per trial to find settings not tried yet
KEPT = 3  # one in this many continues to the next round
MOST_TRIALS = 9
LEAST_TRIALS = 3
LEAST_SECONDS = 10.0  # of a trial in its first round
PREPARING = 0.25  # fraction of the budget for preparing the data of all trials


@dataclass
class TunedTrial:
    """One set of settings, and its results so far."""

    name: str
    settings: dict[str, Any]  # that differ from the defaults
    round: int = 0  # rounds completed
    value: float | None = None  # validation metric of its best checkpoint
    loss: float | None = None
    error: float = 0.0  # standard error of the value
    step: int = 0
    problem: str = ""  # why it cannot be trained

    def words(self) -> str:
        found = ", ".join(f"{path.rpartition('.')[2]} {value:g}" for path, value in self.settings.items())
        return found or "the defaults"


@dataclass
class TuneState:
    """State of a search: the contents of tune.json."""

    seconds: float  # of the whole search
    metric: str = ""
    trials: list[TunedTrial] = field(default_factory=list)
    rounds: list[list[str]] = field(default_factory=list)  # trials in each round begun so far
    winner: str = ""
    spent: float = 0.0

    @classmethod
    def read(cls, path: Path) -> TuneState:
        found = read_json(path)
        try:
            return cls(**found | {"trials": [TunedTrial(**one) for one in found["trials"]]})
        except (KeyError, TypeError):
            raise UserError("does not hold a search", where=str(path), fix="train again") from None

    def alive(self) -> list[TunedTrial]:
        """The trials of the last round that could be trained (all before the first round), the best first."""
        names = self.rounds[-1] if self.rounds else [trial.name for trial in self.trials]
        found = self.ranked([trial for trial in self.trials if trial.name in names and not trial.problem])
        if not found:
            problems = [f"{trial.name}: {trial.problem}" for trial in self.trials if trial.problem]
            raise UserError("no trial can be trained", where="--tune", fix="train without it", details=problems)
        return found

    def ranked(self, trials: list[TunedTrial]) -> list[TunedTrial]:
        """Best first: those within one standard error of the best by loss, as checkpoints are selected, then the others
        by the metric; those without a value come last."""
        known = [trial for trial in trials if trial.value is not None]
        if not known:
            return trials
        known.sort(key=lambda trial: -gain(self.metric, float(trial.value or 0.0)))
        best = known[0]
        ties = [trial for trial in known if abs((trial.value or 0.0) - (best.value or 0.0)) <= best.error]
        ties.sort(key=lambda trial: math.inf if trial.loss is None else trial.loss)
        others = [trial for trial in known if trial not in ties]
        return [*ties, *others, *(trial for trial in trials if trial.value is None)]


def has_search(folder: Path) -> bool:
    """Whether the folder holds an unfinished search that is not yet a run."""
    return (folder / TUNE_FOLDER / TUNE_FILE).is_file() and not (folder / RUN_FILE).is_file()


class Search:
    """A search in a folder: created by `begin` or reopened by `open`; `run` completes it."""

    def __init__(self, folder: Path, state: TuneState, device: torch.device, log: Log) -> None:
        self.folder, self.state, self.device, self.log = folder, state, device, log
        self.began = time.perf_counter() - state.spent

    @classmethod
    def open(cls, folder: Path, device: torch.device, log: Log) -> Search:
        return cls(folder, TuneState.read(folder / TUNE_FOLDER / TUNE_FILE), device, log)

    @classmethod
    def begin(cls, request: Request, folder: Path, minutes: float, device: torch.device, log: Log) -> Search:
        """Create the runs of all trials, so that the data files are no longer needed."""
        if request.pretrain is not None:
            raise UserError("a run in two stages is not searched", where="--tune", fix="leave out --pretrain")
        check_new(folder)
        search = cls(folder, TuneState(60 * minutes), device, log)
        began = time.perf_counter()
        first = create(replace(request, out=search.path(DEFAULTS)), log, device)
        took = time.perf_counter() - began
        config, data, task = first.config(), reopen(first.cache), first.task()
        assert data is not None
        if data.valid is None:
            shutil.rmtree(folder)
            raise UserError("no rows validate, so that nothing can be chosen by them", where="--tune",
                            fix="leave data.split.valid as it is")  # fmt: skip
        search.state.metric = config.training.metric or choosing_metric(task, data.preprocess)
        search.state.trials = [TunedTrial(DEFAULTS, {})]
        space = usable_space(config, task.tuned(sizes_for(data)))
        count = count_trials(60 * minutes, took)
        for number, settings in enumerate(draw_trials(config, space, count - 1), 1):
            search.add(request, TunedTrial(f"trial-{number:02}", settings))
        log(f"tune     {len(search.state.trials)} trials in {minutes:g} minutes, over {', '.join(space)}")
        search.write()
        return search

    def path(self, name: str) -> Path:
        return self.folder / TUNE_FOLDER / name

    def add(self, request: Request, trial: TunedTrial) -> None:
        """Create a trial's run; if that fails, record the reason."""
        asked = replace(request, out=self.path(trial.name), settings=request.settings | trial.settings)
        try:
            create(asked, silence, self.device)
        except UserError as error:
            trial.problem = error.line
        self.state.trials.append(trial)

    def write(self) -> None:
        """Save the state atomically."""
        self.state.spent = round(time.perf_counter() - self.began, 2)
        path = self.path(TUNE_FILE)
        text = json.dumps(asdict(self.state), indent=1) + "\n"
        with writing(path, len(text)):
            replace_file(path, text)

    def run(self, progress: str) -> None:
        """Run all rounds until one trial is left, then promote it to the run."""
        lock = RunFolder(self.folder / TUNE_FOLDER)
        lock.lock()
        try:
            self.run_rounds(progress)
            self.promote()
        finally:
            lock.unlock()

    def run_rounds(self, progress: str) -> None:
        """Run the remaining rounds."""
        rounds = plan_rounds(len(self.state.trials))
        for number, count in enumerate(rounds, 1):
            if len(self.state.rounds) < number:
                self.state.rounds.append([trial.name for trial in self.state.alive()[:count]])
                self.write()
            chosen = [trial for trial in self.state.trials if trial.name in self.state.rounds[number - 1]]
            for trial in (trial for trial in chosen if trial.round < number):
                self.train(trial, self.state.seconds / len(rounds) / count, number, progress)
        if not self.state.winner:
            self.state.winner = self.state.alive()[0].name
            self.write()

    def train(self, trial: TunedTrial, seconds: float, number: int, progress: str) -> None:
        """Train one trial for that many more seconds."""
        self.log(f"tune     round {number}, {trial.name}: {trial.words()}")
        folder = RunFolder.open(self.path(trial.name))
        before = float(folder.facts.get("seconds") or 0.0)
        session = Session(folder, self.device, silence, progress=progress)
        session.pause_after = before + seconds
        try:
            session.run()
        except Stopped as error:
            if not session.has_paused:
                self.write()
                raise Stopped(f"stopped while tuning; saved. Resume with: anyformer resume {self.folder}",
                              code=error.exit_code) from None  # fmt: skip
        except UserError as error:  # it diverged or ran out of memory: the others may not
            trial.problem = error.line
        trial.step, trial.round = int(folder.facts.get("step") or 0), number
        kept = folder.facts.get("best_step")
        choices = [line["choice"] for line in folder.metrics() if line["step"] == kept and "choice" in line]
        if choices:
            trial.value, trial.loss, trial.error = (choices[-1][name] for name in EvaluationResult._fields)
        self.log(
            f"tune     {trial.name}: {trial.problem or f'{self.state.metric} {trial.value} at step {trial.step:,}'}"
        )
        self.write()

    def promote(self) -> None:
        """Move the winner's files to the run's folder, run.json last: until then the folder is still a search."""
        home = self.path(self.state.winner)
        for trial in self.state.trials:
            if trial.name != self.state.winner:
                for name in (CHECKPOINTS, CACHE):
                    shutil.rmtree(self.path(trial.name) / name, ignore_errors=True)
        RunFolder.open(home).update(id=self.folder.name)
        entries = sorted(home.iterdir(), key=lambda path: path.name == RUN_FILE)
        for entry in entries:
            entry.rename(self.folder / entry.name)
        home.rmdir()
        winner = next(trial for trial in self.state.trials if trial.name == self.state.winner)
        self.log(f"tune     {winner.name} goes on as the run: {winner.words()}")


def count_trials(seconds: float, preparing: float) -> int:
    """How many trials fit the time budget."""
    by_time = int(seconds / 2 / LEAST_SECONDS)
    by_data = int(PREPARING * seconds / max(1e-3, preparing))
    return max(LEAST_TRIALS, min(MOST_TRIALS, by_time, by_data))


def plan_rounds(trials: int) -> list[int]:
    """Number of trials in each round: a third of the previous one's, until one would be left.

    >>> plan_rounds(9), plan_rounds(3), plan_rounds(1)
    ([9, 3], [3], [1])
    """
    rounds = [trials]
    while rounds[-1] // KEPT > 1:
        rounds.append(rounds[-1] // KEPT)
    return rounds


def draw_trials(config: Config, space: dict[str, list[Any]], count: int) -> list[dict[str, Any]]:
    """Random settings, distinct for each trial and different from the defaults."""
    generator = np.random.default_rng(config.training.seed)
    found: list[dict[str, Any]] = []
    for _ in range(TRIES * count):
        drawn = {path: options[int(generator.integers(len(options)))] for path, options in space.items()}
        changed = {path: value for path, value in drawn.items() if value != value_at(config, path)}
        if changed and changed not in found:
            found.append(changed)
        if len(found) == count:
            break
    return found


def usable_space(config: Config, space: list[TunedSetting]) -> dict[str, list[Any]]:
    """The search space: each setting with its options, without settings that this network does not have."""
    found = {}
    for setting in space:
        try:
            usual = value_at(config, setting.path)
        except AttributeError:
            continue
        if usual is not None:
            found[setting.path] = setting.options(usual)
    return found
