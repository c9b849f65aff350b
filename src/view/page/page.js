const el = id => document.getElementById(id), make = (tag, parent) => parent.appendChild(document.createElement(tag));
const dark = matchMedia("(prefers-color-scheme: dark)"), css = name => getComputedStyle(document.body).getPropertyValue(name);
const percent = w => Number.isNaN(w) ? "NaN" : (100 * w).toFixed(2) + " %";
const token = (list, i) => list ? list[i] : String(i);
const MONO = '"DejaVu Sans Mono", Menlo, Consolas, monospace';
let layer = 0, head = 0, row = -1, column = -1, pinned = false, geometry = {};

// Weights of one head as Float32Array [q, k], decoded when first wanted.
const decoded = new Map();
function half(h) {
  const e = h >> 10 & 31, m = h & 1023;
  return e === 31 ? NaN : e ? 2 ** (e - 15) * (1 + m / 1024) : m * 2 ** -24;
}
const wide = M.format === "float16", values = Float32Array.from({length: wide ? 65536 : 256},
    (_, n) => M.peak * (wide ? half(n) : n === 255 ? NaN : (n / 254) ** 2));
function weights(l, h) {
  const key = l * M.heads.length + h;
  if (!decoded.has(key)) {
    const text = atob(M.data[l][h]), w = new Float32Array(M.q * M.k);
    if (wide) for (let i = 0; i < w.length; ++i) w[i] = values[text.charCodeAt(2 * i) | text.charCodeAt(2 * i + 1) << 8];
    else for (let i = 0; i < w.length; ++i) w[i] = values[text.charCodeAt(i)];
    decoded.set(key, w);
  }
  return decoded.get(key);
}

// Colours: the palette as bytes, red green blue.
const bytes = hex => Uint8Array.from(hex.match(/../g), x => parseInt(x, 16));
const palettes = {light: bytes(M.light), dark: bytes(M.dark)}, nan = bytes(M.nan), entries = palettes.light.length / 3;
const topWeight = () => el("range").value === "max" ? M.peak : 1;
const place = s => el("place").value === "sqrt" ? Math.sqrt(s) : s;
const palette = () => dark.matches ? palettes.dark : palettes.light;
function colour(w) {
  if (Number.isNaN(w)) return nan;
  const n = Math.round(place(Math.min(1, w / topWeight())) * (entries - 1));
  return palette().subarray(3 * n, 3 * n + 3);
}
const inkOn = c => 299 * c[0] + 587 * c[1] + 114 * c[2] < 140000 ? "#fff" : "#1c1c22";

function image(l, h) {
  const c = document.createElement("canvas");
  c.width = Math.max(1, M.k); c.height = Math.max(1, M.q);
  if (!M.q || !M.k) return c;
  const g = c.getContext("2d"), pixels = g.createImageData(M.k, M.q), w = weights(l, h), p = palette();
  const pack = (a, i) => (255 << 24 | a[i + 2] << 16 | a[i + 1] << 8 | a[i]) >>> 0;  // little-endian, as every browser's machine is
  const packed = Uint32Array.from({length: entries}, (_, n) => pack(p, 3 * n)), empty = pack(nan, 0), out = new Uint32Array(pixels.data.buffer);
  const factor = 1 / topWeight(), root = el("place").value === "sqrt", last = entries - 1;
  for (let i = 0; i < w.length; ++i) {
    const s = Math.min(1, w[i] * factor);
    out[i] = s !== s ? empty : packed[Math.round((root ? Math.sqrt(s) : s) * last)];
  }
  g.putImageData(pixels, 0, 0);
  return c;
}
function sized(canvas, width, height) {
  const r = devicePixelRatio || 1, g = canvas.getContext("2d");
  canvas.width = Math.round(width * r); canvas.height = Math.round(height * r);
  canvas.style.width = width + "px"; canvas.style.height = height + "px";
  g.scale(r, r);
  return g;
}

// Labels where every token has room, else numbers at round steps.
function ticks(list, count, cell, apart) {
  const all = [];
  let step = 1;
  if (cell < 11 || !list) for (let d = 1; step * cell < apart; d *= 10) for (const f of [1, 2, 5, 10]) { step = f * d; if (step * cell >= apart) break; }
  for (let i = 0; i < count; i += step) all.push([i, cell < 11 ? String(i) : token(list, i)]);
  return all;
}
function drawMap() {
  const room = Math.min(760, Math.max(280, innerWidth - 440)), longest = Math.max(M.q, M.k, 1);
  const cell = Math.max(1, Math.min(48, Math.floor(room / longest)));
  const size = cell > 22 ? 14 : cell >= 14 ? 12 : cell >= 11 ? 9 : 12, g0 = el("map").getContext("2d"), font = size + "px " + MONO;
  g0.font = font;
  const short = t => [...t].length > 14 ? [...t].slice(0, 13).join("") + "\u2026" : t;
  const rows = ticks(M.queryTokens, M.q, cell, 20), columns = ticks(M.keyTokens, M.k, cell, 44);
  const widest = all => Math.max(0, ...all.map(t => g0.measureText(short(t[1])).width));
  const upward = cell >= 11 && M.keyTokens && widest(columns) > cell - 2;
  const left = Math.ceil(widest(rows)) + 34, below = (upward ? Math.ceil(widest(columns)) : size) + 38;
  geometry = {left, top: 6, cell, width: M.k * cell, height: M.q * cell};
  const g = sized(el("map"), left + Math.max(geometry.width, 60) + 12, Math.max(geometry.height, 60) + 6 + below);
  sized(el("over"), left + Math.max(geometry.width, 60) + 12, Math.max(geometry.height, 60) + 6 + below);
  g.imageSmoothingEnabled = false;
  g.strokeStyle = css("--line");
  g.strokeRect(left - .5, 5.5, Math.max(geometry.width, 60) + 1, Math.max(geometry.height, 60) + 1);
  g.fillStyle = css("--ink"); g.font = font; g.textBaseline = "middle";
  if (geometry.width && geometry.height) g.drawImage(image(layer, head), left, 6, geometry.width, geometry.height);
  else g.fillText(M.q ? "no keys" : "no queries", left + 4, 30);
  g.textAlign = "right";
  for (const [i, t] of rows) g.fillText(short(t), left - 7, 6 + (i + .5) * cell);
  const bottom = 6 + Math.max(geometry.height, 60);
  for (const [j, t] of columns) {
    g.save(); g.translate(left + (j + .5) * cell, bottom + 8);
    if (upward) g.rotate(-Math.PI / 2); else { g.textAlign = "center"; g.translate(0, size / 2); }
    g.fillText(short(t), 0, 0); g.restore();
  }
  g.fillStyle = css("--faint"); g.textAlign = "center"; g.font = "13px system-ui, sans-serif";
  g.fillText("key", left + Math.max(geometry.width, 60) / 2, bottom + below - 14);
  g.save(); g.translate(10, 6 + Math.max(geometry.height, 60) / 2); g.rotate(-Math.PI / 2); g.fillText("query", 0, 0); g.restore();
  el("map").setAttribute("aria-label", "attention of " + name());
}
const name = () => (M.layers.length > 1 ? "layer " + M.layers[layer] + ", " : "") + "head " + M.heads[head];

function drawScale() {
  const width = el("scale").clientWidth || 240, g = sized(el("scale"), width, 34), t = topWeight();
  el("scale").style.width = "100%";
  for (let x = 0; x < width; ++x) {
    const s = x / (width - 1), c = colour(t * (el("place").value === "sqrt" ? s * s : s));
    g.fillStyle = `rgb(${c})`; g.fillRect(x, 0, 1, 14);
  }
  g.fillStyle = css("--faint"); g.font = "12px system-ui, sans-serif"; g.textBaseline = "top";
  for (const s of [0, .05, .25, .5, 1]) {
    const x = place(s) * (width - 1);
    g.textAlign = s === 0 ? "left" : s === 1 ? "right" : "center";
    if (el("place").value === "sqrt" || s !== .05) g.fillText(+(100 * s * t).toPrecision(3) + " %", x, 18);
  }
}

function drawStatistics() {
  const s = M.statistics[layer][head], table = el("statistics");
  table.textContent = "";
  const line = (what, value) => { const r = make("tr", table); make("td", r).textContent = what; make("td", r).textContent = value; };
  if (!s.rows) return line("no rows after the first", "");
  line("on itself", percent(s.self)); line("on the token before", percent(s.previous)); line("on the first token", percent(s.first));
  line("largest weight", percent(s.largest)); line("entropy", s.entropy.toFixed(2) + " nats");
}

// What query `row` looks at: a line over the map, the value, and the tokens lit.
function drawOver() {
  const {left, top, cell, width, height} = geometry, g = el("over").getContext("2d"), seen = el("seen");
  g.clearRect(0, 0, el("over").width, el("over").height);
  seen.textContent = "";
  if (row < 0) {
    seen.textContent = M.q && M.k ? "Point at a cell, or at a token below." : "This map has no cells.";
  } else {
    g.strokeStyle = css("--mark"); g.lineWidth = cell < 4 ? 1 : 2;
    g.strokeRect(left - 1, top + row * cell - 1, width + 2, cell + 2);
    if (column >= 0) g.strokeRect(left + column * cell - 1, top - 1, cell + 2, height + 2);
    const text = (t, tag) => { make(tag || "span", seen).textContent = t; };
    text("query " + row + "  "); text(token(M.queryTokens, row), "b");
    const w = weights(layer, head).subarray(row * M.k, (row + 1) * M.k);
    if (column >= 0) {
      make("br", seen); text("key " + column + "  "); text(token(M.keyTokens, column), "b");
      const value = make("div", seen); value.className = "value"; value.textContent = percent(w[column]);
    } else {
      const best = [...w.keys()].sort((a, b) => (w[b] || 0) - (w[a] || 0)).slice(0, 4);
      for (const j of best) { make("br", seen); text(percent(w[j]) + "  on " + j + "  "); text(token(M.keyTokens, j), "b"); }
    }
  }
  strips.forEach(strip => strip.light());
}

const strips = [];
function makeStrip(title, list, count, isQuery, isKey) {
  make("h2", el("strips")).textContent = title;
  const box = make("div", el("strips")), spans = [];
  box.className = "tokens";
  for (let i = 0; i < count; ++i) {
    const s = make("span", box);
    s.textContent = token(list, i); s.title = "position " + i;
    if (isQuery) {
      s.onmouseenter = () => { if (!pinned) look(i, -1); };
      s.onclick = () => { pinned = !(pinned && row === i); look(i, -1); };
    }
    spans.push(s);
  }
  box.onmouseleave = () => { if (!pinned) look(-1, -1); };
  strips.push({light() {
    const w = row >= 0 ? weights(layer, head) : null;
    spans.forEach((s, j) => {
      const c = isKey && w && colour(w[row * M.k + j]);
      s.style.background = c ? `rgb(${c})` : ""; s.style.color = c ? inkOn(c) : "";
      s.className = isQuery && j === row ? "from" : "";
    });
  }});
}

function look(i, j) { row = i; column = j; drawOver(); }
function choose(l, h) {
  const n = M.heads.length, m = M.layers.length;
  layer = (l + m) % m; head = (h + n) % n;
  document.querySelectorAll("#heads button").forEach((b, i) => b.setAttribute("aria-pressed", i === head));
  document.querySelectorAll("#layers button").forEach((b, i) => b.setAttribute("aria-pressed", i === layer));
  drawMap(); drawScale(); drawStatistics(); drawOver();
}
function drawThumbnails() {
  document.querySelectorAll("#heads canvas").forEach((c, h) => {
    const picture = image(layer, h), g = c.getContext("2d");
    c.width = c.height = 104;
    g.imageSmoothingEnabled = picture.width > 104; g.drawImage(picture, 0, 0, 104, 104);
  });
}
function drawAll() { drawThumbnails(); choose(layer, head); }

el("title").textContent = M.title || "attention map";
if (M.layers.length > 1) M.layers.forEach((id, l) => {
  const b = make("button", el("layers")); b.textContent = "layer " + id; b.onclick = () => { choose(l, head); drawThumbnails(); };
});
if (M.heads.length > 1) M.heads.forEach((id, h) => {
  const b = make("button", el("heads"));
  if (M.heads.length * M.q * M.k <= 4e6) make("canvas", b);
  make("span", b).textContent = "head " + id; b.onclick = () => choose(layer, h);
});
if (M.shared) makeStrip("tokens: point at one to light what it looks at", M.keyTokens, M.k, true, true);
else {
  makeStrip("queries: point at one", M.queryTokens, M.q, true, false);
  makeStrip("keys: what it looks at", M.keyTokens, M.k, false, true);
}
el("note").textContent = `Each row is one query; its weights add up to 100 % or are empty. Stored as ${M.format}, largest error ${M.error.toPrecision(2)}. ` +
    (M.heads.length * M.layers.length > 1 ? "Arrow keys: left and right change the head, up and down the layer. " : "") + "A click holds the row.";
el("range").value = M.range; el("place").value = M.scale;
el("range").onchange = el("place").onchange = drawAll;
el("over").onmousemove = e => {
  if (pinned) return;
  const i = Math.floor((e.offsetY - geometry.top) / geometry.cell), j = Math.floor((e.offsetX - geometry.left) / geometry.cell);
  const inside = i >= 0 && i < M.q && j >= 0 && j < M.k;
  if (i !== row || j !== column) look(inside ? i : -1, inside ? j : -1);
};
el("over").onclick = () => { pinned = !pinned && row >= 0; };
el("over").onmouseleave = () => { if (!pinned) look(-1, -1); };
addEventListener("keydown", e => {
  const step = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[e.key];
  if (!step || e.target.tagName === "SELECT" || M.heads.length * M.layers.length < 2 || e.ctrlKey || e.altKey || e.metaKey) return;
  if (step[0] && M.layers.length < 2) return;
  e.preventDefault(); choose(layer + step[0], head + step[1]);
  if (step[0]) drawThumbnails();
});
addEventListener("resize", () => choose(layer, head));
dark.addEventListener("change", drawAll);
drawAll();
