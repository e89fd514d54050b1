"""What may be asked: every mistake is a refusal that names its field, in OpenAI's shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from anyformer.serving.error_responses import HTTPError, to_http_error
from anyformer.serving.request_schemas import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    PredictRequest,
    read,
)

HELLO = [{"role": "user", "content": "Hello"}]
RIGHT: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (CompletionRequest, {"prompt": "a"}),
    (CompletionRequest, {"prompt": ["a", "b"], "max_tokens": 0, "echo": True, "logprobs": 0}),
    (CompletionRequest, {"prompt": [1, 2, 3], "stop": ["x", "y"], "seed": -5, "temperature": 1, "n": 3}),
    (CompletionRequest, {"prompt": [[1], [2, 3]], "stream": True, "stream_options": {"include_usage": True}}),
    (CompletionRequest, {"prompt": "a", "json_schema": {"type": "object", "properties": {"a": {"enum": [1, None]}}}}),
    (CompletionRequest, {"prompt": "a", "regex": "[ab]+", "top_k": 0, "min_p": 0.5, "repetition_penalty": 1.2,
                         "timeout": 2.5, "user": "me", "stop": None, "max_tokens": None}),
    (ChatRequest, {"messages": HELLO, "logprobs": True, "top_logprobs": 20, "max_completion_tokens": 5}),
    (ChatRequest, {"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}], "name": "x"}]}),
    (ChatRequest, {"messages": HELLO, "response_format": {"type": "json_object"}}),
    (ChatRequest, {"messages": HELLO, "response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": "object"}, "strict": True}}}),
    (EmbeddingRequest, {"input": [[1, 2]], "encoding_format": "base64"}),
    (PredictRequest, {"rows": ["a", 1, 2.5, ["a", "b"], {"x": None, "y": True, "z": [1, 2]}, [1.5, None]]}),
]  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize("at", range(len(RIGHT)))
def test_what_is_right_is_read_as_it_is(at: int) -> None:
    kind, body = RIGHT[at]
    found = read(kind, json.dumps(body).encode()).model_dump(by_alias=True, exclude_unset=True)
    assert found == body


WRONG: list[tuple[type[BaseModel], str, str | None, str]] = [
    (CompletionRequest, '{"prompt": "a", "temprature": 1}', "temprature", "did you mean 'temperature'?"),
    (CompletionRequest, '{"prompt": "a", "logit_bias": {}}', "logit_bias", "unknown field"),
    (CompletionRequest, '{"prompt": "a", "presence_penalty": 2.5}', "presence_penalty", "less than or equal to 2"),
    (CompletionRequest, '{"prompt": "a", "max_tokens": "5"}', "max_tokens", "integer"),
    (CompletionRequest, '{"prompt": "a", "max_tokens": 5.5}', "max_tokens", "integer"),
    (CompletionRequest, '{"prompt": "a", "max_tokens": true}', "max_tokens", "integer"),
    (CompletionRequest, '{"prompt": "a", "max_tokens": -1}', "max_tokens", "greater than or equal to 0"),
    (CompletionRequest, '{"prompt": "a", "temperature": NaN}', "temperature", "finite"),
    (CompletionRequest, '{"prompt": "a", "temperature": Infinity}', "temperature", ""),
    (CompletionRequest, '{"prompt": "a", "temperature": 1e999}', "temperature", ""),
    (CompletionRequest, '{"prompt": "a", "top_p": 0}', "top_p", "greater than 0"),
    (CompletionRequest, '{"prompt": "a", "n": 129}', "n", "128"),
    (CompletionRequest, '{"prompt": []}', "prompt", "at least 1"),
    (CompletionRequest, '{"prompt": {}}', "prompt", "string"),
    (CompletionRequest, '{"prompt": [-1]}', "prompt[0]", ""),
    (CompletionRequest, '{"prompt": ["a", 1]}', "prompt[1]", "string"),
    (CompletionRequest, "{}", "prompt", "required"),
    (CompletionRequest, '{"prompt": "a", "stop": ["a","b","c","d","e"]}', "stop", "at most 4"),
    (CompletionRequest, '{"prompt": "a", "stop": ""}', "stop", ""),
    (CompletionRequest, '{"prompt": "a", "stream_options": {"usage": true}}', "stream_options.usage", "include_usage"),
    (CompletionRequest, "[1]", None, "not a JSON object"),
    (CompletionRequest, "{", None, "not JSON"),
    (CompletionRequest, '{"prompt": "\\ud800"}', None, "not JSON"),
    (CompletionRequest, '{"json_schema": ' + '{"a":' * 500 + "1" + "}" * 501, None, "recursion"),
    (ChatRequest, '{"messages": [{"role": "tool", "content": "a"}]}', "messages[0].role", "'assistant'"),
    (ChatRequest, '{"messages": [{"role": "user", "content": "a", "nme": "x"}]}', "messages[0].nme",
     "did you mean 'name'?"),
    (ChatRequest, '{"messages": [{"role": "user", "content": [{"type": "text", "txt": "a"}]}]}',
     "messages[0].content[0].txt", "did you mean 'text'?"),
    (ChatRequest, '{"messages": [{"role": "user", "content": [{"type": "image_url", "text": "a"}]}]}',
     "messages[0].content[0].type", "'text'"),
    (ChatRequest, '{"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "xml"}}',
     "response_format", "json_schema"),
    (ChatRequest, '{"messages": [{"role": "user", "content": "a"}], "tools": []}', "tools", "unknown field"),
    (EmbeddingRequest, '{"input": "a", "dimensions": 3}', "dimensions", "unknown field"),
    (PredictRequest, '{"rows": []}', "rows", "at least 1"),
    (PredictRequest, '{"row": ["a"]}', "row", "did you mean 'rows'?"),
]  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize("at", range(len(WRONG)))
def test_what_is_wrong_is_named(at: int) -> None:
    kind, body, param, words = WRONG[at]
    with pytest.raises(HTTPError) as told:
        read(kind, body.encode())
    error = told.value.body["error"]
    assert told.value.status == 400 and error["type"] == "invalid_request_error"
    assert set(error) == {"message", "type", "param", "code"} and len(error["message"]) <= 300
    assert words in error["message"], error
    if param is not None:
        assert error["param"] == param and param in error["message"], error


def test_control_a_lenient_model_takes_what_ours_refuses() -> None:
    class Lenient(BaseModel):
        prompt: str
        max_tokens: int = 5

    assert Lenient.model_validate_json('{"prompt": "a", "max_tokens": "7", "unknown": 1}').max_tokens == 7
    with pytest.raises(ValidationError):
        CompletionRequest.model_validate_json('{"prompt": "a", "max_tokens": "7"}')


@pytest.mark.quick
def test_nothing_of_an_unforeseen_error_is_told() -> None:
    told = to_http_error(RuntimeError("boom at 0x7fffdeadbeef in /usr/lib/x.py"))
    assert told.status == 500 and "boom" not in json.dumps(told.body) and "/usr" not in json.dumps(told.body)
