"""Compiled code comes from a folder that nobody else could have written: never from the shared temporary one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from anyformer.kernels import compile_cache

NOBODY = 65534
# A folder for each width of vectors: torch would take graphs of one for those of the other.
KEPT = Path("home", ".cache", "anyformer", "compiled", torch.backends.cpu.get_cpu_capability().lower())
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")

COMPILED_WORK = """
import os, sys, torch
if sys.argv[1:] == ["the compiler is there already"]:
    import torch._inductor.compile_fx
from anyformer.kernels import cpu
from anyformer.kernels.compile import compile_function
assert cpu.load_library() is not None
assert float(compile_function(lambda x: (x * 3).sin().sum())(torch.zeros(64))) == 0
print(os.environ["TORCHINDUCTOR_CACHE_DIR"])
"""
TRAINED = """
import torch
from torch import nn
from anyformer.kernels.compile_cache import use_private_cache
use_private_cache()
net = nn.Linear(2, 2)
torch.optim.AdamW(net.parameters()).step()
"""


def run(code: str, tmp: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """The code in a process of its own, whose shared temporary folder and home are these."""
    (tmp / "home").mkdir(exist_ok=True)
    shared = tmp / "shared"
    shared.mkdir(exist_ok=True)
    shared.chmod(0o1777)
    names = {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "OMP_NUM_THREADS", "VIRTUAL_ENV", "ATEN_CPU_CAPABILITY"}
    environment = {name: value for name, value in os.environ.items() if name in names}
    environment |= {"HOME": str(tmp / "home"), "TMPDIR": str(shared), "USER": "victim", "LOGNAME": "victim", **extra}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        capture_output=True, text=True, timeout=300, env=environment, check=False,
    )  # fmt: skip


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """The home and the shared folder of somebody who has compiled once."""
    tmp = tmp_path_factory.mktemp("user")
    done = run(COMPILED_WORK, tmp)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp / KEPT)
    return tmp


def test_what_is_compiled_lies_in_the_users_cache_and_nothing_in_the_shared_folder(place):
    assert any(name.endswith(".so") for name in files(place / KEPT))
    assert any("precompiled_headers" in name for name in files(place / KEPT))
    assert (place / KEPT).stat().st_mode & 0o777 == 0o700
    assert not files(place / "shared")


def test_an_optimizer_alone_makes_no_folder_in_the_shared_one(tmp_path):
    done = run(TRAINED, tmp_path)
    assert done.returncode == 0, done.stderr
    assert not files(tmp_path / "shared")
    control = run(TRAINED.replace("use_private_cache()\n", "\n"), tmp_path)
    assert control.returncode == 0 and files(tmp_path / "shared")


@as_root
@pytest.mark.parametrize("arguments", [[], ["the compiler is there already"]])
def test_a_library_that_another_user_planted_is_not_loaded(place, tmp_path, arguments):
    """The attack itself: nobody makes torch's folder first, with a library under every name that is looked for."""
    mark, source, evil = tmp_path / "mark", tmp_path / "evil.c", tmp_path / "evil.so"
    source.write_text(f'#include <stdio.h>\n[[gnu::constructor]] void f() {{ fclose(fopen("{mark}", "w")); }}\n')
    subprocess.run(["g++", "-shared", "-fPIC", "-o", evil, "-x", "c++", source], check=True)
    folder = place / "shared" / "torchinductor_victim"
    for path in (place / KEPT).rglob("*.so"):
        planted = folder / path.relative_to(place / KEPT)
        planted.parent.mkdir(parents=True, exist_ok=True)
        planted.write_bytes(evil.read_bytes())
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
        path.chmod(0o777)
    try:
        before = files(place / "shared")
        done = run(COMPILED_WORK, place, *arguments)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == str(place / KEPT)
        assert files(place / "shared") == before and not mark.exists()
        load = f"import ctypes; ctypes.CDLL({str(next(folder.rglob('*.so')))!r})"
        subprocess.run([sys.executable, "-c", load], check=True)
        assert mark.exists()  # control: loaded, it leaves its mark
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def private(tmp_path) -> Path:
    """A place in which a private folder can be made."""
    if compile_cache.find_weakness_above(tmp_path / "any"):
        pytest.skip("the temporary folder of the tests is itself open to others")
    return tmp_path


@pytest.mark.quick
def test_a_private_folder_is_made_and_trusted(private):
    assert compile_cache.make_private(private / "a" / "b") == ""
    assert (private / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert compile_cache.make_private(private / "a" / "b") == ""


def writable(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o770)


def linked(folder: Path) -> None:
    (folder.parent / "target").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "target")


def filed(folder: Path) -> None:
    folder.write_text("no folder")


def owned_by_another(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)


def below_a_writable_one(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    folder.parent.chmod(0o777)


@pytest.mark.quick
@pytest.mark.parametrize(
    "spoil, reason",
    [
        (writable, "others may write into it"),
        (linked, "symbolic link"),
        (filed, "not a folder"),
        pytest.param(owned_by_another, f"belongs to user {NOBODY}", marks=as_root),
        (below_a_writable_one, "others may write into"),
    ],
)
def test_a_folder_that_others_may_write_is_refused(private, spoil, reason):
    folder = private / "parent" / "compiled"
    folder.parent.mkdir()
    assert compile_cache.make_private(folder.with_name("control")) == ""
    spoil(folder)
    assert reason in compile_cache.make_private(folder)


@as_root
@pytest.mark.quick
def test_nothing_is_made_in_a_home_of_another_user(private):
    (private / "home").mkdir()
    os.chown(private / "home", NOBODY, NOBODY)
    assert "belongs to user" in compile_cache.make_private(private / "home" / ".cache" / "anyformer" / "compiled")
    assert not files(private / "home")


ASKED = """
import logging, os, stat
logging.basicConfig(format="%(message)s")
from anyformer.kernels.compile_cache import use_private_cache
folder = use_private_cache()
print(folder, oct(stat.S_IMODE(folder.stat().st_mode)), os.environ["TRITON_CACHE_DIR"] == str(folder / "triton"))
"""


def test_a_refused_folder_is_said_in_one_line_and_a_fresh_one_is_used_and_removed(tmp_path):
    bad = tmp_path / "cache" / "anyformer" / "compiled"
    bad.mkdir(parents=True)
    bad.chmod(0o777)
    done = run(ASKED, tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"))
    folder, mode, triton = done.stdout.split()
    assert Path(folder).parent == tmp_path / "shared" and (mode, triton) == ("0o700", "True")
    assert len(done.stderr.splitlines()) == 1 and "others may write into it" in done.stderr
    assert not files(tmp_path / "shared") and not files(bad)


def test_a_folder_that_the_user_chose_is_used_if_it_is_private(tmp_path):
    chosen = tmp_path / "chosen"
    done = run(ASKED, tmp_path, TORCHINDUCTOR_CACHE_DIR=str(chosen))
    assert done.stdout.split()[0] == str(chosen) and not done.stderr
    chosen.chmod(0o777)
    done = run(ASKED, tmp_path, TORCHINDUCTOR_CACHE_DIR=str(chosen))
    assert done.stdout.split()[0] != str(chosen) and len(done.stderr.splitlines()) == 1
