"""Request models: one strict model per route, with a bound on every field.

Bodies are parsed directly from bytes (`read`): no type coercion, no unknown fields, no NaN.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import TypeAliasType

TEXT = 1_000_000  # characters of a text
IDS = 131_072  # tokens of a prompt given as ids
PROMPTS = 128
PARTS = 131_072

Text = Annotated[str, Field(max_length=TEXT)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Ids = Annotated[list[TokenId], Field(min_length=1, max_length=IDS, fail_fast=True)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Stops = Stop | Annotated[list[Stop], Field(max_length=4, fail_fast=True)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Temperature = Annotated[float, Field(ge=0.0, le=2.0)]
TopP = Annotated[float, Field(gt=0.0, le=1.0)]
TopK = Annotated[int, Field(ge=0, le=1_000_000)]
MinP = Annotated[float, Field(ge=0.0, le=1.0)]
Penalty = Annotated[float, Field(gt=0.0, le=10.0)]
Wear = Annotated[float, Field(ge=-2.0, le=2.0)]
NewTokens = Annotated[int, Field(ge=1, le=1_000_000)]
Count = Annotated[int, Field(ge=1, le=PROMPTS)]
Top = Annotated[int, Field(ge=0, le=20)]
Seconds = Annotated[float, Field(gt=0.0, le=3600.0)]
Pattern = Annotated[str, Field(min_length=1, max_length=4096)]

Whole = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Real = Annotated[float, Field(ge=-1e308, le=1e308)]
Prompt = Text | Annotated[list[Text], Field(min_length=1, max_length=PROMPTS, fail_fast=True)] | Ids | Annotated[
    list[Ids], Field(min_length=1, max_length=PROMPTS, fail_fast=True)
]  # fmt: skip

# Any JSON, bounded at every level; the parser itself rejects deep nesting.
Json = TypeAliasType(
    "Json",
    "bool | Whole | Real | Said | Annotated[list[Json], Field(max_length=256, fail_fast=True)]"
    " | Annotated[dict[Key, Json], Field(max_length=256)] | None",
)
Said = Annotated[str, Field(max_length=4096)]
Key = Annotated[str, Field(max_length=256)]
JsonObject = Annotated[dict[Key, Json], Field(max_length=256)]

Model = TypeVar("Model", bound=BaseModel)


class Strict(BaseModel):
    """No unknown fields, no type coercion, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class StreamOptions(Strict):
    """Options of a stream."""

    include_usage: bool = False


class GenerationRequest(Strict):
    """Fields common to completions and chat."""

    model: Name | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    n: Count | None = None
    presence_penalty: Wear | None = None
    frequency_penalty: Wear | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stops | None = None
    seed: Seed | None = None
    user: Name | None = None
    # Extensions; the openai package sends them by `extra_body`.
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: Penalty | None = None
    timeout: Seconds | None = None
    look: bool | None = None


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`."""

    prompt: Prompt
    max_tokens: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    logprobs: Top | None = None
    echo: bool | None = None
    best_of: Count | None = None  # some clients always send it; it must equal n
    regex: Pattern | None = None
    json_schema: JsonObject | None = None


class TextPart(Strict):
    """A text part of a message."""

    type: Literal["text"]
    text: Text


class Message(Strict):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart], Field(min_length=1, max_length=64, fail_fast=True)]
    name: Name | None = None


class FreeText(Strict):
    """Any text."""

    type: Literal["text"]


class AnyJson(Strict):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(Strict):
    """A named JSON schema."""

    name: Name
    description: Annotated[str, Field(max_length=4096)] | None = None
    # pydantic's BaseModel reserves "schema".
    schema_: JsonObject = Field(alias="schema")
    strict: bool | None = None


class SchemaJson(Strict):
    """JSON that matches a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class RegexText(Strict):
    """Text that matches a regular expression."""

    type: Literal["regex"]
    regex: Pattern


Format = Annotated[FreeText | AnyJson | SchemaJson | RegexText, Field(discriminator="type")]


class ChatRequest(GenerationRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=1024, fail_fast=True)]
    max_tokens: NewTokens | None = None
    max_completion_tokens: NewTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None
    response_format: Format | None = None


class EmbeddingRequest(Strict):
    """`POST /v1/embeddings`."""

    model: Name | None = None
    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    user: Name | None = None


File = Annotated[str, Field(max_length=4 * 1024 * 1024)]  # an image or a recording as a data URL, or a long text
Words = Annotated[list[Text], Field(max_length=4096, fail_fast=True)]
Series = Annotated[list[Real | None], Field(max_length=65_536, fail_fast=True)]
Cell = None | bool | Whole | Real | File | Words | Series
Row = Whole | Real | File | Words | Ids | Series | Annotated[dict[Key, Cell], Field(min_length=1, max_length=4096)]


class PredictRequest(Strict):
    """`POST /v1/predict`."""

    model: Name | None = None
    rows: Annotated[list[Row], Field(min_length=1, max_length=256, fail_fast=True)]


def read(kind: type[Model], body: bytes) -> Model:
    """Parse a request from its body; raises `HTTPError` that names the wrong field."""
    from anyformer.serving.error_responses import HTTPError, wrong_field

    if parts_of(body) > PARTS:
        raise HTTPError(400, "the body is made of too many parts; send fewer at once", code="too_many_parts")
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise wrong_field(kind, error) from None


def parts_of(body: bytes) -> int:
    """Upper bound on the number of keys, strings, numbers, lists and objects in a body, from its bytes.

    Parsing blocks the event loop, and hundreds of thousands of small values do so for long. In valid JSON a quotation
    mark after a backslash is either inside a string or ends one, so every string has at least one other.
    """
    parts = max(body.count(b'"') - body.count(b'\\"'), body.count(b"{") + body.count(b"["))
    if parts > PARTS or body.count(b",") < PARTS:  # few commas anywhere, so few numbers
        return parts
    outside = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]  # outside strings
    return max(parts, 1 + sum(part.count(b",") for part in outside))
