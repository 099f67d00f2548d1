"""masses: softmax weights as whole numbers, so that their sums are exact in any order and equal on every machine.

exp is Cephes' expf in separate float32 multiplications and additions, each of which IEEE 754 rounds in one way only; a
weight exp(x - max) becomes floor(weight * 2^40). native/csrc/exact_math.h follows the same recipe, so both draw the same tokens.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

ONE: Final = float(2**40)
"""The mass of the best token; 49,152 of them fit an int64 with room for 160 times the vocabulary."""
POLYNOMIAL: Final = (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


def exp_exact(x: Tensor) -> Tensor:
    """exp of x [...] float32 with x <= 0, within 2 units in the last place; 0 below -87."""
    n = (x * 1.44269504088896341).round_()
    r = (x - n * 0.693359375).sub_(n * -2.12194440e-4)
    p = torch.full_like(r, 1.9875691500e-4)
    for coefficient in POLYNOMIAL:
        p = p.mul_(r).add_(coefficient)
    y = p.mul_(r * r).add_(r).add_(1.0)
    power = ((n.clamp_(min=-127).to(torch.int32) + 127) << 23).view(torch.float32)
    return y.mul_(power).masked_fill_(x < -87, 0.0)


def masses(x: Tensor) -> Tensor:
    """x [..., V] float32, a row's largest value subtracted -> int64."""
    return (exp_exact(x).double() * ONE).long()


def log_norms(x: Tensor) -> list[float]:
    """x [R, V] float32 -> per row the log of the sum of exp(x - largest)."""
    totals = masses(x - x.amax(dim=1, keepdim=True)).sum(dim=1).tolist()
    return [math.log(total / ONE) if total > 0 else math.nan for total in totals]  # 0: the row is not finite
