// A generated answer: of each new token, what its query looks at, on the prompt and on the answer before it.
const ANSWERED = 100;  // rows at once

function drawAnswer(panel, {head, texts, view, layer}) {
  const say = text => panel.append(make("p", {className: "note", textContent: text})), from = texts.queryAnswer;
  if (from === null) return say("The queries of this view hold no generated answer.");
  if (from >= head.Tq) {
    const {queries, kind} = file.views[view], {answer} = file.texts[queries];
    const other = file.views.findIndex(v => v.queries === queries && v.kind === kind && v.layers.some(l => (l.q_first || 0) + l.q_len > answer));
    say("The queries of this view are the prompt's" + (other < 0 ? "; those of the answer are not in the file." : "."));
    return other < 0 ? undefined : void panel.append(make("button", {textContent: `show ${viewName(file.views[other], other)}`, onclick: () => change({view: other})}));
  }
  const first = Math.max(from, 0), count = head.Tq - first, start = first + Math.max(0, Math.min(count - ANSWERED, state.i - first - ANSWERED / 2));
  const table = panel.appendChild(make("table", {className: "answer"})), title = table.createTHead().insertRow(), hasPrompt = texts.keyAnswer > 0;
  for (const name of ["token", "then written", ...(hasPrompt ? ["on the prompt", "on the answer"] : []), "looks at"]) title.append(make("th", {textContent: name, scope: "col"}));
  const body = table.createTBody();
  for (let i = start; i < Math.min(head.Tq, start + ANSWERED); ++i) {
    const line = body.insertRow(), row = head.row(i), choose = to => () => chooseToken(to);
    line.classList.toggle("chosen", i === state.i);
    line.insertCell().append(make("button", {textContent: label(texts.query(i), 20), title: `position ${i}`, onclick: choose({i})}));
    line.insertCell().textContent = i + 1 < head.Tq ? label(texts.query(i + 1), 20) : "";
    if (hasPrompt) {
      let prompt = 0, all = 0;
      row.forEach((w, j) => { all += w; if (j < texts.keyAnswer) prompt += w; });
      line.insertCell().textContent = percent(prompt);
      line.insertCell().textContent = percent(all - prompt);
    }
    const keys = line.insertCell();
    for (const j of largest(row, 5).filter(n => row[n] > 0)) {
      keys.append(make("button", {textContent: `${label(texts.key(j), 20)} ${percent(row[j])}`, title: `position ${j}`, onclick: choose({i, j})}), " ");
    }
  }
  say((count > ANSWERED ? `${ANSWERED} of ${count} new tokens, around the chosen one. ` : "") + "A token's query decides what is written behind it" +
    (head.kind === "map" ? "; weights are shares of blocks here, not of single tokens." : "."));
}
