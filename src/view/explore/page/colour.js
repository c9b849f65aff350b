// Colours of weights: qkv's map, even in lightness, which readers who confuse red and green can read; and blue to
// orange for differences.
const bytesOf = hex => Uint8Array.from(hex.match(/../g), x => parseInt(x, 16));
const maps = {light: bytesOf(PALETTES.light), dark: bytesOf(PALETTES.dark)};
const ENTRIES = maps.light.length / 3, NAN_COLOUR = [232, 90, 90];
const systemDark = matchMedia("(prefers-color-scheme: dark)");
let isZeroGrey = true;  // of weights without a mask beside them: 0 is a hidden key
const isDark = () => state.theme === "dark" || state.theme === "auto" && systemDark.matches;
const scaled = share => state.spacing === "sqrt" ? Math.sqrt(share) : share;

/// [r, g, b] of a weight, where `top` gets the last colour.
function colour(w, top) {
  if (Number.isNaN(w)) return NAN_COLOUR;
  if (w === 0 && (isZeroGrey || Object.is(w, -0))) return isDark() ? [52, 52, 63] : [222, 222, 229];  // outside the map's hues
  const n = Math.round(scaled(Math.min(1, Math.max(0, w / (top || 1)))) * (ENTRIES - 1)), map = isDark() ? maps.dark : maps.light;
  return [map[3 * n], map[3 * n + 1], map[3 * n + 2]];
}
/// [r, g, b] of a difference in [-top, top]: blue below, orange above, the page's ground at 0.
function difference(w, top) {
  if (Number.isNaN(w)) return NAN_COLOUR;
  const share = scaled(Math.min(1, Math.abs(w) / (top || 1))), ground = isDark() ? [28, 28, 34] : [250, 250, 252];
  const end = w < 0 ? (isDark() ? [90, 170, 255] : [0, 90, 181]) : (isDark() ? [255, 150, 60] : [200, 80, 0]);
  return ground.map((g, c) => Math.round(g + share * (end[c] - g)));
}
const rgb = c => `rgb(${c[0]},${c[1]},${c[2]})`;
const inkOn = c => 299 * c[0] + 587 * c[1] + 114 * c[2] < 140000 ? "#fff" : "#16161c";

/// A canvas with one pixel per cell [height, width].
function cellsImage(cells, height, width, top, of = colour) {
  const c = document.createElement("canvas");
  c.width = Math.max(1, width);
  c.height = Math.max(1, height);
  const g = c.getContext("2d"), pixels = g.createImageData(c.width, c.height), table = [];
  for (let n = 0; n < height * width; ++n) {
    const key = of === colour && cells[n] > 0 ? Math.round(scaled(Math.min(1, Math.max(0, cells[n] / (top || 1)))) * (ENTRIES - 1)) : -1;
    const [r, green, b] = key < 0 ? of(cells[n], top) : table[key] || (table[key] = of(cells[n], top));
    pixels.data.set([r, green, b, 255], 4 * n);
  }
  g.putImageData(pixels, 0, 0);
  return c;
}
const largestOf = cells => cells.reduce((top, w) => w > top ? w : top, 0);
