"""The command `chat`: a conversation with a model in this process or behind a URL."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from anyformer.commands.conversation import SETTINGS, Conversation
from anyformer.commands.folders import check_writes, torch_dtype
from anyformer.commands.options import Device, Dtype
from anyformer.commands.talking import LocalTalker, Reply, Talker
from anyformer.commands.words import configure_messages, note, write, write_piece
from anyformer.errors import UserError, did_you_mean
from anyformer.extras import require

PROMPT = "> "
HELP = """/set NAME VALUE   a setting of answers; /set alone lists them
/system TEXT      what the model is told to be; alone: nothing
/clear            forget what was said
/save FILE        write the conversation to a file
/load FILE        load one and continue it
/stats            figures of the last answer and of all
/probs            the last answer, coloured by how probable each piece was
/quit             end; so do Ctrl-D, and Ctrl-C twice
//TEXT            send a message that begins with a slash"""


def chat(
    folder: Annotated[Path | None, typer.Argument(help="A run, or a folder of anyformer or Hugging Face.")] = None,
    url: Annotated[str | None, typer.Option(help="URL of an OpenAI-compatible server, in place of a folder.")] = None,
    model: Annotated[str | None, typer.Option(help="The model of the server; its first if not given.")] = None,
    key: Annotated[str | None, typer.Option(envvar="ANYFORMER_API_KEY", help="API key of the server.")] = None,
    system: Annotated[str | None, typer.Option(help="What the model is told to be.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="At most this many tokens an answer.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="Sample; 0 is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option(min=0, max=1, help="Sample among the likeliest that reach p.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed gives the same answers.")] = None,
    dtype: Dtype = None,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a turn on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="The answers only, no messages.")] = False,
) -> None:
    """Talk with a model; one that was not trained to chat continues the text.

    \b
    Example:
      anyformer chat FOLDER
      anyformer chat --url http://127.0.0.1:8000
      echo "Once upon a time" | anyformer chat FOLDER --quiet
    """
    configure_messages(quiet)
    if (folder is None) == (url is None):
        raise UserError("chat takes a folder or --url, one of them", where="chat", fix="write anyformer chat FOLDER")
    conversation = Conversation()
    given = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    conversation.settings.update({name: value for name, value in given.items() if value is not None})
    conversation.set_system(system or "")
    talker = remote(str(url), model, key) if folder is None else local(folder, device, dtype)
    try:
        Chat(talker, conversation, as_json=as_json, quiet=quiet).run()
    finally:
        talker.close()


def remote(url: str, model: str | None, key: str | None) -> Talker:
    from anyformer.commands.remote_talking import RemoteTalker

    return RemoteTalker(url, model=model, key=key)


def local(folder: Path, device: str, dtype: str | None) -> Talker:
    import anyformer

    predictor = anyformer.load(folder, device=device, dtype=torch_dtype(dtype))
    check_writes(predictor, folder)
    return LocalTalker(predictor, folder)


class Chat:
    """The chat loop: one line in, one answer out. stdout gets only the answers."""

    def __init__(
        self, talker: Talker, conversation: Conversation, *, as_json: bool = False, quiet: bool = False
    ) -> None:
        self.talker, self.conversation, self.as_json, self.quiet = talker, conversation, as_json, quiet
        self.terminal = sys.stdin.isatty()
        self.last: Reply | None = None
        self.answers = self.tokens = 0
        self.seconds = 0.0
        self.stops = 0  # number of Ctrl-C since the last line
        self.commands: dict[str, Callable[[str], None]] = {
            "help": lambda _: note(HELP), "set": self.set, "system": self.conversation.set_system, "clear": self.clear,
            "save": self.save, "load": self.load, "stats": self.stats, "probs": self.probs,
        }  # fmt: skip

    def run(self) -> None:
        """Until the end of the input, /quit, or Ctrl-C twice."""
        if self.talker.plain and not self.quiet:
            note(f"{self.talker.name} was not trained to chat: {self.talker.does}")
        elif self.terminal and not self.quiet:
            note(f"{self.talker.name}; /help lists what else can be done here")
        for line in self.lines():
            try:
                if line.startswith("/") and not line.startswith("//"):
                    if not self.command(line):
                        return
                elif line.strip():
                    self.turn(line.removeprefix("/") if line.startswith("//") else line)
            except UserError as error:
                if not self.terminal:  # a script needs the exit status
                    raise
                note(f"error: {error.line}")

    # ------------------------------------------------------------ in

    def lines(self) -> Iterator[str]:
        """Input lines, typed or piped."""
        if not self.terminal:
            while line := self.read_line():
                yield line.rstrip("\n")
            return
        if sys.stdout.isatty():
            import readline  # noqa: F401 - arrows and history come with it
        while True:
            try:
                line = self.ask()
            except EOFError:
                sys.stderr.write("\n")
                return
            except KeyboardInterrupt:
                self.stops += 1
                if self.stops > 1:
                    raise
                note("\nCtrl-C again ends; so does /quit")
                continue
            self.stops = 0
            yield line

    def ask(self) -> str:
        """Read one typed line; the prompt is not written to a redirected stdout."""
        if sys.stdout.isatty():
            return input(PROMPT)
        sys.stderr.write(PROMPT)
        sys.stderr.flush()
        line = self.read_line()
        if not line:
            raise EOFError
        return line.rstrip("\n")

    def read_line(self) -> str:
        try:
            return sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise UserError(f"the input is not UTF-8 ({error.reason})", where="stdin", fix="convert it") from None

    # ------------------------------------------------------------ out

    def turn(self, text: str) -> None:
        """One question and its streamed answer; the part before a Ctrl-C is kept in the conversation."""
        before = list(self.conversation.turns)
        self.conversation.add("user", text)
        answer = self.last = Reply()
        stream = self.talker.answer(self.conversation, answer, self.log)
        try:
            for piece in stream:
                if not self.as_json:
                    write_piece(piece)
        except KeyboardInterrupt:
            if not self.terminal:
                raise
            self.stops += 1
            answer.finish = "cancelled"
        except UserError:
            self.conversation.turns = before
            raise
        finally:
            stream.close()  # frees the KV cache slot, or closes the connection
            answer.rates.end()
        self.conversation.add("assistant", answer.text)
        self.answers, self.tokens = self.answers + 1, self.tokens + answer.rates.new
        self.seconds += answer.rates.total
        if self.as_json:
            write(json.dumps({"text": answer.text, "finish_reason": answer.finish, **answer.rates.facts()}))
        else:
            write_piece("\n")
        if not self.quiet:
            note(answer.rates.line() + ("; stopped" if answer.finish == "cancelled" else ""))

    def log(self, line: str) -> None:
        if not self.quiet:
            note(line)

    # ------------------------------------------------------------ commands

    def command(self, line: str) -> bool:
        """Run a slash command; False if it ends the chat."""
        name, _, rest = line[1:].partition(" ")
        if name in ("quit", "exit"):
            return False
        if name not in self.commands:
            fix = did_you_mean(name[:40], [*self.commands, "quit"])
            raise UserError(f"unknown command /{name[:40]}", where="chat", fix=fix)
        self.commands[name](rest.strip())
        return True

    def set(self, rest: str) -> None:
        name, _, value = rest.replace("=", " ", 1).partition(" ")
        if not name:
            for known, (_, _, _, said) in SETTINGS.items():
                note(f"{known:<20}{self.conversation.settings.get(known, '-'):<10}{said}")
            return
        self.conversation.set(name, value.strip())

    def clear(self, rest: str) -> None:
        self.conversation.clear()

    def save(self, rest: str) -> None:
        self.conversation.save(file_named_by(rest, "/save"))
        self.log(f"{len(self.conversation.turns)} turns written to {rest}")

    def load(self, rest: str) -> None:
        found = Conversation.load(file_named_by(rest, "/load"))
        self.conversation.turns, self.conversation.settings = found.turns, found.settings
        self.log(f"{len(found.turns)} turns read from {rest}")

    def stats(self, rest: str) -> None:
        if self.last is None:
            note("no answer yet")
            return
        note(self.last.rates.line())
        note(f"{self.answers} answers, {self.tokens:,} tokens, {self.seconds:.1f} s in all; "
             f"{len(self.conversation.turns)} turns")  # fmt: skip

    def probs(self, rest: str) -> None:
        if self.last is None or not self.last.pieces:
            note("no answer yet")
        elif all(share is None for _, share in self.last.pieces):
            note("the server gives no probabilities")
        else:
            show_probabilities(self.last.pieces)


def file_named_by(rest: str, command: str) -> Path:
    """The file argument of a slash command."""
    if not rest:
        raise UserError("no file given", where=command, fix=f"write {command} talk.json")
    return Path(rest).expanduser()


def show_probabilities(words: list[tuple[str, float | None]]) -> None:
    """Pieces of text coloured by their probability, or followed by the number."""
    require("rich", "colours of probabilities need")
    from rich.console import Console

    from anyformer.terminal import clean, shaded

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if console.color_system is not None and not console.no_color and not console.is_dumb_terminal:
        console.print(shaded(words))
        return
    said = " ".join(f"{clean(word)!r} {'-' if share is None else f'{share:.2f}'}" for word, share in words)
    note(said)
