"""The names of number formats, for settings and commands. Imports no torch, which takes seconds."""

from __future__ import annotations

SPELLINGS = {
    "auto": "auto",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
    "fp32": "float32",
    "float32": "float32",
}
DTYPE_HELP = "Number format of the weights: auto, bf16 (bfloat16), fp16 (float16) or fp32 (float32)"


def full_name(dtype: str) -> str:
    """`bfloat16` for bf16, BF16 and bfloat16; `auto` stays. Raises ValueError that lists the names."""
    try:
        return SPELLINGS[dtype.strip().lower()]
    except KeyError:
        raise ValueError(f"must be one of {', '.join(SPELLINGS)}") from None
