// A page that is served by qkv.explore(model).serve(): another prompt, other heads cut, generation with and without. The only script that asks.
const LIVE = {heads: []};  // by the layers' and heads' own numbers, as the server counts them

async function ask(name, more = {}) {
  const body = {text: el("liveText").value || undefined, cut: LIVE.heads, with: el("liveWith").value, ...more};
  if (body.with === "patch") body.from = el("liveFrom").value;
  const answer = await fetch(name, {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)}), json = await answer.json();
  if (!answer.ok) throw new Error(json.error || `the server answers ${answer.status}`);
  return json;
}
const ASKED = {
  async cut(panel) {
    const heads = [...LIVE.heads], how = el("liveWith").value, {whole, cut, tokens} = await ask("cut"), names = n => tokens?.[n] ?? String(n);
    if (cut && heads.length) return drawCut(panel, whole, cut, {heads, with: how, ...cut, ...cut.cut}, names, state.view);
    panel.append(make("h3", {textContent: "the whole model: no head is cut"}));
    if (Number.isFinite(whole.loss)) panel.append(make("p", {textContent: `loss ${short(whole.loss)} nats per token`}));
    if (whole.next) drawBars(panel, "what comes next", ["share"], whole.next.map(({token, p}) => [token, p]), percent);
  },
  async generate(panel) {
    const {whole, cut} = await ask("generate", {tokens: Number(el("liveTokens").value)});
    for (const [title, text] of Object.entries({whole, cut})) {
      if (text != null) panel.append(make("h3", {textContent: title}), make("p", {className: "said", textContent: visible(text, 4000)}));
    }
  },
  async page() { location.assign((await ask("page")).page); },
};
function drawLive() {
  const bar = el("liveHeads"), shown = ownNumbers(state.view, state.layer, state.head), keep = n => () => { LIVE.heads.splice(n, 1); drawLive(); };
  const all = LIVE.heads.map((head, n) => make("button", {textContent: `${nameAt(state.view, head)} \u00d7`, title: "keep this head", onclick: keep(n)}));
  const isCut = LIVE.heads.some(([l, h]) => l === shown[0] && h === shown[1]), add = make("button", {textContent: `cut ${nameAt(state.view, shown)}`, disabled: isCut});
  add.onclick = () => { LIVE.heads.push(shown); drawLive(); };
  renew(bar, ...all, add);
  el("liveFromBox").hidden = el("liveWith").value !== "patch";
}
function listenLive() {
  el("live").hidden = !file.live;
  if (!file.live) return;
  LIVE.heads = file.views.flatMap((view, v) => (view.cut?.heads || []).map(([l, h]) => ownNumbers(v, l, h)));
  el("liveWith").addEventListener("change", drawLive);
  for (const name of Object.keys(ASKED)) {
    const button = el("ask-" + name);
    button.hidden = !file.live.names.includes(name);
    button.addEventListener("click", async () => {
      const panel = el("liveAnswer"), all = document.querySelectorAll("#live button");
      all.forEach(b => { b.disabled = true; });
      panel.replaceChildren(make("p", {className: "note", textContent: "the model runs ..."}));
      const answer = make("div");
      try { await ASKED[name](answer); } catch (error) { answer.append(make("p", {textContent: error.message})); }
      panel.replaceChildren(answer);
      all.forEach(b => { b.disabled = false; });
      drawLive();
    });
  }
  drawLive();
}
