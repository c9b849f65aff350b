// Input: pointers, wheel, keys, controls. Each ends in change().
/// Where a pointer is, in shares of the map; outside it below 0 or above 1.
function shareOf(event) {
  const {left, top, width, height} = geometry.main, s = parseFloat(el("map").style.width) / el("map").clientWidth;
  return {x: (s * event.offsetX - left) / width, y: (s * event.offsetY - top) / height};
}
function cellAt(event) {
  if (!isShown()) return null;
  const {region: r} = geometry.main, {x, y} = shareOf(event);
  if (x < 0 || x >= 1 || y < 0 || y >= 1) return null;
  return {x, y, i: r.q0 + Math.floor(y * (r.q1 - r.q0)), j: r.k0 + Math.floor(x * (r.k1 - r.k0))};
}
function zoom(factor, x = .5, y = .5) {
  const l = layerOf(state.view, state.layer), r = regionOf({Tq: l.q_len, Tk: l.kv_len});
  setRegion(zoomRegion(r, factor, x, y, l.q_len, l.kv_len));
}
function setRegion(r) {
  const l = layerOf(state.view, state.layer), isWhole = r && r.q1 - r.q0 === l.q_len && r.k1 - r.k0 === l.kv_len;
  change({region: isWhole ? null : r});
}
/// 64 x 64 weights about the chosen pair, else about the middle.
function zoomHere() {
  const l = layerOf(state.view, state.layer), r = regionOf({Tq: l.q_len, Tk: l.kv_len});
  const i = state.i >= 0 ? state.i : (r.q0 + r.q1) / 2, j = state.j >= 0 ? state.j : state.i >= 0 ? Math.min(state.i, l.kv_len - 1) : (r.k0 + r.k1) / 2;
  setRegion(fitRegion({q0: i - 32, q1: i + 32, k0: j - 32, k1: j + 32}, l.q_len, l.kv_len));
}
/// The next head in the order of the thumbnails.
function step(by) {
  const all = [...document.querySelectorAll(".thumb")], at = all.findIndex(b => b.hasAttribute("aria-current"));
  all.at((Math.max(at, by < 0 ? 0 : -1) + by) % all.length)?.click();
}
function moveLayer(by) {
  const n = file.views[state.view].layers.length;
  change({layer: (state.layer + by + n) % n});
}
function moveToken(by, side = "i") {
  const l = layerOf(state.view, state.layer), end = side === "i" ? l.q_len : l.kv_len;
  change({[side]: Math.max(0, Math.min(end - 1, state[side] + by))}, "light");
}
/// In the text and the picture the token that is looked from: under "who attends to it" a key.
function moveInPanel(by) {
  if (state.way === "to" || !["text", "picture"].includes(state.tab)) return moveToken(by);
  const now = state.j >= 0 ? state.j : state.i, n = Math.max(0, Math.min(layerOf(state.view, state.layer).kv_len - 1, now + by));
  change({j: n, ...(namesOf(state.view, state.layer).isShared ? {i: n} : {})}, "light");
}
function seek() {
  const l = layerOf(state.view, state.layer), texts = namesOf(state.view, state.layer), isKey = state.way === "from" && !texts.isShared;
  const all = findTokens(isKey ? l.kv_len : l.q_len, isKey ? texts.key : texts.query, el("search").value), now = isKey ? state.j : state.i;
  el("count").textContent = el("search").value ? `${all.length} found` : "";
  if (!all.length) return;
  const next = all.find(n => n > now) ?? all[0];
  pages.clear();
  change(isKey ? {j: next} : {i: next, ...(state.way === "from" ? {j: next} : {})}, "light");
  document.querySelector(`#panel [data-n="${next}"]`)?.scrollIntoView?.({block: "nearest"});
}
const ARROWS = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]};

function onKey(event) {
  const {target, key} = event, tag = target.tagName;
  if (event.ctrlKey || event.altKey || event.metaKey || ["SELECT", "INPUT", "TEXTAREA"].includes(tag)) return;
  const done = () => event.preventDefault();
  if (ARROWS[key]) {
    const [down, right] = ARROWS[key];
    if (target.getAttribute("role") === "tab") {
      const all = [...document.querySelectorAll("#tabs button:not([hidden])")], next = all[(all.indexOf(target) + (down || right) + all.length) % all.length];
      next.click();
      next.focus();
    } else if (target === el("map")) down ? moveToken(down) : moveToken(right, "j");
    else if (target.closest?.("#panel")) moveInPanel(down || right);
    else if (right) step(right);
    else moveLayer(down);
    return done();
  }
  if (key === "+" || key === "=") zoom(.5);
  else if (key === "-") zoom(2);
  else if (key === "0") setRegion(null);
  else if (key === "p") pinOne();
  else if (key === "Escape") change({hold: false}, "light");
  else if (key === "/") { el("search").focus(); } else return;
  done();
}
function pinOne() { if (state.i >= 0) change({pins: state.pins.includes(state.i) ? state.pins.filter(n => n !== state.i) : [...state.pins, state.i].slice(-16)}, "light"); }

function listen() {
  const on = (id, what, then) => el(id).addEventListener(what, then), choose = id => on(id, "change", e => change({[id]: e.target.value}));
  for (const id of ["paint", "range", "spacing", "theme", "sort", "statistic"]) choose(id);
  for (const id of ["view", "beside"]) on(id, "change", e => change({[id]: Number(e.target.value)}));
  on("diff", "change", e => change({diff: e.target.checked}));
  for (const way of ["to", "from"]) on(way, "change", () => change({way}, "light"));
  on("search", "keydown", e => { if (e.key === "Enter") seek(); });
  const presses = {before: () => step(-1), after: () => step(1), zoomIn: () => zoom(.5), zoomOut: () => zoom(2), zoomAll: () => setRegion(null), zoomHere,
    pin: pinOne, unpin: () => change({pins: [], hold: false}, "light"), found: seek,
    alike: () => change({sort: "alike", anchor: [state.layer, state.head]}), thisPair: () => follow(sortByPair())};
  for (const [id, act] of Object.entries(presses)) on(id, "click", act);
  for (const [id, act] of Object.entries({savePng, saveSvg, saveCsv, saveJson})) on(id, "click", () => { if (isShown()) act(); });
  on("copy", "click", async () => {
    remember();
    const where = location.protocol === "file:" ? "; it opens on this machine only" : "";
    const copied = location.protocol !== "about:" && await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
    const isInside = window !== top;  // a notebook's frame: neither a link nor a bar
    el("copy").textContent = copied ? "copied" + where : isInside ? "a page inside another has no link: save it as a file" : "it is in the address bar" + where;
    setTimeout(() => { el("copy").textContent = "copy link"; }, 2500);
  });
  listenToMap(on);
  on("map", "dblclick", e => { const at = cellAt(e); if (at) zoom(.35, at.x, at.y); });
  el("map").addEventListener("wheel", e => {
    if (!e.ctrlKey && document.activeElement !== el("map")) return;  // the page scrolls until the map is chosen
    const at = cellAt(e);
    if (!at) return;
    e.preventDefault();
    zoom(e.deltaY < 0 ? .7 : 1 / .7, at.x, at.y);
  }, {passive: false});
  for (const b of el("tabs").children) b.onclick = () => { change({tab: b.id.slice(4)}, "light"); drawControls(); };
  addEventListener("keydown", onKey);
  addEventListener("hashchange", () => { readLink(); drawOverview().catch(fail); follow(render()); });
  addEventListener("resize", () => follow(render()));
  systemDark.addEventListener("change", () => { drawOverview().catch(fail); follow(render()); });
}
/// A pointer that hovers over the map chooses a cell; a click or tap holds it, another one moves, on the same cell it lets go. Dragged, a zoomed
/// map follows; two fingers zoom.
function listenToMap(on) {
  const map = el("map"), down = new Map();  // by pointer: {from, now}, in shares of the map
  let grip = null;  // {region, isMoved}: since the first pointer came down
  const spread = (a, b) => Math.hypot((a.x - b.x) * geometry.main.width, (a.y - b.y) * geometry.main.height);
  const moved = () => {
    const [a, b] = [...down.values()], l = layerOf(state.view, state.layer), mean = which => b ? {x: (a[which].x + b[which].x) / 2, y: (a[which].y + b[which].y) / 2} : a[which];
    if (!b && spread(a.from, a.now) <= 4 && !grip.isMoved) return;
    grip.isMoved = true;
    if (!b && !state.region) return;
    const from = mean("from"), to = mean("now"), factor = b ? spread(a.from, b.from) / Math.max(1, spread(a.now, b.now)) : 1;
    setRegion(zoomRegion(grip.region, factor, from.x, from.y, l.q_len, l.kv_len, to.x, to.y));
  };
  /// What is down now is where a drag or pinch begins.
  const begin = isMoved => {
    for (const p of down.values()) p.from = p.now;
    grip = down.size && geometry ? {region: geometry.main.region, isMoved} : null;
  };
  on("map", "pointerdown", e => {
    if (!geometry || down.size === 2 || e.button || !cellAt(e)) return;
    down.set(e.pointerId, {now: shareOf(e)});
    map.setPointerCapture(e.pointerId);
    begin(down.size > 1);
  });
  on("map", "pointermove", e => {
    if (down.has(e.pointerId) && geometry) {
      down.get(e.pointerId).now = shareOf(e);
      return moved();
    }
    const at = cellAt(e);
    if (at && !down.size && !held() && (at.i !== state.i || at.j !== state.j)) change({i: at.i, j: at.j}, "light");
  });
  on("map", "pointerup", e => {
    const at = cellAt(e), isClick = down.size === 1 && grip && !grip.isMoved && at;
    if (!down.delete(e.pointerId)) return;
    begin(true);
    if (isClick) holdCell(at);
  });
  on("map", "pointercancel", e => { if (down.delete(e.pointerId)) begin(true); });
  map.addEventListener("touchstart", e => { if (e.touches.length > 1) e.preventDefault(); }, {passive: false});  // two fingers zoom the map, not the page
}
/// New children in place of the old; where a button of the old ones has the keyboard, that in its place has it, at most the last.
function renew(box, ...children) {
  const buttons = () => [...box.querySelectorAll("button:not(:disabled)")], at = buttons().indexOf(document.activeElement);
  box.replaceChildren(...children);
  if (at >= 0) buttons()[Math.min(at, buttons().length - 1)]?.focus();
}
/// Holds a cell or a token, or lets it go where it is held.
function holdCell(to) {
  const isSame = state.hold && (to.i ?? state.i) === state.i && (to.j ?? state.j) === state.j;
  change({i: to.i ?? state.i, j: to.j ?? state.j, hold: !isSame}, "light");
}
