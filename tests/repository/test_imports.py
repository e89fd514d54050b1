"""Imports point down only. The table is the layout; a module that is not in it has no place yet."""

from __future__ import annotations

import pytest

from tests.repository.source import imports, modules

# From the ground up. A module may import from its own row and from the rows above it in this list.
LAYERS = [
    (
        "ground",
        [
            "version", "errors", "extras", "about", "other_names", "deprecated_names", "plain_text", "safe_files",
            "parent_death", "own_parts", "faults", "spec", "slots", "terminal", "log", "amounts",
        ],
    ),
    (
        "seams of the core, and what makes them faster",
        [
            "core.linear", "core.own_init", "core.attend", "core.context", "core.join_states", "core.device_tables",
            "core.state", "core.static_cache", "core.pytrees", "core.history", "core.document_rows",
            "core.attention_weights", "core.loss", "core.activation", "kernels",
        ],
    ),
    ("leaves", ["norms", "positions", "feeds", "mixers", "embeds", "heads"]),
    ("core", ["core", "kernels.quantise"]),
    (
        "uses of a model",
        [
            "nets", "presets", "families", "checkpoints", "objectives", "generation", "planning",
            "inspection.maps", "inspection.convolution", "inspection.routing", "inspection.shadow",
            "inspection.replay", "inspection.ablate", "inspection.head_names", "inspection.palette",
        ],
    ),
    ("data", ["data"]),
    ("evaluation", ["evaluation", "planning.page"]),
    ("tasks", ["tasks", "evaluation.report"]),
    ("folders of runs", [
            "training.settings", "training.optim", "training.muon", "training.schedule",
            "training.batch_schedule", "training.layers", "training.freezing", "training.lora", "training.run.folder",
            "training.distributed.parts", "training.probe",
        ]),
    ("inference", ["inference"]),
    ("engine", ["engine"]),
    ("work", ["training", "serving", "lab", "estimators", "checks", "inspection"]),
    ("package", [""]),
    ("front", ["cli", "commands", "demo", "recipes", "__main__"]),
]  # fmt: skip
RANK = {name: rank for rank, (_, names) in enumerate(LAYERS) for name in names}

# Data knows batches, not models.
NEVER = {
    "data": {"core", "presets", "families", "checkpoints", "generation", "inspection", "planning", "nets"},
}


def place(module: str) -> str | None:
    """The longest entry of the table that holds the module: anyformer.core.attend -> core.attend."""
    parts = module.split(".")[1:]
    if not parts:
        return ""
    return next((name for n in range(len(parts), 0, -1) if (name := ".".join(parts[:n])) in RANK), None)


def upward(source: str, module: str, known: set[str], package: bool = False) -> list[str]:
    """One sentence for each import in `source` that does not point down."""
    mine = place(module)
    if mine is None:
        return [f"{module} is not in the table LAYERS of this test: give it a place"]
    wrong = []
    for line, name in imports(source, module, known, package):
        if name.partition(".")[0] != "anyformer":
            continue
        theirs = place(name)
        if theirs is None:
            wrong.append(f"{module}:{line} imports {name}, which is not in the table LAYERS of this test")
        elif RANK[theirs] > RANK[mine]:
            wrong.append(
                f"{module}:{line} ({LAYERS[RANK[mine]][0]}) imports {name} ({LAYERS[RANK[theirs]][0]}): upward"
            )
        elif theirs.partition(".")[0] in NEVER.get(mine.partition(".")[0], set()):
            wrong.append(f"{module}:{line} imports {name}: {mine} must not know {theirs}")
    return wrong


def test_imports_point_down():
    known = modules()
    wrong = [
        sentence
        for module, path in known.items()
        for sentence in upward(path.read_text(), module, set(known), package=path.name == "__init__.py")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "module, source",
    [
        ("anyformer.norms.layer", "from anyformer.core.block import Block"),
        ("anyformer.norms.layer", "from anyformer.core import block"),
        ("anyformer.norms.layer", "from ..core import block"),
        ("anyformer.norms.layer", "from ..core.block import Block"),
        ("anyformer.norms.layer", "def build():\n    import anyformer.core.stack"),
        ("anyformer.norms.layer", "from anyformer import Model"),
        ("anyformer.norms.layer", "import anyformer"),
        ("anyformer.core.attend", "from anyformer.mixers.attention import Attention"),
        ("anyformer.core.stack", "from anyformer.presets import gpt2"),
        ("anyformer.spec", "from anyformer import core"),
        ("anyformer.errors", "from .core.attend import attend"),
        ("anyformer.presets.gpt2", "from anyformer.training.loop import fit"),
        ("anyformer.training.loop", "from anyformer.cli import app"),
        ("anyformer.data.datasets.text", "from anyformer.core.model import Model"),
        ("anyformer.somewhere", "import torch"),
        ("anyformer.norms.layer", "from anyformer.somewhere import else_"),
    ],
)
def test_control_an_upward_import_is_seen(module, source):
    known = {
        "anyformer",
        "anyformer.core",
        "anyformer.core.block",
        "anyformer.core.stack",
        "anyformer.presets",
        "anyformer.cli",
    }
    assert upward(source, module, known)


@pytest.mark.parametrize(
    "module, source",
    [
        (
            "anyformer.norms.layer",
            "import torch\nfrom anyformer.slots import Norm\nfrom anyformer.errors import UserError",
        ),
        ("anyformer.mixers.attention", "from anyformer.core import attend\nfrom anyformer.core.linear import Linear"),
        ("anyformer.core.stack", "from anyformer.norms import LayerNorm\nfrom .block import Block"),
        ("anyformer.presets.gpt2", "from ..core.model import Model"),
        ("anyformer.data.datasets.text", "from anyformer.objectives.causal import Batch"),
        ("anyformer.cli", "import anyformer\nfrom anyformer.demo import run"),
    ],
)
def test_control_a_downward_import_is_not(module, source):
    assert not upward(source, module, {"anyformer", "anyformer.core", "anyformer.core.attend", "anyformer.core.block"})
