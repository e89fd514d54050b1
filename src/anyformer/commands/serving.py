"""The command `serve`: a model over HTTP."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anyformer.amounts import count_to_a_tenth, mebibytes
from anyformer.commands.folders import torch_dtype
from anyformer.commands.options import Device, Dtype, Folder, Quantise, Quiet
from anyformer.commands.words import configure_messages, note, write
from anyformer.errors import UserError
from anyformer.extras import require

if TYPE_CHECKING:
    from anyformer.serving.server import RunningServer


def serve(
    folder: Folder,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but this machine's own needs a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 8000,
    device: Device = "auto",
    dtype: Dtype = None,
    quantise: Quantise = None,
    max_batch_size: Annotated[int, typer.Option(min=1, max=4096, help="Most sequences decoded in one step.")] = 16,
    rows: Annotated[
        int | None, typer.Option(min=1, max=4096, hidden=True, help="Old name of --max-batch-size.")
    ] = None,
    context: Annotated[int | None, typer.Option(min=2, help="Most tokens of a sequence, prompt included.")] = None,
    key: Annotated[
        str | None, typer.Option(envvar="ANYFORMER_API_KEY", help="API key that clients must send.", show_envvar=True)
    ] = None,
    key_file: Annotated[Path | None, typer.Option(help="A file whose first line is the API key.")] = None,
    insecure_no_auth: Annotated[
        bool, typer.Option("--insecure-no-auth", help="Serve beyond this machine without an API key.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="The model's name in requests; the folder's name if not given.")
    ] = None,
    allow_host: Annotated[list[str] | None, typer.Option(help="A further host name accepted in requests.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="The same bits whatever else is in the batch; slower.")
    ] = False,
    grace: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds that running requests have after SIGTERM.")
    ] = 30.0,
    queue_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that may be queued before requests are rejected.")
    ] = 65_536,
    deadline: Annotated[float | None, typer.Option(min=0.001, help="Seconds a request may take.")] = None,
    connections: Annotated[
        int | None,
        typer.Option(min=1, max=1_000_000, help="Most open connections; by default as many as ulimit -n allows."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line on stdout when ready.")] = False,
    quiet: Quiet = False,
) -> None:
    """Serve a model over HTTP, as OpenAI's clients expect it.

    \b
    Example:
      anyformer serve FOLDER
      anyformer serve runs/demo --port 0 --max-batch-size 32 --key-file key.txt --host 0.0.0.0
    """
    needs_serve()
    from anyformer.serving.server import ServeOptions
    from anyformer.serving.server import serve as run

    configure_messages(quiet)
    if quantise not in (None, "int8"):
        raise UserError(f"weights cannot be quantised to {quantise!r}", where="--quantise", fix="use int8")
    request = ServeOptions(
        folder, host=host, port=port, device=device, dtype=torch_dtype(dtype), quantise=quantise,
        max_batch_size=max_batch_size if rows is None else rows,
        context=context, key=the_key(key, key_file), no_auth=insecure_no_auth, name=name, strict=strict, grace=grace,
        queue_tokens=queue_tokens, deadline=deadline, connections=connections, known_as=tuple(allow_host or ()),
    )  # fmt: skip

    def on_ready(standing: RunningServer) -> None:
        if not quiet:
            note(block(standing, secret=request.key is not None))
        if as_json:
            write(json.dumps(facts(standing)))

    run(request, on_ready)


def needs_serve() -> None:
    """Check that the needed packages are installed before anything is loaded."""
    for module in ("starlette", "uvicorn", "httptools", "pydantic", "jinja2", "prometheus_client"):
        require(module, "serving needs")


def the_key(given: str | None, file: Path | None) -> str | None:
    """The API key: as given, or the first line of its file."""
    if file is None:
        return given or None
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise UserError(
            "the key cannot be read", where=str(file), fix="give a text file whose first line is the key"
        ) from None
    if not lines or not lines[0].strip():
        raise UserError("the file is empty", where=str(file), fix="write the key into its first line")
    return lines[0].strip()


def cache_facts(standing: RunningServer) -> dict[str, int | None]:
    """The planner's estimate of the KV cache: bytes per token, bytes of all sequences at full length, and the longest
    length per sequence that fits in free memory; None if unknown."""
    from anyformer.generation.cache.static_store import StaticStore
    from anyformer.planning.memory import cache_bytes_per_token
    from anyformer.training.setup.memory import usage

    store, nothing = standing.engine.store, dict.fromkeys(("kv_bytes_per_token", "kv_bytes", "context_in_memory"))
    if not isinstance(store, StaticStore):
        return nothing
    each = cache_bytes_per_token(store.model.spec, store.dtype)
    if each is None:
        return nothing
    memory = usage(str(store.device))
    room = None if memory.limit is None or memory.used is None else memory.limit - memory.used + store.bytes
    return {"kv_bytes_per_token": each, "kv_bytes": each * store.capacity * store.limit,
            "context_in_memory": None if room is None else room // (each * store.capacity)}  # fmt: skip


def facts(standing: RunningServer) -> dict[str, Any]:
    """Facts of the ready server for programs."""
    from anyformer.planning.parameters import count_parameters

    served = standing.served
    found = {
        "url": standing.url, "model": served.name, "context": served.limit, "pid": os.getpid(),
        "rows": None if standing.engine.store is None else standing.engine.store.capacity,
        "bytes": standing.bytes, "chat_template": served.chat.name if served.generates else None,
    }  # fmt: skip
    return found | {"parameters": count_parameters(served.predictor.model).total} | cache_facts(standing)


def block(standing: RunningServer, secret: bool) -> str:
    """Facts of the ready server for people, with an example command."""
    from anyformer.amounts import binary_bytes
    from anyformer.planning.parameters import count_parameters

    served, url = standing.served, standing.url
    count = count_parameters(served.predictor.model).total
    lines = [
        f"url      {url}/v1",
        f"model    {served.name}, {count_to_a_tenth(count)} parameters, {mebibytes(standing.bytes)}",
    ]
    lines.append(f"look     {url}/look" + (", any name and the key as password" if secret else ""))
    sent = "-H 'Authorization: Bearer KEY' " if secret else ""
    if served.generates:
        assert standing.engine.store is not None
        store = standing.engine.store
        lines.append(f"context  {served.limit:,} tokens, {store.capacity} texts at once")
        if (each := (cache := cache_facts(standing))["kv_bytes_per_token"]) is not None:
            longest = cache["context_in_memory"]
            fits = "" if longest is None else f"; memory is there for {store.capacity} texts of {longest:,} tokens"
            lines.append(
                f"cache    {binary_bytes(each)} a token, {binary_bytes(cache['kv_bytes'] or 0)} when all are full{fits}"
            )
        form = (
            "the folder's own template" if served.chat.name == "folder" else "plain turns: the folder has no template"
        )
        lines.append(f"chat     {form}")
        path, body = "completions", {"model": served.name, "prompt": "Once upon a time", "max_tokens": 32}
    else:
        from anyformer.serving.predict_rows import example

        path, body = "predict", {"model": served.name, "rows": [example(served.predictor)]}
    lines.append(
        f"try      curl {url}/v1/{path} {sent}-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    )
    return "\n".join(f"  {line}" for line in lines)
