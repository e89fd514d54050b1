"""What may be asked: one strict model a route, a bound on every field.

Bodies are parsed straight from their bytes (`read`): no type is guessed, no unknown field passed over, no NaN let in.
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

# Any JSON, with a bound at every level; the parser itself refuses deep nesting.
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
    """No field beyond those named, no value of another type, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class StreamOptions(Strict):
    """What a stream tells beside the text."""

    include_usage: bool = False


class GenerationRequest(Strict):
    """What completions and chat have in common."""

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
    # Ours; the openai package sends them by `extra_body`.
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
    best_of: Count | None = None  # some clients always send it; only n texts are written, so it must be n
    regex: Pattern | None = None
    json_schema: JsonObject | None = None


class TextPart(Strict):
    """A piece of a message."""

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
    """Some JSON object."""

    type: Literal["json_object"]


class NamedSchema(Strict):
    """A JSON schema and what it is called."""

    name: Name
    description: Annotated[str, Field(max_length=4096)] | None = None
    # "schema" is a name pydantic's own class uses.
    schema_: JsonObject = Field(alias="schema")
    strict: bool | None = None


class SchemaJson(Strict):
    """JSON that follows a schema."""

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
    """A request from the bytes of its body; a `HTTPError` names the field that is wrong."""
    from anyformer.serving.error_responses import HTTPError, wrong_field

    if parts_of(body) > PARTS:
        raise HTTPError(400, "the body is made of too many parts; send fewer at once", code="too_many_parts")
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise wrong_field(kind, error) from None


def parts_of(body: bytes) -> int:
    """Names, texts, numbers, lists and objects of a body, counted by its bytes and rather too high than too low.

    Parsing holds everybody up, and hundreds of thousands of small parts do so for long. In valid JSON a quotation mark
    behind a backslash either stands inside a text or ends one, so every text has at least one of the others.
    """
    parts = max(body.count(b'"') - body.count(b'\\"'), body.count(b"{") + body.count(b"["))
    if parts > PARTS or body.count(b",") < PARTS:  # few commas, wherever they stand: few numbers
        return parts
    outside = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]  # of texts
    return max(parts, 1 + sum(part.count(b",") for part in outside))
