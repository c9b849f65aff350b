// Images: the patch grid of queries or keys; the class token, registers and other tokens apart from it.
const PATCH = 22;

function drawPicture(panel, {head, texts, view, layer: l, of}) {
  const keys = textOf(view, "keys"), queries = textOf(view, "queries"), layer = layerOf(view, l);
  if (!keys.image && !queries.image) return void panel.append(make("p", {className: "note", textContent: "Neither queries nor keys of this view are an image."}));
  const row = state.i >= 0 && state.i < head.Tq ? head.row(state.i) : null, lit = state.way === "from" && state.j >= 0 && state.j < head.Tk ? head.column(state.j) : null;
  if (queries.image) grid(panel, "queries: choose a patch", queries.image, layer.q_first || 0, head.Tq, texts.query, state.way === "from" ? lit : null, n => chooseToken({i: n}), state.i, of);
  if (keys.image) grid(panel, row ? `keys: what query ${state.i} looks at` : "keys", keys.image, layer.kv_first || 0, head.Tk, texts.key, row, n => chooseToken({j: n}), state.j, of);
}
/// `first`: the text's position of the layer's position 0.
function grid(panel, title, image, first, count, name, values, choose, chosen, of) {
  const {start, height, width} = image, inside = n => n + first >= start && n + first < start + height * width;
  const top = values ? (state.range === "unit" ? 1 : largestOf(values.map(Math.abs))) : 1;
  panel.append(make("h3", {textContent: title}));
  const apart = panel.appendChild(make("div", {className: "tokens"}));
  let mass = 0;
  for (let n = 0; n < count; ++n) {
    if (inside(n)) { if (values) mass += values[n]; continue; }
    const s = apart.appendChild(make("span", {textContent: visible(name(n), 40) + (values ? "  " + percent(values[n]) : ""), onclick: () => choose(n)}));
    if (values) { const c = of(values[n], top); s.style.background = rgb(c); s.style.color = inkOn(c); }
    if (n === chosen) s.classList.add("from");
  }
  const canvas = panel.appendChild(make("canvas", {className: "patches"})), g = sized(canvas, width * PATCH, height * PATCH);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${title}, ${height} by ${width} patches`);
  for (let r = 0; r < height; ++r) for (let c = 0; c < width; ++c) {
    const n = start + r * width + c - first;
    g.fillStyle = values && n >= 0 && n < count ? rgb(of(values[n], top)) : css("--soft");
    g.fillRect(c * PATCH, r * PATCH, PATCH - 1, PATCH - 1);
    if (n === chosen) { g.strokeStyle = css("--mark"); g.lineWidth = 2; g.strokeRect(c * PATCH + 1, r * PATCH + 1, PATCH - 3, PATCH - 3); }
  }
  canvas.onclick = e => {
    const n = start + Math.floor(e.offsetY / PATCH) * width + Math.floor(e.offsetX / PATCH) - first;
    if (n >= 0 && n < count) choose(n);
  };
  if (values) panel.append(make("p", {className: "note", textContent: `${percent(mass)} on patches.`}));
}
