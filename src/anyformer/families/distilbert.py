"""DistilBERT (1910.01108): BERT with half the layers, without segments and pooler, and with other names throughout."""

from __future__ import annotations

from anyformer.checkpoints.operations import QKV
from anyformer.families.bert import ANSWER, CLASSIFIER, OLD, Kind, Scorer, family
from anyformer.families.family import CLASSIFY, SPAN, TAG
from anyformer.heads import Pooled

DISTILBERT = Kind(
    model_type="distilbert",
    title="DistilBert",
    scorer=Scorer(dense="vocab_transform", norm="vocab_layer_norm", last="vocab_projector"),
    layers="transformer.layer.{i}.",
    layer=(
        ("mixer.qkv", tuple(f"attention.{part}_lin" for part in "qkv"), QKV),
        ("mixer.out", "attention.out_lin"),
        ("around_mixer.after", "sa_layer_norm"),
        ("feed.up", "ffn.lin1"),
        ("feed.down", "ffn.lin2"),
        ("around_feed.after", "output_layer_norm"),
    ),
    names={
        "hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim", "hidden_act": "activation", "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    defaults={"num_hidden_layers": 6, "seq_classif_dropout": 0.2, "qa_dropout": 0.1},
    fixed=("type_vocab_size", "layer_norm_eps"),
    heads={CLASSIFY: (("head.dense", "pre_classifier"), *CLASSIFIER), TAG: CLASSIFIER, SPAN: ANSWER},
    classify=Pooled(dense=True, act="relu"),
    dropouts={CLASSIFY: "seq_classif_dropout", TAG: "dropout", SPAN: "qa_dropout"},
    skipped={"how the table of positions started; it is in the file": "sinusoidal_pos_embds", OLD: "tie_weights_"},
)  # fmt: skip

FAMILIES = (family(DISTILBERT),)
