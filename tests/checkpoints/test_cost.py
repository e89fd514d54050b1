"""Opening a folder costs the weights' own size of memory, and about the time of the plainest way to read them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from anyformer import preset, replace_in
from anyformer.checkpoints.folder import open_folder, save_foreign
from tests.families.parity import quietly

pytestmark = pytest.mark.alone

MEASURE = """
import json, sys, time
import torch
{imports}
def memory(name):  # ru_maxrss would still hold what the parent had before it started this process
    line = next(line for line in open("/proc/self/status") if line.startswith(name))
    return int(line.split()[1]) * 1024
before = memory("VmRSS")
start = time.perf_counter()
{work}
seconds = time.perf_counter() - start
print(json.dumps({{"seconds": seconds, "grown": memory("VmHWM") - before}}))
"""
OURS = (
    "from anyformer.checkpoints.folder import open_folder\nimport anyformer\nanyformer.Model",
    "model = open_folder(sys.argv[1]).model",
)
PLAIN = (
    "from safetensors.torch import load_file\nfrom transformers import AutoConfig, AutoModelForCausalLM\n"
    "config = AutoConfig.from_pretrained(sys.argv[1])\n"
    "with torch.device('meta'):\n    model = AutoModelForCausalLM.from_config(config)\n"
    "model = model.to_empty(device='cpu')",
    "model.load_state_dict(load_file(sys.argv[1] + '/model.safetensors'), strict=False)",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of about 240 MB."""
    changes = {"stack.width": 768, "stack.depth": 8, "stack.block.mixer.heads": 12, "stack.block.mixer.kv_heads": 4}
    spec = replace_in(preset("llama3-8b-tiny"), {**changes, "stack.block.feed.width": 2048, "embed.vocab": 8000})
    path, _, _ = save_foreign(tmp_path_factory.mktemp("cost") / "model", spec, spec.build(seed=0))
    return path


Figures = dict[str, float]


def measured(folder: Path, script: tuple[str, str]) -> Figures:
    """What a script takes in a fresh process."""
    words = [sys.executable, "-W", "ignore", "-c", MEASURE.format(imports=script[0], work=script[1]), str(folder)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def best(found: list[Figures]) -> Figures:
    return {key: min(run[key] for run in found) for key in found[0]}


def is_cheap(ours: Figures, plain: Figures, weights: int) -> bool:
    # The interpreter grows by itself while it works. The plain side is given its network; ours also reads the settings
    # and builds it, in the same time for any size. Without care for what torch imports on the way that alone took over
    # two seconds.
    return ours["grown"] <= 1.1 * weights + 24 * 2**20 and ours["seconds"] <= 1.2 * plain["seconds"] + 0.25


def test_peak_memory_and_time(folder: Path) -> None:
    """The best of each script's fresh processes, taken in turns, so that a busy machine slows both alike.

    Two of each, and up to five where a neighbour may have slowed one: what really costs more does so every time.
    """
    weights = (folder / "model.safetensors").stat().st_size
    ours, plain = list[Figures](), list[Figures]()
    while len(ours) < 2 or (len(ours) < 5 and not is_cheap(best(ours), best(plain), weights)):
        ours.append(measured(folder, OURS))
        plain.append(measured(folder, PLAIN))
    print(f"{weights / 2**20:.0f} MiB: ours {ours}, plain {plain}")
    assert is_cheap(best(ours), best(plain), weights), (ours, plain)


def test_tensors_have_storage_of_their_own(folder: Path) -> None:
    with quietly():
        model = open_folder(folder).model
    data = {p.untyped_storage().data_ptr() for p in model.parameters()}
    assert len(data) == len(list(model.parameters()))
    assert all(p.data_ptr() % 16 == 0 and p.is_contiguous() for p in model.parameters())


def test_dtype_and_shards_are_as_asked(folder: Path, tmp_path: Path) -> None:
    opened = open_folder(folder, dtype=torch.bfloat16)
    assert {p.dtype for p in opened.model.parameters()} == {torch.bfloat16}
    path, _, _ = save_foreign(
        tmp_path / "shards", opened.spec, opened.model, config=opened.config, shard_bytes=30 * 2**20
    )
    assert len(list(path.glob("*.safetensors"))) > 2 and (path / "model.safetensors.index.json").is_file()
    again = open_folder(path)
    assert again.dtype == torch.bfloat16
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), opened.model.parameters(), strict=True))
    from transformers import AutoModelForCausalLM

    with quietly():
        _, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    assert not any(info.values())
