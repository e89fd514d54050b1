"""Open a GPT of minGPT stored as JSON (as llm-viz ships one): {"config": ..., name: {"shape", "dtype", "data"}}.

    python recipes/mingpt_json.py gpt-nano-sort-model.json FOLDER

cost: under a second. expect: the stored activations of the sorting GPT are met to 2e-6.
"""

from __future__ import annotations

import argparse
import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from anyformer.checkpoints import names
from anyformer.checkpoints.folder import save_own
from anyformer.checkpoints.operations import THIRDS
from anyformer.families.gpt2 import BODY
from anyformer.presets.decoders import gpt2
from anyformer.spec import replace_in

# GPT-2's names in torch's own layout (out, in), with a head of its own.
TABLE = names.rows(
    *((ours, f"transformer.{theirs}", *((THIRDS,) if theirs.endswith("c_attn") else ())) for ours, theirs, *_ in BODY),
    ("head.weight", "lm_head.weight"),
)


def tensor(entry: dict[str, Any]) -> torch.Tensor:
    """One stored tensor."""
    kinds = {"torch.float32": "<f4", "torch.int64": "<i8", "torch.bool": "?"}
    flat = np.frombuffer(base64.b64decode(entry["data"]), kinds[entry["dtype"]])
    return torch.from_numpy(flat.copy()).reshape(entry["shape"])


def read(path: Path) -> tuple[Any, nn.Module]:
    """The spec and the network with its weights."""
    data = json.loads(path.read_text(encoding="utf-8"))
    c = data["config"]
    spec = gpt2(c["n_embd"], c["n_layer"], c["n_head"], vocab=c["vocab_size"], length=c["block_size"], dropout=0.0)
    spec = replace_in(spec, {"head.tied": False})
    network = spec.build(device="cpu").eval()
    parameters = dict(network.named_parameters())
    with torch.no_grad():
        for pair in names.pair_up(network, TABLE):
            parameters[pair.ours].copy_(pair.operation.pull([tensor(data[name]) for name in pair.theirs], pair.owner))
    return spec, network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    print(save_own(options.folder, *read(options.weights)))


if __name__ == "__main__":
    main()
