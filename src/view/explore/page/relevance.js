// Relevance beside the weights, and rollout, where the file has them; each with a sentence that says what it is and what not.
const SENTENCES = {
  relevance: "Relevance: each weight times the derivative of the target's logit with respect to it, where the product is positive. " +
    "It says which weights the logit would follow if they changed a little; it does not say what caused the answer.",
  rollout: "Rollout: the mean weights of all layers multiplied, with the residual path added to each. " +
    "It follows where numbers could flow; it ignores values, layers between and signs.",
};
async function drawRelevance(panel, head) {
  const view = file.views[state.view], at = `${state.view}/${state.layer}/relevance`, turn = panel.dataset.turn;
  const draw = (tensor, n, title, sentence) => {
    const [R, C] = tensor.sizes.slice(-2), cells = tensor.data.subarray(n * R * C, (n + 1) * R * C);
    const figure = make("figure"), canvas = make("canvas"), caption = make("figcaption", {textContent: title});
    figure.append(caption, canvas);
    sized(canvas, 300, 300).imageSmoothingEnabled = false;
    canvas.getContext("2d").drawImage(cellsImage(cells, R, C, largestOf(cells)), 0, 0, 300, 300);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", title);
    row.append(figure);
    if (sentence) panel.append(make("p", {className: "note", textContent: sentence}));
  };
  const relevance = await load(at), rollout = await load(`${state.view}/rollout`), row = make("div", {className: "row"});
  if (panel.dataset.turn !== turn) return;
  panel.append(row);
  if (!relevance && !rollout) return void row.append(make("p", {className: "note", textContent: "This file holds no relevance and no rollout."}));
  if (relevance) {
    const R = Math.min(head.Tq, 256), C = Math.min(head.Tk, 256), what = view.relevance || {};
    const raw = head.map || (head.kind === "map" ? head : null);
    const cells = raw ? {sizes: [1, raw.R, raw.C], data: raw.map} : {sizes: [1, R, C], data: cropMap(head, wholeRegion(head), R, C)};
    draw(cells, 0, "weights of this head");
    const shared = relevance.sizes[0] === 1;
    draw(relevance, shared ? 0 : state.head, (shared ? "relevance, all heads" : "relevance of this head") + (what.target ? ` for ${label(String(what.target), 24)}` : ""), SENTENCES.relevance);
  }
  if (rollout) draw(rollout, 0, "rollout over the layers", SENTENCES.rollout);
}
