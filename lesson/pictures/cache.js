// A cache: the prompt as one square, then a row a step; where the rows lie. numbers: {prompt, steps, window, page, pages: [page of each block]}
function figureCache({prompt, steps, window, page, pages}, words, options = {}) {
  const all = prompt + steps, say = (name, values) => words("figure.cache." + name, values), side = 22, faint = {size: 12, colour: "faint"};
  const colour = p => p < prompt ? "h0" : draw.head(1 + (p - prompt) % 3), until = (n, f) => Array.from({length: n}, (_, i) => f(i));
  const work = draw.table(all, all, {width: side, height: side, title: say("work"), share: (i, j) => j > i ? 0 : .8, colour});
  work.body += draw.text(all * side + 8, work.top + prompt * side / 2 + 4, say("prefill"), faint);
  until(steps, t => { work.body += draw.text(all * side + 8, work.top + (prompt + t + .7) * side, say("step", {step: t + 1, keys: prompt + t + 1}), faint); });
  const slots = positions => positions.map((p, i) => draw.cell(i * 26, 0, 26, 24,
    {share: p < all ? .3 : 0, colour: colour(p), label: p < all ? String(p) : ""}));
  const row = (title, body, height = 24) => draw.titled(title, {width: 26 * Math.max(all, 8) + 14, height, body});
  const newest = slot => slot + window * Math.floor((all - 1 - slot) / window);  // the last position that a ring's slot holds
  const blocks = pages.map((name, b) => draw.moved(b * (26 * page + 14), 0, slots(until(page, i => b * page + i)).join("") +
    draw.text(0, 40, say("page", {page: name}), faint)));
  const stored = [row(say("contiguous"), slots(until(all, p => p)).join("")), row(say("ring", {window}), slots(until(window, newest)).join("")),
    row(say("paged"), blocks.join(""), 44)];
  return draw.svg("cache", words, draw.flow([{...work, width: all * side + 150}, draw.stack(stored)], options.width, {gap: 30}), options);
}
