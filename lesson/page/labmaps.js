// Every head of the lab's model on the prompt, one of them large, and one query of it as five rows of numbers.

const partOf = (layer, h, length) => {
  const {heads} = layer, of = array => { const each = array.length / heads; return array.subarray(h * each, (h + 1) * each); };
  return {q: of(layer.q), k: of(layer.k), v: of(layer.v), weights: of(layer.weights), scores: of(layer.scores), gradients: of(layer.gradients), dim: layer.q.length / heads / length};
};
const isHidden = (i, j) => lab.causal && j > i;
const headName = (l, h) => say("lab.head", {layer: l, head: h});

/// What is shown of a head: {cells, height, width}, the largest, and how it is coloured. What is hidden is 0.
function shownOf(cells, length) {
  const signed = lab.kind !== "weights", shown = [...cells].map((w, n) => isHidden(Math.floor(n / length), n % length) ? 0 : w);
  return {shown: {cells: shown, height: length, width: length}, isShare: !signed, of: signed ? difference : colour,
    top: signed ? Math.max(...shown.map(Math.abs).filter(Number.isFinite), 1e-30) : 1};
}
/// Of a map that is drawn: hidden cells are left to the hatched ground, the row of the query gets an outline.
function markMap(canvas, {left, top, width}, length) {
  const g = canvas.getContext("2d"), cell = width / length;
  if (lab.causal) for (let i = 0; i < length; ++i) g.clearRect(left + (i + 1) * cell, top + i * cell, width - (i + 1) * cell, cell);
  g.strokeStyle = css("--mark");
  g.lineWidth = 2;
  g.strokeRect(left + 1, top + lab.row * cell + 1, width - 2, Math.max(1, cell - 2));
}

function drawMaps() {
  const length = [...lab.prompt].length, {layers} = lab.now, key = `${layers.length} ${state.heads}`, box = el("labMaps");
  if (box.dataset.key !== key) {
    box.dataset.key = key;
    box.style.setProperty("--columns", state.heads);
    box.replaceChildren(...layers.flatMap((_, l) => Array.from({length: state.heads}, (_, h) => makeThumb(l, h))));
  }
  for (const one of box.children) {
    const [l, h] = one.dataset.head.split(":").map(Number), canvas = one.querySelector("canvas"), isIt = l === lab.head[0] && h === lab.head[1];
    const cut = lab.cut.has(one.dataset.head), size = Math.min(200, Math.floor((box.clientWidth || 330) / state.heads) - 22);
    const {shown, top, of} = shownOf(partOf(layers[l], h, length)[lab.kind], length), g = sized(canvas, size, size);
    g.imageSmoothingEnabled = false;
    g.drawImage(cellsImage(shown.cells, length, length, top, of), 0, 0, size, size);
    markMap(canvas, {left: 0, top: 0, width: size}, length);
    one.classList.toggle("cut", cut);
    Object.assign(one.querySelector("button"), {ariaPressed: isIt, ariaLabel: headName(l, h)});
    one.querySelector("input").checked = cut;
    one.querySelector("span").textContent = say("lab.cut", {layer: l, head: h});
  }
}
function makeThumb(l, h) {
  const one = make("div", {className: "labThumb"}), pair = `${l}:${h}`, look = one.appendChild(make("button")), tick = one.appendChild(make("label"));
  one.dataset.head = pair;
  look.append(make("canvas"));
  look.onclick = () => { lab.head = [l, h]; drawLab(); };
  const box = tick.appendChild(make("input", {type: "checkbox"}));
  tick.append(" ", make("span"));
  box.onchange = () => { box.checked ? lab.cut.add(pair) : lab.cut.delete(pair); drawLab(); };
  return one;
}

/// The chosen head, large, with the characters on its axes.
let labFrame = null;
function drawOneHead() {
  const [l, h] = lab.head, names = [...lab.prompt].map(c => label(c)), length = names.length, canvas = el("labMap");
  const part = partOf(lab.now.layers[l], h, length), {shown, top, of, isShare} = shownOf(part[lab.kind], length), name = n => names[n];
  const region = {q0: 0, q1: length, k0: 0, k1: length}, texts = {query: name, key: name, queryAnswer: null, keyAnswer: null};
  el("labHeadName").textContent = say("lab.one.head", {name: headName(l, h)});
  labFrame = drawCells(canvas, shown, region, top, of, texts, {room: el("labOneHead").clientWidth || 330, most: Math.min(380, 36 * length), isShare, names: null});
  Object.assign(canvas.style, {backgroundPosition: `${labFrame.left}px ${labFrame.top}px`, backgroundSize: `${labFrame.width}px ${labFrame.height}px`});
  markMap(canvas, labFrame, length);
  canvas.setAttribute("aria-label", say("lab.map.label", {name: headName(l, h), row: lab.row, token: names[lab.row]}));
  drawRows(part, names);
}
/// The pointed query, computed once more by the library: q.k, divided, hidden, softmax, times v.
function drawRows(part, names) {
  const {dim} = part, keys = names.length, i = lab.row, hidden = Uint8Array.from(names, (_, j) => isHidden(i, j) ? 1 : 0);
  const scale = lab.scale ? 1 / Math.sqrt(dim) : 1, ask = {heads: 1, queries: 1, keys, dim, vdim: dim, q: part.q.slice(i * dim, (i + 1) * dim), k: part.k.slice(), v: part.v.slice(), scale, causal: false};
  const all = lab.engine.attend(ask), masked = lab.engine.attend({...ask, hidden}), given = Array.from(masked.weights, (w, j) => w * Math.hypot(...part.v.subarray(j * dim, (j + 1) * dim)));
  const number = x => x === -Infinity ? "\u2212\u221e" : x.toFixed(Math.abs(x) < 10 ? 2 : 1).replace("-", "\u2212"), none = number(0);
  const rows = [["q · k", all.scores], [lab.scale ? `÷ √${dim}` : say("lab.row.unscaled"), all.scaled], [say("lab.row.mask"), masked.scaled], ["softmax", masked.weights], [say("lab.row.value"), given]];
  el("labRowName").textContent = say("lab.row.name", {row: i, token: names[i]});
  el("labRows").closest(".scroll").parentElement.style.flexBasis = 150 + 46 * keys + "px";  // beside the map where there is room, else below
  for (const id of ["labKeys", "labRows"]) el(id).replaceChildren();
  el("labKeys").insertRow().append(...[say("lab.row.key"), ...names].map(textContent => make("th", {textContent, scope: "col"})));
  for (const [name, row] of rows) addRow(el("labRows"), Array.from(row, (x, j) => hidden[j] && row === given ? none : number(x)), name);
  lab.rows = masked.weights;
}

function listenMap() {
  const canvas = el("labMap"), choose = row => { lab.query = Math.max(0, Math.min(labFrame.region.q1 - 1, row)); drawLab(); };
  const rowAt = e => Math.floor((e.offsetY - labFrame.top) / labFrame.height * labFrame.region.q1);
  canvas.addEventListener("pointermove", e => { if (e.pointerType === "mouse" && rowAt(e) !== lab.row && rowAt(e) >= 0 && rowAt(e) < labFrame.region.q1) choose(rowAt(e)); });
  canvas.addEventListener("click", e => choose(rowAt(e)));
  canvas.addEventListener("keydown", e => {
    const by = {ArrowUp: -1, ArrowDown: 1}[e.key];
    if (!by) return;
    e.preventDefault();
    choose(lab.row + by);
  });
}
