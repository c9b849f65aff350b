// The best that the file has of one head: exact weights, stored weights, or a map by blocks.
const opened = new Map(), ready = new Set();
const layerOf = (v, l) => file.views[v].layers[l];
const infoOf = (v, l, h) => (layerOf(v, l).head_info || [])[h] || {};

/// The layer that stands beside the chosen one.
const layerBeside = v => Math.min(state.layer, file.views[v].layers.length - 1);
/// Whether all that is shown has norms: a weight and a weight x norm do not compare.
const hasNorms = () => [state.view, state.beside].every(v => v < 0 || has(`${v}/${layerBeside(v)}/norms`));
/// Whether colours and numbers are weight x norm, what a head writes of a key, in place of weights.
const isNorm = (paint = state.paint) => paint === "writes" && hasNorms();
const isUnit = () => state.range === "unit" && !isNorm(), amount = x => isNorm() ? short(x) : percent(x);
const keyOf = (v, l, h, paint = state.paint) => `${v}/${l}/${h}/${isNorm(paint)}`;
/// Null where the file has nothing of this head.
function openHead(v, l, h, paint = state.paint) {
  const key = keyOf(v, l, h, paint);
  const read = () => isNorm(paint) ? openHead(v, l, h, "weight").then(head => writtenOf(v, l, h, head)) : open(v, l, h);
  if (!opened.has(key)) opened.set(key, read().finally(() => ready.add(key)));
  return opened.get(key);
}
/// The keys [low, high) that each query may see, where the file says it: read before a map is drawn.
const limits = new Map(), limitsOf = (v, l) => limits.get(`${v}/${l}/intervals`);
async function readLimits(v, l) {
  const at = `${v}/${l}/intervals`;
  if (has(at) && !limits.has(at)) limits.set(at, (await load(at)).data);
}
async function writtenOf(v, l, h, head) {
  const norms = await load(`${v}/${l}/norms`);
  return head && writtenHead(head, norms.data.subarray(h * head.Tk, (h + 1) * head.Tk));
}
/// Blocks that can be shown at once: the blocks of a head whose q and k are still being decoded, otherwise openHead.
async function openSoon(v, l, h) {
  const at = `${v}/${l}/map`, layer = layerOf(v, l), isShort = layer.q_len * layer.kv_len <= 2 ** 20;
  if (ready.has(keyOf(v, l, h)) || isShort || !(layer.exact || []).includes(h) || !has(at)) return openHead(v, l, h);
  const blocks = await blocksOf(layer, at, h);
  return Object.assign(isNorm() ? await writtenOf(v, l, h, blocks) : blocks, {waits: true});
}
async function blocksOf(layer, at, h) {
  const map = await load(at), [, R, C] = map.sizes;
  return blockHead(map.data.subarray(h * R * C, (h + 1) * R * C), R, C, layer.q_len, layer.kv_len);
}
async function open(v, l, h) {
  const layer = layerOf(v, l), at = `${v}/${l}/`, {q_len: Tq, kv_len: Tk} = layer;
  const isExact = (layer.exact || []).includes(h) && !layer.formula.refused;
  if (isExact) return exactOf(layer, at, h);
  const row = layer.weights ? layer.weights.indexOf(h) : h;
  if (row >= 0 && has(at + "weights")) {
    const w = await load(at + "weights");
    return storedHead(w.data.subarray(row * Tq * Tk, (row + 1) * Tq * Tk), Tq, Tk);
  }
  return has(at + "map") ? blocksOf(layer, at + "map", h) : null;
}
async function exactOf(layer, at, h) {
  const q = await load(at + "q"), k = await load(at + "k"), lse = await load(at + "lse");
  const {q_len: Tq, kv_len: Tk} = layer, D = q.sizes[2], row = layer.exact.indexOf(h);
  const kv = layer.exact_kv.indexOf(Math.floor(h * layer.kv_heads / layer.heads));
  const one = async (name, size, n) => { const t = await load(at + name); return t && t.data.subarray(n * size, (n + 1) * size); };
  const slope = await one("alibi", 1, h), sink = await one("sinks", 1, h), width = has(at + "relative") ? sizesOf(at + "relative")[1] : 0;
  const biases = has(at + "bias") ? sizesOf(at + "bias")[0] : 0;
  const head = exactHead({D, Tq, Tk, q: q.data.subarray(row * Tq * D, (row + 1) * Tq * D), k: k.data.subarray(kv * Tk * D, (kv + 1) * Tk * D),
    lse: lse.data.subarray(row * Tq, (row + 1) * Tq), f: layer.formula, slope: slope ? slope[0] : null,
    table: await one("relative", width, h), bias: await one("bias", Tq * Tk, biases === 1 ? 0 : row),
    intervals: await one("intervals", 2 * Tq, 0)});
  head.sinkShare = sink ? i => Math.exp(sink[0] - lse.data[row * Tq + i]) : null;
  if (has(at + "map")) head.map = await blocksOf(layer, at + "map", h);
  return head;
}

/// Exact or stored tiles of 256 x 256, kept while there is room.
const TILE = 256, tiles = new Map();
function tileOf(v, l, h, head, a, b) {
  const key = `${keyOf(v, l, h)}/${a}/${b}`;
  let t = tiles.get(key);
  if (!t) {
    const rows = Math.min(TILE, head.Tq - a * TILE), columns = Math.min(TILE, head.Tk - b * TILE);
    t = {rows, columns, data: hide(head.tile(a * TILE, b * TILE, rows, columns), a * TILE, b * TILE, columns, limitsOf(v, l))};
    if (tiles.size >= 96) tiles.delete(tiles.keys().next().value);
    tiles.set(key, t);
  }
  return t;
}

/// A head's picture: {cells, R, C}, or null.
async function thumbCells(v, l, h) {
  const at = `${v}/${l}/map`, {q_len, kv_len} = layerOf(v, l);
  if (has(at)) {
    const map = await load(at), [, R, C] = map.sizes;
    return {cells: map.data.subarray(h * R * C, (h + 1) * R * C), R, C};
  }
  const head = q_len <= 512 && kv_len <= 512 ? await openHead(v, l, h, "weight") : null;
  return head && {cells: head.tile(0, 0, head.Tq, head.Tk), R: head.Tq, C: head.Tk};
}
