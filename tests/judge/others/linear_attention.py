import numpy as np


def elu(x):
    return np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1)


def feature_map(x):
    return elu(x) + 1


def linear_attention(q, k, v, eps=1e-6):
    q = feature_map(q)
    k = feature_map(k)
    kv = np.einsum("bhnd,bhne->bhde", k, v)
    z = 1 / (np.einsum("bhnd,bhd->bhn", q, k.sum(axis=2)) + eps)
    return np.einsum("bhnd,bhde,bhn->bhne", q, kv, z)
