// All heads: thumbnails by layer, or sorted by a number; shown by kind.
const ORDER = {share: -1, first: -1, entropy: 1, previous: -1, self: -1, largest: -1, distance: 1, sink: -1};

/// [{layer, head}] in the order and choice of the state; pure.
function chosenHeads(view, sort, kinds) {
  const all = view.layers.flatMap((l, layer) => Array.from({length: l.heads}, (_, head) => ({layer, head, info: (l.head_info || [])[head] || {}})));
  const shown = kinds.length ? all.filter(x => kinds.includes(x.info.kind)) : all;
  if (sort === "layer") return shown;
  const key = x => Number.isFinite(x.info[sort]) ? x.info[sort] : null, sign = ORDER[sort] || -1;
  return shown.sort((a, b) => (key(a) === null) - (key(b) === null) || sign * (key(a) - key(b)) || a.layer - b.layer || a.head - b.head);
}
function numbersOf(view) {
  const names = new Set();
  for (const l of view.layers) for (const info of l.head_info || []) for (const [n, x] of Object.entries(info)) if (typeof x === "number") names.add(n);
  return [...names];
}
const kindOf = info => info.kind ? info.kind + (Number.isFinite(info.share) ? " " + percent(info.share).replace(" ", "\u00a0") : "") : "";
/// The model's own numbers, where a file holds some layers or heads.
const layerNumber = (v, l) => layerOf(v, l).number ?? l, headNumber = (v, l, h) => (layerOf(v, l).head_numbers || [])[h] ?? h;
const headName = (v, l, h) => { const names = layerOf(v, l).head_names; return names ? visible(names[h], 40) : `head ${headNumber(v, l, h)}`; };
function nameOf(v, l, h) {
  const layer = layerOf(v, l);
  return `layer ${layerNumber(v, l)}, ${headName(v, l, h)}` + (layer.name && file.views[v].layers.length > 1 ? "" : layer.name ? ` of ${visible(layer.name, 40)}` : "");
}

let drawing = 0;
async function drawOverview() {
  const turn = ++drawing, view = file.views[state.view], box = el("heads"), buttons = [];
  const numbers = numbersOf(view), sort = numbers.includes(state.sort) ? state.sort : "layer";
  fillSelect("sort", [["layer", "layer, head"], ...numbers.map(n => [n, n === "first" ? "mass on the first keys" : n])], sort);
  const counts = new Map(KINDS.map(kind => [kind, 0]));
  for (const l of view.layers) for (const info of l.head_info || []) if (info.kind) counts.set(info.kind, counts.get(info.kind) + 1);
  el("kinds").replaceChildren(...KINDS.filter(kind => counts.get(kind)).map(kind => {
    const b = make("button", {textContent: `${kind} ${counts.get(kind)}`});
    b.setAttribute("aria-pressed", state.kinds.includes(kind));
    b.onclick = () => change({kinds: state.kinds.includes(kind) ? state.kinds.filter(x => x !== kind) : [...state.kinds, kind]});
    return b;
  }));
  if (!el("kinds").firstChild) el("kinds").append(make("span", {className: "note", textContent: "this file names no kinds of heads"}));
  const list = chosenHeads(view, sort, state.kinds), byLayer = sort === "layer";
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
    const b = row.appendChild(make("button", {className: "thumb"})), c = b.appendChild(make("canvas", {width: 56, height: 62}));
    const number = !byLayer && Number.isFinite(info[sort]) ? short(info[sort]) : kindOf(info);
    b.append(make("span", {textContent: (byLayer ? "" : layerNumber(state.view, layer) + ".") + headNumber(state.view, layer, head)}), make("small", {textContent: number}));
    b.dataset.layer = layer;
    b.dataset.head = head;
    b.title = nameOf(state.view, layer, head);
    b.setAttribute("aria-label", b.title + (info.kind ? ", " + kindOf(info) : ""));
    b.onclick = () => change({layer, head});
    buttons.push([b, c, layer, head]);
  }
  if (!list.length) box.append(make("p", {className: "note", textContent: "no head is of these kinds"}));
  markThumb();
  for (const [, canvas, layer, head] of buttons) {
    if (turn !== drawing) return;
    await drawThumb(canvas, state.view, layer, head);
  }
}
async function drawThumb(canvas, v, l, h) {
  const at = `${v}/${l}/map`, g = canvas.getContext("2d");
  let cells = null, R = 0, C = 0;
  if (has(at)) {
    const map = await load(at);
    [, R, C] = map.sizes;
    cells = map.data.subarray(h * R * C, (h + 1) * R * C);
  } else if (layerOf(v, l).q_len <= 512 && layerOf(v, l).kv_len <= 512) {
    const head = await openHead(v, l, h);
    if (head) [cells, R, C] = [head.tile(0, 0, head.Tq, head.Tk), head.Tq, head.Tk];
  }
  if (!cells?.length) { g.fillStyle = "#8888"; g.fillText("no map", 8, 30); return; }
  const picture = cellsImage(cells, R, C, Math.min(1, largestOf(cells)));
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
    b.tabIndex = isIt ? 0 : -1;
  }
  if (!document.querySelector(".thumb[tabindex='0']")) document.querySelector(".thumb")?.setAttribute("tabindex", "0");
}
/// Scrolls the heads, not the page.
function reveal(thumb) {
  const all = el("overview"), here = thumb.getBoundingClientRect(), box = all.getBoundingClientRect();
  if (here.top < box.top || here.bottom > box.bottom) all.scrollTop += (here.top + here.bottom - box.top - box.bottom) / 2;
}
/// Arrow keys walk over thumbnails as they lie on the screen.
function walkThumbs(event) {
  const all = [...document.querySelectorAll(".thumb")], at = all.indexOf(document.activeElement);
  if (at < 0) return false;
  const here = all[at].getBoundingClientRect(), step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
  let next = step ? all[at + step] : null;
  if (!step) {
    const down = event.key === "ArrowDown", far = all.filter(b => down ? b.getBoundingClientRect().top > here.top + 5 : b.getBoundingClientRect().top < here.top - 5);
    const cost = b => Math.abs(b.getBoundingClientRect().top - here.top) * 1e4 + Math.abs(b.getBoundingClientRect().left - here.left);
    next = far.sort((a, b) => cost(a) - cost(b))[0];
  }
  if (next) { next.focus(); next.click(); }
  return true;
}
