// One head as a picture: blocks when all is shown, single weights when zoomed in; between them, tiles refine what is on the screen.
const MOST_TILES = 300, MOST_CELLS = 512;
let geometry = null, refining = 0;
/// Whether the map is of the head that the state names, not of the one before, while it is read.
const isShown = () => geometry?.at === keyOf(state.view, state.layer, state.head);

const wholeRegion = head => ({q0: 0, q1: head.Tq, k0: 0, k1: head.Tk});
const regionOf = head => state.region || wholeRegion(head);

/// A region inside [0, Tq) x [0, Tk), moved and cut as needed; pure.
function fitRegion(r, Tq, Tk) {
  const fit = (low, high, end) => {
    const size = Math.max(Math.min(2, end), Math.min(end, Math.round(high - low))), start = Math.max(0, Math.min(end - size, Math.round(low)));
    return [start, start + size];
  };
  const [q0, q1] = fit(r.q0, r.q1, Tq), [k0, k1] = fit(r.k0, r.k1, Tk);
  return {q0, q1, k0, k1};
}
/// Zoomed by `factor`: the cell at shares (x, y) of the region comes to shares (u, v); pure.
function zoomRegion(r, factor, x, y, Tq, Tk, u = x, v = y) {
  const height = (r.q1 - r.q0) * factor, width = (r.k1 - r.k0) * factor;
  const q = r.q0 + y * (r.q1 - r.q0), k = r.k0 + x * (r.k1 - r.k0);
  return fitRegion({q0: q - v * height, q1: q + (1 - v) * height, k0: k - u * width, k1: k + (1 - u) * width}, Tq, Tk);
}

/// Cells of a region: {cells, height, width, what, blocks: which, where they are no weights}. `refine` is called with better cells, some
/// tiles at a time.
function cellsOf(v, l, h, head, region, refine) {
  const rows = region.q1 - region.q0, columns = region.k1 - region.k0;
  const height = Math.min(rows, MOST_CELLS), width = Math.min(columns, MOST_CELLS), isWhole = height === rows && width === columns, mask = limitsOf(v, l);
  const times = isNorm() ? " \u00d7 norm" : "", ofBlocks = (map, more) => ({blocks: `${map.R},${map.C}`,
    what: `blocks of ${Math.ceil(head.Tq / map.R)} \u00d7 ${Math.ceil(head.Tk / map.C)}${times}${more}`});
  if (head.kind === "map") {
    const [R, C] = [Math.min(height, head.R), Math.min(width, head.C)];
    return {cells: cropMap(head, region, R, C, mask), height: R, width: C,
      ...ofBlocks(head, head.waits ? ", exact weights are being read" : ": this file has no more of this head")};
  }
  const a0 = Math.floor(region.q0 / TILE), a1 = Math.ceil(region.q1 / TILE), b0 = Math.floor(region.k0 / TILE), b1 = Math.ceil(region.k1 / TILE);
  const every = (a1 - a0) * (b1 - b0), how = `${times}, ${head.kind === "exact" ? "exact" : "as stored"}`;
  const what = isWhole ? "every weight" + how : `cells of ${(rows / height).toFixed(1)} \u00d7 ${(columns / width).toFixed(1)} weights${how}`;
  const add = (cells, a, b) => {
    const t = tileOf(v, l, h, head, a, b);
    pool(cells, height, width, region, t.data, a * TILE, b * TILE, t.rows, t.columns);
  };
  const sums = new Float64Array(height * width).fill(-0), done = () => isWhole ? Float32Array.from(sums) : Float32Array.from(divide(sums, height, width, rows));
  if (every <= 9) {
    for (let a = a0; a < a1; ++a) for (let b = b0; b < b1; ++b) add(sums, a, b);
    return {cells: done(), height, width, what};
  }
  const R = head.map ? Math.min(height, head.map.R) : 0, C = head.map ? Math.min(width, head.map.C) : 0;
  const zoomIn = "; zoom in, and they become weights";
  const rough = head.map ? {cells: cropMap(head.map, region, R, C, mask), height: R, width: C, ...ofBlocks(head.map, zoomIn)} : null;
  if (every > MOST_TILES && rough) return rough;
  const order = [];
  for (let a = a0; a < a1; ++a) for (let b = b0; b < b1; ++b) order.push([a, b]);
  const turn = refining;
  (function step() {
    if (turn !== refining) return;
    const until = performance.now() + 24;
    while (order.length && performance.now() < until) add(sums, ...order.shift());
    if (order.length) { setTimeout(step); return; }
    refine({cells: done(), height, width, what});
  })();
  const empty = rough || {cells: new Float32Array(1), height: 1, width: 1};
  return {...empty, what: `${what}: being computed`};
}

/// What a map may take of the page, in pixels.
function roomOf() {
  const across = el("maps").clientWidth || 640, count = state.beside < 0 ? 1 : state.diff && across > 900 ? 3 : 2;
  return {room: Math.max(220, across / count - (count > 1 ? 12 : 0)), most: Math.max(420, Math.min(900, innerHeight - 190)), isShare: !isNorm()};
}
/// Outlines of the chosen query's row and key's column, and of pinned rows.
function drawMarks(canvas, frame) {
  const g = canvas.getContext("2d"), {left, top, width, height, region: r} = frame, tall = height / (r.q1 - r.q0), wide = width / (r.k1 - r.k0);
  g.lineWidth = 1.5;
  const row = (i, ink) => {
    if (i < r.q0 || i >= r.q1) return;
    g.strokeStyle = ink;
    g.strokeRect(left - 1, top + (i - r.q0) * tall - 1, width + 2, Math.max(1, tall) + 2);
  };
  for (const i of state.pins) row(i, css("--faint"));
  if (state.i >= 0) row(state.i, css("--mark"));
  if (state.j >= r.k0 && state.j < r.k1) g.strokeRect(left + (state.j - r.k0) * wide - 1, top - 1, Math.max(1, wide) + 2, height + 2);
}
