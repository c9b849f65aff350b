// The tensors of the page: elements of compressed base64, read when first wanted. A U8 is peak (1, or one per first axis) * (byte / 254)^2.
const elements = new Map(), loaded = new Map();

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
  performance.mark("decode " + name);
  const {dtype} = elements.get(name).dataset;
  const peaks = has(name + "_peak") ? (await load(name + "_peak")).data : null;
  const bytes = fromPlanes(await inflate(fromBase64(elements.get(name).textContent)), WIDTHS[dtype]);
  return {sizes: sizesOf(name), data: toNumbers(bytes, dtype, peaks)};
}
async function loadJson() {
  return JSON.parse(new TextDecoder().decode(await inflate(fromBase64(elements.get("explorer").textContent))));
}

function halfOf(bits) {
  const exponent = bits >> 10 & 31, mantissa = bits & 1023, sign = bits & 32768 ? -1 : 1;
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + mantissa / 1024) : mantissa * 2 ** -24);
}
let halves = null;

const WIDTHS = {U8: 1, F16: 2, BF16: 2, F32: 4};

/// First bytes of all numbers, then all second bytes, ... -> numbers.
function fromPlanes(bytes, width) {
  if (width === 1) return bytes;
  const count = bytes.length / width, out = new Uint8Array(bytes.length);
  for (let b = 0; b < width; ++b) for (let i = 0, at = b * count; i < count; ++i) out[i * width + b] = bytes[at + i];
  return out;
}

/// Float32Array of little-endian bytes; `peaks`: null, or Float32Array with one number per first axis.
function toNumbers(bytes, dtype, peaks) {
  const view = type => new type(bytes.buffer, bytes.byteOffset, bytes.byteLength / type.BYTES_PER_ELEMENT);
  if (dtype === "F32") return view(Float32Array);
  const from = dtype === "U8" ? bytes : view(Uint16Array), out = new Float32Array(from.length);
  if (dtype === "BF16") {
    const bits = new Uint32Array(out.buffer);
    for (let i = 0; i < from.length; ++i) bits[i] = from[i] << 16;
  } else if (dtype === "F16") {
    halves = halves || Float32Array.from({length: 65536}, (_, n) => halfOf(n));
    for (let i = 0; i < from.length; ++i) out[i] = halves[from[i]];
  } else {
    const each = peaks ? from.length / peaks.length : from.length, share = Float32Array.from({length: 256}, (_, n) => n === 255 ? NaN : (n / 254) ** 2);
    for (let i = 0; i < from.length; ++i) out[i] = share[from[i]] * (peaks ? peaks[Math.floor(i / each)] : 1);
  }
  return out;
}
