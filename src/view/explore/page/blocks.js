// Weights that are stored, and maps by blocks, under the same face as an exact head; pooling of tiles to cells of a picture.
// A cell is the mean over its queries of the sum of their weights on its keys: a share of attention, whatever its size.

/// The face of every head, from weight(i, j); `more` may have a faster tile.
function headOf(Tq, Tk, kind, weight, more = {}) {
  const head = {Tq, Tk, kind, weight, row: i => head.tile(i, 0, 1, Tk), column: j => head.tile(0, j, Tq, 1), tile(i0, j0, rows, columns) {
    const out = new Float32Array(rows * columns);
    for (let r = 0, n = 0; r < rows; ++r) for (let c = 0; c < columns; ++c) out[n++] = weight(i0 + r, j0 + c);
    return out;
  }};
  return Object.assign(head, more);
}
/// w [Tq, Tk]
const storedHead = (w, Tq, Tk) => headOf(Tq, Tk, "weights", (i, j) => w[i * Tk + j]);

/// map [R, C]: row and column give the share of the block in which a token lies.
const blockHead = (map, R, C, Tq, Tk) =>
  headOf(Tq, Tk, R === Tq && C === Tk ? "weights" : "map", (i, j) => map[Math.floor(i * R / Tq) * C + Math.floor(j * C / Tk)], {map, R, C});

/// What a head writes of each key: weights times norms [Tk]; of blocks, times the mean norm of a block's keys.
function writtenHead(head, norms) {
  const {Tq, Tk, R, C} = head, times = (data, by, from, columns) => data.map((w, n) => w * by[from + n % columns]);
  if (head.kind === "map") {
    const sums = new Float64Array(C), counts = new Float64Array(C);
    norms.forEach((x, j) => { const c = Math.floor(j * C / Tk); sums[c] += x; ++counts[c]; });
    return blockHead(times(head.map, sums.map((x, c) => x / counts[c]), 0, C), R, C, Tq, Tk);
  }
  return headOf(Tq, Tk, head.kind, (i, j) => head.weight(i, j) * norms[j], {...head.why && {why: head.why, sinkShare: head.sinkShare},
    map: head.map?.R ? writtenHead(head.map, norms) : null, tile: (i0, j0, rows, columns) => times(head.tile(i0, j0, rows, columns), norms, j0, columns)});
}

/// Which of `cells` the n-th of `count` positions belongs to: a quotient of integers, so that the floor is exact.
const cellOf = (n, cells, count) => Math.floor(n * cells / count);

/// Adds a tile [rows, columns] at (i0, j0) to cells [height, width] of the region [q0, q1) x [k0, k1).
function pool(cells, height, width, region, tile, i0, j0, rows, columns) {
  const {q0, q1, k0, k1} = region, low = Math.max(j0, k0), high = Math.min(j0 + columns, k1);
  const cellOfKey = Int32Array.from({length: Math.max(0, high - low)}, (_, n) => cellOf(n + low - k0, width, k1 - k0));
  for (let i = Math.max(i0, q0); i < Math.min(i0 + rows, q1); ++i) {
    const line = cellOf(i - q0, height, q1 - q0) * width, from = (i - i0) * columns - j0;
    for (let j = low; j < high; ++j) cells[line + cellOfKey[j - low]] += tile[from + j];
  }
}
/// Sums -> means over the queries of each cell.
function divide(cells, height, width, rows) {
  const counts = new Float64Array(height);
  for (let i = 0; i < rows; ++i) ++counts[cellOf(i, height, rows)];
  return cells.map((sum, n) => sum / counts[Math.floor(n / width)]);
}

/// The second head minus the first, under their face; null where they cannot be compared: other lengths, or other blocks.
function differenceHead(a, b) {
  const byBlocks = x => x.kind === "map", isAlike = a.Tq === b.Tq && a.Tk === b.Tk && byBlocks(a) === byBlocks(b) && (!byBlocks(a) || a.R === b.R && a.C === b.C);
  return isAlike ? headOf(a.Tq, a.Tk, byBlocks(a) ? "map" : "difference", (i, j) => b.weight(i, j) - a.weight(i, j)) : null;
}

/// Sets what a mask hides to -0: its own colour, and 0 in every sum. mask: the keys [low, high) of each query, or nothing.
const hides = (mask, i, j) => j < mask[2 * i] || j >= mask[2 * i + 1];
function hide(tile, i0, j0, columns, mask) {
  return mask ? tile.map((w, n) => hides(mask, i0 + Math.floor(n / columns), j0 + n % columns) ? -0 : w) : tile;
}

/// The part of a map that a region sees, one number per cell [height, width]; what is 0 and hidden is -0.
function cropMap(head, region, height, width, mask) {
  const out = new Float32Array(height * width), {q0, q1, k0, k1} = region;
  for (let r = 0; r < height; ++r) {
    const i = Math.min(head.Tq - 1, Math.floor(q0 + (r + .5) * (q1 - q0) / height));
    for (let c = 0; c < width; ++c) {
      const j = Math.min(head.Tk - 1, Math.floor(k0 + (c + .5) * (k1 - k0) / width)), w = head.weight(i, j);
      out[r * width + c] = w === 0 && mask && hides(mask, i, j) ? -0 : w;
    }
  }
  return out;
}
