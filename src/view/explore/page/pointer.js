// Pointers on the map. One that hovers chooses a cell; a click or tap holds it, another one moves, on the same cell it lets go. Dragged, a zoomed
// map follows; two fingers zoom.
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
    grip = down.size ? {region: geometry.main.region, isMoved} : null;
  };
  on("map", "pointerdown", e => {
    if (!geometry || down.size === 2 || e.button || !cellAt(e)) return;
    down.set(e.pointerId, {now: shareOf(e)});
    map.setPointerCapture(e.pointerId);
    begin(down.size > 1);
  });
  on("map", "pointermove", e => {
    if (down.has(e.pointerId)) {
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
/// Holds a cell or a token, or lets it go where it is held.
function holdCell(to) {
  const isSame = state.hold && (to.i ?? state.i) === state.i && (to.j ?? state.j) === state.j;
  change({i: to.i ?? state.i, j: to.j ?? state.j, hold: !isSame}, "light");
}
