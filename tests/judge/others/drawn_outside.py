import numpy as np


def attention_dropout(q, k, v, p_drop, keep_mask=None, training=True):
    s = np.einsum("bid,bjd->bij", q, k) / np.sqrt(q.shape[-1])
    s = np.exp(s - s.max(-1, keepdims=True))
    w = s / s.sum(-1, keepdims=True)
    if training and p_drop > 0:
        if keep_mask is None:
            keep_mask = np.random.random(w.shape) >= p_drop
        w = w * keep_mask / (1 - p_drop)
    return w @ v
