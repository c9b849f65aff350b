// All heads: thumbnails by layer, or sorted by a number or by a pattern: one token's weight on another, maps like one; shown by kind.
const ORDER = {entropy: 1, distance: 1};
const isShortLayer = l => l.q_len * l.kv_len <= 2 ** 18;  // weights of a head that are read to answer; of more its picture's blocks
/// Numbers of heads in words.
const WORDS = {first: "mass on the first keys", writes: "norm of what it writes", "next token": "push on the next token", copies: "copies what it attends to",
  "cut loss": "loss without it", "cut tokens": "tokens that change without it", "cut output": "output without it",
  "random previous": "previous token, random text", "random duplicate": "same token, random text", "random induction": "induction, random text", successor: "next word of an order"};

/// [{layer, head}] in the order and choice of the state; values: a number by "layer/head" in place of the file's; pure.
function chosenHeads(view, sort, kinds, values = null) {
  const all = view.layers.flatMap((l, layer) => Array.from({length: l.heads}, (_, head) => ({layer, head, info: (l.head_info || [])[head] || {}})));
  const shown = kinds.length ? all.filter(x => kinds.includes(x.info.kind)) : all;
  if (sort === "layer") return shown;
  const number = x => values ? values.get(`${x.layer}/${x.head}`) : x.info[sort], key = x => Number.isFinite(number(x)) ? number(x) : null, sign = ORDER[sort] || -1;
  return shown.sort((a, b) => (key(a) === null) - (key(b) === null) || sign * (key(a) - key(b)) || a.layer - b.layer || a.head - b.head);
}
const infosOf = view => view.layers.flatMap(l => l.head_info || []);
const numbersOf = view => [...new Set(infosOf(view).flatMap(info => Object.keys(info).filter(name => typeof info[name] === "number")))];
const named = (kind, share) => kind + (Number.isFinite(share) ? " " + percent(share).replace(" ", "\u00a0") : "");
/// [kind, share]: of a mixed head the kind that comes nearest; `but`: kinds that do not count.
const nearestKind = (info, ...but) => Object.entries(info).map(([name, x]) => [name.replace(/ share$/, ""), x])
  .filter(([kind, x]) => kind + " share" in info && !but.includes(kind) && Number.isFinite(x)).sort(([, a], [, b]) => b - a)[0];
/// The kind with its share.
function kindOf(info) {
  const nearest = info.kind === "mixed" && nearestKind(info, "diffuse");
  return nearest ? `mixed, ${named(...nearest)}` : info.kind ? named(info.kind, info.share) : "";
}
/// How alike two maps are: the cosine between their cells; pure.
const dot = (a, b) => a.reduce((sum, x, n) => sum + x * b[n], 0), cosine = (a, b) => dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
/// What heads are sorted by where it is computed here: the weight of one query on one key, or how much a map is like that of one head.
async function patternOf(sort, [a, b]) {
  const values = new Map(), v = state.view, {layers} = file.views[v];
  const like = sort === "alike" ? await thumbCells(v, a, b) : null;
  for (const [l, layer] of layers.entries()) for (let h = 0; h < layer.heads; ++h) {
    if (like) {
      const other = await thumbCells(v, l, h);
      if (other?.R === like.R && other.C === like.C) values.set(`${l}/${h}`, cosine(like.cells, other.cells));
    } else if (sort === "pair" && a < layer.q_len && b < layer.kv_len) {
      const head = isShortLayer(layer) ? await openHead(v, l, h, "weight") : await thumbCells(v, l, h);
      const cell = x => Math.floor(a * x.R / layer.q_len) * x.C + Math.floor(b * x.C / layer.kv_len);
      if (head) values.set(`${l}/${h}`, isShortLayer(layer) ? head.weight(a, b) : head.cells[cell(head)]);
    }
  }
  return values;
}
const PATTERNS = {
  alike: ([l, h]) => `maps like layer ${layerNumber(state.view, l)}, head ${headNumber(state.view, l, h)} (cosine)`,
  pair: ([i, j]) => {
    const texts = namesOf(state.view, state.layer), what = isShortLayer(layerOf(state.view, state.layer)) ? "weight" : "share of the block";
    return `${what} of ${label(texts.query(i), 12)} (${i}) on ${label(texts.key(j), 12)} (${j})`;
  },
};
/// Whether the state asks for a pattern that this view has.
function patternHolds(view) {
  const [a, b] = state.anchor, l = layerOf(state.view, state.layer);
  return state.sort === "alike" ? b < view.layers[a]?.heads : state.sort === "pair" && a < l.q_len && b < l.kv_len;
}
/// Sorts by the chosen pair; of a query alone, by its largest key.
async function sortByPair() {
  const head = await openHead(state.view, state.layer, state.head, "weight");
  if (head && state.i >= 0) change({sort: "pair", anchor: [state.i, state.j >= 0 ? state.j : largest(head.row(state.i), 1)[0] ?? 0]});
}
/// The model's own numbers, where a file holds some layers or heads.
const layerNumber = (v, l) => layerOf(v, l).number ?? l, headNumber = (v, l, h) => (layerOf(v, l).head_numbers || [])[h] ?? h;
const ownNumbers = (v, l, h) => [layerNumber(v, l), headNumber(v, l, h)];
/// [view, layer, head] of the head with these own numbers: in view v, else in the first that has it, else null.
function headAt(v, number, own) {
  for (const w of [v, ...file.views.keys()]) {
    const layer = file.views[w].layers.findIndex((l, n) => (l.number ?? n) === number), {heads = 0, head_numbers: names} = file.views[w].layers[layer] || {};
    const head = names ? names.indexOf(own) : own < heads ? own : -1;
    if (head >= 0) return [w, layer, head];
  }
  return null;
}
const headName = (v, l, h) => { const names = layerOf(v, l).head_names; return names ? visible(names[h], 40) : `head ${headNumber(v, l, h)}`; };
function nameOf(v, l, h) {
  const layer = layerOf(v, l);
  return `layer ${layerNumber(v, l)}, ${headName(v, l, h)}` + (layer.name && file.views[v].layers.length > 1 ? "" : layer.name ? ` of ${visible(layer.name, 40)}` : "");
}

let drawing = 0;
async function drawOverview() {
  const turn = ++drawing, view = file.views[state.view], box = el("heads"), isPattern = patternHolds(view), numbers = numbersOf(view);
  const sort = numbers.includes(state.sort) || isPattern ? state.sort : "layer";
  fillSelect(el("sort"), [["layer", "layer, head"], ...numbers.map(n => [n, WORDS[n] || n]), ...(isPattern ? [[sort, PATTERNS[sort](state.anchor)]] : [])], sort);
  const values = isPattern ? await patternOf(sort, state.anchor) : null;
  if (turn !== drawing) return;
  const all = infosOf(view).map(info => info.kind);
  renew(el("kinds"), ...KINDS.filter(kind => all.includes(kind) || state.kinds.includes(kind)).map(kind => {
    const onclick = () => change({kinds: state.kinds.includes(kind) ? state.kinds.filter(x => x !== kind) : [...state.kinds, kind]});
    return make("button", {textContent: `${kind} ${all.filter(x => x === kind).length}`, ariaPressed: state.kinds.includes(kind), onclick});
  }));
  if (!el("kinds").firstChild) el("kinds").append(make("span", {className: "note", textContent: "this file names no kinds of heads"}));
  const list = chosenHeads(view, sort, state.kinds, values), byLayer = sort === "layer";
  box.replaceChildren();
  box.classList.toggle("many", view.layers.some(l => l.heads > 8));
  let row = null, last = -1;
  for (const {layer, head, info} of list) {
    if (!row || byLayer && layer !== last) {
      const own = view.layers[layer].name;
      if (byLayer && view.layers.length > 1) box.append(make("h3", {textContent: visible(`layer ${layerNumber(state.view, layer)}` + (own ? " \u00b7 " + own : ""), 40)}));
      row = box.appendChild(make("div", {className: "thumbs"}));
      last = layer;
    }
    const title = nameOf(state.view, layer, head), ariaLabel = title + (info.kind ? ", " + kindOf(info) : "");
    const b = row.appendChild(make("button", {className: "thumb", title, ariaLabel}));
    const value = values ? values.get(`${layer}/${head}`) : info[sort], number = !byLayer && Number.isFinite(value) ? sort === "pair" ? percent(value) : short(value) : kindOf(info);
    const textContent = (byLayer ? "" : layerNumber(state.view, layer) + ".") + headNumber(state.view, layer, head);
    b.append(make("canvas", {width: 56, height: 62}), make("span", {textContent}), make("small", {textContent: number}));
    Object.assign(b.dataset, {layer, head});
    b.onclick = () => {
      change({layer, head});
      if (narrow.matches) el("name").scrollIntoView();
    };
  }
  if (!list.length) box.append(make("p", {className: "note", textContent: "no head is of these kinds"}));
  markThumb();
  for (const b of box.querySelectorAll(".thumb")) {
    if (turn !== drawing) return;
    await drawThumb(b.firstChild, state.view, Number(b.dataset.layer), Number(b.dataset.head));
  }
}
async function drawThumb(canvas, v, l, h) {
  const g = canvas.getContext("2d"), {cells, R, C} = await thumbCells(v, l, h) || {};
  if (!cells?.length) { g.fillStyle = "#8888"; g.fillText("no map", 8, 30); return; }
  await readLimits(v, l);
  const {q_len, kv_len} = layerOf(v, l), masked = cropMap(blockHead(cells, R, C, q_len, kv_len), {q0: 0, q1: q_len, k0: 0, k1: kv_len}, R, C, limitsOf(v, l));
  const picture = cellsImage(masked, R, C, Math.min(1, largestOf(cells)));
  g.imageSmoothingEnabled = R > 56 || C > 56;
  g.drawImage(picture, 0, 0, 56, 56);
  if (!has(`${v}/${l}/mass`)) return;
  const mass = await load(`${v}/${l}/mass`), n = mass.sizes[1], line = mass.data.subarray(h * n, (h + 1) * n);
  g.imageSmoothingEnabled = n > 56;
  g.drawImage(cellsImage(line, 1, n, largestOf(line)), 0, 57, 56, 5);
}
function markThumb() {
  for (const b of document.querySelectorAll(".thumb")) {
    const isIt = Number(b.dataset.layer) === state.layer && Number(b.dataset.head) === state.head;
    if (isIt) b.setAttribute("aria-current", "true"); else b.removeAttribute("aria-current");
    if (isIt) reveal(b);
    if (isIt && document.activeElement.className === "thumb") b.focus();
    b.tabIndex = isIt ? 0 : -1;
  }
  if (!document.querySelector(".thumb[tabindex='0']")) document.querySelector(".thumb")?.setAttribute("tabindex", "0");
}
/// Scrolls the heads, not the page.
function reveal(thumb) {
  const all = el("overview"), here = thumb.getBoundingClientRect(), box = all.getBoundingClientRect();
  if (here.top < box.top || here.bottom > box.bottom) all.scrollTop += (here.top + here.bottom - box.top - box.bottom) / 2;
}
