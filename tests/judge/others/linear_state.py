import numpy as np


def phi(x):
    return np.where(x > 0, x + 1, np.exp(x))


def recurrent(Q, K, V):
    """Causal linear attention, token by token."""
    S, z, out = np.zeros((K.shape[1], V.shape[1])), np.zeros(K.shape[1]), []
    for q, k, v in zip(phi(Q), phi(K), V):
        S, z = S + np.outer(k, v), z + k
        out.append(q @ S / (q @ z))
    return np.stack(out)
