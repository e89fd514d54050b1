"""Work on a locked run folder: however it ends, run.json records it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from anyformer.errors import INTERRUPTED, NoRoom, Stopped
from anyformer.training.distributed.peers import Peers
from anyformer.training.duration import RunClock
from anyformer.training.out_of_memory import lost_worker
from anyformer.training.run.folder import RunFolder
from anyformer.training.signals import Requests


class RunEnding:
    """Records in the run folder how the work ended; `step` returns the number of finished steps."""

    def __init__(self, folder: RunFolder, peers: Peers, clock: RunClock, step: Callable[[], int]) -> None:
        self.folder, self.peers, self.clock, self.step = folder, peers, clock, step

    @contextmanager
    def recorded(self, asked: Requests, doing: str = "") -> Iterator[None]:
        """Lock the folder; record any error inside and raise it. `doing` is put before the reason."""
        self.folder.lock()
        self.peers.asked = lambda: asked.code
        self.peers.on_abort = lambda reason: self.write("failed", reason)
        try:
            with asked:
                yield
        except KeyboardInterrupt:
            self.write("interrupted", f"{doing}stopped at once")
            raise Stopped(f"stopped at once; the last checkpoint is intact. Resume with: anyformer resume "
                          f"{self.folder.path}", code=asked.code or INTERRUPTED) from None  # fmt: skip
        except (RuntimeError, ConnectionError, EOFError) as error:
            found = lost_worker(error, self.folder.path)
            self.write("failed", f"{doing}{self.peers.explain(found)}")
            raise found from None
        except BaseException as error:
            how = "interrupted" if isinstance(error, Stopped) else "failed"
            self.write(how, doing + (self.peers.explain(error) if how == "failed" else str(error)))
            raise
        finally:
            self.folder.unlock()

    def write(self, status: str, reason: str) -> None:
        """Record how the run ended; a full disk must not hide the reason."""
        with suppress(OSError, NoRoom):
            self.folder.update(status=status, reason=reason[:300], step=self.step(), **self.clock.facts())
            self.folder.event(status, step=self.step(), reason=reason[:300])
