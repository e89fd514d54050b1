"""On a disk that fills up a command finishes or says so in one line; `full_disk.sweep` tries all verbs."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from anyformer.data.datasets.arrays import Arrays, header, new_map, reserve, save_array, write_zeros
from tests.attack.full_disk import sweep, verdict
from tests.training.test_store import may_mount


@pytest.mark.skipif(not may_mount(), reason="unshare -Urm mount is not allowed here")
def test_small_disks_are_told_of_in_one_line() -> None:
    for row in sweep(["train table", "predict"], tries=4):
        assert not row.bad, row.bad
        assert 1 <= row.finished < row.tries, row  # both endings were seen


def test_control_what_counts_as_bad() -> None:
    assert verdict(0, "done") == verdict(4, "error: a: 5 bytes needed, 3 bytes free") == ""
    for code, said in ((-7, ""), (1, "Traceback"), (4, ""), (4, "error: out of memory or disk"), (2, "error: x")):
        assert verdict(code, said), (code, said)


@pytest.mark.quick
def test_a_mapped_array_has_its_space_before_it_is_filled(tmp_path: Path) -> None:
    room = new_map(tmp_path / "a.npy", (300, 1000), np.dtype(np.float32))
    assert (tmp_path / "a.npy").stat().st_blocks * 512 >= room.nbytes  # a sparse file would have next to none
    assert not room.any()
    room[:] = 7
    room.flush()
    assert (np.load(tmp_path / "a.npy") == 7).all()


@pytest.mark.quick
@pytest.mark.parametrize("trouble", [OSError(errno.EOPNOTSUPP, "not here"), AttributeError("posix_fallocate")])
def test_a_file_system_that_cannot_reserve_is_written(tmp_path: Path, monkeypatch, trouble: Exception) -> None:
    def refuse(*words: object) -> None:
        raise trouble

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with (tmp_path / "a").open("wb") as file:
        reserve(file.fileno(), 0, 5 * 2**20)
    assert (tmp_path / "a").stat().st_blocks * 512 >= 5 * 2**20


@pytest.mark.quick
@pytest.mark.parametrize(
    "array",
    [np.arange(6).reshape(2, 3), np.array(3.5), np.zeros((0, 4), np.int8), np.array(["a", "bcd"]),
     np.array(["2020-01-01", "NaT"], "datetime64[s]"), np.asfortranarray(np.ones((2, 3))), np.array([True])],
)  # fmt: skip
def test_arrays_are_written_as_numpy_writes_them(tmp_path: Path, array: np.ndarray) -> None:
    save_array(tmp_path / "ours.npy", array)
    read = np.load(tmp_path / "ours.npy", allow_pickle=False)
    assert read.dtype == array.dtype and read.shape == array.shape
    np.testing.assert_array_equal(read, array)
    plain = np.ascontiguousarray(array).reshape(array.shape)
    np.save(tmp_path / "theirs.npy", plain)
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "theirs.npy").read_bytes()
    assert header(array.shape, array.dtype) == (tmp_path / "theirs.npy").read_bytes()[: -plain.nbytes or None]


@pytest.mark.quick
def test_zeros_are_written_where_they_belong(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.write(b"head")
        file.flush()
        write_zeros(file.fileno(), 4, 10)
    assert (tmp_path / "a").read_bytes() == b"head" + bytes(6)
    assert Arrays.new(tmp_path / "b").room("empty", (0, 3), np.int8).shape == (0, 3)
