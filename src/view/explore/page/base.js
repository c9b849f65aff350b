// What the explorer's page and the lesson's share: elements, canvases at the screen's resolution, compressed bytes, links that are copied.
const el = id => document.getElementById(id), make = (tag, properties = {}) => Object.assign(document.createElement(tag), properties);
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/// The canvas at this size in the page's pixels, empty; its context.
function sized(canvas, width, height) {
  const r = devicePixelRatio || 1, g = canvas.getContext("2d");
  Object.assign(canvas, {width: Math.round(width * r), height: Math.round(height * r)});
  Object.assign(canvas.style, {width: width + "px", height: height + "px"});
  g.scale(r, r);
  return g;
}
/// options: [[value, text], ...]; one that is open stays so.
function fillSelect(select, options, chosen) {
  if (select.options.length !== options.length) select.replaceChildren(...options.map(() => make("option")));
  options.forEach(([value, textContent], n) => Object.assign(select.options[n], {value, textContent}));
  select.value = String(chosen);
}
/// A row of a table: texts and elements as cells, behind the name that heads it, if any.
function addRow(table, cells, name) {
  const row = table.insertRow();
  if (name !== undefined) row.append(make("th", {scope: "row", textContent: name}));
  for (const cell of cells) row.insertCell().append(...[cell].flat());
  return row;
}
function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text), out = new Uint8Array(binary.length);
  for (let i = 0; i < out.length; ++i) out[i] = binary.charCodeAt(i);
  return out;
}
async function inflate(bytes, format = "deflate") {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream(format));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
function download(name, type, content) {
  const a = make("a", {href: URL.createObjectURL(new Blob([content], {type})), download: name});
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 1000);
}
