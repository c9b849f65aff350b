// Heads that share keys and values, and what a token takes in the cache, to scale.
// numbers: {heads, dim, bytes, kinds: [{name: "mha" | "gqa" | "mqa", kv} or {name: "latent", kept}]}: kv heads, or numbers of the latent
function figureGroups({heads, dim, bytes, kinds}, words, options = {}) {
  const width = 166, step = width / heads, bytesOf = ({kv, kept}) => bytes * (kept || 2 * kv * dim), most = Math.max(...kinds.map(bytesOf));
  const panels = kinds.map(kind => {
    const kv = kind.kv || 1, wide = kind.kept ? width : width / kv, x = g => (g + .5) * width / kv;
    let body = draw.text(0, 13, words("figure.groups." + kind.name), {bold: true});
    for (let h = 0; h < heads; ++h) body += draw.line((h + .5) * step, 40, x(Math.floor(h * kv / heads)), 72, {stroke: "faint", thick: 1}) +
        draw.rect(h * step + 1, 28, step - 2, 14, {fill: "h0", rx: 2});
    for (let g = 0; g < kv; ++g) body += [0, 16].map((down, i) => kind.kept && i
        ? "" : draw.rect(x(g) - Math.min(wide, 40) / 2 + 1, 72 + down, Math.min(wide, 40) - 2, kind.kept ? 30 : 14,
      {fill: kind.kept ? "h2" : i ? "h1" : "mark2", rx: 2})).join("");
    body += draw.rect(0, 122, width, 12, {fill: "soft", rx: 2}) + draw.rect(0, 122, width * bytesOf(kind) / most, 12, {fill: "mark", rx: 2}) +
      draw.text(0, 151, words("figure.groups.bytes", {bytes: bytesOf(kind)}), {size: 12});
    return {width, height: 156, body};
  });
  const keys = [["h0", "q"], ["mark2", "k"], ["h1", "v"], ["h2", words("figure.groups.kept")], ["mark", words("figure.groups.cache")]].map(([fill, name]) => (
    {width: draw.measure(name, 12) + 20, height: 16, body: draw.rect(0, 2, 12, 12, {fill, rx: 2}) + draw.text(17, 12, name, {size: 12, colour: "faint"})}));
  return draw.svg("groups", words, draw.stack([draw.flow(panels, options.width, {gap: 24}), draw.flow(keys, options.width, {gap: 14, down: 4})], 18), options);
}
