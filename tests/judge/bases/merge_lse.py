from header import xp


def merge_lse(out1, lse1, out2, lse2):
    top = xp.maximum(lse1, lse2)
    a, b = xp.exp(lse1 - top), xp.exp(lse2 - top)
    total = a + b
    lse = top + xp.log(total)
    merged = (a[..., None] * out1 + b[..., None] * out2) / total[..., None]
    return lse, merged
