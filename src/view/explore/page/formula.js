// Weights of one head from q, k and lse, in doubles: any of them, at any length. Not: choosing heads, drawing.
//   weight[i, j] = exp(softcap(scale q[i].k[j]) + biases - lse[i]) where key j is visible, otherwise 0

/// s: {D, Tq, Tk, q [Tq, D], k [Tk, D], lse [Tq], f: formula, slope, table, bias [Tq, Tk], intervals [Tq, 2]}; what is absent is null.
function exactHead(s) {
  const {D, Tq, Tk, q, k, lse, f} = s, offset = f.offset ?? Tk - Tq, cap = f.softcap || 0, reach = s.table ? (s.table.length - 1) / 2 : 0;
  const mean = f.empty === "mean";

  /// The keys [low, high) that query i may see.
  const limits = i => s.intervals ? [Math.max(0, s.intervals[2 * i]), Math.min(Tk, s.intervals[2 * i + 1])] : [0, Tk];
  const sees = (i, j) => j >= limits(i)[0] && j < limits(i)[1];
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
  const isEmpty = i => lse[i] === -Infinity, filler = mean ? 1 / Tk : 0;
  const kept = (i, j) => Math.exp(capped(f.scale * product(i, j)) + biasOf(i, j) - lse[i]);
  const weight = (i, j) => isEmpty(i) ? filler : sees(i, j) ? kept(i, j) : 0;

  function tile(i0, j0, rows, columns) {
    const out = new Float32Array(rows * columns);
    for (let r = 0; r < rows; ++r) {
      const i = i0 + r;
      if (isEmpty(i)) { out.fill(filler, r * columns, (r + 1) * columns); continue; }
      const [low, high] = limits(i), end = Math.min(high, j0 + columns);
      for (let j = Math.max(low, j0); j < end; ++j) out[r * columns + j - j0] = kept(i, j);
    }
    return out;
  }
  return headOf(Tq, Tk, "exact", weight, {
    tile,
    /// Every number on the way to one weight.
    why(i, j) {
      const products = Array.from({length: D}, (_, d) => f.scale * q[i * D + d] * k[j * D + d]);
      const scaled = f.scale * product(i, j), bias = biasOf(i, j);
      return {products, scaled, capped: capped(scaled), bias, lse: lse[i], sees: sees(i, j), weight: weight(i, j)};
    },
  });
}

/// The panel of one weight: the products per dimension of its query and key, and every step from their sum to the weight.
function drawWhy(panel, {head, texts, view, layer, number}) {
  const say = text => panel.append(make("p", {className: "note", textContent: text}));
  const kept = (layerOf(view, layer).exact || []).map(h => headNumber(view, layer, h)).join(", "), said = kept ? ` In this layer it holds those of head ${kept}.` : "";
  if (head.kind !== "exact") {
    return say(`This needs q, k and lse of the head, which this file does not hold: python -m qkv explore with --exact ${ownNumbers(view, layer, number).join(":")} stores them.${said}`);
  }
  if (state.i < 0 || state.j < 0) return say("Choose a query and a key: click a cell of the map, or a token and then another under \u201cwho attends to it\u201d.");
  const {i, j} = state, f = layerOf(view, layer).formula;
  if (i >= head.Tq || j >= head.Tk) return say(`This view has ${head.Tq} queries and ${head.Tk} keys: no such pair.`);
  const w = head.why(i, j);
  panel.append(make("h3", {textContent: `query ${i} ${label(texts.query(i), 24)}, key ${j} ${label(texts.key(j), 24)}`}));
  const table = panel.appendChild(make("table")), line = (name, value, note = "") => addRow(table, [name, value, note]);
  line("scale q\u00b7k", short(w.scaled), `scale ${short(f.scale)}, the sum of ${w.products.length} products`);
  if (f.softcap) line("after the soft cap", short(w.capped), `${short(f.softcap)} tanh(x / ${short(f.softcap)})`);
  if (w.bias) line("bias by position", short(w.bias));
  line("lse of the query", short(w.lse), "log of the sum over all keys that it may see");
  line("weight", percent(w.weight), w.sees ? `exp(${short(w.capped + w.bias)} \u2212 ${short(w.lse)})` : "this key is hidden from this query");
  const n = w.products.length, wide = Math.max(4, Math.min(28, 760 / n)), top = Math.max(...w.products.map(p => Math.abs(p) || 0), 1e-30), half = 70;
  const svg = svgElement("svg", {viewBox: `0 0 ${n * wide + 8} ${2 * half + 16}`, width: n * wide + 8, height: 2 * half + 16, class: "bars", role: "img", "aria-label": "products per dimension"});
  w.products.forEach((p, d) => {
    const tall = (Math.min(Math.abs(p), top) || 0) / top * half, y = p > 0 ? half + 8 - tall : half + 8;
    const bar = svgElement("rect", {x: 4 + d * wide, y, width: wide - 1, height: Math.max(.5, tall), fill: rgb(difference(p > 0 ? 1 : -1, 1))});
    bar.append(svgElement("title", {}, `dimension ${d}: ${short(p)}`));
    svg.append(bar);
  });
  const best = largest(w.products.map(Math.abs), 5).map(d => `${d}: ${short(w.products[d])}`).join(", ");
  panel.append(svg, make("p", {className: "note", textContent: `One bar per dimension: scale \u00d7 q \u00d7 k, orange for and blue against. Largest: ${best}.`}));
}
