"""Commands on model folders: generate, convert."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anyformer.amounts import count_to_a_tenth
from anyformer.commands.options import Device, Dtype, Folder, Json, Quantise, Quiet
from anyformer.commands.rates import Rates
from anyformer.commands.words import configure_messages, note, write, write_piece
from anyformer.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from anyformer.generation import Generated, Step
    from anyformer.inference.predictor import Predictor

DTYPES = ("float32", "bfloat16", "float16", "float64")


def generate(
    folder: Folder,
    prompt: Annotated[
        str | None, typer.Argument(help="The text to continue; - or nothing reads it from stdin.")
    ] = None,
    image: Annotated[Path | None, typer.Option(help="An image, of which the prompt asks something.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="At most this many new tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="Sample; 0 is greedy.")] = None,
    top_k: Annotated[int | None, typer.Option(min=0, help="Sample among the k most likely.")] = None,
    top_p: Annotated[
        float | None, typer.Option(min=0, max=1, help="Sample among the most likely that sum to p.")
    ] = None,
    num_beams: Annotated[int | None, typer.Option(min=1, help="Beam search.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed gives the same text.")] = None,
    json_schema: Annotated[
        Path | None, typer.Option(help="A file with the JSON schema that the text must match.")
    ] = None,
    regex: Annotated[str | None, typer.Option(help="A pattern that the whole text must match.")] = None,
    lookup: Annotated[
        int | None, typer.Option(min=1, help="Prompt lookup: propose so many tokens of an earlier passage.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option(help="Draft model: a smaller model, or int8 for this one rounded; same text.")
    ] = None,
    draft_tokens: Annotated[int | None, typer.Option(min=1, help="Draft tokens per step.")] = None,
    dtype: Dtype = None,
    quantise: Quantise = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Continue a text, or answer it with an encoder-decoder.

    \b
    Example:
      anyformer generate FOLDER "Once upon a time" --max-new-tokens 50
      anyformer generate FOLDER "def " --temperature 0.8 --seed 1 --draft int8
      anyformer generate FOLDER "The year: " --regex "(19|20)[0-9]{2}"
      anyformer generate FOLDER "what is on the left?" --image shapes.png
    """
    import anyformer
    from anyformer.inference.decoding_settings import with_settings
    from anyformer.inference.filled_spans import decode_spans, has_sentinels

    configure_messages(quiet)
    check_used(temperature, top_k, top_p, draft, draft_tokens)
    from_stdin = prompt == "-" or (prompt is None and image is None)
    text = sys.stdin.read() if from_stdin else prompt or ""
    started = time.perf_counter()
    predictor = anyformer.load(folder, device=device, dtype=torch_dtype(dtype))
    check_writes(predictor, folder)
    if quantise is not None:
        anyformer.quantise(predictor.model, quantise)
    writer = draft if draft in (None, "int8") else anyformer.load(draft, device=device, dtype=torch_dtype(dtype))
    schema = None if json_schema is None else read_text(json_schema, "--json-schema")
    opened = time.perf_counter()
    sampled = temperature not in (None, 0.0) or top_k is not None or top_p is not None
    settings: dict[str, Any] = {
        "max_new_tokens": max_new_tokens, "temperature": temperature or None, "top_k": top_k, "top_p": top_p,
        "num_beams": num_beams, "seed": seed, "do_sample": True if sampled else (False if temperature == 0 else None),
        "prompt_lookup_num_tokens": lookup, "num_assistant_tokens": draft_tokens,
    }  # fmt: skip
    given = {name: value for name, value in settings.items() if value is not None}
    chosen = with_settings(predictor.defaults, given)
    alone = chosen.num_beams == 1 and chosen.num_return_sequences == 1
    fills = has_sentinels(
        predictor.require_tokenizer(), text
    )  # without the sentinels it is unclear which span fills which gap
    watch = Watch(predictor, text, shown=alone and not as_json and not fills)
    hear = watch.hear if chosen.num_beams == 1 else None
    result = predictor.run_generation(
        text, given, image=image, on_token=hear, draft=writer, json_schema=schema, regex=regex
    )
    rates, answer = watch.end(result), predictor.texts(result)
    if fills:
        answer = [decode_spans(predictor.require_tokenizer().target, row) for row in result.rows()]
    if as_json:
        rate = {"load_seconds": round(opened - started, 3), **rates.facts()}
        if result.passes is not None:
            rate["passes"] = int(result.passes.sum())
        write(json.dumps({"prompt": text, "texts": answer, "finish_reasons": result.reasons, **rate}))
        return
    if not watch.shown:
        write("\n".join(answer))
    if not quiet:
        note(f"{rates.line()}{each_pass(result)}; opened in {opened - started:.2f} s")


def check_used(
    temperature: float | None, top_k: int | None, top_p: float | None, draft: str | None, draft_tokens: int | None
) -> None:
    """Reject options that another option makes ineffective."""
    if temperature == 0 and (top_k is not None or top_p is not None):
        where = "--top-k" if top_k is not None else "--top-p"
        raise UserError("--temperature 0 always takes the likeliest token", where=where, fix="leave one of them out")
    if draft_tokens is not None and draft is None:
        raise UserError("there is no draft model", where="--draft-tokens", fix="add --draft int8")


class Watch:
    """Measures generation speed, and streams the text to a terminal or a pipe."""

    def __init__(self, predictor: Predictor, prompt: str, *, shown: bool) -> None:
        from anyformer.serving.detokenizer import Detokenizer, TextPieces

        tokenizer = predictor.require_tokenizer()
        self.pieces, self.shown, self.rates = (
            TextPieces(Detokenizer(tokenizer.target)),
            shown,
            Rates(len(tokenizer.encode(prompt))),
        )
        self.line_ends = ""  # trailing line ends, held back: a text is printed with exactly one at its end

    def hear(self, step: Step) -> None:
        """Record one decode step."""
        if self.shown:
            self.show(self.pieces.add([int(step.tokens[0])]))
        elif self.rates.first is None:
            step.tokens.tolist()  # synchronises with the device
        self.rates.token()

    def show(self, piece: str) -> None:
        """Write a piece of text, except its trailing line ends."""
        text = self.line_ends + piece
        shown = text.rstrip("\n")
        self.line_ends = text[len(shown) :]
        if shown:
            write_piece(shown)

    def end(self, result: Generated) -> Rates:
        """Finish the text."""
        if self.shown:
            self.show(self.pieces.end())
            write_piece("\n")
        self.rates.end().new = int(result.lengths.sum())
        return self.rates


def each_pass(result: Generated) -> str:
    """Statistics of speculative decoding."""
    if result.passes is None:
        return ""
    return f", {int(result.lengths.sum()) / max(int(result.passes.sum()), 1):.1f} a pass"


def read_text(path: Path, where: str) -> str:
    """Read a small text file."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({type(error).__name__})", where=where, fix="give a file") from None


def convert(
    source: Folder,
    target: Annotated[Path, typer.Argument(help="A new folder.")],
    to: Annotated[str, typer.Option(help="anyformer, hf or onnx.")] = "anyformer",
    kv_heads: Annotated[int | None, typer.Option(min=1, help="Average keys and values into this many heads.")] = None,
    max_length: Annotated[int | None, typer.Option(min=1, help="Resize positions for this many tokens.")] = None,
    image_size: Annotated[int | None, typer.Option(min=1, help="Resize positions for images of this size.")] = None,
    position: Annotated[str | None, typer.Option(help="learned, sinusoid, rope, alibi, buckets, shaw or none.")] = None,
    keep_layers: Annotated[str | None, typer.Option(help="Layers to keep, such as 0,2,4.")] = None,
    prune_heads: Annotated[
        str | None, typer.Option(help="Heads to remove: layer.head from 0, such as 3.1,5.0; or 25% that count least.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="The file on which heads are measured for a share of them.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be written, write nothing.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a model in another format, changed on the way where asked.

    \b
    Example:
      anyformer convert gpt2/ mine/ --to anyformer --kv-heads 4
      anyformer convert runs/demo out/ --to hf
      anyformer convert runs/demo small/ --prune-heads 25% --data valid.csv
    """
    import anyformer
    from anyformer.checkpoints.target import check_target

    if to not in ("anyformer", "hf", "onnx"):
        raise UserError(f"unknown format {to!r}", where="--to", fix=did_you_mean(to, ["anyformer", "hf", "onnx"]))
    configure_messages(quiet)
    check_target(target)
    share = share_of_heads(prune_heads, data)
    predictor = anyformer.load(source, dtype=torch_dtype(dtype))
    notes = [] if dtype is None else [change_dtype(predictor)]
    if prune_heads is not None:  # first: head indices are those of the unmodified model
        notes += remove_heads(predictor, prune_heads, share, data)
    notes += apply_changes(predictor, kv_heads, max_length, image_size, position, layers_of(keep_layers))
    if to == "hf":
        from anyformer.checkpoints.folder import as_family

        for network in predictor.networks().values():  # fail before anything is written
            as_family(network.spec, predictor.opened.config)
    if not dry_run:
        predictor.save(target) if to == "anyformer" else predictor.export(target, to=to)
    count = sum(p.numel() for p in predictor.model.parameters())
    if as_json:
        write(
            json.dumps({"target": str(target), "to": to, "parameters": count, "notes": notes, "written": not dry_run})
        )
        return
    for line in [] if quiet else notes:
        note(line)
    write(f"{'would write' if dry_run else 'wrote'} {target} ({to}, {count_to_a_tenth(count)} parameters)")


def apply_changes(
    predictor: Predictor, kv_heads: int | None, max_length: int | None, image_size: int | None, position: str | None,
    keep: list[int] | None,
) -> list[str]:  # fmt: skip
    """Apply the requested changes in a fixed order, reporting the loss of each."""
    from anyformer.checkpoints import changes

    notes: list[str] = []

    def apply(made: changes.Changed) -> None:
        predictor.opened.spec, predictor.opened.model = made.spec, made.model
        notes.extend(made.notes)

    if keep is not None:
        apply(changes.fewer_layers(predictor.spec, predictor.model, keep))
    if kv_heads is not None:
        apply(changes.fewer_kv_heads(predictor.spec, predictor.model, kv_heads))
    if position is not None:
        apply(changes.other_position(predictor.spec, predictor.model, position, max_length or 1024))
    if max_length is not None:
        apply(changes.longer(predictor.spec, predictor.model, max_length, trained_length(predictor)))
        announce_length(predictor, max_length)
    if image_size is not None:
        apply(changes.other_image_size(predictor.spec, predictor.model, image_size))
        if predictor.images is not None:
            predictor.images = predictor.images.resized(image_size)
    return notes


def share_of_heads(words: str | None, data: Path | None) -> float | None:
    """25% as 0.25; None if heads are listed by name. A fraction needs data, names do not."""
    share = None
    if words is not None and words.strip().endswith("%"):
        try:
            share = float(words.strip().removesuffix("%")) / 100
        except ValueError:
            share = -1.0
        if not 0 < share < 1:
            raise UserError(f"{words!r} is not a percentage of the heads", where="--prune-heads", fix="write 25%")
    if share is not None and data is None:
        raise UserError("which heads count least has to be measured", where="--prune-heads",
                        fix="add --data FILE with rows like those it was trained on")  # fmt: skip
    if data is not None and share is None:
        raise UserError("nothing is measured on it", where="--data", fix="leave it out, or write --prune-heads 25%")
    return share


def remove_heads(predictor: Predictor, words: str, share: float | None, data: Path | None) -> list[str]:
    """Remove heads by name, or a fraction of them by importance on a file."""
    from anyformer.checkpoints.prune import fewer_heads
    from anyformer.core.head_names import parse_heads

    notes: list[str] = []
    if share is None:
        heads = parse_heads(words, "--prune-heads")
    else:
        from anyformer.inspection.head_importance import head_importance
        from anyformer.inspection.weakest_heads import weakest_heads

        measured = head_importance(predictor, data)
        chosen = weakest_heads(measured, predictor.model, share)
        heads = [name.short for name in chosen]
        most = max(measured.change[name] for name in chosen)
        notes.append(f"{measured.what} {measured.whole:.4f}; each of the heads removed adds at most {most:.4f} alone")
    try:
        made = fewer_heads(predictor.spec, predictor.model, heads)
    except UserError as error:
        where = "--prune-heads" + ("" if error.where == "heads" else f", {error.where}")
        raise UserError(error.what, where=where, fix=error.fix) from None
    predictor.opened.spec, predictor.opened.model = made.spec, made.model
    return notes + made.notes


def change_dtype(predictor: Predictor) -> str:
    """Describe the effect of the new dtype on the weights; overflow is an error."""
    import torch

    before, after = predictor.opened.dtype, next(predictor.model.parameters()).dtype
    names = [str(kind).removeprefix("torch.") for kind in (before, after)]
    if before == after:
        return f"weights are {names[0]} already; nothing changed"
    if torch.promote_types(before, after) == after:
        return f"weights widened from {names[0]} to {names[1]}; their values stay the same"
    if torch.finfo(after).max < torch.finfo(before).max:
        for name, parameter in predictor.model.named_parameters():
            if not torch.isfinite(parameter).all():
                raise UserError(f"{name} holds values beyond the range of {names[1]}", where="--dtype",
                                fix="use bfloat16")  # fmt: skip
    return f"weights rounded from {names[0]} to {names[1]}; answers change slightly"


def trained_length(predictor: Predictor) -> int | None:
    """The sequence length of training, if the folder records it."""
    if predictor.preprocess is not None:
        return predictor.preprocess.length
    said = predictor.opened.config.get("max_position_embeddings")
    return said if isinstance(said, int) else None


def announce_length(predictor: Predictor, length: int) -> None:
    """Update the length in config, preprocessing and tokenizer: rows are truncated to it, servers use it as limit."""
    if isinstance(predictor.opened.config.get("max_position_embeddings"), int):
        predictor.opened.config["max_position_embeddings"] = length
    if predictor.preprocess is not None and predictor.preprocess.length is not None:
        predictor.preprocess = predictor.preprocess.replace(length=length)
    if predictor.tokenizer is not None and predictor.tokenizer.max_length is not None:
        predictor.tokenizer.max_length = length


def check_writes(predictor: Predictor, folder: Path) -> None:
    """Reject models trained to predict rows: these use another command."""
    from anyformer.tasks import find

    kept = predictor.preprocess
    task = None if kept is None else find(kept.task)
    if task is not None and not task.writes_text:
        fix = f"anyformer predict {folder} FILE"
        raise UserError(f"this model {task.verb} and does not write text", where=str(folder), fix=fix)


def layers_of(text: str | None) -> list[int] | None:
    """Parse `0,2,4`."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{text!r} is not a list of layers", where="--keep-layers", fix="write 0,2,4") from None


def torch_dtype(name: str | None) -> Any:
    """A torch dtype by name."""
    import torch

    if name is None:
        return None
    if name not in DTYPES:
        raise UserError(f"unknown dtype {name!r}", where="--dtype", fix=did_you_mean(name, DTYPES))
    return getattr(torch, name)
