"""Other people's clients against a running server: the openai package, curl, lm-eval."""

from __future__ import annotations

import base64
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

import anyformer
from tests.serving.folders import CONTEXT, Folders, sentences
from tests.serving.server import KEY, Server

PROMPT = "The bright film was"


@pytest.fixture
def client(talker: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{talker.url}/v1", api_key="unused", max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def predictor(folders: Folders) -> anyformer.inference.predictor.Predictor:
    return anyformer.load(folders["talker"])


def greedy(predictor: Any, prompt: str, tokens: int) -> str:
    """What generate writes, without the server."""
    return predictor.generate(prompt, max_new_tokens=tokens)


class TestOpenai:
    @pytest.mark.quick
    def test_models(self, client: openai.OpenAI, talker: Server) -> None:
        (model,) = client.models.list().data
        assert model.id == talker.line["model"] and model.object == "model"
        assert client.models.retrieve(model.id).id == model.id

    @pytest.mark.quick
    def test_completions_write_what_generate_writes(self, client, talker, predictor) -> None:
        answer = client.completions.create(model=talker.line["model"], prompt=PROMPT, max_tokens=12, temperature=0)
        (choice,) = answer.choices
        assert choice.text == greedy(predictor, PROMPT, 12)
        assert choice.finish_reason == "length" and answer.object == "text_completion"
        assert answer.usage.prompt_tokens == len(predictor.tokenizer.encode(PROMPT))
        assert answer.usage.completion_tokens == 12
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12

    def test_several_prompts_and_several_choices(self, client, talker, predictor) -> None:
        prompts = [PROMPT, "The", predictor.tokenizer.encode("The great actor")]
        answer = client.completions.create(model=talker.line["model"], prompt=prompts[:2], max_tokens=6, temperature=0)
        assert [choice.index for choice in answer.choices] == [0, 1]
        assert [choice.text for choice in answer.choices] == [greedy(predictor, text, 6) for text in prompts[:2]]
        ids = client.completions.create(model=talker.line["model"], prompt=prompts[2], max_tokens=6, temperature=0)
        assert ids.choices[0].text == greedy(predictor, "The great actor", 6)
        several = client.completions.create(model=talker.line["model"], prompt=PROMPT, n=3, max_tokens=8, seed=1)
        assert [choice.index for choice in several.choices] == [0, 1, 2]
        assert len({choice.text for choice in several.choices}) > 1

    def test_streamed_completions_join_to_the_whole(self, client, talker, predictor) -> None:
        stream = client.completions.create(model=talker.line["model"], prompt=PROMPT, max_tokens=20, temperature=0,
                                           stream=True, stream_options={"include_usage": True})  # fmt: skip
        events = list(stream)
        text = "".join(event.choices[0].text for event in events if event.choices)
        assert text == greedy(predictor, PROMPT, 20) and len(events) > 10
        assert [event.choices[0].finish_reason for event in events if event.choices][-1] == "length"
        assert events[-1].usage.completion_tokens == 20

    def test_a_stop_word_is_left_out(self, client, talker, predictor) -> None:
        whole = greedy(predictor, PROMPT, 30)
        stop = whole[len(whole) // 2 :][:3]
        for stream in (False, True):
            answer = client.completions.create(model=talker.line["model"], prompt=PROMPT, max_tokens=30,
                                               temperature=0, stop=[stop], stream=stream)  # fmt: skip
            events = list(answer) if stream else [answer]
            text = "".join(event.choices[0].text for event in events if event.choices)
            assert text == whole[: whole.index(stop)]
            assert [event.choices[0].finish_reason for event in events if event.choices][-1] == "stop"

    def test_log_probabilities_of_completions(self, client, talker, predictor) -> None:
        answer = client.completions.create(model=talker.line["model"], prompt=PROMPT, max_tokens=5, temperature=0,
                                           logprobs=2, echo=True)  # fmt: skip
        found = answer.choices[0].logprobs
        ids = predictor.tokenizer.encode(PROMPT)
        text = answer.choices[0].text
        assert text == PROMPT + greedy(predictor, PROMPT, 5)
        scored = predictor.score(
            torch.tensor([predictor.run_generation(PROMPT, {"max_new_tokens": 5}).ids[0].tolist()])
        )
        ours = scored.logprobs[0].tolist()
        assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
        assert found.token_logprobs[1:] == pytest.approx(ours[1:], abs=2e-5)
        assert len(found.tokens) == len(ids) + 5 == len(found.text_offset)
        assert "".join(found.tokens) == text
        assert all(len(top) >= 2 for top in found.top_logprobs[1:])
        for top, own in zip(found.top_logprobs[len(ids) :], found.token_logprobs[len(ids) :], strict=True):
            assert max(top.values()) == own  # greedy: the chosen one is the best

    @pytest.mark.quick
    def test_chat(self, client, talker, predictor) -> None:
        said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The film?"}]
        answer = client.chat.completions.create(model=talker.line["model"], messages=said, max_tokens=10, temperature=0)
        (choice,) = answer.choices
        assert choice.message.role == "assistant" and answer.object == "chat.completion"
        assert answer.usage.completion_tokens == 10 and choice.finish_reason == "length"

    def test_streamed_chat_joins_to_the_whole(self, client, talker) -> None:
        asked: dict[str, Any] = {"model": talker.line["model"], "max_completion_tokens": 16, "temperature": 0,
                                 "messages": [{"role": "user", "content": "The film?"}]}  # fmt: skip
        whole = client.chat.completions.create(**asked).choices[0].message.content
        events = list(client.chat.completions.create(stream=True, **asked))
        assert events[0].choices[0].delta.role == "assistant"
        assert "".join(event.choices[0].delta.content or "" for event in events if event.choices) == whole
        assert [event.choices[0].finish_reason for event in events if event.choices][-1] == "length"
        assert len({event.id for event in events}) == 1

    def test_log_probabilities_of_chat(self, client, talker) -> None:
        for stream in (False, True):
            answer = client.chat.completions.create(
                model=talker.line["model"], messages=[{"role": "user", "content": "The film?"}], max_tokens=4,
                temperature=0, logprobs=True, top_logprobs=3, stream=stream)  # fmt: skip
            events = list(answer) if stream else [answer]
            found = [one for event in events if event.choices and event.choices[0].logprobs
                     for one in event.choices[0].logprobs.content or []]  # fmt: skip
            assert len(found) == 4
            for one in found:
                assert len(one.top_logprobs) == 3 and one.top_logprobs[0].logprob == one.logprob <= 0
                assert one.top_logprobs[0].token == one.token
                assert one.bytes is None or bytes(one.bytes).decode(errors="replace") == one.token

    def test_embeddings_as_numbers_and_as_bytes(self, client, talker, predictor) -> None:
        texts = [PROMPT, "The great actor"]
        plain = client.embeddings.create(model=talker.line["model"], input=texts, encoding_format="float")
        packed = talker.post("/v1/embeddings", {"model": talker.line["model"], "input": texts,
                                                "encoding_format": "base64"}).json()  # fmt: skip
        ours = predictor.embed(texts)
        for at, one in enumerate(plain.data):
            raw = base64.b64decode(packed["data"][at]["embedding"])
            unpacked = struct.unpack(f"<{len(raw) // 4}f", raw)
            assert one.index == at and unpacked == pytest.approx(one.embedding, abs=1e-7)
            assert one.embedding == pytest.approx(ours[at].tolist(), abs=2e-5)
        assert plain.usage.prompt_tokens == sum(len(predictor.tokenizer.encode(text)) for text in texts)
        assert len(client.embeddings.create(model=talker.line["model"], input="one text").data) == 1  # by bytes

    def test_errors_become_the_right_exceptions(self, client, talker) -> None:
        name = talker.line["model"]
        with pytest.raises(openai.NotFoundError) as found:
            client.completions.create(model="another-model", prompt="x", max_tokens=1)
        assert found.value.code == "model_not_found" or "another-model" in found.value.message
        with pytest.raises(openai.BadRequestError) as found:
            client.completions.create(model=name, prompt="x", max_tokens=1, extra_body={"tempperature": 1})
        assert "tempperature" in found.value.message and "temperature" in found.value.message  # did you mean
        with pytest.raises(openai.BadRequestError) as found:
            client.completions.create(model=name, prompt="x", max_tokens=-1)
        assert found.value.param == "max_tokens"
        with pytest.raises(openai.BadRequestError) as found:
            client.completions.create(model=name, prompt=[5] * (CONTEXT + 7), max_tokens=1)
        body = json.dumps(found.value.body)
        assert str(CONTEXT + 7) in body and str(CONTEXT) in body  # tokens and limit
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model=name, messages=[])

    def test_a_wrong_key_is_an_authentication_error(self, locked: Server) -> None:
        for key, error in (("wrong", openai.AuthenticationError), (KEY, None)):
            with openai.OpenAI(base_url=f"{locked.url}/v1", api_key=key, max_retries=0) as client:
                if error is None:
                    assert client.models.list().data
                else:
                    with pytest.raises(error):
                        client.models.list()

    def test_the_asynchronous_client_many_at_once(self, talker: Server, predictor) -> None:
        import asyncio

        async def all_of_them() -> list[str]:
            async with openai.AsyncOpenAI(base_url=f"{talker.url}/v1", api_key="unused", max_retries=0) as client:
                asked = [client.completions.create(model=talker.line["model"], prompt=text, max_tokens=8,
                                                   temperature=0) for text in texts]  # fmt: skip
                return [answer.choices[0].text for answer in await asyncio.gather(*asked)]

        texts = [line[:20] for line in sentences(24, seed=5)]
        assert asyncio.run(all_of_them()) == [greedy(predictor, text, 8) for text in texts]


# ---------------------------------------------------------------------------------------------------- curl


def curl(*words: str) -> tuple[int, str]:
    """Status and body."""
    done = subprocess.run(["curl", "-sS", "--noproxy", "*", "-m", "30", "-w", "\n%{http_code}", *words],
                          capture_output=True, text=True, timeout=40)  # fmt: skip
    assert done.returncode == 0, done.stderr
    body, _, status = done.stdout.rpartition("\n")
    return int(status), body


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
class TestCurl:
    @pytest.mark.parametrize("path", ["/v1/models", "/health/live", "/health/ready", "/metrics", "/openapi.json"])
    def test_what_is_read(self, talker: Server, path: str) -> None:
        status, body = curl(f"{talker.url}{path}")
        assert status == 200 and body
        if path not in ("/metrics", "/health/live", "/health/ready"):
            json.loads(body)

    @pytest.mark.parametrize("path, body", [
        ("/v1/completions", {"prompt": "The", "max_tokens": 3}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "The"}], "max_tokens": 3}),
        ("/v1/embeddings", {"input": "The"}),
    ])  # fmt: skip
    def test_what_is_sent(self, talker: Server, path: str, body: dict[str, Any]) -> None:
        send = json.dumps({"model": talker.line["model"]} | body)
        status, answer = curl(f"{talker.url}{path}", "-H", "Content-Type: application/json", "-d", send)
        assert status == 200, answer
        assert json.loads(answer)["model"] == talker.line["model"]

    def test_a_stream_ends_in_done(self, talker: Server) -> None:
        body = json.dumps({"model": talker.line["model"], "prompt": "The", "max_tokens": 3, "stream": True})
        status, answer = curl("-N", f"{talker.url}/v1/completions", "-H", "Content-Type: application/json", "-d", body)
        assert status == 200 and answer.rstrip().endswith("data: [DONE]")

    def test_the_start_up_line_works_when_pasted(self, talker: Server) -> None:
        """The block on stderr holds a curl; bash runs it as it stands."""
        said = talker.errors()
        at = said.index("curl ")
        lines = []
        for line in said[at:].splitlines():
            lines.append(line.strip())
            if not line.rstrip().endswith("\\"):
                break
        done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True, timeout=40)
        assert done.returncode == 0, (lines, done.stderr)
        assert json.loads(done.stdout)["choices"], done.stdout
        for word in (talker.url, talker.line["model"], f"{talker.line['context']:,} tokens", "MiB"):
            assert word in said


# ---------------------------------------------------------------------------------------------------- lm-eval

TASK = """
task: here
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: {kind}
test_split: test
{rest}
"""


def lm_eval(tmp_path: Path, server: Server, folder: Path, kind: str, rows: list[dict[str, Any]], rest: str) -> Any:
    """The harness as a person runs it; its results and its samples."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "here.yaml").write_text(TASK.format(data=tmp_path / "rows.jsonl", kind=kind, rest=rest))
    model = f"model={server.line['model']},base_url={server.url}/v1/completions,tokenizer={folder},"
    model += "tokenizer_backend=huggingface,tokenized_requests=True,num_concurrent=2,max_retries=1"
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    done = subprocess.run([sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", model,
                           "--tasks", "here", "--include_path", str(tmp_path), "--output_path", str(tmp_path / "out"),
                           "--log_samples"], capture_output=True, text=True, timeout=120,
                          env=os.environ | offline | {"OMP_NUM_THREADS": "1"})  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    (results,) = (tmp_path / "out").rglob("results_*.json")
    (samples,) = (tmp_path / "out").rglob("samples_*.jsonl")
    return json.loads(results.read_text())["results"]["here"], [json.loads(x) for x in samples.read_text().splitlines()]


def test_lm_eval_finds_the_numbers_of_score(tmp_path: Path, talker: Server, folders: Folders, predictor: Any) -> None:
    """Multiple choice by log-likelihood: each sum equals that of anyformer's own score, and so does the accuracy."""
    cut = [line.partition(",") for line in sentences(6, seed=9)]
    rows = [{"begin": begin, "good": comma + end, "bad": comma + end[::-1]} for begin, comma, end in cut]
    rest = 'doc_to_text: "{{begin}}"\ndoc_to_target: 0\ndoc_to_choice: "{{[good, bad]}}"\ntarget_delimiter: ""\n'
    rest += "metric_list: [{metric: acc}]"
    results, samples = lm_eval(tmp_path, talker, folders["talker"], "multiple_choice", rows, rest)
    right = 0
    for row, sample in zip(rows, samples, strict=True):
        sums = []
        for ending, (found, _) in zip([row["good"], row["bad"]], [r[0] for r in sample["resps"]], strict=True):
            whole = predictor.tokenizer.encode(row["begin"] + ending)
            begin = len(predictor.tokenizer.encode(row["begin"]))
            ours = predictor.score(torch.tensor([whole])).logprobs[0, begin:].sum().item()
            assert float(found) == pytest.approx(ours, abs=1e-3), (row, found, ours)
            sums.append(ours)
        right += sums[0] > sums[1]
    assert results["acc,none"] == pytest.approx(right / len(rows))
