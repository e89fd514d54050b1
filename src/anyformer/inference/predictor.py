"""`Predictor`: a model with its tokenizer, labels, preprocessing and decoding settings, as returned by `load`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from anyformer.checkpoints.folder import Opened
from anyformer.core.model import Model, ModelModule, Seq2Seq
from anyformer.data.calibration import Calibration
from anyformer.data.images.preprocessing import ImageSteps
from anyformer.data.tokenizers.tokenizer import Tokenizer, pad_ids
from anyformer.errors import UserError
from anyformer.generation import Generated, Generation, Scored, Step, generate, score
from anyformer.generation.config import no_start_token
from anyformer.heads import LM, Pooled, Regress, TokenHead
from anyformer.inference.decoding_settings import with_settings
from anyformer.inference.generation_inputs import Prompt, draft_network, generation_inputs, make_guides
from anyformer.inference.saving import export_predictor, save_around, save_predictor
from anyformer.nets.electra import ElectraModule
from anyformer.nets.sagan import SAGAN
from anyformer.objectives import Objective

if TYPE_CHECKING:
    from anyformer.data.preprocess import Preprocess


@dataclass
class Predictor:
    """Takes text, images, ids or rows; returns text, labels, embeddings or log-probabilities."""

    opened: Opened
    tokenizer: Tokenizer | None = None
    labels: list[str] | None = None
    images: ImageSteps | None = None
    defaults: Generation = Generation()  # noqa: RUF009 - frozen
    objective: Objective | None = None  # the training objective of a run; None if unknown
    preprocess: Preprocess | None = None  # from rows to inputs, for a model trained here

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
        """Generate from a text, several texts, or a tensor of ids (B,T).

        A model that reads images takes one, or a list, as `image` (a path, the bytes of a file, or pixels), and the
        text
        about it as `text`, an alias of `prompt`.

        Settings have Hugging Face's names (max_new_tokens, num_beams, temperature, ...). A text returns a text, a list
        a
        list, ids return ids including the prompt, as in transformers. `run_generation` returns all details.
        `draft`, a smaller model with the same vocabulary or "int8" for this one quantised, is for speculative decoding,
        which does not change the output. `json_schema` or `regex` constrains every output.
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
        """`generate` with all details: ids, log-probabilities, finish reasons."""
        if self.head_kind() is not LM:
            raise UserError(
                "this model has no language-model head",
                where=str(self.opened.head),
                fix="open a causal or encoder-decoder model",
            )
        inputs, mask, count = generation_inputs(self, prompt, image)
        text_of = None if self.tokenizer is None else self.tokenizer.decode
        chosen = with_settings(self.defaults, settings)
        return generate(
            self.model, inputs, mask, settings=chosen, text_of=text_of, on_token=on_token,
            draft=draft_network(draft, self.tokenizer), guide=make_guides(self, chosen, count, json_schema, regex),
        )  # fmt: skip

    def reads_images(self) -> bool:
        """Whether it generates text from images."""
        kept = self.preprocess
        return kept is not None and kept.writes_text and any(column.is_image for column in kept.columns or ())

    def texts(self, result: Generated) -> list[str]:
        """The generated texts, without special tokens."""
        return [self.decode(row) for row in result.rows()]

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, as the model reads it."""
        return self.require_tokenizer().encode(text)

    def decode(self, ids: Sequence[int] | Tensor) -> str:
        """Decode token ids without special tokens; a translator uses its target tokenizer."""
        tokenizer = self.require_tokenizer().target if isinstance(self.spec, Seq2Seq) else self.require_tokenizer()
        return tokenizer.decode(ids.tolist() if isinstance(ids, Tensor) else ids)

    def score(self, text: str | Tensor) -> Scored:
        """Log-probability of each token given those before it, and their sum, by the chain rule."""
        if isinstance(self.spec, Seq2Seq) or self.head_kind() is not LM:
            raise UserError("scoring needs a causal language model", fix="open a decoder such as GPT-2")
        ids = text if isinstance(text, Tensor) else torch.tensor([self.encode(text)])
        return score(self.model, ids.to(self.device))

    # ------------------------------------------------------------ images

    def generate_images(self, labels: Sequence[str], *, seed: int = 0) -> np.ndarray:
        """One image per label, (N,H,W,3) or (N,H,W) in 0 to 255; image n uses the seed `seed` + n."""
        if not isinstance(self.spec, SAGAN):
            raise UserError("this model draws no images", fix="open a model trained with --task adversarial")
        rows = [{"label": label, "seed": seed + number} for number, label in enumerate(labels)]
        return np.stack(self.predict(rows))

    # ------------------------------------------------------------ labels and vectors

    @torch.inference_mode()
    def predict_proba(
        self, rows: Any, *, batch_size: int = 32, on_bad_rows: Literal["error", "skip"] = "error"
    ) -> Tensor:
        """Class probabilities (rows, classes); independent per label for a multi-label model.

        Rows are as for `predict`; a skipped row has nan.
        """
        if self.has_columns():
            from anyformer.inference.predict import probabilities

            return torch.from_numpy(probabilities(self, rows, batch_size=batch_size, on_bad_rows=on_bad_rows))
        if self.head_kind() is not Pooled or self.spec.head.classes is None:
            raise UserError("this model does not classify whole inputs", fix="open a sequence or image classifier")
        return torch.cat([self.run(part).logits.float().softmax(-1).cpu() for part in self.parts(rows, batch_size)])

    @torch.inference_mode()
    def predict(self, rows: Any, *, batch_size: int = 32, on_bad_rows: Literal["error", "skip"] = "error") -> list[Any]:
        """One answer per row, in order: a label, a list of tags, a number, a text, objects or a forecast.

        A model trained on columns takes rows as dictionaries, a table, a DataFrame or a path; with a single input
        column
        also bare cells. An invalid row is an error that names it; with `on_bad_rows` "skip" its answer is None, and it
        is logged.
        """
        if self.answers_rows():
            from anyformer.inference.predict import predict_values

            return predict_values(self, rows, batch_size=batch_size, on_bad_rows=on_bad_rows)
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
        """The label of every token, per text."""
        ids, mask = self.tokens(rows)
        best = self.model(ids, mask=mask).logits.argmax(-1)
        for row, real in zip(best, mask, strict=True):
            yield [self.label(i) for i in row[real].tolist()]

    def label(self, index: int) -> str:
        """The name of a class, or its number if it has none."""
        return str(index) if self.labels is None or index >= len(self.labels) else self.labels[index]

    @torch.inference_mode()
    def embed(self, rows: Sequence[Any], *, pool: str = "mean", normalise: bool = True, batch_size: int = 32) -> Tensor:
        """One embedding per row: the masked mean (or first token) of the last layer, L2-normalised by default.

        A row is a text, a list of token ids, or an image.
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
        """The last hidden states (B,T,D) of all tokens, including those that the head does not read."""
        model = self.model.encoder if isinstance(self.spec, Seq2Seq) else self.model
        hidden: Tensor = (model.before_head if isinstance(model, ModelModule) else model)(inputs, mask=mask).hidden
        return hidden

    def run(self, rows: Sequence[Any]) -> Any:
        """One forward pass over texts or images."""
        if self.images is not None:
            return self.model(self.pixels(rows))
        ids, mask = self.tokens(rows)
        if isinstance(self.spec, Seq2Seq):
            target, seen = self.shifted(ids, mask)
            return self.model(ids, target, source_mask=mask, target_mask=seen)
        return self.model(ids, mask=mask)

    def shifted(self, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Decoder input of a non-generating encoder-decoder: the source shifted right after the start token."""
        start = self.defaults.decoder_start_token_id
        if start is None:
            raise no_start_token("config.json", "add it")
        return torch.cat([ids.new_full((len(ids), 1), start), ids[:, :-1]], 1), mask

    def pixels(self, rows: Sequence[Any]) -> Tensor:
        """Preprocessed images."""
        assert self.images is not None
        return self.images(list(rows)).to(self.device, next(self.model.parameters()).dtype)

    def tokens(self, rows: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Texts, pairs of texts, or lists of token ids, as ids (B,T) and padding mask (B,T)."""
        if isinstance(rows[0], list) and self.tokenizer is None:
            return pad_ids(list(rows), 0, side="right", device=self.device)
        tokenizer = self.require_tokenizer()
        ids = list(rows) if isinstance(rows[0], list) else tokenizer.encode_batch(list(rows))
        return tokenizer.padded(ids, side="right", device=self.device)

    def parts(self, rows: Any, size: int) -> Iterator[Sequence[Any]]:
        """The rows in batches of `size`."""
        rows = self.listed(rows)
        for start in range(0, len(rows), size):
            yield rows[start : start + size]

    def listed(self, rows: Any) -> list[Any]:
        """Validate rows as a list of texts, lists of token ids or images."""
        if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
            raise UserError("rows are a list, one entry an input", fix="write predict([text])")
        found = [row.tolist() if isinstance(row, Tensor) and self.images is None else row for row in rows]
        if not found:
            raise UserError("no rows given", where="rows", fix="give at least one")
        return found

    def has_columns(self) -> bool:
        """Whether it was trained on columns, so that rows need the fitted preprocessing."""
        return self.preprocess is not None and self.preprocess.columns is not None

    def answers_rows(self) -> bool:
        """Whether its task predicts new rows, given as columns or bare texts."""
        if self.preprocess is None:
            return False
        from anyformer.tasks import find

        return self.has_columns() or find(self.preprocess.task).answers_texts

    def head_kind(self) -> type | None:
        """The class of the head's spec; None without a head."""
        head = self.spec.head if isinstance(self.spec, Model | Seq2Seq) else None
        return None if head is None else type(head)

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer; an error if there is none."""
        if self.tokenizer is None:
            raise UserError("the folder has no tokenizer", fix="give ids as a tensor, or add tokenizer.json")
        return self.tokenizer

    def words(self) -> Tokenizer:
        """Deprecated alias of `require_tokenizer`."""
        warnings.warn("Predictor.words is called require_tokenizer since 0.2.0", FutureWarning, stacklevel=2)
        return self.require_tokenizer()

    def calibrated(self, calibration: Calibration | None) -> Predictor:
        """The same model with other temperatures or another threshold."""
        if self.preprocess is None or calibration is None:
            return self
        return replace(self, preprocess=self.preprocess.replace(calibration=calibration))

    def with_threshold(self, threshold: float) -> Predictor:
        """The same model with another decision threshold for the second of two classes, or for each label."""
        from anyformer.tasks import find

        if self.preprocess is None or not find(self.preprocess.task).has_threshold(self.preprocess):
            raise UserError("this model has no threshold", where="threshold",
                            fix="leave it out: two classes have one, or labels that may come together")  # fmt: skip
        known = self.preprocess.calibration or Calibration()
        return self.calibrated(known.replace(threshold=threshold))

    # ------------------------------------------------------------ saving

    def save(self, folder: str | Path) -> Path:
        """Write an anyformer folder: anyformer.json, model.safetensors, tokenizer and preprocessing."""
        return save_predictor(self, folder)

    def export(self, folder: str | Path, to: str = "hf") -> Path:
        """Export a folder: "hf" opens in transformers and vLLM, "onnx" in ONNX Runtime."""
        return export_predictor(self, folder, to)

    def networks(self) -> dict[str, Any]:
        """The networks to export, by subfolder; "" is the folder itself."""
        if isinstance(self.model, ElectraModule):
            return {"": self.model.discriminator, "generator": self.model.generator_alone()}
        return {"": self.model}

    def save_around(self, folder: Path) -> None:
        """Write the files beside the weights: tokenizer, image preprocessing and decoding settings."""
        save_around(self, folder)
