// Heads that share keys and values, and what a token takes in the cache, to scale.
// numbers: {heads, dim, bytes, kinds: [{name: "mha" | "gqa" | "mqa", kv} or {name: "latent", kept}]}: kv heads, or numbers of the latent
function figureGroups({heads, dim, bytes, kinds}, words, options = {}) {
  const width = 166, step = width / heads, bytesOf = ({kv, kept}) => bytes * (kept || 2 * kv * dim), most = Math.max(...kinds.map(bytesOf));
  const panels = kinds.map(kind => {
    const kv = kind.kv || 1, each = Math.min(width / kv, 40) - 2, x = g => (g + .5) * width / kv;
    let body = "";
    for (let h = 0; h < heads; ++h) {
      body += draw.line((h + .5) * step, 16, x(Math.floor(h * kv / heads)), 48, {stroke: "faint", thick: 1});
      body += draw.rect(h * step + 1, 4, step - 2, 14, {fill: "h0", rx: 2});
    }
    for (let g = 0; g < kv; ++g) {
      const box = (y, height, fill) => draw.rect(x(g) - each / 2, y, each, height, {fill, rx: 2});
      body += kind.kept ? box(48, 30, "h2") : box(48, 14, "mark2") + box(64, 14, "h1");
    }
    body += draw.rect(0, 98, width, 12, {fill: "soft", rx: 2}) + draw.rect(0, 98, width * bytesOf(kind) / most, 12, {fill: "mark", rx: 2});
    body += draw.text(0, 127, words("figure.groups.bytes", {bytes: bytesOf(kind)}), {size: 12});
    return draw.titled(words("figure.groups." + kind.name), {width, height: 132, body});
  });
  const keys = [["h0", "q"], ["mark2", "k"], ["h1", "v"], ["h2", words("figure.groups.kept")], ["mark", words("figure.groups.cache")]];
  const legend = keys.map(([fill, name]) => {
    const note = draw.note(name);
    return {width: note.width + 18, height: 16, body: draw.rect(0, 2, 12, 12, {fill, rx: 2}) + draw.moved(17, 0, note.body)};
  });
  return draw.svg("groups", words, draw.stack([draw.flow(panels, options.width, {gap: 24}), draw.flow(legend, options.width, {gap: 14, down: 4})], 18),
    options);
}
