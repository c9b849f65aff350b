// Weights of one head from q, k and lse, in doubles: any of them, at any length. Not: choosing heads, drawing.
//   weight[i, j] = exp(softcap(scale q[i].k[j]) + biases - lse[i]) where key j is visible, otherwise 0

/// s: {D, Tq, Tk, q [Tq, D], k [Tk, D], lse [Tq], f: formula, slope, table, bias [Tq, Tk], intervals [Tq, 2]}; what is absent is null.
function exactHead(s) {
  const {D, Tq, Tk, q, k, lse, f} = s, offset = f.offset ?? Tk - Tq, cap = f.softcap || 0, reach = s.table ? (s.table.length - 1) / 2 : 0;
  const mean = f.empty === "mean";

  /// The keys [low, high) that query i may see.
  function limits(i) {
    if (!s.intervals) return [0, Tk];
    const low = Math.max(0, s.intervals[2 * i]);
    return [low, Math.max(low, Math.min(Tk, s.intervals[2 * i + 1]))];
  }
  const sees = (i, j) => {
    const [low, high] = limits(i);
    return j >= low && j < high;
  };
  function product(i, j) {
    let a = 0, b = 0, p = i * D, r = j * D;
    const end = p + D - 1;
    for (; p < end; p += 2, r += 2) { a += q[p] * k[r]; b += q[p + 1] * k[r + 1]; }
    return p <= end ? a + b + q[p] * k[r] : a + b;
  }
  function biasOf(i, j) {
    const d = j - i - offset;
    let y = 0;
    if (s.slope !== null) y -= s.slope * Math.abs(d);
    if (s.table) y += s.table[reach + Math.max(-reach, Math.min(reach, d))];
    if (s.bias) y += s.bias[i * Tk + j];
    return y;
  }
  const capped = x => cap ? cap * Math.tanh(x / cap) : x;
  const isEmpty = i => !(lse[i] > -Infinity), filler = i => Number.isNaN(lse[i]) ? NaN : mean ? 1 / Tk : 0;  // a NaN score makes its row NaN
  const kept = (i, j) => Math.exp(capped(f.scale * product(i, j)) + biasOf(i, j) - lse[i]);
  const weight = (i, j) => isEmpty(i) ? filler(i) : sees(i, j) ? kept(i, j) : 0;

  function tile(i0, j0, rows, columns) {
    const out = new Float32Array(rows * columns);
    for (let r = 0; r < rows; ++r) {
      const i = i0 + r;
      if (isEmpty(i)) { out.fill(filler(i), r * columns, (r + 1) * columns); continue; }
      const [low, high] = limits(i), end = Math.min(high, j0 + columns);
      for (let j = Math.max(low, j0); j < end; ++j) out[r * columns + j - j0] = kept(i, j);
    }
    return out;
  }
  return {
    Tq, Tk, kind: "exact", weight, tile,
    row: i => tile(i, 0, 1, Tk),
    column: j => tile(0, j, Tq, 1),
    /// Every number on the way to one weight.
    why(i, j) {
      const products = Array.from({length: D}, (_, d) => f.scale * q[i * D + d] * k[j * D + d]);
      const scaled = f.scale * product(i, j), bias = biasOf(i, j);
      return {products, scaled, capped: capped(scaled), bias, lse: lse[i], sees: sees(i, j), weight: weight(i, j)};
    },
  };
}
