"""BERT (1810.04805) and its relatives: each of them is a `Kind`, with the differences as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from anyformer.checkpoints.names import Row, rows
from anyformer.checkpoints.operations import COPIES, QKV
from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds.tokens import Tokens
from anyformer.errors import UserError
from anyformer.families.config import LAYERS, THEIR_ACTS, FamilyConfig
from anyformer.families.family import BARE, BODY, CLASSIFY, LM_HEAD, MASKED, PRETRAINING, REPLACED, SPAN, TAG, Family
from anyformer.feeds.mlp import MLP, Act
from anyformer.heads import LM, LMWithPair, Pooled, Replaced, Span, TokenHead
from anyformer.mixers.attention import Attention
from anyformer.norms.layer import LayerNorm
from anyformer.positions.learned import Learned
from anyformer.slots import Head

Entries = tuple[tuple[Any, ...], ...]

DEFAULTS: dict[str, Any] = {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
}  # fmt: skip

LAYER: Entries = (
    ("mixer.qkv", tuple(f"attention.self.{part}" for part in ("query", "key", "value")), QKV),
    ("mixer.out", "attention.output.dense"),
    ("around_mixer.after", "attention.output.LayerNorm"),
    ("feed.up", "intermediate.dense"),
    ("feed.down", "output.dense"),
    ("around_feed.after", "output.LayerNorm"),
)
EMBED: Entries = (
    ("embed.table", "embeddings.word_embeddings"),
    ("embed.position.table", "embeddings.position_embeddings"),
    ("embed.segment", "embeddings.token_type_embeddings"),
    ("embed.norm", "embeddings.LayerNorm"),
)


@dataclass(frozen=True)
class Scorer:
    """Names of a masked-LM head. `bias` is a second name of the last layer's bias, `act` a fixed activation."""

    dense: str
    norm: str
    last: str
    bias: str | None = None
    act: Act | None = None


@dataclass(frozen=True)
class Kind:
    """One relative of BERT. Config fields have BERT's names; `names` maps those with another name in this family.

    `inner` is whether the embedding may be narrower than the model ("always": a projection even if it is not).
    `classify` is the sequence classification head; `pooled` means that its dense layer is the bare model's pooler.
    `dropouts` maps a head to its dropout field. `fixed` are settings without a field in this family. Tensor names are
    those of the bare model; `heads` adds those of heads other than the masked-LM head.
    """

    model_type: str
    title: str  # prefix of the class names in transformers
    scorer: Scorer
    layers: str = "encoder.layer.{i}."
    layer: Entries = LAYER
    embed: Entries = EMBED
    heads: Mapping[str, Entries] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    classify: Pooled = Pooled(dense=True, act="tanh")  # noqa: RUF009  a spec is frozen
    pooler: str | None = None
    pooled: bool = False
    drops_twice: bool = False  # the sequence head has dropout before its dense layer too
    inner: str | None = None
    project: str | None = None
    after_padding: bool = False  # positions start after the padding id
    grouped: bool = False
    causal: str | None = None  # the causal class, if any
    dropouts: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)  # reason: names
    further: Mapping[str, str] = field(default_factory=dict)  # further classes and their kinds of head
    spare: tuple[str, ...] = ()

    def word(self, name: str) -> str:
        """The family's name of one of BERT's fields."""
        return self.names.get(name, name)

    def default(self, name: str) -> Any:
        return self.defaults.get(name, DEFAULTS[name])

    @property
    def prefix(self) -> str:
        return f"{self.model_type}."


def settings(c: FamilyConfig, head: str, kind: Kind) -> Model:
    """A config.json as a spec."""

    def size(name: str) -> int:
        return c.size(kind.word(name), kind.default(name))

    def share(name: str) -> float:
        return c.get(kind.word(name), kind.default(name))

    c.only("add_cross_attention", False)
    c.only("position_embedding_type", "absolute")
    for reason, names in kind.skipped.items():
        c.skip(reason, *names.split())
    if kind.causal is None:
        c.only("is_decoder", False)
    width, dropout = size("hidden_size"), share("hidden_dropout_prob")
    layers = (kind.word("num_hidden_layers"), kind.default("num_hidden_layers"))
    depth = c.size(*layers, LAYERS) if kind.grouped else c.count(*layers)  # shared layers are not modules
    act = c.act(kind.word("hidden_act"), kind.default("hidden_act"))
    norm = LayerNorm(eps=1e-12 if "layer_norm_eps" in kind.fixed else share("layer_norm_eps"))
    inner = size("intermediate_size")
    block = Block(
        mixer=Attention(heads=size("num_attention_heads"), dropout=share("attention_probs_dropout_prob")),
        feed=MLP(width=None if inner == 4 * width else inner, act=act), norm=norm, place="post", dropout=dropout,
    )  # fmt: skip
    narrow = None if kind.inner is None else c.size("embedding_size", 128)
    offset = c.get("pad_token_id", 1) + 1 if kind.after_padding else 0
    embed = Tokens(
        vocab=size("vocab_size"), position=Learned(size("max_position_embeddings") - offset, offset=offset),
        segments=0 if "type_vocab_size" in kind.fixed else size("type_vocab_size"), norm=norm,
        inner=None if kind.inner == "narrower" and narrow == width else narrow, dropout=dropout,
    )  # fmt: skip
    causal = kind.causal is not None and c.get("is_decoder", False)
    stack = Stack(
        width=width, depth=depth, block=block, causal=causal, groups=groups(c, depth) if kind.grouped else None
    )
    return Model(embed=embed, stack=stack, head=answer(c, head, kind, norm, act, dropout), init="bert")


def groups(c: FamilyConfig, depth: int) -> int:
    c.only("inner_group_num", 1)
    count = c.size("num_hidden_groups", 1)
    # transformers divides floats, which for a few pairs rounds down to the wrong integer.
    if count > depth or any(int(i / (depth / count)) != i * count // depth for i in range(depth)):
        raise UserError(f"num_hidden_groups = {count} for {depth} layers is not implemented", where=c.where,
                        fix="only a number that divides num_hidden_layers is sure")  # fmt: skip
    return count


def answer(c: FamilyConfig, head: str, kind: Kind, norm: LayerNorm, act: Act, dropout: float) -> Head | None:
    tied = c.get("tie_word_embeddings", True)
    shares = {at: c.get(name, kind.defaults.get(name, dropout)) for at, name in kind.dropouts.items()}
    if head == SPAN and c.labels() != 2:
        raise UserError(f"{c.labels()} labels for question answering", where=c.where, fix="only 2 is supported")
    words = LM(tied=tied, transform=kind.scorer.act or act, norm=norm, bias=True)
    whole = kind.classify.replace(classes=c.labels(), dropout=shares[CLASSIFY])
    heads: dict[str, Head | None] = {
        BARE: Pooled(dense=True, act="tanh") if kind.pooler else None, BODY: None, LM_HEAD: words, MASKED: words,
        CLASSIFY: whole.replace(input_dropout=whole.dropout) if kind.drops_twice else whole,
        TAG: TokenHead(classes=c.labels(), dropout=shares.get(TAG, dropout)), SPAN: Span(dropout=shares.get(SPAN, 0.0)),
        REPLACED: Replaced(act=act),
        PRETRAINING: LMWithPair(words=words, pair=LMWithPair().pair.replace(dropout=shares.get(PRETRAINING, 0.0))),
    }  # fmt: skip
    return heads[head]


def config(spec: Model, head: str, kind: Kind) -> dict[str, Any]:
    """A spec as their config.json."""
    embed, stack, first = spec.embed, spec.plain_stack, spec.plain_stack.tiles[0]
    assert isinstance(embed, Tokens) and isinstance(first.mixer, Attention) and isinstance(first.feed, MLP)
    assert isinstance(embed.position, Learned) and isinstance(first.norm, LayerNorm)
    # Two classes may have the same network; take the one for its attention mask.
    assert head not in (MASKED, LM_HEAD) or stack.causal == (head == LM_HEAD), "the other order"
    fields: dict[str, Any] = {
        "vocab_size": embed.vocab, "hidden_size": stack.width, "num_hidden_layers": stack.depth,
        "num_attention_heads": first.mixer.heads, "intermediate_size": first.feed.width or 4 * stack.width,
        "hidden_act": THEIR_ACTS[first.feed.act], "hidden_dropout_prob": first.dropout,
        "attention_probs_dropout_prob": first.mixer.dropout, "type_vocab_size": embed.segments,
        "max_position_embeddings": embed.position.length + embed.position.offset, "layer_norm_eps": first.norm.eps,
    }  # fmt: skip
    made = {kind.word(name): value for name, value in fields.items() if name not in kind.fixed}
    scorer = spec.head.words if isinstance(spec.head, LMWithPair) else spec.head
    made["tie_word_embeddings"] = not isinstance(scorer, LM) or scorer.tied
    dropping = spec.head.pair if isinstance(spec.head, LMWithPair) else spec.head
    if head in kind.dropouts and isinstance(dropping, Pooled | TokenHead | Span):
        made.setdefault(kind.dropouts[head], dropping.dropout)
    if kind.inner is not None:
        made["embedding_size"] = stack.width if embed.inner is None else embed.inner
    if kind.after_padding:
        made["pad_token_id"] = embed.position.offset - 1
    if kind.grouped:
        made["num_hidden_groups"] = stack.groups
    if kind.causal is not None:
        made["is_decoder"] = stack.causal
    return made


def table(spec: Model, head: str, kind: Kind) -> tuple[Row, ...]:
    """One row per module; the body is under a prefix in a model with a head."""
    prefix = "" if head in (BARE, BODY) else kind.prefix
    blocks = ((f"stack.blocks.{{i}}.{ours}", under(kind.layers, theirs), *how) for ours, theirs, *how in kind.layer)
    body = [*kind.embed, *blocks]
    if kind.project is not None:
        body.append(("embed.project", kind.project))
    if kind.pooler and (head == BARE or (head == CLASSIFY and kind.pooled)):
        body.append(("head.dense", kind.pooler))
    if head == PRETRAINING:
        body.append(("head.pair.dense", kind.pooler))
    named = ((ours, under(prefix, theirs), *how) for ours, theirs, *how in body)
    if isinstance(spec.head, LMWithPair):
        return rows(*named, *words(spec.head.words, kind.scorer, "head.words"), *kind.heads.get(head, ()))
    if head in (MASKED, LM_HEAD):
        return rows(*named, *words(spec.head, kind.scorer, "head"))
    return rows(*named, *kind.heads.get(head, ()))


def under(prefix: str, theirs: Any) -> Any:
    return tuple(prefix + name for name in theirs) if isinstance(theirs, tuple) else prefix + theirs


def words(head: Head | None, scorer: Scorer, at: str) -> Entries:
    """Rows of the masked-LM head. Untied, the file has a second, unused bias, which must exist."""
    bias: tuple[Any, ...] = (f"{at}.bias", scorer.bias or f"{scorer.last}.bias")
    if scorer.bias and isinstance(head, LM) and not head.tied:
        bias = (f"{at}.bias", (f"{scorer.last}.bias", scorer.bias), COPIES)
    return ((f"{at}.dense", scorer.dense), (f"{at}.norm", scorer.norm), (f"{at}.weight", f"{scorer.last}.weight"), bias)


def tied(spec: Model, head: str, kind: Kind) -> dict[str, str]:
    """Tensors that older files hold twice."""
    second = {f"{kind.scorer.last}.bias": kind.scorer.bias} if kind.scorer.bias else {}
    return {f"{kind.scorer.last}.weight": f"{kind.prefix}embeddings.word_embeddings.weight"} | second


def family(kind: Kind) -> Family:
    """The family of a kind."""
    read: Callable[..., Any] = partial(settings, kind=kind)
    also = {} if kind.causal is None else {kind.causal: LM_HEAD}
    return Family(
        model_type=kind.model_type,
        heads={
            f"{kind.title}Model": BARE, f"{kind.title}ForMaskedLM": MASKED,
            f"{kind.title}ForSequenceClassification": CLASSIFY, f"{kind.title}ForTokenClassification": TAG,
            f"{kind.title}ForQuestionAnswering": SPAN, **also, **kind.further,
        },
        settings=read, config=partial(config, kind=kind), table=partial(table, kind=kind), prefix=kind.prefix,
        buffers=(r"(.*\.)?embeddings\.(position_ids|token_type_ids)",), tied=partial(tied, kind=kind),
        renamed={"gamma": "weight", "beta": "bias"}, pooled=kind.pooler is not None,
        spare=(rf"({kind.model_type}\.)?pooler\..*", *kind.spare),
    )  # fmt: skip


OLD = "options of the original code, which transformers never reads"
CLASSIFIER: Entries = (("head.out", "classifier"),)
ANSWER: Entries = (("head.out", "qa_outputs"),)

BERT = Kind(
    model_type="bert",
    title="Bert",
    scorer=Scorer(
        dense="cls.predictions.transform.dense", norm="cls.predictions.transform.LayerNorm",
        last="cls.predictions.decoder", bias="cls.predictions.bias",
    ),
    heads={
        CLASSIFY: CLASSIFIER, TAG: CLASSIFIER, SPAN: ANSWER,
        PRETRAINING: (("head.pair.out", "cls.seq_relationship"),),
    },
    pooler="pooler.dense",
    pooled=True,
    causal="BertLMHeadModel",
    dropouts={CLASSIFY: "classifier_dropout", TAG: "classifier_dropout"},
    skipped={
        OLD: "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head "
        "pooler_type output_past",
    },
    further={"BertForPreTraining": PRETRAINING},
    spare=(r"cls\.seq_relationship\..*",),
)  # fmt: skip

FAMILIES = (family(BERT),)
