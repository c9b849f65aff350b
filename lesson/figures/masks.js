// Steps 7 and 8, and the page of masks: which key each query may attend, side by side. numbers: {panels: [{name, expression, keep [Tq, Tk]
// of 0 and 1, tokens, weights [Tq, Tk]}]}: with tokens large cells that show the weights, ringed where a hidden one has some; without, the keys of
// each row as a bar beside it
function figureMasks(numbers, words, options = {}) {
  const panels = numbers.panels.map(({name, expression = "", keep, tokens, weights}) => {
    const rows = keep.length, columns = keep[0].length, side = tokens ? 40 : options.width < 500 ? 8 : 13, pairs = keep.flat().reduce((sum, x) => sum + x, 0),
      title = words("figure.masks." + name), leaks = (i, j) => tokens && !keep[i][j] && weights[i][j] > 0;
    const table = draw.table(rows, columns, {width: side, height: tokens ? 30 : side, labels: tokens, tops: tokens,
      hidden: (i, j) => !keep[i][j] && !leaks(i, j),
      share: (i, j) => weights ? weights[i][j] : .75, label: tokens && ((i, j) => draw.number(weights[i][j]))});
    const right = table.width + 10, under = table.height + 40, pairsAt = under + (expression ? 17 : 0);
    let body = draw.text(0, 13, title, {bold: true}) + draw.moved(0, 22, table.body);
    if (!tokens) keep.forEach((row, i) => { const n = row.reduce((sum, x) => sum + x, 0);
        body += draw.rect(right, 24 + i * side, n * 3, side - 4, {fill: "h1", rx: 1}); });
    for (let n = 0; n < rows * columns; ++n) {
      const i = Math.floor(n / columns), j = n % columns;
      if (leaks(i, j)) body += draw.rect(table.left + j * side + 2, 24 + table.top + i * 30, side - 4, 26, {stroke: "mark", thick: 2.5, rx: 6});
    }
    if (expression) body += draw.text(0, under, expression, {size: 12, colour: "faint"});
    if (!tokens) body += draw.text(0, pairsAt, words("figure.masks.pairs", {pairs, all: rows * columns}), {size: 12, colour: "faint"});
    return {width: Math.max(right + (tokens ? 0 : 3 * columns), draw.measure(title, 14), draw.measure(expression, 12)), height: (tokens ? under : pairsAt) +
      4, body};
  });
  return draw.svg("masks", words, draw.flow(panels, options.width, {gap: 30}), options);
}
