// Linear attention: a state that every token writes to and a query reads. numbers: {tokens, query, q, k, v [T, 2] rows}
function figureState({tokens, query, q, k, v}, words, options = {}) {
  let state = [[0, 0], [0, 0]];
  const table = (rows, title, colour, share = .3) => draw.table(rows.length, 2,
    {title, width: 40, height: 28, share: () => share, colour: () => colour, label: (i, j) => draw.number(rows[i][j]), size: 13});
  const stages = [{panels: [table(state, "S", "h0", 0)]}, ...tokens.map((token, t) => {
    state = state.map((row, i) => row.map((x, j) => x + k[t][i] * v[t][j]));
    const said = [["k", k[t]], ["v", v[t]]].map(([name, p]) => draw.note(`${name} = ${draw.pair(p)}`, {colour: draw.head(t)}));
    return {link: "+ k vᵀ", panels: [table(state, words("figure.state.after", {token}), draw.head(t)), draw.stack(said, 4)]};
  })];
  const out = [0, 1].map(j => state.reduce((sum, row, i) => sum + q[query][i] * row[j], 0));
  stages.push({link: "q S", panels: [table([out], words("figure.state.out"), "mark2"), draw.note(`q = ${draw.pair(q[query])}`, {colour: "mark"})]});
  return draw.svg("state", words, draw.stages(stages, options.width), options);
}
