"""Nothing is fetched at run time. An audit hook sees every address looked up and every connection tried."""

from __future__ import annotations

import json
import subprocess
import sys

WATCH = """
import json, sys

events = []

def watch(event, args):
    if event.partition(".")[2] in ("connect", "getaddrinfo", "gethostbyname", "gethostbyaddr", "sendto"):
        events.append(event)
        raise OSError("no network in this test")

sys.addaudithook(watch)
"""

BUILD = """
import torch, anyformer
network = anyformer.preset("gpt2-tiny").build()
with torch.no_grad():
    out = network(torch.zeros(1, 8, dtype=torch.long))
assert out.logits.shape[:2] == (1, 8)
"""

ATTEMPT = """
import socket
for reach in (socket.create_connection, socket.socket().connect):
    try:
        reach(("127.0.0.1", 9))
    except OSError:
        pass
"""


def events(code: str) -> list[str]:
    program = WATCH + code + "\nprint(json.dumps(events))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_import_build_and_forward_touch_no_network():
    assert events(BUILD) == []


def test_control_an_attempt_is_seen():
    assert set(events(ATTEMPT)) == {"socket.getaddrinfo", "socket.connect"}
