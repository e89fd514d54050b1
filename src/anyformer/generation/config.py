"""How to decode, with Hugging Face's names."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from anyformer.errors import UserError, did_you_mean

log = logging.getLogger("anyformer")

# Hugging Face options that change the output and are not implemented, with the value that disables each.
UNKNOWN_HERE: dict[str, Any] = {
    "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "top_h": None, "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0, "exponential_decay_length_penalty": None, "begin_suppress_tokens": None,
    "sequence_bias": None, "guidance_scale": 1.0, "watermarking_config": None, "diversity_penalty": 0.0,
    "num_beam_groups": 1, "constraints": None, "force_words_ids": None, "penalty_alpha": 0.0, "dola_layers": None,
    "max_time": None, "token_healing": False,
}  # fmt: skip
# Not implemented either, but without effect on the output.
HARMLESS = {
    "speculation_type": None, "use_mtp": None, "low_memory": False,
    "remove_invalid_values": False, "assistant_early_exit": None,
}  # fmt: skip
# Rows are allocated for every beam and output up front; the other settings count tokens and ids.
MOST = {"num_beams": 4096, "num_return_sequences": 65_536}
LARGEST = 2**31 - 1
DEFAULT_NEW_TOKENS = 20  # theirs too


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Settings of `generate`. The default is greedy decoding of twenty tokens without constraints.

    `max_new_tokens` counts output tokens, `max_length` also the prompt with its padding (for an encoder-decoder, the
    start token); the first takes precedence. Decoding is greedy unless `do_sample` or `num_beams` above 1;
    `temperature` 0 is greedy. Unlike in transformers, `top_k` is off unless given (there it is 50).
    `seed` is one number for every prompt, or one for each; by default it is drawn from torch's global generator.
    `logprobs` n also returns the n most probable tokens of every step. For speed only: `prompt_lookup_num_tokens` is
    the number of draft tokens copied from earlier text, `num_assistant_tokens` those of a draft model.

    >>> Generation(max_new_tokens=5, do_sample=True, top_p=0.9, seed=1).top_p
    0.9
    """

    max_new_tokens: int | None = None
    max_length: int | None = None
    min_new_tokens: int | None = None
    min_length: int | None = None
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    num_beams: int = 1
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    suppress_tokens: Sequence[int] = ()
    renormalize_logits: bool = False
    eos_token_id: int | Sequence[int] | None = None
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    decoder_start_token_id: int | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | Sequence[int] | None = None
    stop_strings: str | Sequence[str] = ()
    seed: int | Sequence[int] | None = None
    logprobs: int = 0
    cache_implementation: Literal["dynamic", "static"] = "dynamic"
    prefill_chunk_size: int | None = None
    prompt_lookup_num_tokens: int | None = None
    num_assistant_tokens: int = 5

    @property
    def start_token(self) -> int | None:
        """The decoder's first token: `decoder_start_token_id`, else `bos_token_id`."""
        return self.bos_token_id if self.decoder_start_token_id is None else self.decoder_start_token_id

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "max_length", "num_beams", "num_return_sequences", "prefill_chunk_size",
                     "prompt_lookup_num_tokens", "num_assistant_tokens"):  # fmt: skip
            always = ("num_beams", "num_return_sequences", "num_assistant_tokens")
            self.check_whole(name, least=1, optional=name not in always)
        for name in ("min_new_tokens", "min_length", "top_k"):
            self.check_whole(name, least=0, optional=True)
        self.check_whole("no_repeat_ngram_size", least=0)
        self.check_whole("logprobs", least=0)
        for name in ("pad_token_id", "bos_token_id", "decoder_start_token_id", "forced_bos_token_id"):
            self.check_whole(name, least=0, optional=True)
        for name in ("do_sample", "renormalize_logits"):
            if not isinstance(getattr(self, name), bool):
                raise self.setting_error(name, "use True or False")
        self.check_real(
            "temperature", 0.0, math.inf, "use 0 for greedy, 0.7 for fewer surprises, 1 for the model's own"
        )
        self.check_real("repetition_penalty", 0.0, math.inf, "use 1.0 for none, 1.2 for some", above=True)
        for name in ("presence_penalty", "frequency_penalty"):
            self.check_real(name, -math.inf, math.inf, "use 0 for none, 0.5 for fewer words said twice")
        self.check_real("length_penalty", -math.inf, math.inf, "use 0 for none, 1 to divide by the length")
        if self.top_p is not None:
            self.check_real("top_p", 0.0, 1.0, "use 0.9, or 1 for no limit", above=True)
        if self.min_p is not None:
            self.check_real("min_p", 0.0, 1.0, "use 0.05, or 0 for no limit")
        if self.early_stopping not in (True, False, "never"):
            raise self.setting_error("early_stopping", 'use True, False or "never"')
        if self.cache_implementation not in ("dynamic", "static"):
            raise self.setting_error("cache_implementation", 'use "dynamic" or "static"')
        for name in ("eos_token_id", "forced_eos_token_id", "suppress_tokens"):
            self.assign(name, self.check_id_list(name))
        given = [self.stop_strings] if isinstance(self.stop_strings, str) else self.stop_strings or ()
        stops = tuple(given) if isinstance(given, list | tuple) else (given,)
        if not all(isinstance(stop, str) and stop for stop in stops):
            raise self.setting_error("stop_strings", "give one text or a list of texts, none of them empty")
        self.assign("stop_strings", stops)
        self.assign("early_stopping", "never" if self.early_stopping == "never" else bool(self.early_stopping))
        if self.seed is not None and not isinstance(self.seed, int):
            seeds = tuple(self.seed) if isinstance(self.seed, list | tuple) else ()
            if not seeds or not all(is_whole(seed) for seed in seeds):
                raise self.setting_error("seed", "give one whole number, or one for each prompt")
            self.assign("seed", seeds)
        elif isinstance(self.seed, bool):
            raise self.setting_error("seed", "give a whole number")
        self.check_combinations()

    def check_combinations(self) -> None:
        """Reject settings that exclude each other."""
        if self.num_beams > 1 and self.do_sample:
            raise UserError("num_beams above 1 and do_sample exclude each other", where="Generation", fix="use one")
        if self.num_beams > 1 and self.prompt_lookup_num_tokens:
            raise UserError("beam search takes no proposals", where="Generation.prompt_lookup_num_tokens",
                            fix="leave it out, or use num_beams=1")  # fmt: skip
        if self.num_beams > 1 and self.logprobs:
            raise UserError("logprobs lists no other tokens under beam search", where="Generation",
                            fix="use num_beams=1, or score the texts afterwards")  # fmt: skip
        if self.num_beams > 1 and self.num_return_sequences > self.num_beams:
            raise UserError(
                f"num_return_sequences {self.num_return_sequences} is above num_beams {self.num_beams}",
                where="Generation", fix=f"use num_beams={self.num_return_sequences}",
            )  # fmt: skip
        if self.num_beams == 1 and not self.sampled and self.num_return_sequences > 1:
            raise UserError(
                f"num_return_sequences {self.num_return_sequences} would be the same greedy text again and again",
                where="Generation", fix=f"use do_sample=True or num_beams={self.num_return_sequences}",
            )  # fmt: skip
        if self.max_new_tokens is not None and (self.min_new_tokens or 0) > self.max_new_tokens:
            raise UserError(f"min_new_tokens {self.min_new_tokens} is above max_new_tokens {self.max_new_tokens}",
                            where="Generation", fix=f"use min_new_tokens={self.max_new_tokens}")  # fmt: skip

    # ---------------------------------------------------------------- what the decoder asks

    @property
    def sampled(self) -> bool:
        """Whether tokens are sampled; temperature 0 means greedy."""
        return self.do_sample and self.temperature > 0

    @property
    def ends(self) -> tuple[int, ...]:
        """The end-of-sequence token ids."""
        return as_ids(self.eos_token_id)

    @property
    def forced_ends(self) -> tuple[int, ...]:
        """Token ids one of which is forced at the maximal length."""
        return as_ids(self.forced_eos_token_id)

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings."""
        return (self.stop_strings,) if isinstance(self.stop_strings, str) else tuple(self.stop_strings)

    @property
    def padding(self) -> int:
        """The padding id after the end: `pad_token_id`, else the first end id, else 0."""
        return self.pad_token_id if self.pad_token_id is not None else (self.ends or (0,))[0]

    # ---------------------------------------------------------------- from their files

    @classmethod
    def from_hf(cls, data: Mapping[str, Any]) -> Generation:
        """The settings of a generation_config.json, or of an older config.json that contains them.

        Other fields are ignored. An unimplemented option that would change the output is an error; one that would not
        is logged.
        """
        for name, off in UNKNOWN_HERE.items():
            value = data.get(name)
            if value is not None and value != off and value != [] and value is not False:
                raise UserError(
                    f"{name} {value!r} is not implemented and would change the text",
                    where="generation_config.json",
                    fix=f"remove {name}, or give your own settings",
                )
        for name, off in HARMLESS.items():
            if data.get(name) not in (None, off):
                log.warning("generation_config.json: %s is not implemented and was left out", name)
        given = {f.name: data[f.name] for f in fields(cls) if data.get(f.name) is not None}
        for name in ("logprobs", "seed"):  # ours only; not Hugging Face settings
            given.pop(name, None)
        if given.get("cache_implementation") != "static":
            given.pop("cache_implementation", None)  # memory, not text
        if "top_k" in given and given["top_k"] == 0:
            given.pop("top_k")
        suppressed, forbidden = given.get("suppress_tokens", []), single_words(data.get("bad_words_ids"))
        if forbidden and isinstance(suppressed, list):
            given["suppress_tokens"] = suppressed + forbidden
        beams = given.get("num_beams", 1)
        several = is_whole(beams) and beams > 1
        if several and given.get("do_sample"):
            raise UserError("num_beams above 1 with do_sample is not implemented and would change the text",
                            where="generation_config.json", fix="give your own settings")  # fmt: skip
        if beams == 1 and not given.get("do_sample"):
            given.pop("num_return_sequences", None)
        if several:
            given.pop("prompt_lookup_num_tokens", None)  # speed, not text
        try:
            return cls(**given)
        except UserError as error:
            raise UserError(error.what, where="generation_config.json", fix=error.fix) from None

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Generation:
        """Like calling the class, with a helpful error for an unknown name."""
        known = [f.name for f in fields(cls)]
        for name in settings:
            if name not in known:
                raise UserError(f"unknown setting {name!r}", where="Generation", fix=did_you_mean(name, known))
        return cls(**settings)

    # ---------------------------------------------------------------- checks

    def assign(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def setting_error(self, name: str, fix: str) -> UserError:
        return UserError(f"{name} is {getattr(self, name)!r}", where="Generation", fix=fix)

    def check_whole(self, name: str, *, least: int, optional: bool = False) -> None:
        value = getattr(self, name)
        if value is None and optional:
            return
        most = MOST.get(name, LARGEST)
        if not is_whole(value) or not least <= value <= most:
            most_said = f"{least} to {most}" if name in MOST else f"{least} or more"
            raise self.setting_error(
                name, f"use a whole number, {most_said}" + (", or leave it out" if optional else "")
            )

    def check_real(self, name: str, least: float, most: float, fix: str, *, above: bool = False) -> None:
        value = getattr(self, name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise self.setting_error(name, fix)
        if not least <= value <= most or (above and value == least):
            raise self.setting_error(name, fix)

    def check_id_list(self, name: str) -> tuple[int, ...] | None:
        value = getattr(self, name)
        if value is None:
            return None
        ids = (value,) if is_whole(value) else tuple(value) if isinstance(value, list | tuple) else (None,)
        if not all(is_whole(one) and 0 <= one <= LARGEST for one in ids):
            raise self.setting_error(name, "give a token id, a whole number from 0, or a list of them")
        return ids


def no_start_token(where: str, fix: str) -> UserError:
    """The error for an encoder-decoder without a start token."""
    return UserError("decoder_start_token_id is not set", where=where, fix=fix)


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def as_ids(value: int | Sequence[int] | None) -> tuple[int, ...]:
    return () if value is None else (value,) if isinstance(value, int) else tuple(value)


def single_words(bad_words: Any) -> list[int]:
    """Single-token bad words, by which translation models suppress padding."""
    if bad_words is None:
        return []
    if not isinstance(bad_words, list) or not all(isinstance(word, list) and len(word) == 1 for word in bad_words):
        raise UserError("bad_words_ids with words of several tokens is not implemented and would change the text",
                        where="generation_config.json", fix="give your own settings")  # fmt: skip
    return [word[0] for word in bad_words]
