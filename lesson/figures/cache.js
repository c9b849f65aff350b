// A cache: the prompt as one square, then a row a step; where the rows lie. numbers: {prompt, steps, window, page, pages: [page of each block]}
function figureCache({prompt, steps, window, page, pages}, words, options = {}) {
  const all = prompt + steps, say = (name, values) => words("figure.cache." + name, values), side = 22;
  const square = draw.table(all, all, {width: side, height: side, title: say("work"), share: (i, j) => j > i ? 0 : 1, colour: i => i < prompt
    ? "h0" : draw.head(1 + (i - prompt) % 3)});
  for (let t = 0; t < steps; ++t) square.body += draw.text(all * side + 8, square.top + (prompt + t + .7) * side,
      say("step", {step: t + 1, keys: prompt + t + 1}), {size: 12, colour: "faint"});
  square.body += draw.text(all * side + 8, square.top + prompt * side / 2 + 4, say("prefill"), {size: 12, colour: "faint"});
  const slots = (title, cells, x = 0) => cells.map((p, i) => draw.cell(x + i * 26, 0, 26, 24,
    {share: p === "" ? 0 : .3, colour: p >= prompt ? draw.head(1 + (p - prompt) % 3) : "h0", label: String(p)})).join("");
  const row = (title, body, height = 24) => ({width: 26 * Math.max(all, 8) + 10, height: height + 22, body: draw.text(0, 13, title, {bold: true}) +
    draw.moved(0, 22, body)});
  const until = (n, f) => Array.from({length: n}, (_, i) => f(i));
  const ring = until(window, slot => { let last = ""; for (let p = 0; p < all; ++p) if (p % window === slot) last = p; return last; });
  const blocks = pages.map((name, b) => draw.moved(b * (26 * page + 14), 0, slots("", until(page, i => b * page + i < all ? b * page + i : "")) +
    draw.text(0, 40, say("page", {page: name}), {size: 12, colour: "faint"}))).join("");
  const stored = draw.stack([row(say("contiguous"), slots("", until(all, p => p))), row(say("ring", {window}), slots("", ring)),
    row(say("paged"), blocks, 44)], 16);
  return draw.svg("cache", words, draw.flow([{...square, width: all * side + 150}, stored], options.width, {gap: 30}), options);
}
