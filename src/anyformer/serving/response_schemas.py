"""What is answered, as models: the server's description is made from them, and tests hold its answers against it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class ModelCard(BaseModel):
    """A model that is served."""

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
    """All models that are served."""

    object: Literal["list"]
    data: list[ModelCard]


class Usage(BaseModel):
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class LookLink(BaseModel):
    """Where the page shows what the model did with this request."""

    id: str
    url: str


class TokenLists(BaseModel):
    """Log-probabilities of a completion, one entry a token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One text."""

    index: int
    text: str
    logprobs: TokenLists | None
    finish_reason: Literal["stop", "length"] | None


class Completion(BaseModel):
    """The answer of /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    look: LookLink | None = None


class ChatToken(BaseModel):
    """A token of an answer."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokens(ChatToken):
    """A token with others that were likely."""

    top_logprobs: list[ChatToken]


class ChatTokenList(BaseModel):
    """Log-probabilities of an answer."""

    content: list[ChatTokens] | None
    refusal: None


class Said(BaseModel):
    """An answer's text."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: Said
    logprobs: ChatTokenList | None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(BaseModel):
    """The answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    look: LookLink | None = None


class Delta(BaseModel):
    """A piece of an answer."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(BaseModel):
    """A piece of one answer."""

    index: int
    delta: Delta
    logprobs: ChatTokenList | None
    finish_reason: Literal["stop", "length"] | None


class ChatChunk(BaseModel):
    """An event of a streamed answer."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None


class Embedding(BaseModel):
    """The vector of one input, as numbers or as the base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """Tokens read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    """The answer of /v1/embeddings."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Predictions(BaseModel):
    """The answer of /v1/predict: one object a row, with the label, the value, the tags or the objects found in it."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    model: str


class Health(BaseModel):
    """Whether the server lives, or is ready."""

    status: Literal["live", "ready"]


class ErrorFacts(BaseModel):
    """What is wrong."""

    message: str
    type: str
    param: str | None
    code: str | None
    tokens: int | None = None
    limit: int | None = None


class ErrorBody(BaseModel):
    """Any answer that is not a success."""

    error: ErrorFacts
