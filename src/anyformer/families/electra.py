"""ELECTRA (2003.10555): a generator, which is a masked LM, and a discriminator, which detects replaced tokens."""

from __future__ import annotations

from anyformer.families.bert import ANSWER, CLASSIFIER, OLD, Kind, Scorer, family
from anyformer.families.family import CLASSIFY, REPLACED, SPAN, TAG
from anyformer.heads import Pooled

ELECTRA = Kind(
    model_type="electra",
    title="Electra",
    scorer=Scorer(
        dense="generator_predictions.dense",
        norm="generator_predictions.LayerNorm",
        last="generator_lm_head",
        act="gelu",
    ),
    defaults={"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
    heads={
        CLASSIFY: (("head.dense", "classifier.dense"), ("head.out", "classifier.out_proj")),
        TAG: CLASSIFIER,
        SPAN: ANSWER,
        REPLACED: (
            ("head.dense", "discriminator_predictions.dense"),
            ("head.out", "discriminator_predictions.dense_prediction"),
        ),
    },
    classify=Pooled(dense=True, act="gelu"),
    drops_twice=True,
    inner="narrower",
    project="embeddings_project",
    causal="ElectraForCausalLM",
    dropouts={CLASSIFY: "classifier_dropout", TAG: "classifier_dropout"},
    skipped={
        "a head for multiple choice, which is not opened": "summary_type summary_use_proj summary_activation "
        "summary_last_dropout",
        OLD: "output_past",
    },
    further={"ElectraForPreTraining": REPLACED},
)

FAMILIES = (family(ELECTRA),)
