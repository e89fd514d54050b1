"""Peak FLOP/s of devices from the vendors' data sheets; None for unknown devices."""

from __future__ import annotations

import re

# Dense matrix products, in 1e12 operations a second: (name as the driver gives it, bf16 and fp16, tf32, fp32).
# The first row that matches counts. None: the device has no such unit.
TABLE: tuple[tuple[str, float | None, float | None, float | None], ...] = (
    (r"\bGH200\b|\bH200\b", 989, 494.5, 67),
    (r"\bH100 PCIe\b", 756, 378, 51),
    (r"\bH100 NVL\b", 835, 417.5, 60),
    (r"\bH100\b|\bH800\b", 989, 494.5, 67),
    (r"\bH20\b", 148, 74, 44),
    (r"\bB200\b", 2250, 1125, 80),
    (r"\bA100\b|\bA800\b", 312, 156, 19.5),
    (r"\bL40S\b", 362, 183, 91.6),
    (r"\bL4\b", 121, 60, 30.3),
    (r"\bA10G\b", 70, 35, 31.5),
    (r"\bA10\b", 125, 62.5, 31.2),
    (r"\bRTX A6000\b", 154.8, 77.4, 38.7),
    (r"\bRTX 5090$", 209.5, 104.8, 104.8),
    (r"\bRTX 4090$", 165.2, 82.6, 82.6),
    (r"\bRTX 4080$", 97.5, 48.7, 48.7),
    (r"\bRTX 3090$", 71.2, 35.6, 35.6),
    (r"\bMI300X\b", 1307, 653.7, 163.4),
)
# These two have fp16, but not bf16.
HALF_ONLY = ((r"\bV100\b", 125, 15.7), (r"\bT4\b", 65, 8.1))
NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def peak_flops(device: str, precision: str = "bf16") -> float | None:
    """Peak FLOP/s of a device, or None where no reliable figure is known (every CPU).

    >>> peak_flops("NVIDIA H200", "bf16"), peak_flops("NVIDIA A100-SXM4-80GB", "tf32"), peak_flops("CPU, 2 threads")
    (989000000000000.0, 156000000000000.0, None)
    """
    if "MIG" in device or "Laptop" in device:  # a slice of a device, or a variant of the same name with fewer units
        return None
    kind = NAMES.get(precision, precision)
    for pattern, half, single in HALF_ONLY:
        if re.search(pattern, device):
            return {"fp16": half * 1e12, "fp32": single * 1e12}.get(kind)
    for pattern, half_sized, tf32, fp32 in TABLE:
        if re.search(pattern, device):
            peak = {"bf16": half_sized, "fp16": half_sized, "tf32": tf32, "fp32": fp32}.get(kind)
            return None if peak is None else peak * 1e12
    return None
