"""The spec of a model folder, from its config alone: the weights may be missing."""

from __future__ import annotations

from pathlib import Path

from anyformer.checkpoints.folder import CONFIG_FILE, SPEC_FILE, family_of, head_of
from anyformer.errors import UserError
from anyformer.families.config import FamilyConfig
from anyformer.safe_files import inside, read_json, read_text
from anyformer.slots import Network
from anyformer.spec import Spec


def spec_in(folder: str | Path) -> Network:
    """The spec of an anyformer or a Hugging Face folder; for the latter config.json is enough."""
    path = Path(folder)
    if (path / SPEC_FILE).is_file():
        spec = Spec.from_json(read_text(inside(path, SPEC_FILE)))
    elif (path / CONFIG_FILE).is_file():
        config = read_json(inside(path, CONFIG_FILE))
        family = family_of(config)
        spec = family.settings(FamilyConfig(config), head_of(config, family))
    else:
        raise UserError(f"neither {SPEC_FILE} nor {CONFIG_FILE} is in the folder", where=path.name or str(path),
                        fix="give a model folder, a run, a data file or the name of a preset")  # fmt: skip
    if not isinstance(spec, Network):
        raise UserError(f"{type(spec).__name__} is a part, not a whole model", where=SPEC_FILE,
                        fix="plan a Model or Seq2Seq")  # fmt: skip
    return spec
