"""Response models: the OpenAPI description is generated from them, and tests validate responses against it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class ModelCard(BaseModel):
    """A served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    writes: bool
    context: int | None
    chat_template: Literal["folder", "plain"] | None
    takes: str
    parameters: int


class ModelList(BaseModel):
    """The served models."""

    object: Literal["list"]
    data: list[ModelCard]


class Usage(BaseModel):
    """Prompt and completion tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class LookLink(BaseModel):
    """Where the page shows what the model did with this request."""

    id: str
    url: str


class TokenLists(BaseModel):
    """Log-probabilities of a completion, one entry per token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One completion choice."""

    index: int
    text: str
    logprobs: TokenLists | None
    finish_reason: Literal["stop", "length"] | None


class Completion(BaseModel):
    """The response of /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    look: LookLink | None = None


class ChatToken(BaseModel):
    """A token of a chat completion."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokens(ChatToken):
    """A token with the most probable alternatives."""

    top_logprobs: list[ChatToken]


class ChatTokenList(BaseModel):
    """Log-probabilities of a chat completion."""

    content: list[ChatTokens] | None
    refusal: None


class Said(BaseModel):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(BaseModel):
    """One chat choice."""

    index: int
    message: Said
    logprobs: ChatTokenList | None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(BaseModel):
    """The response of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    look: LookLink | None = None


class Delta(BaseModel):
    """A delta of a streamed message."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(BaseModel):
    """A delta of one choice."""

    index: int
    delta: Delta
    logprobs: ChatTokenList | None
    finish_reason: Literal["stop", "length"] | None


class ChatChunk(BaseModel):
    """An event of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None


class Embedding(BaseModel):
    """The embedding of one input, as numbers or as base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """Input tokens."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    """The response of /v1/embeddings."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Predictions(BaseModel):
    """The response of /v1/predict: one object per row, with its label, value, tags or detected objects."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    model: str


class Health(BaseModel):
    """Liveness or readiness."""

    status: Literal["live", "ready"]


class ErrorFacts(BaseModel):
    """Details of an error."""

    message: str
    type: str
    param: str | None
    code: str | None
    tokens: int | None = None
    limit: int | None = None


class ErrorBody(BaseModel):
    """An error response."""

    error: ErrorFacts
