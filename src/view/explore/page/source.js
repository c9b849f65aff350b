// The best that the file has of one head: exact weights, stored weights, or a map by blocks.
const opened = new Map(), ready = new Set();
const layerOf = (v, l) => file.views[v].layers[l];
const infoOf = (v, l, h) => (layerOf(v, l).head_info || [])[h] || {};

/// Null where the file has nothing of this head.
function openHead(v, l, h) {
  const key = `${v}/${l}/${h}`;
  if (!opened.has(key)) opened.set(key, open(v, l, h).finally(() => ready.add(key)));
  return opened.get(key);
}
/// Blocks that can be shown at once: the blocks of a head whose q and k are still being decoded, otherwise openHead.
async function openSoon(v, l, h) {
  const at = `${v}/${l}/map`, layer = layerOf(v, l), isShort = layer.q_len * layer.kv_len <= 2 ** 20;
  if (ready.has(`${v}/${l}/${h}`) || isShort || !(layer.exact || []).includes(h) || !has(at)) return openHead(v, l, h);
  return Object.assign(await blocksOf(layer, at, h), {waits: true});
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
  const key = `${v}/${l}/${h}/${a}/${b}`;
  let t = tiles.get(key);
  if (!t) {
    const rows = Math.min(TILE, head.Tq - a * TILE), columns = Math.min(TILE, head.Tk - b * TILE);
    t = {rows, columns, data: head.tile(a * TILE, b * TILE, rows, columns)};
    if (tiles.size >= 96) tiles.delete(tiles.keys().next().value);
    tiles.set(key, t);
  }
  return t;
}
