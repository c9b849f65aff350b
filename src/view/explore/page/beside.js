// A second view beside the first: the same layer and head of another text or model, and where sizes agree their difference. A panel draws a
// side of a view: {head, texts, view, layer, number: of the head, name, of: its colours}.
let besideHead = null;

/// The first view, the one beside it, and their difference where it is asked for and there is one.
function sidesOf(first) {
  if (!besideHead) return [first];
  const delta = state.diff ? differenceHead(first.head, besideHead.head) : null;
  return [first, besideHead, ...(delta ? [{...first, head: delta, name: "difference", of: difference}] : [])];
}
/// A panel with a part for each side; withDifference: also of what is no head of its own.
function eachSide(draw, withDifference = false) {
  return async (panel, sides) => {
    const shown = sides.filter(side => withDifference || side.of === colour), row = panel.appendChild(make("div", {className: shown.length > 1 ? "row halves" : ""}));
    await Promise.all(shown.map(side => {
      const part = row.appendChild(make("div"));
      if (shown.length > 1) part.append(make("h3", {textContent: side.name}));
      return draw(part, side, shown);
    }));
  };
}

async function drawBeside(region, turn) {
  const v = state.beside, shown = v >= 0;
  el("besideMap").hidden = !shown;
  el("diffMap").hidden = !shown || !state.diff;
  el("mapName").textContent = shown ? viewName(file.views[state.view], state.view) : "";
  if (!shown) return;
  const other = file.views[v], l = layerBeside(v), h = Math.min(state.head, other.layers[l].heads - 1), head = await openHead(v, l, h);
  if (turn !== rendering) return;
  const says = (...at) => `layer ${layerNumber(...at)}, ${headName(...at)}`, own = says(v, l, h);
  const name = viewName(other, v) + (own === says(state.view, state.layer, state.head) ? "" : ", " + own);
  el("besideName").textContent = head ? name : name + ": nothing in the file";
  el("map2").hidden = !head;
  if (!head) { el("diffMap").hidden = true; return; }
  await readLimits(v, l);
  if (turn !== rendering) return;
  besideHead = {head, texts: namesOf(v, l), view: v, layer: l, number: h, name, of: colour};
  const texts = besideHead.texts, mine = layerOf(state.view, state.layer), isSame = head.Tq === mine.q_len && head.Tk === mine.kv_len, there = isSame ? region : wholeRegion(head);
  const draw = cells => {
    if (turn !== rendering) return;
    geometry.beside = {shown: cells, region: there, texts, name, of: colour, isSame};
    drawCompared();
  };
  draw(cellsOf(v, l, h, head, there, draw));
}
/// Both maps on one scale of colours, and their difference.
function drawCompared() {
  const {shown, region, beside} = geometry;
  beside.top = isUnit() ? 1 : Math.max(largestOf(shown.cells), largestOf(beside.shown.cells)) || 1;
  if (beside.top !== geometry.top) drawMain(shown, region, beside.top);
  beside.main = drawCells(el("map2"), beside.shown, beside.region, beside.top, colour, beside.texts, roomOf());
  el("map2").setAttribute("aria-label", `map of ${beside.name}`);
  if (state.diff) drawDifference();
}
function drawDifference() {
  const {shown, region, texts, beside: {shown: cells, isSame, texts: other}} = geometry, isAlike = shown.blocks === cells.blocks;
  const fits = isSame && isAlike && shown.height === cells.height && shown.width === cells.width;
  const delta = fits ? shown.cells.map((w, n) => cells.cells[n] - w) : [], top = largestOf(delta.map(Math.abs)) || 1;
  const unlike = "no difference: one is shown by blocks, the other by weights or by other blocks";
  const wrong = !isSame ? "no difference: the lengths differ" : isAlike ? "difference: being computed" : unlike;
  el("diffName").textContent = fits ? `difference: orange where the second has more, at most ${amount(top)}` : wrong;
  el("map3").hidden = !fits;
  if (!fits) return;
  const both = side => n => texts[side](n) === other[side](n) ? texts[side](n) : `${texts[side](n)}/${other[side](n)}`;
  const names = {...texts, query: both("query"), key: both("key"), isNumbered: texts.isNumbered && other.isNumbered};
  geometry.difference = {shown: {...shown, cells: delta}, region, texts: names, name: "difference", of: difference, top};
  geometry.difference.main = drawCells(el("map3"), geometry.difference.shown, region, top, difference, names, roomOf());
  el("map3").setAttribute("aria-label", el("diffName").textContent);
}
