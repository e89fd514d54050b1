"""A model with all around it: tokenizer, labels, preprocessing, decoding settings. What `anyformer.load` gives."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from anyformer.checkpoints.adapters import base_of, is_adapter, open_adapted
from anyformer.checkpoints.folder import Opened, open_folder, save_foreign, save_own
from anyformer.checkpoints.target import new_folder
from anyformer.core.model import Model, ModelModule, Seq2Seq
from anyformer.data.calibration import Calibration, read_calibration
from anyformer.data.images.preprocessing import ImageSteps
from anyformer.data.tokenizers.tokenizer import Tokenizer, open_tokenizer
from anyformer.errors import UserError
from anyformer.generation import Generated, Generation, Scored, Step, generate, score
from anyformer.generation.grammar import json_guide, regex_guide
from anyformer.generation.guide import Guide
from anyformer.heads import LM, Pooled, Regress, TokenHead
from anyformer.heads.pooled import PooledModule
from anyformer.kernels.quantise import check_whole
from anyformer.nets.electra import ElectraModule
from anyformer.nets.sagan import SAGAN
from anyformer.objectives import Objective
from anyformer.safe_files import inside, read_json

if TYPE_CHECKING:
    from anyformer.data.preprocess import Preprocess

logger = logging.getLogger("anyformer")
Prompt = str | Sequence[str] | Tensor  # a text, several texts, or ids (B,T)
GENERATION_FILE, IMAGES_FILE, LABELS_FILE = "generation_config.json", "preprocessor_config.json", "preprocess.json"


def load(
    folder: str | Path,
    *,
    head: str | None = None,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    adapter: str | Path | None = None,
) -> Predictor:
    """Open a run (its best checkpoint), an anyformer or a Hugging Face folder; nothing is downloaded, no code is run.

    `head` opens a Hugging Face folder with another head ("bare": none). `device` is auto, cpu, cuda[:N] or mps.
    `adapter` is a LoRA folder, of a run here or of peft, that is merged into the weights; given as `folder` itself, it
    is opened on the model that it was trained on.
    """
    path, place = Path(folder), pick_device(device)
    if adapter is not None:
        return add_adapter(load(path, head=head, device=device, dtype=dtype), Path(adapter))
    if path.is_dir() and is_adapter(path):
        return add_adapter(load(base_of(path), head=head, device=device, dtype=dtype), path)
    if not (path / "run.json").is_file():
        return open_predictor(path, head, place, dtype)
    from anyformer.training.run.folder import RunFolder, explaining_unknown

    with explaining_unknown(path):
        best = best_of(path)
        found = open_predictor(best, head, place, dtype)
        found.objective = RunFolder(path).config().objective
        return found.calibrated(read_calibration(path, best.name))


def open_predictor(path: Path, head: str | None, place: torch.device, dtype: torch.dtype | None) -> Predictor:
    """The model folder with all that stands around the model."""
    opened = open_folder(path, head=head, device=place, dtype=dtype)
    images = inside(path, IMAGES_FILE)
    labels, preprocess = read_labels(path)
    labels = opened.labels if labels is None and preprocess is None else labels
    return Predictor(
        opened,
        tokenizer=open_tokenizer(path),
        labels=labels,
        images=ImageSteps.from_dict(read_json(images)) if images.is_file() else None,
        defaults=decoding_defaults(path, opened),
        preprocess=preprocess,
    )


def read_labels(path: Path) -> tuple[list[str] | None, Preprocess | None]:
    """The classes that a folder names, and how rows become inputs where it was trained here on columns."""
    kept = inside(path, LABELS_FILE)
    found = read_json(kept) if kept.is_file() else {}
    if found.get("type") == "Preprocess":
        from anyformer.data.preprocess import Preprocess
        from anyformer.tasks import find

        preprocess = Preprocess.read(kept)
        find(preprocess.task)
        return None if preprocess.labels is None else list(preprocess.labels), preprocess
    names = found.get("labels")
    return [str(name) for name in names] if isinstance(names, list) else None, None


def add_adapter(base: Predictor, folder: Path) -> Predictor:
    """A model with a LoRA adapter merged into its weights, and the adapter's own labels and columns."""
    if not folder.is_dir() or not is_adapter(folder):
        raise UserError("there is no adapter", where=str(folder), fix="give a folder with adapter_config.json")
    labels, preprocess = read_labels(folder)
    made = replace(base, opened=open_adapted(base.opened, folder))
    return made if preprocess is None else replace(made, labels=labels, preprocess=preprocess)


def best_of(folder: Path) -> Path:
    """The model folder inside a run's folder; any other folder is itself."""
    if not (folder / "run.json").is_file():
        return folder
    from anyformer.training.run.folder import RunFolder  # other people's folders need nothing of it

    return RunFolder.open(folder).best()


def pick_device(name: str) -> torch.device:
    """A device by name; auto takes the first accelerator there is."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(
            f"no device is called {name!r}", where="--device", fix="use auto, cpu, cuda, cuda:N or mps"
        ) from None
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(device.type, False) or (
        device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
    ):
        raise UserError(f"{name} is not there", where="--device", fix="use auto or cpu")
    return device


def decoding_defaults(folder: Path, opened: Opened) -> Generation:
    """What the folder says about decoding; older folders say it in config.json."""
    path = inside(folder, GENERATION_FILE)
    return Generation.from_hf(dict(opened.config) | (read_json(path) if path.is_file() else {}))


@dataclass
class Predictor:
    """Text, images or ids in; text, labels, vectors or log-probabilities out."""

    opened: Opened
    tokenizer: Tokenizer | None = None
    labels: list[str] | None = None
    images: ImageSteps | None = None
    defaults: Generation = Generation()  # noqa: RUF009 - frozen
    objective: Objective | None = None  # what a run was trained for, with its settings; None: not known
    preprocess: Preprocess | None = None  # how rows become inputs, of a model trained here on a table of columns

    @property
    def model(self) -> Any:
        """The network itself."""
        return self.opened.model

    @property
    def spec(self) -> Any:
        """The settings it was built from."""
        return self.opened.spec

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    # ------------------------------------------------------------ decoding

    def generate(
        self,
        prompt: Prompt | None = None,
        *,
        image: Any = None,
        text: str | Sequence[str] | None = None,
        on_token: Callable[[Step], object] | None = None,
        draft: Any = None,
        json_schema: Any = None,
        regex: str | None = None,
        **settings: Any,
    ) -> Any:
        """Continue (or, for an encoder-decoder, answer) a text, several texts, or a tensor of ids (B,T).

        A model that reads images is given one, or a list, as `image` (a path, the bytes of a file, or pixels), and
        what is asked about it as `text`, which is the prompt by another name.

        Settings have Hugging Face's names (max_new_tokens, num_beams, temperature, ...). A text gives a text, a list a
        list, ids give ids with the prompt included, as transformers does. `run_generation` gives everything.
        `draft`, a smaller model of the same vocabulary or "int8" for this one in 8 bits, makes it faster and changes
        nothing. `json_schema` or `regex` is what every text must obey.
        """
        if prompt is not None and text is not None:
            raise UserError("both a prompt and a text are given", where="generate", fix="give one: they are the same")
        prompt = text if prompt is None else prompt
        result = self.run_generation(
            prompt, settings, image=image, on_token=on_token, draft=draft, json_schema=json_schema, regex=regex
        )
        if isinstance(prompt, Tensor):
            return result.ids
        texts = self.texts(result)
        count = settings.get("num_return_sequences", self.defaults.num_return_sequences)
        if isinstance(prompt, str | None) and not isinstance(image, list | tuple):
            return texts[0] if count == 1 else texts
        return texts

    def run_generation(
        self,
        prompt: Prompt | None,
        settings: dict[str, Any],
        *,
        image: Any = None,
        on_token: Callable[[Step], object] | None = None,
        draft: Any = None,
        json_schema: Any = None,
        regex: str | None = None,
    ) -> Generated:
        """Everything decoding knows: ids, log-probabilities, why each row stopped."""
        if self.head_kind() is not LM:
            raise UserError(
                "this model has no head that scores words",
                where=str(self.opened.head),
                fix="open a causal or encoder-decoder model",
            )
        read, mask, count = self.generation_inputs(prompt, image)
        text_of = None if self.tokenizer is None else self.tokenizer.decode
        chosen = with_settings(self.defaults, settings)
        return generate(
            self.model, read, mask, settings=chosen, text_of=text_of, on_token=on_token,
            draft=self.drafting(draft), guide=self.guides(chosen, count, json_schema, regex),
        )  # fmt: skip

    def generation_inputs(self, prompt: Prompt | None, image: Any) -> tuple[Any, Any, int]:
        """What is read before the first word is written, its mask, and how many texts it asks for."""
        if self.reads_images():
            return self.image_inputs(prompt, image)
        if image is not None:
            raise UserError("this model reads no image", where="image", fix="leave it out")
        if isinstance(prompt, Tensor):
            ids = prompt[None] if prompt.dim() == 1 else prompt
            return ids.to(self.device), None, len(ids)
        texts = [prompt] if isinstance(prompt, str) else list(prompt or ())
        if not texts:
            raise UserError("there is no prompt", fix="give at least one text")
        ids, mask = self.words().batch(texts, side="right", device=self.device)
        if ids.shape[1] == 0 or not mask.any(1).all():
            raise UserError("a prompt is empty", fix="give at least one token, such as a newline")
        return ids.to(self.device), None if mask.all() else mask, len(ids)

    def image_inputs(self, prompt: Prompt | None, image: Any) -> tuple[Any, Any, int]:
        """Images, with what is asked about each, as the encoder reads them; one text may be asked about several."""
        from anyformer.inference.predict import encoder_inputs

        if image is None or isinstance(prompt, Tensor):
            raise UserError("this model reads an image", where="image", fix="give image=, and a text beside it if any")
        columns = () if self.preprocess is None else self.preprocess.columns or ()
        asked = [column.name for column in columns if column.is_text]
        if prompt and not asked:
            raise UserError("this model reads an image and no text", where="text", fix="leave the text out")
        images = list(image) if isinstance(image, list | tuple) else [image]
        texts = [prompt] * len(images) if isinstance(prompt, str | None) else list(prompt)
        if len(texts) != len(images):
            raise UserError(f"{len(images)} images and {len(texts)} texts", where="image", fix="give one text an image")
        (seen,) = (column.name for column in columns if column.is_image)
        rows = [{seen: one} | dict.fromkeys(asked, text) for one, text in zip(images, texts, strict=True)]
        return *encoder_inputs(self, rows), len(rows)

    def reads_images(self) -> bool:
        """Whether it writes text about images."""
        kept = self.preprocess
        return kept is not None and kept.writes_text and any(column.is_image for column in kept.columns or ())

    def drafting(self, draft: Any) -> Any:
        """The network of a draft, which must read the same tokens."""
        if not isinstance(draft, Predictor):
            return draft
        if self.tokenizer is not None and draft.tokenizer is not None:
            if self.tokenizer.sha256 != draft.tokenizer.sha256:
                raise UserError("the draft has another tokenizer", where="draft",
                                fix="use a draft that was trained with this one")  # fmt: skip
        return draft.model

    def guides(
        self, settings: Generation, prompts: int, json_schema: Any = None, regex: str | None = None
    ) -> list[Guide | None] | None:
        """One guide for each text to be written; None where nothing is asked of them."""
        if json_schema is None and regex is None:
            return None
        if json_schema is not None and regex is not None:
            raise UserError("a text obeys a JSON schema or a pattern", fix="give one of json_schema and regex")
        count, words = prompts * settings.num_return_sequences, self.words().target
        if json_schema is not None:
            return [json_guide(words, json_schema, settings.ends) for _ in range(count)]
        return [regex_guide(words, regex or "", settings.ends) for _ in range(count)]

    def texts(self, result: Generated) -> list[str]:
        """What was written, as text, without special tokens."""
        return [self.decode(row) for row in result.rows()]

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, as the model reads it."""
        return self.words().encode(text)

    def decode(self, ids: Sequence[int] | Tensor) -> str:
        """The text that token ids stand for, without special tokens; of the language written, for a translator."""
        words = self.words().target if isinstance(self.spec, Seq2Seq) else self.words()
        return words.decode(ids.tolist() if isinstance(ids, Tensor) else ids)

    def score(self, text: str | Tensor) -> Scored:
        """Log-probability of each token given those before it, and their sum, by the chain rule."""
        if isinstance(self.spec, Seq2Seq) or self.head_kind() is not LM:
            raise UserError("scoring needs a causal language model", fix="open a decoder such as GPT-2")
        ids = text if isinstance(text, Tensor) else torch.tensor([self.encode(text)])
        return score(self.model, ids.to(self.device))

    # ------------------------------------------------------------ images

    def generate_images(self, labels: Sequence[str], *, seed: int = 0) -> np.ndarray:
        """One image for each class named, (N,H,W,3) or (N,H,W) in 0 to 255; image n is that of the seed `seed` + n."""
        if not isinstance(self.spec, SAGAN):
            raise UserError("this model draws no images", fix="open a model trained with --task adversarial")
        rows = [{"label": label, "seed": seed + number} for number, label in enumerate(labels)]
        return np.stack(self.predict(rows))

    # ------------------------------------------------------------ labels and vectors

    @torch.inference_mode()
    def predict_proba(
        self, rows: Any, *, batch_size: int = 32, on_bad_rows: Literal["error", "skip"] = "error"
    ) -> Tensor:
        """Probabilities (rows, classes) of a classifier; of each label on its own where a row may have several.

        Rows are as for `predict`; one that is skipped has nan.
        """
        if self.has_columns():
            from anyformer.inference.predict import probabilities

            return torch.from_numpy(probabilities(self, rows, batch=batch_size, on_bad_rows=on_bad_rows))
        if self.head_kind() is not Pooled or self.spec.head.classes is None:
            raise UserError("this model does not classify whole inputs", fix="open a sequence or image classifier")
        return torch.cat([self.run(part).logits.float().softmax(-1).cpu() for part in self.parts(rows, batch_size)])

    @torch.inference_mode()
    def predict(self, rows: Any, *, batch_size: int = 32, on_bad_rows: Literal["error", "skip"] = "error") -> list[Any]:
        """One answer a row, in their order: a label, a list of tags, a number, a text, objects or a forecast.

        A model trained on columns takes rows as dictionaries, a table, a DataFrame or a path; one that reads a single
        column also takes its cells bare. A row that cannot be read is an error that names it; with `on_bad_rows`
        "skip" its answer is None, and the log says which rows those are.
        """
        if self.answers_rows():
            from anyformer.inference.predict import predict_values

            return predict_values(self, rows, batch=batch_size, on_bad_rows=on_bad_rows)
        rows = self.listed(rows)
        kind = self.head_kind()
        if kind is TokenHead:
            return [tags for part in self.parts(rows, batch_size) for tags in self.tags(part)]
        if kind is Regress:
            return [
                row for part in self.parts(rows, batch_size) for row in self.run(part).logits.float().cpu().tolist()
            ]
        best = self.predict_proba(rows, batch_size=batch_size).argmax(-1).tolist()
        return [self.label(i) for i in best]

    def tags(self, rows: Sequence[Any]) -> Iterator[list[str]]:
        ids, mask = self.tokens(rows)
        best = self.model(ids, mask=mask).logits.argmax(-1)
        for row, real in zip(best, mask, strict=True):
            yield [self.label(i) for i in row[real].tolist()]

    def label(self, index: int) -> str:
        return str(index) if self.labels is None or index >= len(self.labels) else self.labels[index]

    @torch.inference_mode()
    def embed(self, rows: Sequence[Any], *, pool: str = "mean", normalise: bool = True, batch_size: int = 32) -> Tensor:
        """One vector a row: the masked mean (or first token) of the last layer, of length 1 unless told otherwise.

        A row is a text, a list of token ids, or what the model sees as an image.
        """
        vectors = []
        for part in self.parts(rows, batch_size):
            if self.images is not None:
                pixels = self.pixels(part)
                hidden = self.model.read(pixels).hidden if self.reads_images() else self.every_token(pixels)
                mask = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
            else:
                ids, mask = self.tokens(part)
                hidden = self.every_token(ids, mask)
            share = mask[..., None].to(hidden.dtype)
            vector = hidden[:, 0] if pool == "first" else (hidden * share).sum(1) / share.sum(1).clamp(min=1)
            vectors.append(torch.nn.functional.normalize(vector, dim=-1) if normalise else vector)
        return torch.cat(vectors).cpu()

    def every_token(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """The last layer's vectors (B,T,D) of all tokens, also those that the head does not read."""
        model = self.model.encoder if isinstance(self.spec, Seq2Seq) else self.model
        hidden: Tensor = (model.before_head if isinstance(model, ModelModule) else model)(inputs, mask=mask).hidden
        return hidden

    def run(self, rows: Sequence[Any]) -> Any:
        """One forward pass over texts or images."""
        if self.images is not None:
            return self.model(self.pixels(rows))
        ids, mask = self.tokens(rows)
        return self.model(ids, mask=mask)

    def pixels(self, rows: Sequence[Any]) -> Tensor:
        """Images as the model sees them."""
        assert self.images is not None
        return self.images(list(rows)).to(self.device, next(self.model.parameters()).dtype)

    def tokens(self, rows: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Texts, pairs of texts, or lists of token ids, as ids (B,T) and mask (B,T)."""
        words = self.words()
        ids = list(rows) if isinstance(rows[0], list) else words.encode_batch(list(rows))
        return words.padded(ids, side="right", device=self.device)

    def parts(self, rows: Any, size: int) -> Iterator[Sequence[Any]]:
        rows = self.listed(rows)
        for start in range(0, len(rows), size):
            yield rows[start : start + size]

    def listed(self, rows: Any) -> list[Any]:
        """Rows of a model opened from a folder: texts, lists of token ids, or images."""
        if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
            raise UserError("rows are a list, one entry an input", fix="write predict([text])")
        found = [row.tolist() if isinstance(row, Tensor) and self.images is None else row for row in rows]
        if not found:
            raise UserError("there are no rows", where="rows", fix="give at least one")
        return found

    def has_columns(self) -> bool:
        """Whether rows go through the preprocessing that was fitted in training."""
        return self.preprocess is not None and self.preprocess.columns is not None

    def answers_rows(self) -> bool:
        """Whether its task answers new rows: by the columns it was trained on, or as bare texts."""
        if self.preprocess is None:
            return False
        from anyformer.tasks import find

        return self.has_columns() or find(self.preprocess.task).answers_texts

    def head_kind(self) -> type | None:
        head = self.spec.head if isinstance(self.spec, Model | Seq2Seq) else None
        return None if head is None else type(head)

    def words(self) -> Tokenizer:
        if self.tokenizer is None:
            raise UserError("the folder has no tokenizer", fix="give ids as a tensor, or add tokenizer.json")
        return self.tokenizer

    def calibrated(self, calibration: Calibration | None) -> Predictor:
        """The same model with other temperatures or another threshold between its logits and its answers."""
        if self.preprocess is None or calibration is None:
            return self
        return replace(self, preprocess=self.preprocess.replace(calibration=calibration))

    def with_threshold(self, threshold: float) -> Predictor:
        """The same model answering yes from this probability on: of two classes the second, of a set each label."""
        from anyformer.tasks import find

        if self.preprocess is None or not find(self.preprocess.task).has_threshold(self.preprocess):
            raise UserError("this model has no threshold", where="threshold",
                            fix="leave it out: two classes have one, or labels that may come together")  # fmt: skip
        known = self.preprocess.calibration or Calibration()
        return self.calibrated(known.replace(threshold=threshold))

    # ------------------------------------------------------------ saving

    def save(self, folder: str | Path) -> Path:
        """Write our own folder: anyformer.json, model.safetensors, and what stands around the model."""
        check_whole(self.model, folder)
        with new_folder(folder, needed=bytes_of(self.model)) as path:
            save_own(path, self.spec, self.model)
            self.save_around(path)
            if self.preprocess is not None:
                (path / LABELS_FILE).write_text(self.preprocess.to_json(), encoding="utf-8")
            elif self.labels is not None:
                (path / LABELS_FILE).write_text(json.dumps({"labels": self.labels}, indent=1) + "\n", encoding="utf-8")
        return Path(folder)

    def export(self, folder: str | Path, to: str = "hf") -> Path:
        """Write a folder for others: "hf" opens in transformers and vLLM, "onnx" in ONNX Runtime."""
        if to not in ("hf", "onnx"):
            raise UserError(f"there is no format {to!r}", where="export", fix='use "hf" or "onnx"')
        check_whole(self.model, folder)
        made = with_calibrated_logits(self)
        with new_folder(folder, needed=bytes_of(self.model)) as path:
            if to == "onnx":
                from anyformer.checkpoints.onnx import export_onnx

                export_onnx(path, made)
            else:
                made.export_hf(path)
        return Path(folder)

    def export_hf(self, folder: Path) -> None:
        """Write what transformers opens into an empty folder."""
        named = {} if self.labels is None else {
            "id2label": {str(i): name for i, name in enumerate(self.labels)},
            "label2id": {name: i for i, name in enumerate(self.labels)},
        }  # fmt: skip
        config = self.around_config() | dict(self.opened.config) | named
        if isinstance(self.model, ElectraModule):  # a narrow generator could as well be a BERT
            config |= {"model_type": "electra"}
        for name, model in self.networks().items():
            save_foreign(folder / name, model.spec, model, config=config)
            self.save_around(folder / name)

    def networks(self) -> dict[str, Any]:
        """The networks that others open, by the folder inside the model's own that each is written to."""
        if isinstance(self.model, ElectraModule):
            return {"": self.model.discriminator, "generator": self.model.generator_alone()}
        return {"": self.model}

    def around_config(self) -> dict[str, Any]:
        """What a config.json should say of a model trained here; left out, their classes would take their own ids."""
        if self.opened.family is not None or self.tokenizer is None:
            return {}
        words = self.tokenizer
        found: dict[str, Any] = {"bos_token_id": words.bos, "eos_token_id": words.eos, "pad_token_id": words.pad}
        if self.preprocess is not None and self.preprocess.length is not None:
            found["max_position_embeddings"] = self.preprocess.length
        if self.defaults.decoder_start_token_id is not None:  # by which their losses shift the targets
            found["decoder_start_token_id"] = self.defaults.decoder_start_token_id
        return found

    def save_around(self, folder: Path) -> None:
        """Tokenizer, image preprocessing and decoding settings."""
        if self.tokenizer is not None:
            self.tokenizer.save(folder)
        if self.images is not None:
            (folder / IMAGES_FILE).write_text(json.dumps(self.images.to_dict(), indent=2) + "\n", encoding="utf-8")
        settings = {
            name: value for name, value in changed_settings(self.defaults).items() if name not in ("seed", "logprobs")
        }
        if settings:
            (folder / GENERATION_FILE).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def with_calibrated_logits(predictor: Predictor) -> Predictor:
    """The same model whose own logits are those that it answers by, for formats that know no temperature.

    A temperature is divided out of the last linear layer, in a copy of that layer alone. A threshold stays behind.
    """
    fitted = None if predictor.preprocess is None else predictor.preprocess.calibration
    if fitted is None:
        return predictor
    if fitted.threshold is not None:
        logger.warning(f"export   leaves out the threshold {fitted.threshold:g}: others answer by the likeliest class")
    scale = torch.tensor(fitted.temperature)
    head = getattr(predictor.model, "head", None)
    if not isinstance(head, PooledModule) or head.out is None or predictor.spec.ensemble is not None:
        if bool((scale != 1).any()):
            logger.warning(f"export   gives plain logits, without the temperature {scale.tolist()}")
        return predictor
    model = copy.copy(predictor.model)
    model._modules = dict(predictor.model._modules)
    made = copy.copy(head)
    made._modules, made.out = dict(head._modules), scaled_linear(head.out, 1 / scale)
    model.head = made
    return replace(predictor, opened=replace(predictor.opened, model=model))


def scaled_linear(layer: torch.nn.Linear, factor: Tensor) -> torch.nn.Linear:
    """A copy of a linear layer whose outputs are those of the first times a factor, one for all or one for each."""
    made = copy.deepcopy(layer)
    with torch.no_grad():
        factor = factor.to(made.weight)
        made.weight.mul_(factor[:, None])
        if made.bias is not None:
            made.bias.mul_(factor)
    return made


def bytes_of(model: torch.nn.Module) -> int:
    """What a model's weights take on the disk."""
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def changed_settings(settings: Generation) -> dict[str, Any]:
    """The settings that are not at their default."""
    plain = Generation()
    return {f.name: value for f in fields(settings) if (value := getattr(settings, f.name)) != getattr(plain, f.name)}


def with_settings(defaults: Generation, settings: dict[str, Any]) -> Generation:
    """The folder's settings with the caller's on top; beams asked for here put away sampling set there."""
    kept = changed_settings(defaults)
    if settings.get("num_beams", 1) > 1 and "do_sample" not in settings:
        kept.pop("do_sample", None)
    if settings.get("num_beams", 1) > 1:
        kept.pop("prompt_lookup_num_tokens", None)
    if "max_new_tokens" in settings:
        kept.pop("max_length", None)
    return Generation.from_settings(kept | settings)
