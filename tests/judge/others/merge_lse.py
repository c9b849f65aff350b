import numpy as np


def merge_attn_states(out_a, lse_a, out_b, lse_b):
    top = np.maximum(lse_a, lse_b)
    a, b = np.exp(lse_a - top), np.exp(lse_b - top)
    total = a + b
    lse = top + np.log(total)
    out = (a[..., None] * out_a + b[..., None] * out_b) / total[..., None]
    return out, lse
