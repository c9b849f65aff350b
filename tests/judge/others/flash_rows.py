import numpy as np


def flash_bwd(Q, K, V, out, L, dO, tile=2):
    n, d = Q.shape
    dQ, dK, dV = np.zeros(Q.shape), np.zeros(K.shape), np.zeros(V.shape)
    for i in range(0, n, tile):
        q, do = Q[i : i + tile], dO[i : i + tile]
        D = (do * out[i : i + tile]).sum(axis=1, keepdims=True)
        acc = np.zeros(q.shape)
        for j in range(0, len(K), tile):
            k, v = K[j : j + tile], V[j : j + tile]
            P = np.exp(q @ k.T / np.sqrt(d) - L[i : i + tile, None])
            dS = P * (do @ v.T - D) / np.sqrt(d)
            acc += dS @ k
            dK[j : j + tile] += dS.T @ q
            dV[j : j + tile] += P.T @ do
        dQ[i : i + tile] = acc
    return dQ, dK, dV
