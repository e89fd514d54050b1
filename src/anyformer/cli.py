"""The command line: thin commands over the library. stdout is data, stderr is messages.

Nothing heavy is imported at the top, so that `anyformer --help` is fast: each command imports what it needs.
"""

from __future__ import annotations

import atexit
import errno
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

try:
    import typer
except ModuleNotFoundError as absent:
    sys.stderr.write(f"error: the command line needs {absent.name}; run: pip install 'anyformer[cli]'\n")
    raise SystemExit(2) from None

from anyformer.amounts import count_to_a_tenth
from anyformer.commands.chatting import chat
from anyformer.commands.checking import check
from anyformer.commands.folders import convert, generate
from anyformer.commands.lab import lab
from anyformer.commands.launch import Launch, process_age
from anyformer.commands.looking import look
from anyformer.commands.planning import plan
from anyformer.commands.runs import runs
from anyformer.commands.serving import serve
from anyformer.commands.settings import settings
from anyformer.commands.training import evaluate, predict, resume, train
from anyformer.commands.usage import explain_usage
from anyformer.commands.words import configure_messages, note, note_line, write
from anyformer.errors import (
    DONE,
    INTERRUPTED,
    OUR_BUG,
    RESOURCES,
    USER_ERROR,
    AlreadyReported,
    Stopped,
    UserError,
)
from anyformer.extras import explain_import
from anyformer.own_parts import import_installed, import_modules, take_imports
from anyformer.training.distributed.world import read_world, wait_before_exit
from anyformer.version import __version__

# Errors of a path given by the user: missing, not permitted, too long, or a symlink loop.
UNUSABLE = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR,
            errno.EISDIR)  # fmt: skip
WORKSPACE = ":4096:8"  # eight buffers of 4 MiB
SPINS = "1000"  # spins before a waiting thread sleeps: tens of microseconds; the default is 300,000

# Plain help (no boxes): measured 0.08 s against 0.22 s with rich, and it reads the same in a log.
app = typer.Typer(
    name="anyformer",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["--help", "-h"]},  # inherited by every command
)


# ---------------------------------------------------------------------------------------------------- commands


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the whole traceback of an error.")] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="MODULE", help="A module of your own parts; may be repeated."),
    ] = None,
) -> None:
    """One Transformer, every kind of sequence.

    \b
    Example:
      anyformer demo          train a small model here, in minutes, and look inside it
      anyformer presets       list the named models with their sizes
      anyformer generate FOLDER "Once upon a time"
      anyformer look FOLDER "An old dog and a young boy"
    """
    if version:
        write(__version__)
    elif context.invoked_subcommand is None:
        write(context.get_help())


for verb in (train, resume, evaluate, predict, generate, chat, serve, look, plan, runs, convert, check, settings):
    app.command()(verb)
app.add_typer(lab, name="lab")


@app.command()
def demo(
    seconds: Annotated[float | None, typer.Option(min=1, help="Time budget for training, in seconds.")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Number of training steps, in place of a time budget.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Everything random follows from it.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A new folder for the run; runs/demo if not given.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Results only, no progress.")] = False,
) -> None:
    """Train a small language model on Python's own source, as `train` does, and show what it learned.

    \b
    Example:
      anyformer demo
      anyformer demo --seconds 60 --seed 1
    """
    from anyformer.demo import run

    configure_messages(quiet)
    run(seconds=seconds, steps=steps, device=device, seed=seed, out=out, quiet=quiet)


@app.command()
def presets(
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON list of {name, parameters, active, kv_bytes_per_token}.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Names only.")] = False,
) -> None:
    """List the named models: parameters, and what a decoder keeps of each token in bf16.

    \b
    Example:
      anyformer presets
      anyformer presets --json
    """
    import anyformer

    names = anyformer.preset_names()
    if quiet and not as_json:
        write("\n".join(names))
        return
    from anyformer.amounts import binary_bytes
    from anyformer.planning.memory import cache_bytes_per_token
    from anyformer.planning.parameters import count_parameters

    found = []
    for name in names:
        spec = anyformer.preset(name)
        count = count_parameters(spec.build(device="meta"))
        # Without the running statistics of batch norms, which are not trained.
        found.append((name, count.learning, count.active - (count.total - count.learning), cache_bytes_per_token(spec)))
    if as_json:
        keys = ("name", "parameters", "active", "kv_bytes_per_token")
        write(json.dumps([dict(zip(keys, row, strict=True)) for row in found], indent=2))
        return
    width = max(map(len, names), default=0)
    for name, learning, active, held in found:
        more = f"  {count_to_a_tenth(active)} active" if active != learning else ""
        more += f"  KV cache {binary_bytes(held)} a token" if held is not None else ""
        write(f"{name:<{width}}  {count_to_a_tenth(learning):>8}  {learning:>15,}{more}")


# ---------------------------------------------------------------------------------------------------- errors


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 our bug, 2 user error, 4 resources, 130 stopped."""
    given = list(sys.argv[1:] if args is None else args)
    if args is None:
        atexit.register(gc.freeze)  # else the garbage collector traverses all of torch's objects at exit: half a second
    # --debug and --import are allowed anywhere, also after the command.
    debug = "--debug" in given
    given = [word for word in given if word != "--debug"]
    world = read_world(os.environ)
    try:
        given, modules = take_imports(given)
        let_threads_sleep(given)
        fix_workspace(given)
        arm_faults(os.environ.get("ANYFORMER_FAULT", ""))
        import_modules(modules)
        if given and not given[0].startswith("-") and not {"--help", "-h"} & set(given):
            import_installed()
        # Time is measured from the call in Python, from the start of the process in a shell.
        started = time.perf_counter() - (process_age() if args is None else 0.0)
        launch = Launch(world, started)
        result = whole_command().main(args=given, prog_name="anyformer", standalone_mode=False, obj=launch)
    except (KeyboardInterrupt, typer.Abort):
        result = INTERRUPTED
    except typer.TyperException as error:
        _trace(debug)
        if world.local_rank:  # only the first process of a machine reports it
            wait_before_exit(world)
            return USER_ERROR
        return _complain(explain_usage(error.format_message(), given, every_option()), exit_code=USER_ERROR)
    except AlreadyReported as error:  # by another process of the same training
        _trace(debug)
        wait_before_exit(world)
        return error.exit_code
    except Stopped as stop:  # on request, with everything saved
        note_line(str(stop))
        return stop.exit_code
    except UserError as error:
        _trace(debug or error.exit_code == OUR_BUG)
        return _complain(str(error), *error.details, exit_code=error.exit_code)
    except Exception as error:
        absent = explain_import(error) if isinstance(error, ModuleNotFoundError) else None
        if absent is not None:
            _trace(debug)
            return _complain(str(absent), exit_code=absent.exit_code)
        if _out_of_resources(error):
            _trace(debug)
            return _complain(f"out of memory or disk: {str(error) or type(error).__name__}", exit_code=RESOURCES)
        if isinstance(error, OSError) and error.errno in UNUSABLE and error.filename is not None:
            _trace(debug)
            what = f"{os.fsdecode(error.filename)[:160]}: {error.strerror}; check the name and who may use it"
            return _complain(what, exit_code=USER_ERROR)
        _trace(True)
        text = str(error).splitlines()
        return _complain(
            f"{type(error).__name__}: {text[0] if text else 'no message'}",
            f"this is a bug in anyformer {__version__}; please report it with the traceback above",
            exit_code=OUR_BUG,
        )
    if result == INTERRUPTED:
        sys.stderr.write("stopped\n")
    return result if isinstance(result, int) else DONE


@cache
def whole_command() -> typer.core.TyperGroup:
    """All commands with their options, built once: building takes longer than a short command."""
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    return group


def let_threads_sleep(given: Sequence[str]) -> None:
    """Before torch is imported: let waiting OpenMP threads of a training sleep soon instead of spinning.

    A spinning thread occupies the core that another thread needs, as soon as another program runs too: a step on two
    cores then took 3.5 times as long on a quiet machine and 30 times on a busy one, and twice as long with this
    (benchmarks/busy_neighbour.py). Variables set by the user are kept.
    """
    if given[:1] and given[0] in ("train", "resume", "demo") and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def fix_workspace(given: Sequence[str]) -> None:
    """Before torch is imported: fix the cuBLAS workspace, without which deterministic algorithms are not available. On
    recent GPUs it is torch's default size."""
    if given[:1] and given[0] in ("train", "resume", "demo"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", WORKSPACE)


def arm_faults(asked: str) -> None:
    """Arm fault injection for tests; see anyformer.faults."""
    if asked:
        from anyformer import faults

        faults.arm(asked)


def _complain(what: str, *details: str, exit_code: int) -> int:
    """Exactly one `error:` line, details indented below it."""
    note_line("error: " + " ".join(what.splitlines()))
    for detail in details:
        note("\n".join(f"  {line}" for line in detail.splitlines()))
    return exit_code


def _trace(wanted: bool) -> None:
    """Print the traceback without local variables, which may hold a user's data."""
    if wanted:
        note(traceback.format_exc())


def every_option() -> dict[str, list[str]]:
    """The options of every command, and under "" those before a command."""
    group = whole_command()
    found = {"": group.params} | {name: command.params for name, command in group.commands.items()}
    return {
        name: [*(word for one in params for word in one.opts if word.startswith("-")), "--help", "-h"]
        for name, params in found.items()
    }


def _out_of_resources(error: Exception) -> bool:
    """Whether disk or memory ran out, in Python or in torch (if it has been imported)."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
    torch = sys.modules.get("torch")
    return isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError))


if __name__ == "__main__":
    raise SystemExit(main())
