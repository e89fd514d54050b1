"""Cells as words: each by itself, in every type of number."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from anyformer.data.columns.cells import as_words


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.float16()], ids=str)
def test_a_cell_is_written_alike_whatever_stands_beside_it(kind: pa.DataType) -> None:
    values = np.array([1, 2.5, np.nan, 60000, np.inf], kind.to_pandas_dtype())
    together = as_words(pa.chunked_array([pa.array(values, kind)])).to_pylist()
    assert together == ["1", "2.5", None, "60000", None]
    alone = [as_words(pa.chunked_array([pa.array(values[at : at + 1], kind)])).to_pylist()[0] for at in range(5)]
    assert alone == together


def test_numbers_too_large_to_be_counted_keep_their_form() -> None:
    large = pa.chunked_array([pa.array([2.0**53, 1e20, -1e300])])
    assert as_words(large).to_pylist() == ["9.007199254740992e+15", "1e+20", "-1e+300"]
    assert as_words(large.slice(0, 2).cast(pa.float32())).to_pylist() == ["9.007199e+15", "1e+20"]
