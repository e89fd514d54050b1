"""Malformed command lines and settings files: the words after `anyformer`, a run.yaml, and what the error must hold."""

from __future__ import annotations

from dataclasses import dataclass

GOOD = "text,size,label\n" + "".join(f"a good film {at},{at},{'yes' if at % 2 else 'no'}\n" for at in range(40))


@dataclass(frozen=True)
class Bad:
    """A line typed where data.csv, book.txt, an empty folder `empty/` and a file `taken` are; `yaml` is run.yaml."""

    name: str
    words: str
    said: tuple[str, ...]  # all of them stand in the error
    yaml: str | bytes | None = None

    @property
    def line(self) -> list[str]:
        """The words of the command."""
        return self.words.split() if self.words.startswith("check") else ["train", *self.words.split()]


def typed(name: str, words: str, *said: str) -> Bad:
    return Bad(name, f"data.csv {words}", said)


def filed(name: str, yaml: str | bytes, *said: str) -> Bad:
    return Bad(name, "data.csv --config run.yaml", said, yaml)


BAD = [
    # words of the command
    typed("no such task", "--task clasify", "--task", "did you mean 'classify'"),
    typed("no such preset", "--preset encoder-mni", "--preset", "did you mean 'encoder-mini'"),
    typed("no preset at all", "--preset qqqqqqqq", "--preset", "anyformer presets"),
    typed("preset of another kind", "--preset vit-mini", "vit-mini", "encoder-mini"),
    typed("language model of a classifier", "--preset translator-mini", "translator-mini", "use encoder-mini"),
    typed("preset and from", "--preset encoder-mini --from empty", "both --preset and --from"),
    typed("from an empty folder", "--from empty", "empty"),
    typed("from nowhere", "--from nowhere", "nowhere"),
    typed("from a file", "--from taken", "taken"),
    typed("no such device", "--device gpu", "--device", "cuda"),
    typed("device that is not there", "--device cuda:77", "--device"),
    typed("no such progress", "--progress bars", "--progress", "did you mean 'bar'"),
    typed("steps and epochs", "--steps 10 --epochs 1", "both steps and epochs"),
    typed("no steps", "--steps 0", "training.steps", "below 1"),
    typed("negative steps", "--steps -5", "training.steps", "below 1"),
    typed("steps of words", "--steps many", "--steps"),
    typed("half a step", "--steps 1.5", "--steps"),
    typed("no minutes", "--minutes 0", "training.minutes"),
    typed("minutes that are no number", "--minutes nan", "training.minutes", "nan"),
    typed("endless minutes", "--minutes inf", "training.minutes"),
    typed("negative seed", "--seed -1", "training.seed", "below 0"),
    typed("seed too large", "--seed 99999999999", "training.seed", "too large"),
    typed("out is a file", "--out taken", "taken", "--out"),
    typed("out below a file", "--out taken/run", "taken", "--out"),
    typed("out is not empty", "--out full", "full", "not empty", "--out"),
    typed("a setting of a part inside", "--target label --types size=number --set model.embed.position=Learned",
          "Joint has no 'position'", "did you mean 'model.embed.parts[0].position'"),
    typed("a setting inside a setting that is not there",
          "--target label --types size=number --set model.embed.position.length=9",
          "Joint has no 'position'", "did you mean 'model.embed.parts[0].position'"),
    typed("a setting of another optimizer", "--set training.optimizer.momentum=0.9",
          "AdamW has no 'momentum'", "set training.optimizer=Muon first"),
    typed("a setting of another head", "--target label --set model.head.tied=true", "WideAndDeep has no 'tied'",
          "it belongs to LM"),
    typed("negative depth", "--target label --set model.stack.depth=-1", "model.stack.depth: depth -1 is below 0; use"),
    typed("no width", "--target label --set model.stack.width=0", "model.stack.width: width 0 is below 1; use"),
    typed("heads that do not divide", "--target label --set model.stack.block.mixer.heads=3", "heads 3; try",
          "or heads 2"),
    typed("crop above its bound", "--set data.images.crop=0.7", "data.images.crop: crop 0.7 is outside [0, 0.5)"),
    typed("magnitude above its bound", "--set data.images.magnitude=40", "magnitude 40 is above 30; use 9"),
    typed("a whole section", "--set training=5", "training: no such setting; name one of its settings"),
    typed("a model as a setting", "--set model=gpt2", "--preset"),
    typed("no such name in a part", "--set data.series.ahead=5", "expected one of", "horizon"),
    typed("no choice of several kinds", "--set training.compile=maybe", "expected", "'auto' or True or False"),
    typed("one number for two", "--set training.optimizer.betas=0.9", "a list of 2, each a number"),
    typed("a value of one task's objective", "--set objective.label_smoothing=2", "smoothing 2.0 is outside [0, 1)"),
    typed("a target twice", "--target label --target label", "data.target: 'label' is given twice"),
    typed("a target of a language model", "--target label --task lm", "a language model has no target"),
    typed("no settings file and none beside it", "--config nowhere.yaml", "no such file; give a YAML file"),
    Bad("no file of a name like it", "nowhere.csv", ("no such file; check the path",)),
    typed("out where none can be made", "--target label --out /proc/run", "--out /proc/run", "no folder can be made"),
    typed("no such option", "--stpes 10", "did you mean '--steps'"),
    typed("no such column", "--target lable", "--target", "did you mean 'label'"),
    typed("no such input", "--target label --inputs txt", "--inputs", "did you mean 'text'"),
    typed("no such split column", "--target label --split-column part", "--split-column", "part"),
    typed("no such group", "--target label --group sise", "--group", "did you mean 'size'"),
    typed("no such time", "--target label --time when", "--time", "when"),
    typed("two ways to split", "--target label --time size --group size", "data.split", "give one of"),
    typed("types without a kind", "--types size", "data.types", "column=kind"),
    typed("types of no kind", "--types size=numbr", "data.types", "did you mean 'number'"),
    typed("types of no column", "--types sise=number", "--types", "did you mean 'size'"),
    typed("valid file missing", "--target label --valid nope.csv", "nope.csv"),
    typed("config missing", "--config rn.yaml", "rn.yaml", "no such file"),
    typed("config is a folder", "--config empty", "empty", "folder"),
    typed("set without a value", "--set training.batch_size", "--set", "path=value"),
    typed("set without a name", "--set =3", "--set", "path=value"),
    typed("set of no YAML", "--set training.batch_size=[1", "--set training.batch_size", "not a value"),
    typed("set without section", "--set batch=16", "did you mean 'training.batch_size'"),
    typed("set by another's name", "--set training.lr=0.1", "did you mean 'training.optimizer.lr'"),
    typed("set misspelt", "--set training.savevery=10", "did you mean 'training.save_every'"),
    typed("set negative", "--set training.batch_size=-4", "training.batch_size", "below 1"),
    typed("set of words", "--set training.batch_size=many", "training.batch_size", "whole number"),
    typed("set to no number", "--set training.grad_clip=.nan", "training.grad_clip", "nan"),
    typed("set to no choice", "--set training.precision=fp8", "training.precision", "'fp8' is not a choice"),
    typed(
        "set micro above batch",
        "--set training.batch_size=4 --set training.micro_batch_size=8",
        "training.micro_batch_size",
    ),
    typed("home-made word of old", "--set data.sounds.rate=8000", "did you mean 'data.audio.sample_rate'"),
    typed("section's old name", "--set data.words.kind=char", "did you mean 'data.tokenizer.kind'"),
    typed("set another part's field", "--set training.optimizer.momentum=0.9", "training.optimizer", "Muon"),
    typed("set no such part", "--set training.optimizer=Adan", "training.optimizer", "did you mean 'AdamW'"),
    typed("set objective of another task", "--task classify --set objective.num_beams=3", "objective.num_beams"),
    typed("set objective out of range", "--set objective.label_smoothing=7", "objective.label_smoothing"),
    typed("set width against heads", "--preset encoder-mini --set model.stack.width=130", "model.stack.width"),
    typed("set depth of words", "--preset encoder-mini --set model.stack.depth=deep", "model.stack.depth", "whole"),
    typed("set share above one", "--set data.split.valid=1.5", "data.split.valid"),
    Bad("settings as data", "run.yaml", ("--config",), "training: {}\n"),
    # the settings file
    filed("misspelt section", "trainig: {batch_size: 4}\n", "run.yaml:1", "did you mean 'training'"),
    filed("misspelt key", "training:\n  batch_size: 4\n  setps: 9\n", "run.yaml:3", "did you mean 'training.steps'"),
    filed("key in the wrong section", "data:\n  batch_size: 4\n", "run.yaml:2", "did you mean 'training.batch_size'"),
    filed("wrong type", "training:\n  batch_size: many\n", "run.yaml:2 training.batch_size", "whole number"),
    filed("a list for a number", "training:\n  steps: [1, 2]\n", "run.yaml:2 training.steps"),
    filed("a mapping for a number", "training:\n  steps: {a: 1}\n", "training.steps"),
    filed("negative", "training:\n\n  keep: -1\n", "run.yaml:3 training.keep", "below 1"),
    filed("not a number", "training:\n  grad_clip: .nan\n", "run.yaml:2 training.grad_clip"),
    filed("both lengths", "training: {steps: 5, epochs: 1}\n", "both steps and epochs"),
    filed("a section that is a list", "training: [1, 2]\n", "run.yaml:1", "mapping"),
    filed("a list", "- 1\n- 2\n", "run.yaml", "mapping"),
    filed("empty", "", "run.yaml", "no settings"),
    filed("only a comment", "# nothing\n", "run.yaml", "no settings"),
    filed("tab", "training:\n\tbatch_size: 4\n", "run.yaml:2", "not YAML"),
    filed("bracket not closed", "training: {batch_size: 4\ndata: {}\n", "run.yaml:2", "not YAML"),
    filed("twice", "training:\n  batch_size: 4\n  batch_size: 8\n", "run.yaml:3", "twice"),
    filed("python tag", "training: !!python/object:os.system {}\n", "run.yaml:1", "not YAML"),
    filed("not text", b"\xff\xfe\x00training", "run.yaml", "not text"),
    filed("laughs", "a: &a [x,x]\nb: &b [*a,*a]\ntraining: {batch_size: *b}\n", "run.yaml"),
    filed("task of no kind", "task: clasify\n", "did you mean 'classify'"),
    filed("task that is a number", "task: 3\n", "run.yaml:1", "task"),
    filed("preset of no kind", "preset: encoder-mni\n", "did you mean 'encoder-mini'"),
    filed("model against itself", "preset: encoder-mini\nmodel:\n  stack:\n    width: 130\n",
          "run.yaml:4 model.stack.width"),
    filed("part of no kind", "training:\n  schedule: Cosin\n", "run.yaml:2", "did you mean 'Cosine'"),
    Bad("check of a bad file", "check run.yaml", ("run.yaml:2 training.batch_size",), "training:\n  batch_size: 0\n"),
    # no data
    Bad("no such file", "dta.csv", ("dta.csv", "did you mean 'data.csv'")),
    Bad("an empty folder", "empty", ("empty",)),
    Bad("check of nothing", "check nothing.csv", ("nothing.csv",)),
]  # fmt: skip
