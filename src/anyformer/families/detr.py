"""DETR (2005.12872) on a ResNet, with the backbone's tensor names of transformers or of timm."""

from __future__ import annotations

import re
from typing import Any

from anyformer.checkpoints.names import Row, rows, under
from anyformer.checkpoints.operations import KV, QKV, Shaped
from anyformer.core.block import Block
from anyformer.core.model import Model, Seq2Seq
from anyformer.core.stack import Stack
from anyformer.embeds.maps import Maps
from anyformer.embeds.queries import Queries
from anyformer.errors import UserError
from anyformer.families.config import LAYERS, THEIR_ACTS, FamilyConfig
from anyformer.families.family import BARE, Family
from anyformer.families.vit import plain, sides
from anyformer.feeds.mlp import MLP
from anyformer.heads.boxes import Boxes
from anyformer.mixers.attention import Attention
from anyformer.mixers.cross import Cross
from anyformer.nets.resnet import ResNet
from anyformer.nets.stages import GROWTH
from anyformer.norms.layer import LayerNorm
from anyformer.positions.sinusoid_grid import SinusoidGrid

DETECT = "detect"
PREFIX = "model."
STAGES = 8  # most ResNet stages: each halves the feature maps
TIMM = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}  # those of bottlenecks


def half(c: FamilyConfig, side: str) -> Stack:
    """The layers of encoder or decoder; the decoder's have cross-attention and a final norm."""
    width, heads, inner = c.size("d_model", 256), c.size(f"{side}_attention_heads", 8), c.size(f"{side}_ffn_dim", 2048)
    dropout = c.get("attention_dropout", 0.0)
    feed = MLP(
        width=None if inner == 4 * width else inner, act=c.act("activation_function", "relu"),
        dropout=c.get("activation_dropout", 0.0),
    )  # fmt: skip
    looks = side == "decoder"
    block = Block(
        mixer=Attention(heads=heads, dropout=dropout), feed=feed, place="post", dropout=c.get("dropout", 0.1),
        cross=Cross(heads=heads, dropout=dropout) if looks else None,
    )  # fmt: skip
    return Stack(
        width=width, depth=c.count(f"{side}_layers", 6), block=block, final=LayerNorm() if looks else None
    )  # fmt: skip


def settings(c: FamilyConfig, head: str) -> Seq2Seq:
    """DETR's config.json as a spec."""
    c.also(num_attention_heads="encoder_attention_heads", hidden_size="d_model", num_hidden_layers="encoder_layers")
    c.skip(
        "training", "encoder_layerdrop", "decoder_layerdrop", "init_std", "init_xavier_std", "use_pretrained_backbone"
    )
    c.skip("the loss", "class_cost", "bbox_cost", "giou_cost", "mask_loss_coefficient", "dice_loss_coefficient",
           "bbox_loss_coefficient", "giou_loss_coefficient", "eos_coefficient")  # fmt: skip
    c.skip("an older version's, without effect now", "max_position_embeddings", "scale_embedding")
    c.only("auxiliary_loss", False, why="puts a norm between the decoder's layers there, which the paper does not")
    c.only("position_embedding_type", "sine")
    c.only("dilation", False)
    cells = Maps(backbone=backbone(c), size=sides(c, "image_size", 800), position=SinusoidGrid(), every_layer=True)
    return Seq2Seq(
        encoder=Model(embed=cells, stack=half(c, "encoder")),
        decoder=Model(embed=Queries(c.size("num_queries", 100)), stack=half(c, "decoder")),
        head=None if head == BARE else Boxes(classes=c.labels()),
    )  # fmt: skip


def backbone(c: FamilyConfig) -> ResNet:
    """The ResNet described by a config, or named by its timm name."""
    c.skip("read here", "backbone_config", "backbone", "use_timm_backbone", "backbone_kwargs", "num_channels")
    given = c.data.get("backbone_config") or {}
    if not isinstance(given, dict):
        raise UserError("backbone_config is not an object", where=c.where, fix='expected {"model_type": "resnet", ...}')
    part = FamilyConfig(given, f"{c.where}: backbone_config", c.tensors)
    kind = part.get("model_type", "timm_backbone")
    colours = part.size("num_channels", c.size("num_channels", 3))
    if kind == "timm_backbone":
        name = part.get("backbone", c.data.get("backbone") or "resnet50")
        if name not in TIMM or part.data.get("output_stride"):
            raise UserError(f"the backbone {str(name)[:40]!r} of timm is not implemented", where=c.where,
                            fix=f"{', '.join(TIMM)} are")  # fmt: skip
        return ResNet(depths=TIMM[name], colours=colours, frozen=True)
    if kind != "resnet":
        raise UserError(f"a backbone of {str(kind)[:40]!r} is not implemented", where=c.where, fix="only resnet is")
    part.only("layer_type", "bottleneck")
    part.only("hidden_act", "relu")
    for name in ("downsample_in_first_stage", "downsample_in_bottleneck"):
        part.only(name, False)
    depths, wide = part.get("depths", [3, 4, 6, 3]), part.get("hidden_sizes", [256, 512, 1024, 2048])
    width = part.size("embedding_size", 64)
    held = LAYERS if c.tensors is None else len(c.tensors)
    if not 1 <= len(depths) <= STAGES or not all(type(depth) is int and 1 <= depth <= held for depth in depths):
        raise UserError(
            f"depths is {str(depths)[:40]}",
            where=part.where,
            fix=f"expected a whole number for each of at most {STAGES} stages, with a tensor for each block",
        )
    if list(wide) != [width * GROWTH * 2**stage for stage in range(len(depths))]:
        raise UserError(f"hidden_sizes {str(wide)[:60]} do not double from {GROWTH} times embedding_size {width}",
                        where=part.where, fix="use a plain ResNet")  # fmt: skip
    last = f"stage{len(depths)}"
    if part.get("out_features", [last])[-1:] != [last]:
        raise UserError("out_features ends before the last stage", where=part.where, fix=f"only {last} is supported")
    return ResNet(depths=tuple(depths), width=width, colours=colours, frozen=True)


def config(spec: Seq2Seq, head: str) -> dict[str, Any]:
    """A spec as DETR's config.json, its backbone as transformers describes it."""
    embed, queries = spec.encoder.embed, spec.decoder.embed
    assert isinstance(embed, Maps) and isinstance(embed.backbone, ResNet) and isinstance(queries, Queries)
    net = embed.backbone
    made: dict[str, Any] = {}
    for side, model in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        stack, first = model.plain_stack, model.plain_stack.tiles[0]
        assert isinstance(first.mixer, Attention) and isinstance(first.feed, MLP)
        made |= {
            f"{side}_layers": stack.depth, f"{side}_attention_heads": first.mixer.heads,
            f"{side}_ffn_dim": first.feed.width or 4 * stack.width, "d_model": stack.width, "dropout": first.dropout,
            "attention_dropout": first.mixer.dropout, "activation_dropout": first.feed.dropout,
            "activation_function": THEIR_ACTS[first.feed.act],
        }  # fmt: skip
    stages = range(len(net.depths))
    described = {
        "model_type": "resnet", "num_channels": net.colours, "embedding_size": net.width, "depths": list(net.depths),
        "hidden_sizes": [net.width * GROWTH * 2**stage for stage in stages], "layer_type": "bottleneck",
        "hidden_act": "relu", "out_features": [f"stage{len(net.depths)}"],
    }  # fmt: skip
    return made | {
        "num_queries": queries.count, "image_size": plain(embed.size), "num_channels": net.colours,
        "backbone_config": described, "backbone": None, "use_timm_backbone": False,
    }  # fmt: skip


class Pointwise(Shaped):
    """A 1x1 convolution's weight (D, C, 1, 1) as a matrix; its bias unchanged."""

    def pull(self, parts: Any, owner: Any) -> Any:
        return parts[0].flatten(1) if parts[0].dim() == 4 else parts[0]

    def push(self, tensor: Any, owner: Any) -> list[Any]:
        return [tensor[:, :, None, None] if tensor.dim() == 2 else tensor]


def layers(side: str) -> list[tuple[Any, ...]]:
    """The rows of one half."""
    ours, theirs = f"{side}.stack.blocks.{{i}}", f"{side}.layers.{{i}}"
    made: list[tuple[Any, ...]] = [
        (f"{ours}.mixer.qkv", tuple(f"{theirs}.self_attn.{part}_proj" for part in "qkv"), QKV),
        (f"{ours}.mixer.out", f"{theirs}.self_attn.out_proj"),
        (f"{ours}.around_mixer.after", f"{theirs}.self_attn_layer_norm"),
        (f"{ours}.feed.up", f"{theirs}.fc1"),
        (f"{ours}.feed.down", f"{theirs}.fc2"),
        (f"{ours}.around_feed.after", f"{theirs}.final_layer_norm"),
    ]
    if side == "encoder":
        return made
    return [
        *made,
        (f"{ours}.cross.q", f"{theirs}.encoder_attn.q_proj"),
        (f"{ours}.cross.kv", tuple(f"{theirs}.encoder_attn.{part}_proj" for part in "kv"), KV),
        (f"{ours}.cross.out", f"{theirs}.encoder_attn.out_proj"),
        (f"{ours}.around_cross.after", f"{theirs}.encoder_attn_layer_norm"),
        ("decoder.stack.final", "decoder.layernorm"),
    ]


def convolved(ours: str, theirs: str) -> list[tuple[Any, ...]]:
    """A convolution and its batch norm."""
    return [
        (f"{ours}.conv", f"{theirs}.convolution"),
        (f"{ours}.norm", f"{theirs}.normalization"),
        (f"{ours}.norm.mean", f"{theirs}.normalization.running_mean"),
        (f"{ours}.norm.var", f"{theirs}.normalization.running_var"),
    ]


def network(stages: int) -> list[tuple[Any, ...]]:
    """The rows of the backbone."""
    ours, theirs = "encoder.embed.backbone", "backbone.conv_encoder.model"
    made = convolved(f"{ours}.stem", f"{theirs}.embedder.embedder")
    for stage in range(stages):
        here, there = f"{ours}.stages.{stage}.{{i}}", f"{theirs}.encoder.stages.{stage}.layers.{{i}}"
        for place, name in enumerate(("reduce", "spatial", "expand")):
            made += convolved(f"{here}.{name}", f"{there}.layer.{place}")
        made += convolved(f"{here}.shortcut", f"{there}.shortcut")
    return made


def table(spec: Seq2Seq, head: str) -> tuple[Row, ...]:
    """One row per module; the body is under a prefix in a model with a head."""
    embed = spec.encoder.embed
    assert isinstance(embed, Maps) and isinstance(embed.backbone, ResNet)
    body: list[tuple[Any, ...]] = [
        *network(len(embed.backbone.depths)),
        ("encoder.embed.project", "input_projection", Pointwise()),
        ("decoder.embed.table", "query_position_embeddings"),
        *layers("encoder"), *layers("decoder"),
    ]  # fmt: skip
    if head == BARE:
        return rows(*body)
    answers = (("head.out", "class_labels_classifier"), ("head.box.{i}", "bbox_predictor.layers.{i}"))
    return rows(*under(PREFIX, body), *answers)


SPELLINGS = (  # from names of timm and of newer files to those of the table
    (r"backbone\.(?!conv_encoder\.)", "backbone.conv_encoder."),
    (r"(conv_encoder\.model)\.conv1\.", r"\1.embedder.embedder.convolution."),
    (r"(conv_encoder\.model)\.bn1\.", r"\1.embedder.embedder.normalization."),
    (r"(conv_encoder\.model)\.layer([1-9])\.", lambda m: f"{m[1]}.encoder.stages.{int(m[2]) - 1}.layers."),
    (r"(stages\.\d\.layers\.\d+)\.conv([123])\.", lambda m: f"{m[1]}.layer.{int(m[2]) - 1}.convolution."),
    (r"(stages\.\d\.layers\.\d+)\.bn([123])\.", lambda m: f"{m[1]}.layer.{int(m[2]) - 1}.normalization."),
    (r"\.downsample\.0\.", ".shortcut.convolution."),
    (r"\.downsample\.1\.", ".shortcut.normalization."),
    (r"_attn\.o_proj\.", "_attn.out_proj."),
    (r"(layers\.\d+)\.mlp\.(fc[12])\.", r"\1.\2."),
)


def respelled(name: str) -> str:
    """A tensor's name as the table has it."""
    for pattern, replacement in SPELLINGS:
        name = re.sub(pattern, replacement, name)
    return name


FAMILIES = (
    Family(
        model_type="detr", heads={"DetrModel": BARE, "DetrForObjectDetection": DETECT},
        settings=settings, config=config, table=table, prefix=PREFIX, respelled=respelled,
        buffers=(r".*\.num_batches_tracked",),
    ),
)  # fmt: skip
