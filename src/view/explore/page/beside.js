// A second view beside the first: the same layer and head of another text or model, and where sizes agree their difference.
let besideHead = null;
async function drawBeside(region, turn) {
  const v = state.beside, shown = v >= 0;
  el("besideMap").hidden = !shown;
  el("diffMap").hidden = !shown || !state.diff;
  el("mapName").textContent = shown ? viewName(file.views[state.view], state.view) : "";
  if (!shown) return;
  const other = file.views[v], l = Math.min(state.layer, other.layers.length - 1), h = Math.min(state.head, other.layers[l].heads - 1), head = await openHead(v, l, h);
  if (turn !== rendering) return;
  el("besideName").textContent = `${viewName(other, v)}, layer ${l}, head ${h}`;
  if (!head) { el("besideName").textContent += ": nothing in the file"; return; }
  besideHead = {head, texts: namesOf(v, l)};
  const mine = layerOf(state.view, state.layer), isSame = head.Tq === mine.q_len && head.Tk === mine.kv_len, there = isSame ? region : wholeRegion(head);
  const draw = cells => {
    if (turn !== rendering) return;
    const top = state.range === "unit" ? 1 : Math.max(largestOf(cells.cells), geometry.top) || 1;
    drawCells(el("map2"), cells, there, top, colour, namesOf(v, l));
    el("map2").setAttribute("aria-label", `map of ${el("besideName").textContent}`);
    if (state.diff) drawDifference(isSame, cells, region);
  };
  draw(cellsOf(v, l, h, head, there, draw));
}
function drawDifference(isSame, cells, region) {
  const {shown} = geometry, fits = isSame && shown.height === cells.height && shown.width === cells.width;
  el("diffName").textContent = fits ? "difference: orange where the second has more" : isSame ? "difference: the two are stored at different sizes, zoom in" : "no difference: the lengths differ";
  el("map3").hidden = !fits;
  if (!fits) return;
  const delta = shown.cells.map((w, n) => cells.cells[n] - w), top = largestOf(delta.map(Math.abs)) || 1;
  el("diffName").textContent += `, at most ${percent(top)}`;
  drawCells(el("map3"), {cells: delta, height: shown.height, width: shown.width}, region, top, difference, namesOf(state.view, state.layer));
  el("map3").setAttribute("aria-label", el("diffName").textContent);
}
