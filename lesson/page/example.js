// The running example, computed by the engine: NAME -> numbers, as the texts of the steps name what they state and ask for. The tool has the
// same table (cli/lesson/numbers.cc); a test compares both, and TOY with a model that was started.
const TOKENS = ["I", "like", "blue"], TOY = {symbols: 7, parameters: 5063};
const EXAMPLE = {
  x: [1, 0, 2, 1, 0, 1, 1, 0, 1, 2, 0, 2],
  W_q: [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1],  // changes nothing
  W_k: [0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0],  // exchanges neighbours
  W_v: [1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1],  // adds neighbours
  W_o: [1, 0, 1, 0, 0, 1, 0, 1, 1, 0, -1, 0, 0, 1, 0, -1],  // mixes the heads
};

/// x W^T of each row.
const projected = (engine, x, w) => engine.linear({rows: x.length / 4, inputs: 4, outputs: 4, x: Float32Array.from(x), w: Float32Array.from(w)});
const projections = (engine, x) => ({q: projected(engine, x, EXAMPLE.W_q), k: projected(engine, x, EXAMPLE.W_k), v: projected(engine, x, EXAMPLE.W_v)});
/// Head h of two: of rows [T, 4] by view and transpose, or by view alone.
const headOf = (rows, h) => Float32Array.from({length: rows.length / 2}, (_, n) => rows[4 * (n >> 1) + 2 * h + (n & 1)]);
const viewedHead = (rows, h) => rows.slice(h * rows.length / 2, (h + 1) * rows.length / 2);
/// Of two heads, one behind the other: [T, 4].
const joinedHeads = heads => Float32Array.from(heads, (_, n) => heads[(n >> 1 & 1) * heads.length / 2 + 2 * (n >> 2) + (n & 1)]);
/// The layer backward from dout [T, 4]; head 0 has q, k, v of its own, if any. As `qkv explain --backward` names and shows it.
function layerBackward(engine, own, dout) {
  const all = projections(engine, EXAMPLE.x), T = TOKENS.length, back = (x, name) => projected(engine, x, EXAMPLE[name].map((_, n, w) => w[4 * (n % 4) + (n >> 2)]));
  const heads = name => Float32Array.of(...own[name] || headOf(all[name], 0), ...headOf(all[name], 1)), [q, k, v] = ["q", "k", "v"].map(heads);
  const dO = [0, 1].map(h => headOf(back(dout, "W_o"), h)), half = (x, each) => [0, 1].map(h => draw.rows(viewedHead(x, h), each));
  const of = engine.attend({heads: 2, queries: T, keys: T, dim: 2, vdim: 2, q, k, v, causal: false, dout: Float32Array.of(...dO[0], ...dO[1])});
  const [dq, dk, dv] = [of.dq, of.dk, of.dv].map(joinedHeads), [one, two, three] = [back(dq, "W_q"), back(dk, "W_k"), back(dv, "W_v")];
  const rows = {dq, dk, dv, dout, dx: one.map((x, n) => x + two[n] + three[n])};
  return {tokens: TOKENS, dO: dO.map(x => draw.rows(x, 2)), dS: half(of.ds, T), dP: half(of.dp, T),
    ...Object.fromEntries(Object.entries(rows).map(([name, x]) => [name, draw.rows(x, 4)]))};
}
/// One head of width 2; q, k, v: [T, 2].
function attendHead(engine, {q, k, v}, more = {}) {
  return engine.attend({heads: 1, queries: q.length / 2, keys: k.length / 2, dim: 2, vdim: 2, q, k, v, scale: 1 / Math.sqrt(2), causal: false, ...more});
}
const total = numbers => numbers.reduce((sum, x) => sum + x, 0);

function exampleNumbers(engine) {
  const all = projections(engine, EXAMPLE.x), [q, k, v] = [all.q, all.k, all.v].map(rows => headOf(rows, 0)), head = {q, k, v};
  const attend = (more = {}, of = {}) => attendHead(engine, {...head, ...of}, more);
  const plain = attend({dout: Float32Array.of(0, 0, 0, 0, 1, 0)}), unscaled = attend({scale: 1}), turned = attend({}, {q: k, k: q});
  const hidden = hides => ({hidden: Uint8Array.from({length: 9}, (_, n) => hides(Math.floor(n / 3), n % 3))});
  const filled = hides => ({bias: Float32Array.from({length: 9}, (_, n) => hides(Math.floor(n / 3), n % 3) ? -plain.scaled[n] : 0)});
  const later = (i, j) => j > i, padding = (i, j) => j === 2, kept = (hides, i) => [0, 1, 2].map(j => hides(i, j) ? 0 : plain.weights[3 * i + j]);
  const names = {}, row = (of, i, width = 3) => Array.from(of.slice(i * width, (i + 1) * width));
  const rows = (name, of, width) => TOKENS.forEach((token, i) => { names[`${name}.${token}`] = row(of, i, width); });
  for (const name of ["q", "k", "v"]) rows(name, head[name], 2);
  for (const name of ["q", "k", "v"]) rows(name + "-all", all[name], 4);
  rows("x", EXAMPLE.x, 4), rows("scores", plain.scores, 3), rows("scaled", plain.scaled, 3), rows("weights", plain.weights, 3), rows("out", plain.out, 2);
  rows("causal", attend({causal: true}).weights, 3), rows("padded", attend(hidden(padding)).weights, 3);
  rows("head-0", headOf(all.q, 0), 2), rows("head-1", headOf(all.q, 1), 2), rows("view-head-1", viewedHead(all.q, 1), 2);
  const last = name => names[name + ".blue"], p = last("weights"), s = last("scaled"), scores = last("scores");
  const add = more => Object.assign(names, Object.fromEntries(Object.entries(more).map(([name, numbers]) => [name, Array.from(numbers)])));
  const sums = [0, 1].map(d => v[d] + v[2 + d] + v[4 + d]), exponentials = s.map(x => Math.exp(x - Math.max(...s)));
  add({mean: sums.map(x => x / 3), "sum.v": sums, d: [2], p: [.1], shape: [1, 3, 4, 2, 2], roots: [64, Math.sqrt(64), 4096, Math.sqrt(4096)]});
  add({"products-q.blue": row(attend({}, {k: q}).scores, 2), "products-v.blue": row(attend({}, {k: v}).scores, 2)});
  add({"scaled-by-d.blue": scores.map(x => x / 2), "scaled-up.blue": scores.map(x => x * Math.sqrt(2)),
    "scaled-by-keys.blue": scores.map(x => x / Math.sqrt(3))});
  add({"weights-unscaled.blue": row(unscaled.weights, 2), "weights-columns.blue": [0, 1, 2].map(j => turned.weights[3 * j + 2]), "exp.blue": exponentials,
    "sum.exp.blue": [total(exponentials)], "exp-plain.blue": s.map(Math.exp), "weights-percent.blue": p.map(x => 100 * x),
    "weights-without-exp.blue": s.map(x => x / total(s))});
  add({"out-of-keys.blue": row(attend({}, {v: k}).out, 2, 2), "out-of-queries.blue": row(attend({}, {v: q}).out, 2, 2),
    "out-unscaled.blue": row(unscaled.out, 2, 2),
    "out-of-exp.blue": [0, 1].map(d => total(exponentials.map((x, j) => x * v[2 * j + d]))),
    "out-of-scores.blue": [0, 1].map(d => total(s.map((x, j) => x * v[2 * j + d])))});
  add({"v-transposed.I": [0, 1, 2, 3].map(c => total([0, 1, 2, 3].map(r => EXAMPLE.x[r] * EXAMPLE.W_v[4 * r + c])))});
  add({"causal-fill-zero.like": row(attend(filled(later)).weights, 1), "causal-after-softmax.like": kept(later, 1),
    "causal-off-by-one.like": row(attend(hidden((i, j) => j >= i)).weights, 1),
    "padded-fill-zero.I": row(attend(filled(padding)).weights, 0), "padded-after-softmax.I": kept(padding, 0)});
  add({"sum.causal-after-softmax.like": [total(kept(later, 1))]});
  const keeps = kept(padding, 2);
  add({"dropped.blue": keeps.map(x => x / .9), "dropped-unscaled.blue": keeps, "dropped-by-p.blue": keeps.map(x => x / .1),
    "dropped-times.blue": keeps.map(x => x * .9), "dropped-renormalised.blue": keeps.map(x => x / total(keeps))});
  const moved = [0, 1].flatMap(h => Array.from(headOf(Array.from({length: 12}, (_, n) => n), h))).filter((n, at) => n !== at).length;
  const dp = row(plain.dp, 2), ds = row(plain.ds, 2), delta = total(p.map((x, j) => x * dp[j]));
  add({moved: [moved, 12], "dp.blue": dp, "delta.blue": [delta], "ds.blue": ds, "dq.blue": row(plain.dq, 2, 2),
    "ds-no-row-term.blue": dp.map((x, j) => x * p[j]),
    "ds-without-weights.blue": dp.map(x => x - delta), "ds-diagonal.blue": dp.map((x, j) => p[j] * (1 - p[j]) * x)});
  const {symbols, parameters} = TOY;
  return add({symbols: [symbols], parameters: [parameters], "first-loss": [Math.log(symbols)], "first-loss-bits": [Math.log2(symbols)],
    "first-loss-decimal": [Math.log10(symbols)],
    "first-probability": [1 / symbols]});
}
