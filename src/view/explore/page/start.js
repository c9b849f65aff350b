// Puts the page together: the state, what is drawn when it changes, and what changes it. Runs when every function is there.
let file = null, state = null, rendering = 0;
const PANELS = {text: drawText, lines: eachSide(drawLines, true), why: eachSide(drawWhy), does: eachSide(drawDoes), picture: eachSide(drawPicture, true)};

function fail(error) {
  el("wrong").hidden = false;
  el("wrong").textContent = "This page cannot show its file: " + error.message;
}

/// Changes the state and draws what follows from it; how: "light" leaves the map's cells as they are.
function change(to, how) {
  const before = state;
  state = {...state, ...to};
  state.layer = Math.min(state.layer, file.views[state.view].layers.length - 1);
  const l = layerOf(state.view, state.layer);
  Object.assign(state, {head: Math.min(state.head, l.heads - 1), i: Math.min(state.i, l.q_len - 1), j: Math.min(state.j, l.kv_len - 1)});
  const was = layerOf(before.view, before.layer), isOther = state.view !== before.view || l.q_len !== was.q_len || l.kv_len !== was.kv_len;
  if (isOther) Object.assign(state, {region: null, pins: state.pins.filter(n => n < l.q_len)});
  clearTimeout(change.later);
  change.later = setTimeout(remember, 120);  // browsers limit how often
  if (state.view !== before.view || state.sort !== before.sort || state.kinds !== before.kinds || state.anchor !== before.anchor || state.theme !== before.theme) drawOverview().catch(fail);
  follow(how === "light" ? drawLight() : render());
}

/// The body is marked as ready when all that follows from the state is drawn: tests wait for it.
let pending = 0;
function follow(drawn) {
  ++pending;
  document.body.removeAttribute("data-ready");
  drawn.catch(fail).finally(() => { if (--pending === 0) document.body.dataset.ready = ""; });
}

/// Puts the state into the address; a page inside another one (a notebook) has none of its own.
function remember() { try { history.replaceState(null, "", "#" + formatLink(state, file)); } catch { /* as if nobody wanted a link */ } }

async function render() {
  besideHead = null;
  ++refining;  // the map before computes no more: its tiles would be kept under what the state says now
  el("wrong").hidden = true;
  const turn = ++rendering, {view, layer, head: h} = state, head = await openSoon(view, layer, h);
  if (turn !== rendering) return;
  const isReady = ready.has(keyOf(view, layer, h));
  await readLimits(view, layer);
  if (turn !== rendering) return;
  document.documentElement.dataset.theme = state.theme;
  markThumb();
  drawControls();
  const isEmpty = !head || !head.Tq || !head.Tk;
  el("stage").hidden = isEmpty;
  for (const b of el("save").children) b.disabled = isEmpty;
  if (isEmpty) {
    geometry = null;
    el("name").textContent = nameOf(view, layer, h);
    el("facts").textContent = head ? (head.Tq ? "no keys" : "no queries") : "the file holds nothing of this head";
    drawAbout();
    el("pins").replaceChildren();
    return el("panel").replaceChildren();
  }
  drawFacts(head);
  const region = fitRegion(regionOf(head), head.Tq, head.Tk), texts = namesOf(view, layer);
  if (geometry) geometry.beside = geometry.difference = null;
  const show = shown => {
    if (turn !== rendering) return;
    drawMain(shown, region, isUnit() ? 1 : largestOf(shown.cells) || 1);
    if (geometry.beside) drawCompared();
  };
  show(cellsOf(view, layer, h, head, region, show));
  await drawBeside(region, turn);
  if (turn !== rendering) return;
  drawAbout();
  drawSelection(head, texts);
  await drawRows(turn);
  if (isReady) return;
  await new Promise(requestAnimationFrame);
  await openHead(view, layer, h);
  if (turn === rendering) await render();
}
/// The map of the first view, whose largest weight shown gets the colour of `top`.
function drawMain(shown, region, top) {
  const {view, layer, head: h} = state, texts = namesOf(view, layer);
  geometry = {...geometry, at: keyOf(view, layer, h), main: drawCells(el("map"), shown, region, top, colour, texts, roomOf()), shown, region, texts, of: colour, top};
  el("resolution").textContent = shown.what + (geometry.main.hasNumbers && !isNorm() ? "; numbers in percent." : ".");
  el("map").setAttribute("aria-label", `map of ${nameOf(view, layer, h)}: queries ${region.q0} to ${region.q1 - 1}, keys ${region.k0} to ${region.k1 - 1}; ${shown.what}`);
  drawScale(top);
  drawMarks(el("map"), geometry.main);
  if (!performance.getEntriesByName("map").length) performance.mark("map");  // when there was something to see
}
async function drawLight() {
  const turn = rendering, head = await openHead(state.view, state.layer, state.head);
  if (turn !== rendering || !isShown() || !head) return;
  drawMain(geometry.shown, geometry.region, geometry.top);
  drawSelection(head, namesOf(state.view, state.layer));
}
function drawSelection(head, texts) {
  drawPair(head, texts);
  drawPins(head, texts);
  drawPanel(head, texts);
}
let shownPanel = null;
function drawPanel(head, texts) {
  if (head) shownPanel = {head, texts, view: state.view, layer: state.layer, number: state.head, name: viewName(file.views[state.view], state.view), of: colour};
  const panel = el("panel");
  if (state.tab !== "text") panel.replaceChildren();
  panel.setAttribute("aria-labelledby", "tab-" + state.tab);
  panel.dataset.turn = Number(panel.dataset.turn || 0) + 1;
  if (shownPanel.head.waits && state.tab !== "text") return void panel.append(make("p", {className: "note", textContent: "q and k are being read."}));
  const drawn = PANELS[state.tab](panel, sidesOf(shownPanel));
  if (drawn) drawn.catch(fail);
}

function drawControls() {
  const {views} = file;
  el("viewBox").hidden = el("besideBox").hidden = views.length < 2;
  fillSelect(el("view"), views.map((v, n) => [n, viewName(v, n)]), state.view);
  fillSelect(el("beside"), [[-1, "nothing"], ...views.map((v, n) => [n, viewName(v, n)])], state.beside);
  el("diffBox").hidden = state.beside < 0;
  for (const id of ["paint", "range", "spacing", "theme"]) el(id).value = state[id];
  el("paint").hidden = !hasNorms();
  el("map").classList.toggle("zoomed", state.region !== null);
  el("legend").textContent = legend();
  el("saveSvg").textContent = `SVG of the ${{lines: "lines", why: "products"}[state.tab] || "map"}`;
  if (file.live) drawLive();
  el("diff").checked = state.diff;
  el(state.way).checked = true;
  for (const b of document.querySelectorAll("#tabs button")) {
    const isIt = b.id === "tab-" + state.tab;
    b.ariaSelected = isIt;
    b.tabIndex = isIt ? 0 : -1;
  }
}
/// What tells views apart: a group's name where there are several, the words at either end.
function viewName(v, n) {
  const all = [...`${v.group && file.views.some(w => w.group !== v.group) ? v.group + ": " : ""}${v.name || "view " + n}`];
  return visible(all.length > 50 ? all.slice(0, 24).join("") + "\u2026" + all.slice(-25).join("") : all.join(""), 50);
}

/// On a phone the text stands below the map, the tools below both.
const narrow = matchMedia("(max-width: 820px)");
function placeTools() {
  if (narrow.matches) el("about").before(el("tools")); else el("pair").after(el("tools"));
}

/// The state of the address; a tab that this file has no button for is none.
function readLink() {
  state = parseLink(location.hash, file);
  if (el("tab-" + state.tab).hidden) state.tab = "text";
}
function start() {
  findElements();
  loadJson().then(json => {
    file = checkFile(json, name => has(name) ? sizesOf(name) : null);
    document.title = el("title").textContent = visible(String(file.title || "attention"), 120);
    const images = file.views.some(v => file.texts[v.queries].image || file.texts[v.keys].image);
    const isModel = file.views.some(v => v.layers.some(l => l.formula || l.exact?.length || (l.head_info || []).some(info => info.kind)));
    isZeroGrey = !isModel;
    el("tab-why").hidden = el("tab-does").hidden = !isModel;
    el("tab-picture").hidden = !images;
    readLink();
    listen();
    listenLive();
    narrow.addEventListener("change", placeTools);
    placeTools();
    drawOverview().catch(fail);
    follow(render());
  }).catch(fail);
}
addEventListener("DOMContentLoaded", start);
