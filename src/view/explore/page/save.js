// Saves what is shown: the picture (PNG, SVG), its numbers (CSV), and all of it (JSON).
function download(name, type, content) {
  const a = make("a", {href: URL.createObjectURL(new Blob([content], {type})), download: name});
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 1000);
}
const fileName = ending => `attention-${state.view}-${state.layer}-${state.head}.${ending}`;

/// The numbers behind the tab, else behind the map: {rows, columns} of cells with their positions.
function shownNumbers() {
  const {region} = geometry.main, {cells, height, width, what} = geometry.shown, step = (low, high, n, at) => Math.floor(low + at * (high - low) / n);
  const queries = Array.from({length: height}, (_, r) => step(region.q0, region.q1, height, r));
  const keys = Array.from({length: width}, (_, c) => step(region.k0, region.k1, width, c));
  return {region, what, height, width, cells: Array.from(cells), queries, keys};
}
function savePng() { el("map").toBlob(blob => download(fileName("png"), "image/png", blob)); }

/// The map's cells as rectangles where they are few, otherwise as an image; the lines of the tab "lines" as they are.
function saveSvg() {
  const tab = document.querySelector("#panel svg");
  if (tab) {
    const copy = tab.cloneNode(true), style = svgElement("style", {}, "text{font:12px monospace}line{stroke:#4b3f8f}");
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.prepend(style);
    return download(fileName("svg"), "image/svg+xml", new XMLSerializer().serializeToString(copy));
  }
  download(fileName("svg"), "image/svg+xml", mapSvg(shownNumbers(), namesOf(state.view, state.layer), geometry.top));
}
function mapSvg(n, texts, top) {
  const size = 12, named = n.height <= 80 && n.width <= 80, left = named ? 120 : 50, out = [];
  const width = n.width * size, height = n.height * size;
  out.push(`<svg xmlns="http://www.w3.org/2000/svg" width="${left + width + 10}" height="${height + (named ? 130 : 50)}" font-family="monospace" font-size="10">`);
  if (n.height * n.width <= 8192) {
    for (let r = 0; r < n.height; ++r) for (let c = 0; c < n.width; ++c) {
      const w = n.cells[r * n.width + c];
      out.push(`<rect x="${left + c * size}" y="${10 + r * size}" width="${size}" height="${size}" fill="${rgb(colour(w, top))}">` +
        `<title>query ${n.queries[r]}, key ${n.keys[c]}: ${percent(w)}</title></rect>`);
    }
  } else {
    const picture = cellsImage(n.cells, n.height, n.width, top).toDataURL();
    out.push(`<image x="${left}" y="10" width="${width}" height="${height}" preserveAspectRatio="none" style="image-rendering:pixelated" href="${picture}"/>`);
  }
  const word = (x, y, text, turn) =>
    out.push(`<text text-anchor="end" x="${x}" y="${y}"${turn ? ` transform="rotate(-90 ${x} ${y})"` : ""}>${escapeXml(text)}</text>`);
  const every = count => Math.max(1, Math.ceil(count / 40));
  for (let r = 0; r < n.height; r += named ? 1 : every(n.height))
    word(left - 4, 19 + r * size, named ? label(texts.query(n.queries[r])) : String(n.queries[r]));
  for (let c = 0; c < n.width; c += named ? 1 : every(n.width))
    word(left + c * size + 9, 16 + n.height * size, named ? label(texts.key(n.keys[c])) : String(n.keys[c]), true);
  return out.join("\n") + "</svg>\n";
}
function saveCsv() {
  const n = shownNumbers(), texts = namesOf(state.view, state.layer), isEach = n.height === n.region.q1 - n.region.q0 && n.width === n.region.k1 - n.region.k0;
  const head = ["query", "token", ...n.keys.map(j => isEach ? `${j} ${texts.key(j)}` : `from ${j}`)];
  download(fileName("csv"), "text/csv", csvText([head, ...n.queries.map((i, r) => [i, isEach ? texts.query(i) : `from ${i}`, ...n.cells.slice(r * n.width, (r + 1) * n.width)])]));
}
function saveJson() {
  const n = shownNumbers(), texts = namesOf(state.view, state.layer), {view, layer, head} = state;
  const what = {title: file.title, view: file.views[view].name, layer, head, info: infoOf(view, layer, head), link: formatLink(state), ...n,
    query_tokens: n.queries.map(texts.query), key_tokens: n.keys.map(texts.key)};
  download(fileName("json"), "application/json", JSON.stringify(what));
}
