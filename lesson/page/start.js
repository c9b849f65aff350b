// The shell: starts the engine, holds the state, and draws what follows from it. Runs when every function is there.
let state = null, engine = null, engineBytes = null;

function fail(error) {
  el("wrong").hidden = false;
  el("wrong").textContent = say("shell.wrong", {error: error.message});
}

/// Changes the state, keeps it in the address, and draws the page. Another step is an entry of the history, unless the address asked for it.
function change(to, isAsked = false) {
  const turned = "step" in to && to.step !== state.step;
  state = {...state, ...to};
  remember(turned && !isAsked ? "pushState" : "replaceState");
  drawPage();
  if (!turned) return;
  foldPages();
  scrollTo(0, 0);
  el("main").focus({preventScroll: true});
}
function remember(way) { try { history[way](null, "", "#" + formatAddress(state)); } catch { /* as if nobody wanted a link */ } }

function drawPage() {
  document.documentElement.lang = state.lang === "zh" ? "zh-CN" : "en";
  document.documentElement.dataset.theme = state.theme;
  drawShell();
  if (!engine) return;
  try {
    showCommand("");
    if (state.step === LAB) drawLab();
    else drawSteps(el("step"));
  } catch (error) { fail(error); }
}
/// The line at the bottom: the command that repeats what is shown; none where there is none.
function showCommand(command) {
  el("footer").hidden = !command;
  el("command").textContent = command || "";
}

const turns = [...Array.from({length: STEPS}, (_, n) => n + 1), LAB];
const nameOfStep = step => step === LAB ? say("lab.title") : stepsOf()[step - 1]?.question || String(step);
function turn(by) {
  const to = turns[turns.indexOf(state.step) + by];
  if (to) change({step: to});
}
function drawShell() {
  sayAll(document);
  document.title = el("title").textContent = say("shell.title");
  for (const b of el("languages").children) b.setAttribute("aria-pressed", b.dataset.lang === state.lang);
  [...el("theme").options].forEach(o => { o.textContent = say("shell.theme." + o.value); });
  el("theme").value = state.theme;
  el("contents").setAttribute("aria-label", say("shell.contents"));
  el("list").replaceChildren(...turns.map(step => {
    const item = make("li", {className: step === LAB ? "lab" : ""}), link = item.appendChild(make("a", {textContent: nameOfStep(step)}));
    link.href = location.href.split("#")[0] + "#" + formatAddress({...state, step});
    if (step === state.step) link.setAttribute("aria-current", "step");
    return item;
  }));
  el("here").textContent = `${state.step === LAB ? "\u2211" : state.step} \u00b7 ${nameOfStep(state.step)}`;
  el("step").hidden = state.step === LAB;
  el("lab").hidden = state.step !== LAB || !engine;
  const at = turns.indexOf(state.step);
  for (const [id, other] of [["before", turns[at - 1]], ["after", turns[at + 1]]]) {
    el(id).hidden = !other;
    if (other) el(id).textContent = id === "before" ? `\u2190 ${nameOfStep(other)}` : `${nameOfStep(other)} \u2192`;
  }
}

/// On a phone the contents are one line, the step that is shown, until they are asked for.
const phone = matchMedia("(max-width: 820px)"), foldPages = () => { el("pages").open = !phone.matches; };
/// Paper gets all steps, each on a page of its own, with the figures that are not covered; the lab is printed as it is shown.
function fillPaper() {
  if (!engine || state.step === LAB) return;
  el("paper").hidden = false;
  stepsOf().forEach(({id}, n) => {
    drawSteps(el("paper").appendChild(make("article")), n + 1);
    stages[id].show();
  });
  el("step").hidden = true;
}
function clearPaper() {
  el("paper").hidden = true;
  el("paper").replaceChildren();
  drawPage();
}
/// Left and right turn the pages, where they mean nothing else.
function onKey(event) {
  const {target, key} = event, by = {ArrowLeft: -1, ArrowRight: 1}[key];
  const isOther = target !== document.body && target !== el("main") && !target.closest?.("#contents");
  if (!by || isOther || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
  turn(by);
  event.preventDefault();
}
/// The text of a node into the clipboard, or selected where there is none; the button says which.
async function copyFrom(node, button) {
  let done = "shell.copied";
  try { await navigator.clipboard.writeText(node.textContent); } catch { getSelection().selectAllChildren(node); done = "shell.selected"; }
  button.textContent = say(done);
  setTimeout(() => { button.textContent = say("shell.copy"); }, 1500);
}
function listen() {
  for (const b of el("languages").children) b.onclick = () => change({lang: b.dataset.lang});
  el("theme").onchange = () => change({theme: el("theme").value});
  el("before").onclick = () => turn(-1);
  el("after").onclick = () => turn(1);
  el("copy").onclick = () => copyFrom(el("command"), el("copy"));
  foldPages();
  phone.addEventListener("change", foldPages);
  addEventListener("beforeprint", fillPaper);
  addEventListener("afterprint", clearPaper);
  addEventListener("keydown", onKey);
  addEventListener("hashchange", () => change(parseAddress(location.hash, navigator.languages), true));
  systemDark.addEventListener("change", drawPage);
}
async function start() {
  state = parseAddress(location.hash, navigator.languages);
  listen();
  drawPage();
  try {
    engineBytes = await inflate(fromBase64(el("wasm").textContent.trim()), "gzip");
    engine = await loadEngine(engineBytes);
    drawPage();
  } catch (error) { fail(error); }
  document.body.dataset.ready = "";
}
addEventListener("DOMContentLoaded", start);
