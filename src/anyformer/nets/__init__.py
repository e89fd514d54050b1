"""Convolutional networks and pairs of networks that use the parts; they stay outside the laws of token models."""

from anyformer.nets.electra import Electra
from anyformer.nets.lr_net import LRNet
from anyformer.nets.resnet import ResNet
from anyformer.nets.sagan import SAGAN
from anyformer.nets.visual_transformer import VisualTransformer

__all__ = ["SAGAN", "Electra", "LRNet", "ResNet", "VisualTransformer"]
