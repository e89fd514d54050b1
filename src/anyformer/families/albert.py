"""ALBERT (1909.11942): BERT with one set of weights for many layers and a narrow embedding."""

from __future__ import annotations

from anyformer.checkpoints.operations import QKV
from anyformer.families.bert import ANSWER, CLASSIFIER, OLD, Kind, Scorer, family
from anyformer.families.family import CLASSIFY, PRETRAINING, SPAN, TAG

ALBERT = Kind(
    model_type="albert",
    title="Albert",
    scorer=Scorer(
        dense="predictions.dense", norm="predictions.LayerNorm", last="predictions.decoder", bias="predictions.bias"
    ),
    layers="encoder.albert_layer_groups.{i}.albert_layers.0.",
    layer=(
        ("mixer.qkv", tuple(f"attention.{part}" for part in ("query", "key", "value")), QKV),
        ("mixer.out", "attention.dense"),
        ("around_mixer.after", "attention.LayerNorm"),
        ("feed.up", "ffn"),
        ("feed.down", "ffn_output"),
        ("around_feed.after", "full_layer_layer_norm"),
    ),
    defaults={
        "vocab_size": 30000, "hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384,
        "hidden_act": "gelu_new", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.1,
    },
    heads={
        CLASSIFY: CLASSIFIER, TAG: CLASSIFIER, SPAN: ANSWER,
        PRETRAINING: (("head.pair.out", "sop_classifier.classifier"),),
    },
    pooler="pooler",
    pooled=True,
    inner="always",
    project="encoder.embedding_hidden_mapping_in",
    grouped=True,
    dropouts=dict.fromkeys((CLASSIFY, TAG, PRETRAINING), "classifier_dropout_prob"),
    skipped={OLD: "down_scale_factor gap_size net_structure_type num_memory_blocks output_past eos_token_ids"},
    further={"AlbertForPreTraining": PRETRAINING},
    spare=(r"sop_classifier\..*",),
)  # fmt: skip

FAMILIES = (family(ALBERT),)
