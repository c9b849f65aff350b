// Every head of the lab's model on the prompt, one of them large, and one query of it as five rows of numbers.

const partOf = (layer, h, length) => {
  const {heads} = layer, of = array => { const each = array.length / heads; return array.subarray(h * each, (h + 1) * each); };
  return {q: of(layer.q), k: of(layer.k), v: of(layer.v), weights: of(layer.weights), scores: of(layer.scores), gradients: of(layer.gradients), dim: layer.q.length / heads / length};
};
const isHidden = (i, j) => lab.causal && j > i;
const headName = (l, h) => say("lab.head", {layer: l, head: h});

/// Cells of one head on a canvas: hidden ones left to the hatched ground, the row of the query outlined.
function drawMap(canvas, cells, length, cell, left = 0, top = 0) {
  const signed = lab.kind !== "weights", shown = [...cells].map((w, n) => isHidden(Math.floor(n / length), n % length) ? 0 : w);
  const most = signed ? Math.max(...shown.map(Math.abs).filter(Number.isFinite), 1e-30) : 1;
  const size = cell * length, g = canvas.getContext("2d");
  g.imageSmoothingEnabled = false;
  g.drawImage(cellsImage(shown, length, length, most, signed ? difference : colour), left, top, size, size);
  if (lab.causal) for (let i = 0; i < length; ++i) g.clearRect(left + (i + 1) * cell, top + i * cell, size, cell);
  g.strokeStyle = css("--mark");
  g.lineWidth = 2;
  g.strokeRect(left + 1, top + lab.row * cell + 1, size - 2, Math.max(1, cell - 2));
  return {shown, most, signed};
}
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function sizeCanvas(canvas, width, height) {
  const r = devicePixelRatio || 1;
  Object.assign(canvas, {width: Math.round(width * r), height: Math.round(height * r)});
  Object.assign(canvas.style, {width: width + "px", height: height + "px"});
  canvas.getContext("2d").scale(r, r);
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
    sizeCanvas(canvas, size, size);
    drawMap(canvas, partOf(layers[l], h, length)[lab.kind], length, size / length);
    one.classList.toggle("cut", cut);
    one.querySelector("button").setAttribute("aria-pressed", isIt);
    one.querySelector("button").setAttribute("aria-label", headName(l, h));
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
  const part = partOf(lab.now.layers[l], h, length), room = Math.min(380, (el("labOneHead").clientWidth || 330) - 8), cell = Math.min(36, Math.floor((room - 26) / length));
  el("labHeadName").textContent = say("lab.one.head", {name: headName(l, h)});
  labFrame = {left: 24, top: 24, cell, length};
  sizeCanvas(canvas, 26 + cell * length, 26 + cell * length);
  const {shown, most, signed} = drawMap(canvas, part[lab.kind], length, cell, 24, 24), g = canvas.getContext("2d");
  g.font = "13px ui-monospace, monospace";
  g.textAlign = "center";
  g.textBaseline = "middle";
  names.forEach((name, n) => {
    g.fillStyle = css(n === lab.row ? "--mark" : "--faint");
    g.fillText(name, 12, 24 + (n + .5) * cell);
    g.fillStyle = css("--faint");
    g.fillText(name, 24 + (n + .5) * cell, 12);
  });
  g.font = "10px system-ui, sans-serif";
  if (cell >= 26) shown.forEach((w, n) => {
    const i = Math.floor(n / length), j = n % length;
    if (isHidden(i, j) || w === 0) return;
    g.fillStyle = inkOn((signed ? difference : colour)(w, most));
    g.fillText(signed ? w.toPrecision(2).slice(0, 5) : Math.round(100 * w), 24 + (j + .5) * cell, 24 + (i + .5) * cell);
  });
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
  const cells = row => row.map(textContent => make("td", {textContent}));
  const line = (first, rest) => {
    const tr = make("tr");
    tr.append(make("th", {textContent: first, scope: "row"}), ...rest);
    return tr;
  };
  el("labRows").closest(".scroll").parentElement.style.flexBasis = 150 + 46 * keys + "px";  // beside the map where there is room, else below
  el("labKeys").replaceChildren(line(say("lab.row.key"), names.map(textContent => make("th", {textContent, scope: "col"}))));
  el("labRows").replaceChildren(...rows.map(([name, row]) => line(name, cells(Array.from(row, (x, j) => hidden[j] && row === given ? none : number(x))))));
  lab.rows = masked.weights;
}

function listenMap() {
  const canvas = el("labMap"), choose = row => { lab.query = Math.max(0, Math.min(labFrame.length - 1, row)); drawLab(); };
  const rowAt = e => Math.floor((e.offsetY - labFrame.top) / labFrame.cell);
  canvas.addEventListener("pointermove", e => { if (e.pointerType === "mouse" && rowAt(e) !== lab.row && rowAt(e) >= 0 && rowAt(e) < labFrame.length) choose(rowAt(e)); });
  canvas.addEventListener("click", e => choose(rowAt(e)));
  canvas.addEventListener("keydown", e => {
    const by = {ArrowUp: -1, ArrowDown: 1}[e.key];
    if (!by) return;
    e.preventDefault();
    choose(lab.row + by);
  });
}
