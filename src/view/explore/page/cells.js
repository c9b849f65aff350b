// A map with its axes, as the explorer and the lesson's lab draw it: colours, names where there is room, numbers where cells hold them.
const EDGE = {top: 4, bottom: 30, right: 8}, NAMED = 76, NUMBERED = 26, MONO = "ui-monospace, monospace";

/// Positions with room for a label, `apart` pixels between them.
function ticks(from, to, pixels, apart) {
  const each = pixels / (to - from);
  let step = 1;
  for (let d = 1; step * each < apart; d *= 10) for (const f of [1, 2, 5, 10]) { step = f * d; if (step * each >= apart) break; }
  const out = [];
  for (let i = Math.ceil(from / step) * step; i < to; i += step) out.push(i);
  return out;
}
/// Positions and their names, with numbers where many are left out; pure.
function wordsOf(from, to, pixels, size, name) {
  const all = ticks(from, to, pixels, size), isFar = all[1] - all[0] > 4;
  return all.map(n => [n, name(n) === String(n) || !isFar ? label(name(n), 11) : `${n} ${label(name(n), 10 - String(n).length)}`]);
}
/// A number in at most five characters where that can be: whole, in two digits, in one, as a power of ten; pure.
function tight(w) {
  if (Math.abs(w) === Infinity) return w < 0 ? "-\u221e" : "\u221e";
  const forms = [Math.abs(w) < 100 ? String(+w.toPrecision(2)) : w.toFixed(0), String(+w.toPrecision(1)), w.toExponential(0).replace("e+", "e")];
  return forms.find(text => text.length <= 5) ?? forms[2];
}
/// A cell's number: a share in percent; what is 0 is left out.
const cellNumber = (w, isShare) => w === 0 || Number.isNaN(w) ? "" : isShare ? String(Math.round(100 * w)) : tight(w);

/// Draws cells with axes; returns where they lie, and whether they hold numbers. Their image stays with `shown`. texts: names of positions,
/// isNumbered: keys have their numbers alone. names: {query, key}: axes' names, or none.
function drawCells(canvas, shown, region, top, of, texts, {room, most, isShare = true, names = ["query", "key"]}) {
  const rows = region.q1 - region.q0, columns = region.k1 - region.k0, ruler = canvas.getContext("2d"), edge = names ? 24 : 10;
  const widest = all => Math.min(NAMED, Math.max(0, ...all.map(([, text]) => ruler.measureText(text).width)));
  ruler.font = `11px ${MONO}`;
  const left = Math.ceil(widest(wordsOf(region.q0, region.q1, most, 11, texts.query))) + edge, wide = room - left - EDGE.right;
  const cell = Math.min(wide / columns, most / rows, 56), likely = Math.min(most, Math.max(cell * rows, Math.min(wide, wide * rows / columns)));
  const tall = Math.max(40, rows === columns ? cell * columns : likely);
  const width = rows === columns ? cell * columns : wide, size = Math.max(8, Math.min(11, Math.floor(Math.min(tall / rows, width / columns)))), font = `${size}px ${MONO}`;
  const isNumbered = Boolean(texts.isNumbered), rowLabels = wordsOf(region.q0, region.q1, tall, size, texts.query);
  const columnLabels = wordsOf(region.k0, region.k1, width, isNumbered ? 14 + 8 * String(region.k1).length : size, texts.key);
  ruler.font = font;
  const isUpright = isNumbered || widest(columnLabels) < width / columns - 2, below = isUpright ? edge + 6 : Math.ceil(widest(columnLabels)) + edge;
  const g = sized(canvas, left + width + EDGE.right, EDGE.top + tall + below);
  g.imageSmoothingEnabled = false;
  if (shown.top !== top) Object.assign(shown, {top, image: cellsImage(shown.cells, shown.height, shown.width, top, of)});
  g.drawImage(shown.image, left, EDGE.top, width, tall);
  g.strokeStyle = css("--line");
  g.strokeRect(left - .5, EDGE.top - .5, width + 1, tall + 1);
  g.fillStyle = css("--faint");
  g.font = font;
  g.textBaseline = "middle";
  g.textAlign = "right";
  const y = i => EDGE.top + (i + .5 - region.q0) / rows * tall, x = j => left + (j + .5 - region.k0) / columns * width;
  for (const [i, text] of rowLabels) g.fillText(text, left - 5, y(i));
  const turned = (text, px, py, angle) => {
    g.save();
    g.translate(px, py);
    g.rotate(angle);
    g.fillText(text, 0, 0);
    g.restore();
  };
  if (isUpright) g.textAlign = "center";
  for (const [j, text] of columnLabels) turned(text, x(j), EDGE.top + tall + (isUpright ? 12 : 6), isUpright ? 0 : -Math.PI / 2);
  g.textAlign = "center";
  g.font = "11px system-ui, sans-serif";
  if (names) {
    g.fillText(names[1], left + width / 2, EDGE.top + tall + below - 6);
    turned(names[0], 8, EDGE.top + tall / 2, -Math.PI / 2);
  }
  const hasNumbers = shown.height === rows && shown.width === columns && Math.min(width / columns, tall / rows) >= NUMBERED;
  if (hasNumbers) shown.cells.forEach((w, n) => {
    g.fillStyle = inkOn(of(w, top));
    g.fillText(cellNumber(w, isShare), x(region.k0 + n % columns), y(region.q0 + Math.floor(n / columns)) + 1);
  });
  g.setLineDash([4, 3]);  // where the answer begins
  g.strokeStyle = css("--mark");
  const dash = (...ends) => { g.beginPath(); g.moveTo(ends[0], ends[1]); g.lineTo(ends[2], ends[3]); g.stroke(); };
  const down = y(texts.queryAnswer) - tall / rows / 2, right = x(texts.keyAnswer) - width / columns / 2;
  if (texts.queryAnswer > region.q0 && texts.queryAnswer < region.q1) dash(left, down, left + width, down);
  if (texts.keyAnswer > region.k0 && texts.keyAnswer < region.k1) dash(right, EDGE.top, right, EDGE.top + tall);
  g.setLineDash([]);
  return {left, top: EDGE.top, width, height: tall, region, hasNumbers};
}
