"""Convolutional networks and pairs of networks built from the parts; not covered by the laws for token models."""

from anyformer.nets.electra import Electra
from anyformer.nets.lr_net import LRNet
from anyformer.nets.resnet import ResNet
from anyformer.nets.sagan import SAGAN
from anyformer.nets.visual_transformer import VisualTransformer

__all__ = ["SAGAN", "Electra", "LRNet", "ResNet", "VisualTransformer"]
