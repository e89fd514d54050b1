"""A convolution as multi-head attention: one head per kernel cell, at a fixed offset (1911.03584)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from anyformer.core.context import lay_out
from anyformer.core.linear import LinearLayer
from anyformer.errors import UserError
from anyformer.mixers.attention import Attention, AttentionModule
from anyformer.positions.none import NoRelative


def attention_from_convolution(
    weight: Tensor, bias: Tensor | None = None, *, sharpness: float = 1000.0
) -> ConvolutionByAttention:
    """An attention layer with K x K heads that equals a convolution (O,I,K,K) with `padding="same"`.

    Each head scores a pair of cells by -`sharpness` |their offset - the head's offset|^2: the relative positions of the
    paper. The larger the sharpness, the more a head attends to one cell only; above 745 every other weight is exactly 0
    in float64 (above 104 in float32), so the layer equals the convolution exactly. Content has no influence (queries
    and keys are 0), values are the input, and the kernel is the output projection. A head whose cell is outside the
    image is fully masked and returns 0, which is zero padding.

    >>> layer = attention_from_convolution(torch.randn(5, 2, 3, 3, dtype=torch.float64))
    >>> layer.attention.spec.heads, layer(torch.randn(1, 2, 6, 6, dtype=torch.float64)).shape
    (9, torch.Size([1, 5, 6, 6]))
    """
    if weight.dim() != 4 or weight.shape[2] != weight.shape[3]:
        raise UserError(f"the kernel has shape {tuple(weight.shape)}", where="weight", fix="expected (O, I, K, K)")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise UserError(f"the bias has shape {tuple(bias.shape)}", where="bias", fix=f"expected ({weight.shape[0]},)")
    if sharpness <= 0:
        raise UserError(f"sharpness {sharpness} is not positive", where="sharpness", fix="use 1000")
    return ConvolutionByAttention(weight, bias, sharpness)


class ConvolutionByAttention(nn.Module):
    """Images (B,I,rows,columns) to (B,O,rows,columns) by attention between all cells."""

    def __init__(self, weight: Tensor, bias: Tensor | None, sharpness: float) -> None:
        super().__init__()
        out, channels, self.kernel, _ = weight.shape
        self.sharpness = sharpness
        spec = Attention(heads=self.kernel**2, key_size=1, value_size=channels, bias=False)
        self.attention = AttentionModule(spec, channels, False, NoRelative())
        self.attention.out = LinearLayer(self.kernel**2 * channels, out, bias=bias is not None)
        self.attention.to(weight)
        with torch.no_grad():
            rows = self.attention.qkv.weight.view(self.kernel**2, 2 + channels, channels)  # query, key, values
            rows[:, :2] = 0.0
            rows[:, 2:] = torch.eye(channels)
            self.attention.out.weight.copy_(weight.permute(0, 2, 3, 1).flatten(1))  # (O, K*K*I)
            if bias is not None:
                self.attention.out.bias.copy_(bias)

    def forward(self, pixels: Tensor) -> Tensor:
        batch, _, rows, columns = pixels.shape
        tokens = pixels.flatten(2).transpose(1, 2)  # (B,T,I)
        context = lay_out(batch, rows * columns, pixels.device, grid=(rows, columns))
        places = self.places(rows, columns, pixels)
        y = self.attention(tokens, replace(context, bias=places, ordered=False), None, ())  # (B,T,O)
        return y.transpose(1, 2).unflatten(2, (rows, columns))

    def places(self, rows: int, columns: int, like: Tensor) -> Tensor:
        """Scores (1,K*K,T,T) of every head for every pair of cells; -inf where a head's cell is outside the image."""
        first = -((self.kernel - 1) // 2)  # offset of the kernel's first cell from its middle
        shifts = torch.arange(first, first + self.kernel)
        shift = torch.cartesian_prod(shifts, shifts).view(-1, 2)  # (K*K,2)
        cell = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).view(-1, 2)  # (T,2)
        wanted = cell + shift[:, None]  # (K*K,T,2): the cell that each head attends to from each cell
        off = (cell - wanted[:, :, None]).square().sum(-1)  # (K*K,T,T)
        beyond = ((wanted < 0) | (wanted >= torch.tensor([rows, columns]))).any(-1)  # (K*K,T)
        scores = (-self.sharpness * off.to(torch.promote_types(like.dtype, torch.float32))).to(like)
        return scores.masked_fill(beyond[:, :, None].to(like.device), -torch.inf)[None]
