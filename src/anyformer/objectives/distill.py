"""Knowledge distillation: a student also learns from a teacher's outputs (1503.02531; DistilBERT, 1910.01108)."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.checkpoints.folder import CONFIG_FILE, SPEC_FILE, open_folder
from anyformer.errors import UserError, check_range
from anyformer.objectives.batch import Batch
from anyformer.objectives.causal import Causal
from anyformer.objectives.draw import Draw
from anyformer.objectives.objective import BatchSource, Objective, full, with_extra
from anyformer.objectives.teachable import Teachable
from anyformer.safe_files import digest
from anyformer.spec import field


class Distill(Objective):
    """alpha * CE + beta * t^2 * KL(teacher || student) + gamma * (1 - cos of last hidden states), of every target.

    The first term is the student's own objective, the other two are asked at the same targets: the words that are
    hidden, every next word, the class of a row. The defaults are DistilBERT's 2, 5 and 1 as shares of one whole. Hidden
    states are compared where student and teacher are equally wide. Numbers have no temperature: the second term is then
    the distance from the teacher's number.
    """

    compiles: ClassVar[bool] = False  # the teacher comes from an lru_cache, which torch.compile cannot trace

    student: Objective = field(default_factory=Causal)
    """What the student is asked, with or without a teacher."""
    teacher: str = ""
    """Folder of the teacher's model; it is read anew whenever the run goes on."""
    sha256: str = ""
    """Hash of the teacher's weights and settings; another teacher is refused."""
    temperature: float = 2.0
    """Divides the logits of both before they are compared: higher shows more of what the teacher finds unlikely."""
    alpha: float = 0.25
    """Weight of the student's own loss."""
    beta: float = 0.625
    """Weight of the distance from the teacher's answers."""
    gamma: float = 0.125
    """Weight of the angle between the hidden states of both."""

    def check(self) -> None:
        if not isinstance(self.student, Teachable):
            raise UserError(f"a teacher cannot answer what {type(self.student).__name__} asks", where="Distill.student",
                            fix="use it for lm, masked, translate, classify, regress or tag")  # fmt: skip
        if not self.temperature > 0:
            raise UserError(f"temperature {self.temperature} is not positive", where="Distill", fix="use 2.0")
        for name in ("alpha", "beta", "gamma"):
            check_range("Distill", name, getattr(self, name), 0, fix="use 0.5, or 0 to leave it out")

    # ------------------------------------------------------------ as the student's own objective

    def corrupt(self, batch: Batch, draw: Draw, source: BatchSource) -> Batch:
        return self.student.corrupt(batch, draw, source)

    def prepare(self, batch: Batch, generator: torch.Generator) -> Batch:
        return self.student.prepare(batch, generator)

    def weight(self, batch: Batch) -> int:
        return self.student.weight(batch)

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        return self.student.row_losses(output, batch)

    # ------------------------------------------------------------ with the teacher

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.loss_beside(self.load_teacher(batch.targets.device), model, batch)

    def loss_beside(self, teacher: nn.Module, model: nn.Module, batch: Batch) -> Tensor:
        """The distillation loss of a model against a frozen teacher."""
        own = self.student
        assert isinstance(own, Teachable)  # ensured by `check`
        mine = own.target_outputs(model, batch)
        with torch.no_grad():
            theirs = own.target_outputs(teacher, batch.for_one())
        answers = theirs.logits.repeat(batch.members, *[1] * (theirs.logits.dim() - 1))  # for each ensemble member
        total = self.alpha * own.hard_losses(mine, batch)
        if self.beta:
            total = total + self.beta * own.soft_losses(mine.logits, answers, self.temperature)
        if self.gamma and mine.hidden.shape == theirs.hidden.shape:
            apart = 1 - F.cosine_similarity(full(mine.hidden), full(theirs.hidden), dim=-1)  # (B,) or (B,K)
            total = total + self.gamma * (apart if apart.dim() == total.dim() else apart[:, None])
        counted = own.counted(mine.targets)
        return with_extra(total.where(counted, 0.0).sum(), mine.losses, counted.sum())

    def load_teacher(self, device: torch.device) -> nn.Module:
        """The teacher on a device in eval mode; an error if it is not the one that the run started with."""
        if not self.teacher:
            raise UserError("no teacher given", where="objective.teacher", fix="add --teacher FOLDER")
        return read_teacher(self.teacher, self.sha256, device)

    def compared_models(self, device: torch.device) -> dict[str, nn.Module]:
        return {"teacher": self.load_teacher(device)}


@lru_cache(maxsize=2)  # called at every step
def read_teacher(folder: str, expected: str, device: torch.device) -> nn.Module:
    """The frozen network of a folder whose files must have the hash `expected`, if given."""
    found = hash_model(Path(folder))
    if expected and found != expected:
        raise UserError("the teacher is not the one that the run began with", where=folder,
                        fix="put its files back, or train a new run")  # fmt: skip
    network: nn.Module = open_folder(folder, device=device, dtype=torch.float32).model
    return network.eval().requires_grad_(False)


def hash_model(folder: Path) -> str:
    """A hash of a model folder's settings and weights."""
    if not folder.is_dir():
        raise UserError("the teacher's folder is not there", where=str(folder), fix="put it back")
    named = [path for name in (SPEC_FILE, CONFIG_FILE) if (path := folder / name).is_file()]
    whole = sha256()
    for path in [*named, *sorted(folder.glob("model*.safetensors"))]:
        whole.update(f"{path.name} {digest(path)}\n".encode())
    return whole.hexdigest()
