"""How golden values are made and stored: inputs as the numbers of a formula, results in full when small, samples and sums when large.

A set of cases is one safetensors file, written here byte for byte the same each time. Names in it, each after CASE/:
  NAME                 a small result, or an input that is not of the formula
  generated.NAME       an input: i64 [stream, exponent, sizes...], see `generated`
  sample.NAME          a large result: f64 [3 + n] = sum, sum of squares, sum of magnitudes, then n elements
  sample_at.NAME       i32 [n]: where those elements lie, row-major
and string metadata: what the case is, and for each result NAME
  error.NAME           largest |PyTorch in f32 - PyTorch in f64|
  terms.NAME           the largest value of the same expression with every term made positive, which scales rounding errors
"""

import json
import struct

import numpy as np

SMALL = 512  # elements of a result; more are sampled
SAMPLES = 128
DTYPES = {"uint8": "U8", "int32": "I32", "int64": "I64", "float32": "F32", "float64": "F64"}


def hash32(n, stream):
    """A 32-bit mixer (the finaliser of MurmurHash3, twice multiplied) of element number n in a stream."""
    offset = np.uint64(stream * 0x85EBCA77 & 0xFFFFFFFF)
    h = (np.asarray(n, dtype=np.uint64) * np.uint64(0x9E3779B1) + offset) & np.uint64(0xFFFFFFFF)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h ^= h >> np.uint64(shift)
        h = h * np.uint64(factor) & np.uint64(0xFFFFFFFF)
    return h ^ h >> np.uint64(16)


def generated(stream, exponent, sizes):
    """Element n = ((hash32(n, stream) >> 11) - 2^20) * 2^(exponent - 20): in [-2^exponent, 2^exponent), exact in f32."""
    count = int(np.prod(sizes))
    whole = (hash32(np.arange(count), stream) >> np.uint64(11)).astype(np.int64) - 2**20
    return np.ldexp(whole.astype(np.float64), exponent - 20).reshape(sizes)


class Case:
    """One case being made."""

    def __init__(self, name, **facts):
        self.name = name
        self.tensors = {}
        self.metadata = {key: str(value) for key, value in facts.items()}
        self._stream = sum(ord(c) * (i + 1) for i, c in enumerate(name))

    def input(self, name, sizes, exponent=0):
        """A new input, returned in f64 (every value is exact in f32 too)."""
        self._stream += 1
        self.tensors["generated." + name] = np.array([self._stream, exponent, *sizes], dtype=np.int64)
        return generated(self._stream, exponent, sizes)

    def add(self, name, values):
        """A result, or an input as it was changed."""
        self.tensors.pop("generated." + name, None)
        self.tensors[name] = np.ascontiguousarray(values)

    def result(self, name, exact, rounded=None, terms=None):
        """exact: the result in f64. rounded: the same in f32. terms: the positive expression."""
        exact = np.ascontiguousarray(exact, dtype=np.float64)
        if exact.size > SMALL:
            at = np.unique(hash32(np.arange(SAMPLES), 7).astype(np.int64) % exact.size).astype(np.int32)
            flat = exact.reshape(-1)
            sums = [flat.sum(), np.square(flat).sum(), np.abs(flat).sum()]
            self.tensors["sample." + name] = np.concatenate([sums, flat[at]])
            self.tensors["sample_at." + name] = at
        else:
            self.tensors[name] = exact
        if rounded is not None:
            error = np.abs(np.asarray(rounded, dtype=np.float64) - exact)
            self.metadata["error." + name] = repr(float(np.nanmax(error, initial=0.0)))
        if terms is not None:
            self.metadata["terms." + name] = repr(float(np.nanmax(terms, initial=0.0)))


def run(module, dtype, x, parameters, dout, call):
    """out, weights and gradients of sum(out * dout), as f64 arrays. call(module, x) gives (out, weights)."""
    import torch

    module = module.to(dtype).eval()
    module.zero_grad()
    own = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in parameters.items():
            own[name].copy_(torch.from_numpy(value))
    leaf = torch.from_numpy(np.ascontiguousarray(x)).to(dtype).requires_grad_()
    out, weights = call(module, leaf)
    out.backward(torch.from_numpy(dout).to(dtype))
    results = {"out": out, "weights": weights, "grad.x": leaf.grad} | {"grad." + name: own[name].grad for name in parameters}
    return {name: value.detach().double().numpy() for name, value in results.items()}


def save(path, cases):
    """The cases of a set as one file; a case without a name has the file to itself."""
    metadata, tensors = {}, {}
    for case in cases:
        start = case.name and case.name + "/"
        metadata |= {start + key: value for key, value in case.metadata.items()}
        tensors |= {start + key: value for key, value in case.tensors.items()}
    header, data = {"__metadata__": dict(sorted(metadata.items()))}, b""
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):
        raw = tensor.tobytes()
        header[name] = {"dtype": DTYPES[tensor.dtype.name], "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
