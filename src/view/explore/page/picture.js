// Images: the patch grid of queries or keys; the class token, registers and other tokens apart from it.
const PATCH = 22;

function drawPicture(panel, {head, texts, view, layer: l, of}, sides) {
  const keys = textOf(view, "keys"), queries = textOf(view, "queries"), layer = layerOf(view, l), isFrom = state.way === "from" && queries.image;
  if (!keys.image && !queries.image) return void panel.append(make("p", {className: "note", textContent: "Neither queries nor keys of this view are an image."}));
  const isByBlocks = head.kind === "map", rowOf = x => state.i >= 0 && state.i < x.Tq ? x.row(state.i) : null, columnOf = x => isFrom && state.j >= 0 && state.j < x.Tk ? x.column(state.j) : null;
  // One scale for what is compared.
  const topOf = values => isUnit() ? 1 : Math.max(1e-30, ...sides.filter(x => x.of === of).map(x => values(x.head)).map(all => all ? largestOf(all.map(Math.abs)) : 0));
  if (queries.image) {
    grid(panel, "queries: choose a patch", queries.image, layer.q_first || 0, head.Tq, texts.query, columnOf(head), topOf(columnOf), n => chooseToken({i: n}, holdCell), state.i, of, isByBlocks);
  }
  if (keys.image) {
    const title = rowOf(head) ? `keys: what query ${state.i} attends to` : "keys";
    grid(panel, title, keys.image, layer.kv_first || 0, head.Tk, texts.key, rowOf(head), topOf(rowOf), n => chooseToken({j: n}, holdCell), state.j, of, isByBlocks);
  }
}
/// `first`: the text's position of the layer's position 0.
function grid(panel, title, image, first, count, name, values, top, choose, chosen, of, isByBlocks) {
  const {start, height, width} = image, inside = n => n + first >= start && n + first < start + height * width;
  panel.append(make("h3", {textContent: title}));
  const apart = panel.appendChild(make("div", {className: "tokens"}));
  let mass = 0;
  for (let n = 0; n < count; ++n) {
    if (inside(n)) { if (values) mass += values[n]; continue; }
    const s = apart.appendChild(make("span", {textContent: visible(name(n), 40) + (values ? "  " + amount(values[n]) : ""), onclick: () => choose(n)}));
    if (values) { const c = of(values[n], top); s.style.background = rgb(c); s.style.color = inkOn(c); }
    if (n === chosen) s.classList.add("from");
  }
  const canvas = panel.appendChild(make("canvas", {className: "patches"})), g = sized(canvas, width * PATCH, height * PATCH);
  canvas.style.height = "auto";  // a narrow page shrinks it, and patches stay square
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${title}, ${height} by ${width} patches`);
  for (let r = 0; r < height; ++r) for (let c = 0; c < width; ++c) {
    const n = start + r * width + c - first;
    g.fillStyle = values && n >= 0 && n < count ? rgb(of(values[n], top)) : css("--soft");
    g.fillRect(c * PATCH, r * PATCH, PATCH - 1, PATCH - 1);
    if (n === chosen) { g.strokeStyle = css("--mark"); g.lineWidth = 2; g.strokeRect(c * PATCH + 1, r * PATCH + 1, PATCH - 3, PATCH - 3); }
  }
  canvas.onclick = e => {
    const patch = canvas.clientWidth / width, [r, c] = [e.offsetY, e.offsetX].map(x => Math.floor(x / patch)), n = start + r * width + c - first;
    if (r >= 0 && r < height && c >= 0 && c < width && n >= 0 && n < count) choose(n);
  };
  if (values && !isByBlocks) panel.append(make("p", {className: "note", textContent: `${amount(mass)} on patches.`}));  // a block's share stands at each of its keys
}
