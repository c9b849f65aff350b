// Saves what is shown: the picture (PNG, SVG), its numbers (CSV), and all of it (JSON).
const fileName = ending => `attention-${[state.view, ...ownNumbers(state.view, state.layer, state.head)].join("-")}.${ending}`;

/// The maps on the page: the first view, the one beside it, their difference.
const shownMaps = () => [{...geometry, name: viewName(file.views[state.view], state.view)}, ...[geometry.beside, geometry.difference].filter(Boolean)];

/// The numbers behind a map: cells with their positions.
function numbersOfMap({region, shown: {cells, height, width, what}}) {
  const step = (low, high, n, at) => low + Math.ceil(at * (high - low) / n);  // the first position of a cell
  const queries = Array.from({length: height}, (_, r) => step(region.q0, region.q1, height, r));
  const keys = Array.from({length: width}, (_, c) => step(region.k0, region.k1, width, c));
  return {region, what, height, width, cells: Array.from(cells), queries, keys};
}
function savePng() {
  const maps = ["map", "map2", "map3"].map(el).filter(c => c.offsetParent), whole = make("canvas", {width: maps.reduce((sum, c) => sum + c.width, 0), height: Math.max(...maps.map(c => c.height))});
  const g = whole.getContext("2d");
  g.fillStyle = css("--card");
  g.fillRect(0, 0, whole.width, whole.height);
  maps.reduce((x, c) => { g.drawImage(c, x, 0); return x + c.width; }, 0);
  whole.toBlob(blob => download(fileName("png"), "image/png", blob));
}

/// The lines of the tab "lines" as they are, otherwise the maps: cells as rectangles where they are few, otherwise as an image.
function saveSvg() {
  const tabs = [...document.querySelectorAll("#panel svg")], style = `text{font:12px monospace;fill:${css("--ink")}}line{stroke:${css("--accent")}}`;
  const parts = tabs.length ? tabs.map(svg => [svg.viewBox.baseVal.width, svg.viewBox.baseVal.height, new XMLSerializer().serializeToString(svg)])
    : shownMaps().map(map => mapSvg(numbersOfMap(map), map));
  let x = 0;
  const scaled = parts.map(([width, , svg]) => { x += width; return `<g transform="translate(${x - width} 0)">${svg}</g>`; });
  const begin = `<svg xmlns="http://www.w3.org/2000/svg" width="${x}" height="${Math.max(...parts.map(([, height]) => height))}"><style>${style}</style>`;
  download(fileName("svg"), "image/svg+xml", `${begin}<rect width="100%" height="100%" fill="${css("--card")}"/>${scaled.join("\n")}</svg>\n`);
}
/// [width, height, markup]: the cells, their tokens, a title and the scale of colours.
function mapSvg(n, {texts, top, of, name}) {
  const size = 12, left = 120, out = [], up = 34;
  const width = n.width * size, height = n.height * size, below = up + height + 120, all = [left + Math.max(width, 240) + 10, below + 60];
  out.push(`<svg xmlns="http://www.w3.org/2000/svg" width="${all[0]}" height="${all[1]}">`);
  out.push(`<text x="4" y="14">${escapeXml(`${nameOf(state.view, state.layer, state.head)}, ${name}: rows are queries, columns keys`)}</text>`);
  for (let s = 0; s <= 100; ++s) {
    const share = state.spacing === "sqrt" ? (s / 100) ** 2 : s / 100;
    out.push(`<rect x="${left + 2 * s}" y="${below + 8}" width="2" height="10" fill="${rgb(of === difference ? of((s / 50 - 1) * top, top) : of(share * top || 1e-30, top))}"/>`);
  }
  out.push(`<text x="${left}" y="${below + 34}">${of === difference ? amount(-top) : "0"} to ${amount(top)}</text>`, `<text x="${left}" y="${below + 48}">${legend()}</text>`);
  if (n.height * n.width <= 8192) {
    for (let r = 0; r < n.height; ++r) for (let c = 0; c < n.width; ++c) {
      const w = n.cells[r * n.width + c];
      out.push(`<rect x="${left + c * size}" y="${up + r * size}" width="${size}" height="${size}" fill="${rgb(of(w, top))}">` +
        `<title>query ${n.queries[r]}, key ${n.keys[c]}: ${amount(w)}</title></rect>`);
    }
  } else {
    const picture = cellsImage(n.cells, n.height, n.width, top, of).toDataURL();
    out.push(`<image x="${left}" y="${up}" width="${width}" height="${height}" preserveAspectRatio="none" style="image-rendering:pixelated" href="${picture}"/>`);
  }
  const word = (x, y, text, turn) =>
    out.push(`<text text-anchor="end" x="${x}" y="${y}"${turn ? ` transform="rotate(-90 ${x} ${y})"` : ""}>${escapeXml(text)}</text>`);
  const {q0, q1, k0, k1} = n.region;
  for (const [i, text] of wordsOf(q0, q1, height, 12, texts.query)) word(left - 4, up + (i + .5 - q0) * height / (q1 - q0) + 4, text);
  for (const [j, text] of wordsOf(k0, k1, width, 12, texts.key)) word(left + (j + .5 - k0) * width / (k1 - k0) + 4, up + 6 + height, text, true);
  return [...all, out.join("\n") + "</svg>"];
}
/// One table per map, its name before it where there are several.
function saveCsv() {
  const maps = shownMaps();
  const rows = maps.flatMap(map => {
    const n = numbersOfMap(map), {texts} = map, isEach = n.height === n.region.q1 - n.region.q0 && n.width === n.region.k1 - n.region.k0;
    return [...(maps.length > 1 ? [[map.name]] : []), ["query", "token", ...n.keys.map(j => isEach ? `${j} ${texts.key(j)}` : `from ${j}`)],
      ...n.queries.map((i, r) => [i, isEach ? texts.query(i) : `from ${i}`, ...n.cells.slice(r * n.width, (r + 1) * n.width)])];
  });
  download(fileName("csv"), "text/csv", csvText(rows));
}
function saveJson() {
  const {view, layer, head} = state, [first, ...more] = shownMaps().map(map => {
    const n = numbersOfMap(map);
    return {name: map.name, ...n, query_tokens: n.queries.map(map.texts.query), key_tokens: n.keys.map(map.texts.key)};
  });
  const [layer_number, head_number] = ownNumbers(view, layer, head), head_name = nameOf(view, layer, head);
  const which = {title: file.title, view: file.views[view].name, layer, head, layer_number, head_number, head_name};
  const what = {...which, info: infoOf(view, layer, head), link: formatLink(state, file), ...first, ...(more.length ? {beside: more} : {})};
  download(fileName("json"), "application/json", JSON.stringify(what));
}
