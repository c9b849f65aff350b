import numpy as np


def attend(q, K, V):
    """q: [d], K: [n, d], V: [n, dv] -> (weights [n], output [dv])"""
    scores = K @ q / np.sqrt(q.shape[-1])
    e = np.exp(scores - scores.max())
    w = e / e.sum()
    return w, w @ V
