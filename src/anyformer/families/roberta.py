"""RoBERTa (1907.11692): BERT whose positions start after the padding id, with its own classification head."""

from __future__ import annotations

from anyformer.families.bert import ANSWER, CLASSIFIER, OLD, Kind, Scorer, family
from anyformer.families.family import CLASSIFY, SPAN, TAG

ROBERTA = Kind(
    model_type="roberta",
    title="Roberta",
    scorer=Scorer(
        dense="lm_head.dense", norm="lm_head.layer_norm", last="lm_head.decoder", bias="lm_head.bias", act="gelu"
    ),
    defaults={"vocab_size": 50265},
    heads={
        CLASSIFY: (("head.dense", "classifier.dense"), ("head.out", "classifier.out_proj")),
        TAG: CLASSIFIER,
        SPAN: ANSWER,
    },
    pooler="pooler.dense",
    drops_twice=True,
    after_padding=True,
    causal="RobertaForCausalLM",
    dropouts={CLASSIFY: "classifier_dropout", TAG: "classifier_dropout"},
    skipped={OLD: "output_past"},
)

FAMILIES = (family(ROBERTA),)
