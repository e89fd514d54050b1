"""Usage errors: one line with what was typed and what to type instead."""

from __future__ import annotations

import re
from collections.abc import Sequence

from anyformer.errors import nearest, one_edit

# Names of other programs for an option, in order of likelihood; the first that the command has is suggested.
OTHER_OPTIONS = {
    "--out": ("output", "output_dir", "output_path", "save_dir", "save", "save_to", "run_dir", "log_dir", "dest"),
    "--preset": ("model", "model_name", "arch", "architecture", "size"),
    "--from": ("checkpoint", "ckpt", "pretrained", "finetune", "init_from", "model_name_or_path", "weights", "start"),
    "--target": ("label", "labels", "label_column", "target_column", "y"),
    "--epochs": ("num_epochs", "num_train_epochs", "n_epochs", "max_epochs", "epoch", "passes"),
    "--steps": ("max_steps", "num_steps", "max_iters", "iterations", "iters"),
    "--lr": ("rate", "learning_rate", "max_lr", "base_lr"),
    "--max-length": ("length", "max_len", "max_seq_len", "max_seq_length", "seq_len", "block_size", "context_length"),
    "--minutes": ("max_time", "time_limit", "hours"),
    "--seconds": ("max_time", "time_limit"),
    "--seed": ("random_state", "random_seed"),
    "--device": ("gpu", "cuda", "gpus", "cpu", "accelerator"),
    "--batch-size": ("batch", "bs", "eval_batch_size", "train_batch_size", "per_device_train_batch_size"),
    "--valid": ("val", "validation", "dev", "valid_file", "validation_file", "val_file", "eval_file"),
    "--test": ("test_file",),
    "--inputs": ("features", "columns", "input"),
    "--max-new-tokens": ("max_tokens", "max_length", "max_len", "length", "n_tokens", "tokens"),
    "--num-beams": ("beams", "beam", "beam_size", "beam_width"),
    "--temperature": ("temp", "t"),
    "--max-batch-size": ("max_batch", "max_num_seqs", "batch_size"),
    "--context": ("max_length", "max_len", "max_model_len", "context_length", "ctx_size", "n_ctx"),
    "--name": ("served_model_name", "model_name", "model"),
    "--key": ("api_key", "token"),
    "--url": ("base_url", "server", "endpoint"),
    "--quantise": ("quantize", "quantization", "int8", "load_in_8bit"),
    "--to": ("format", "output_format"),
    "--quiet": ("silent",),
    "--dry-run": ("dryrun", "plan", "simulate"),
    "--config": ("settings", "yaml", "config_file"),
    "--help": ("h", "usage"),
}  # fmt: skip


def explain_usage(message: str, given: Sequence[str], options: dict[str, list[str]]) -> str:
    """The line for a usage error: `message` is typer's, `given` what was typed, `options` those of every command.

    >>> explain_usage("No such option: --sed", ["demo", "--sed"], {"demo": ["--seconds", "--seed", "--help"]})
    "no such option: --sed; did you mean '--seed'?"
    """
    text = message.strip().rstrip(".")
    text = text[:1].lower() + text[1:]
    verb = next((word for word in given if not word.startswith("-")), "")
    option = re.match(r"no such option: (\S+)", text)
    if option:
        return f"no such option: {option[1]}; {option_meant(option[1], verb, given, options)}"
    command = re.match(r"no such command '(.*?)'", text)
    if command:
        return f"no such command '{command[1]}'; {verb_meant(command[1], options)}"
    return f"{with_value(text, given)}; {see(verb, options)}"


def with_value(text: str, given: Sequence[str]) -> str:
    """An error about an option's value, with the value.

    >>> with_value("invalid value for '--steps': Input should be a valid integer, unable to parse", ["--steps", "x"])
    "invalid value for '--steps': 'x' should be a valid integer"
    """
    found = re.match(r"(invalid value for '(--?[\w-]+)'.*?: )Input (should be [^,]*)", text)
    if not found:
        return text
    value = value_after(found[2], given)
    return f"{found[1]}{value!r} {found[3]}" if value is not None else text


def verb_meant(name: str, verbs: dict[str, list[str]]) -> str:
    """The suggested command, or where all are listed."""
    others = {"finetune": "train", "fit": "train", "eval": "evaluate", "test": "evaluate", "infer": "predict",
              "inference": "predict", "sample": "generate", "complete": "generate", "export": "convert",
              "continue": "resume", "list": "runs", "models": "presets", "ls": "runs", "talk": "chat"}  # fmt: skip
    meant = others.get(name.lower()) or nearest(name, verbs)
    return f"did you mean '{meant}'?" if meant in verbs else "see 'anyformer --help'"


def option_meant(typed: str, verb: str, given: Sequence[str], options: dict[str, list[str]]) -> str:
    """The suggestion for an option that the command does not have."""
    if verb not in options or (given and given[0] == typed):
        owners = [name for name, known in options.items() if typed in known]
        if owners:
            return f"write it after the command: anyformer {verb if verb in owners else owners[0]} ... {typed}"
        near = nearest_option(typed, options[""])
        return f"did you mean '{near}'?" if near is not None else see(verb, options)
    known = options[verb]
    name = typed.lstrip("-").lower().replace("-", "_")
    slip = next((choice for choice in known if one_edit(name, plain(choice))), None)
    option = next((option for option, names in OTHER_OPTIONS.items() if name in names and option in known), None)
    if option is not None:
        return f"did you mean '{option}'?"
    if slip is not None:
        return f"did you mean '{slip}'?"
    if "--set" in known and (path := setting_meant(name)):
        return f"write --set {path}={value_after(typed, given) or '...'}"
    if (near := nearest_option(typed, known)) is not None:
        return f"did you mean '{near}'?"
    elsewhere = [other for other, names in options.items() if other and typed in names]
    if elsewhere:
        return f"it belongs to 'anyformer {elsewhere[0]}'; see 'anyformer {verb} --help'"
    return see(verb, options)


def see(verb: str, options: dict[str, list[str]]) -> str:
    """Where all options are listed."""
    return f"see 'anyformer {f'{verb} ' if verb in options else ''}--help'"


def plain(option: str) -> str:
    """An option's Python name: max_new_tokens for `--max-new-tokens`."""
    return option.lstrip("-").replace("-", "_")


def nearest_option(typed: str, known: Sequence[str]) -> str | None:
    """The most similar option, compared without the leading dashes."""
    by_name = {plain(option): option for option in known if option.startswith("--")}
    near = nearest(plain(typed), by_name)
    return by_name[near] if near is not None else None


def setting_meant(name: str) -> str | None:
    """The setting for another program's name, or for the last part of its path."""
    from anyformer.other_names import setting_called

    if (path := setting_called(name)) is not None:
        return path
    from anyformer.training.setup.setting_paths import setting_paths  # a late import: it imports torch

    return next((path for path in setting_paths() if path.rpartition(".")[2] == name), None)


def value_after(option: str, given: Sequence[str]) -> str | None:
    """The value given for an option, or None."""
    for at, word in enumerate(given):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and at + 1 < len(given) and not given[at + 1].startswith("--"):
            return given[at + 1]
    return None
