// Step 10: the memory of q as a strip, cut into heads rightly and wrongly. numbers: {tokens, heads, q [T, E] flat or rows,
// right, wrong: {token, feature [H, T, d]}}: which token's which feature lies in each cell
function figureSplit({tokens, heads, q, right, wrong}, words, options = {}) {
  const d = right.token[0][0].length, rows = draw.rows(q, heads * d);
  const cell = (x, y, width, token, feature) => draw.cell(x, y, width, 34, {share: feature < d ? .42 : .18, colour: draw.head(token)}) +
    draw.middle(x + width / 2, y + 15, draw.number(rows[token][feature]), {bold: true}) +
      draw.middle(x + width / 2, y + 28, `${tokens[token]}.${feature}`, {size: 11});
  const perRow = (options.width || 760) < 700 ? heads * d : 12, cells = tokens.flatMap((_, t) => rows[t].map((_, f) => [t, f]));
  const strip = {width: Math.min(cells.length, perRow) * 52, height: Math.ceil(cells.length / perRow) * 40 + 2,
    body: cells.map(([t, f], i) => cell(i % perRow * 52, Math.floor(i / perRow) * 40, 52, t, f)).join("")};
  const cut = ({token, feature}, name) => {
    const panels = token.map((of, h) => {
      let body = draw.text(34, 13, words("figure.head", {head: h}), {size: 12, colour: "faint"});
      of.forEach((row, i) => {
        const y = 22 + i * 40, isWrong = row.some((t, j) => t !== i || feature[h][i][j] !== h * d + j);
        body += draw.text(28, y + 22, tokens[i], {size: 12, anchor: "end", colour: "faint"}) +
          row.map((t, j) => cell(36 + j * 52, y, 52, t, feature[h][i][j])).join("") +
          (isWrong ? draw.rect(34, y - 2, d * 52 + 4, 38, {stroke: "mark", thick: 2.5, rx: 8}) : "");
      });
      return {width: 42 + d * 52, height: 24 + of.length * 40, body};
    });
    return draw.titled(words("figure.split." + name), draw.flow(panels, options.width, {gap: 12}));
  };
  return draw.svg("split", words, draw.stack([draw.titled(words("figure.split.memory"), strip),
    draw.flow([cut(right, "right"), cut(wrong, "wrong")], options.width, {gap: 44})], 20), options);
}
