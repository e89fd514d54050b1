"""Networks whose weights cannot lie in parts are refused before a process is started."""

from __future__ import annotations

import pytest

import anyformer
from anyformer import Electra, Replaced, UserError
from anyformer.training.distributed.sharded import check_shardable


def test_electra_is_refused_and_an_encoder_is_not() -> None:
    encoder = anyformer.preset("electra-small-tiny")
    check_shardable(encoder.build(device="meta"))
    with pytest.raises(UserError, match="share an embedding"):
        check_shardable(Electra(discriminator=encoder.replace(head=Replaced())).build(device="meta"))
