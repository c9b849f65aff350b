// The tensors of the page: elements of compressed base64, read when first wanted.
const elements = new Map(), loaded = new Map();

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text), out = new Uint8Array(binary.length);
  for (let i = 0; i < out.length; ++i) out[i] = binary.charCodeAt(i);
  return out;
}
async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
function findElements() {
  for (const e of document.querySelectorAll("script.data")) elements.set(e.dataset.name, e);
}
const has = name => elements.has(name);
const sizesOf = name => elements.get(name).dataset.sizes.split(",").map(Number);

/// {sizes, data}; one promise per name, so that a tensor is decoded once.
function load(name) {
  if (!loaded.has(name)) loaded.set(name, decode(name));
  return loaded.get(name);
}
async function decode(name) {
  if (!has(name)) return null;
  const {dtype} = elements.get(name).dataset;
  const peaks = has(name + "_peak") ? (await load(name + "_peak")).data : null;
  const bytes = fromPlanes(await inflate(fromBase64(elements.get(name).textContent)), WIDTHS[dtype]);
  return {sizes: sizesOf(name), data: toNumbers(bytes, dtype, peaks)};
}
async function loadJson() {
  return JSON.parse(new TextDecoder().decode(await inflate(fromBase64(elements.get("explorer").textContent))));
}
