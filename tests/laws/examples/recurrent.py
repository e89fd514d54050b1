"""Recurrence and convolution along the text."""

from __future__ import annotations

from anyformer.mixers.attending_recurrent import AttendingRecurrent
from anyformer.mixers.convolution import Convolution
from anyformer.mixers.recurrent import Recurrent

EXAMPLES = {
    Recurrent: {
        "lstm": Recurrent("lstm"),
        "gru-narrow": Recurrent("gru", hidden=6, truncate=3),
        "rnn": Recurrent("rnn", truncate=2),
    },
    AttendingRecurrent: {
        "bahdanau": AttendingRecurrent("gru", hidden=12),
        "luong-general": AttendingRecurrent("lstm", hidden=10, score="general"),
        "luong-dot": AttendingRecurrent("rnn", score="dot"),
        "context-every": AttendingRecurrent("lstm", context="every"),
        "context-first": AttendingRecurrent("gru", context="first"),
    },
    Convolution: {
        "convolution": Convolution(3),
        "convolution-wide": Convolution(4, dilation=2, gated=True),
    },
}
ALIKE = {"gru-narrow", "rnn", "luong-general", "luong-dot", "context-every", "context-first", "convolution-wide"}
