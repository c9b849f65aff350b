// The lab: a model that learns to attend, with an engine of its own, so that no step of the lesson changes its model.
let lab = null;
/// In the order in which they teach: one head, four of which no single one is needed, two that need each other.
const labLessons = {one: {task: "previous", heads: 1, layers: 1}, two: {task: "previous", heads: 2, layers: 2}, induction: {task: "induction", heads: 1, layers: 2}};
const labGoals = {previous: 60, same: 800, next: 800, own: 800, induction: 300}, usualRate = task => task === "induction" ? 0.006 : FIRST.rate;
const labModelOf = of => JSON.stringify(["task", "heads", "layers", "rate", "seed"].map(name => of[name]));
const lessonNow = () => Object.keys(labLessons).find(name => Object.entries(labLessons[name]).every(([key, value]) => state[key] === value));

/// How the engine is asked for the model of the state.
function labConfig() {
  const {task, heads, layers, seed, rate} = state, induces = task === "induction";
  return {text: task === "own" ? lab.own : "", task: task === "own" ? "next" : task, heads, layers, blocks: layers > 1, dim: 32 % heads ? 33 : 32,
    context: induces ? 24 : 16, seed, rate, batch: induces ? 16 : 32};
}
/// A text that the task is about: all characters of it are the model's.
function labSample(symbols) {
  const letters = symbols.filter(c => /\S/.test(c)), pick = numbers => numbers.map(n => letters[n % letters.length]).join("");
  if (state.task === "own") return [...lab.own].slice(0, 12).join("");
  if (state.task === "next") return "abababab";
  return state.task === "induction" ? pick([10, 3, 16, 1, 21, 8, 14, 5]).repeat(2) : pick([0, 3, 1, 4, 2, 0, 5, 1]);
}

/// A new model, nothing trained.
function labStart() {
  const {engine: e, own = ""} = lab, prompt = lab.task === state.task ? lab.prompt : null;
  lab.key = null;
  if (state.task === "own") checkOwn([...own]);
  Object.assign(lab, {running: false, losses: [], moments: [], every: 1, shown: 0, cut: new Set(), head: [0, 0], query: -1, guess: {}, typed: null});
  const {parameters, symbols, text} = e.start(labConfig());
  Object.assign(lab, {parameters, text, symbols: [...symbols], task: state.task, key: labModelOf(state) + own});
  const known = prompt && [...prompt].every(c => lab.symbols.includes(c));
  lab.prompt = known ? prompt : labSample(lab.symbols);
  keepMoment();
  el("labGoal").value = labGoals[state.task];
  el("labGoalWrong").textContent = "";
}

/// The model on the prompt: whole, and with what is cut or switched off where something is.
function labTrace() {
  const {engine: e, prompt, cut, causal, scale, positions} = lab;
  lab.whole = e.trace(prompt, {cut: [], causal: true, scale: true, positions: true});
  lab.isSwitched = !causal || !scale || !positions;
  lab.isCut = cut.size > 0 || lab.isSwitched;
  lab.now = lab.isCut ? e.trace(prompt, {cut: labCuts(), causal, scale, positions}) : lab.whole;
  const length = [...prompt].length;
  lab.row = lab.query >= 0 && lab.query < length ? lab.query : length - 1;
}
/// What no model can be made of, as a sentence of the page.
function checkOwn(characters) {
  const kinds = new Set(characters).size, least = 18, most = 64, values = {n: characters.length, kinds, least, most};
  const cause = characters.length < least ? "short" : kinds === 1 ? "one" : kinds > most ? "many" : "";
  if (cause) throw Object.assign(new Error(say("lab.own." + cause, values)), {said: true});
}
/// A whole number from low to high, or null: then the field says what it takes, and keeps what was typed.
function labWhole(id, low, high) {
  const {value} = el(id), n = Number(value), fits = value.trim() !== "" && Number.isInteger(n) && n >= low && n <= high;
  el(id + "Wrong").textContent = fits ? "" : say("lab.number", {low, high});
  return fits ? n : null;
}
const labSeed = () => labWhole("labSeed", 0, 999999999), labGoal = () => labWhole("labGoal", Math.min(lab.engine.step + 1, 100000), 100000);
/// What the second of two models lacks.
function labLess() {
  const off = [["causal", "mask"], ["scale", "scale"], ["positions", "positions"]].filter(([name]) => !lab[name]).map(([, key]) => say("lab." + key));
  return [lab.cut.size ? say("lab.less") : "", off.length ? say("lab.off", {what: off.join(" + ")}) : ""].filter(Boolean).join(" + ");
}
const labCuts = () => [...lab.cut].map(pair => pair.split(":").map(Number));

async function openLab() {
  lab = {engine: null, own: labKept(), kind: "weights", causal: true, scale: true, positions: true, heat: 1};
  lab.engine = await loadEngine(engineBytes);
  listenLab();
}
/// The text of one's own stays for this session, where the browser lets a page keep something.
function labKept(text) {
  try {
    if (text !== undefined) sessionStorage.setItem("qkv-lesson-text", text);
    return sessionStorage.getItem("qkv-lesson-text") || "";
  } catch { return text || ""; }
}
/// Whether the engine's model is that of the settings: of a text that is refused there is none.
const isCurrent = () => lab.key === labModelOf(state) + lab.own;
function drawLab() {
  if (!lab) openLab().then(drawPage).catch(fail);
  if (!lab.engine || state.step !== LAB) return;  // leaving the page stops a training, and ends what is typed
  labTry(() => {
    drawSettings();
    if (!isCurrent()) labStart();
    labTrace();
    drawState();
    drawLoss();
    drawMaps();
    drawOneHead();
    drawNext();
    drawGuess();
    drawLosses();
  });
}
/// What the engine refuses is said where it was asked for; the page goes on.
function labTry(work) {
  el("labWrong").hidden = true;
  el("labGrid").hidden = false;
  try { work(); } catch (error) {
    lab.running = false;
    el("labWrong").hidden = false;
    el("labGrid").hidden = true;
    el("labWrong").textContent = error.said ? error.message : say(/^the engine stopped/.test(error.message) ? "lab.stopped" : "lab.refused", {error: error.message});
    if (state.task === "own") el("labSettings").open = true;
  }
}

function drawSettings() {
  const lesson = lessonNow(), {task, heads, layers, rate, seed} = state;
  for (const b of el("labLessons").children) b.setAttribute("aria-pressed", b.dataset.lesson === lesson);
  el("labTry").textContent = lesson ? say(`lab.${lesson}.try`) : "";
  fillSelect(el("labTask"), TASKS.map(of => [of, say("lab.task." + of)]), task);
  fillSelect(el("labRate"), [...new Set([0.0003, 0.001, 0.003, 0.006, 0.01, 0.03, rate])].map(of => [of, String(of)]), rate);
  fillSelect(el("labKind"), ["weights", "scores", "gradients"].map(of => [of, say("lab.kind." + of)]), lab.kind);
  el("labHeads").value = heads;
  el("labLayers").value = layers;
  if (el("labSeedWrong").textContent) labSeed();
  else el("labSeed").value = seed;
  el("labOwnBox").hidden = el("labOwnNote").hidden = task !== "own";
  if (document.activeElement !== el("labOwn")) el("labOwn").value = lab.own;
  for (const [id, name] of [["labMask", "causal"], ["labScale", "scale"], ["labPositions", "positions"]]) el(id).checked = !lab[name];
}
function drawState() {
  if (document.activeElement !== el("labPrompt")) el("labPrompt").value = lab.prompt;
  el("labTrain").textContent = say(lab.running ? "lab.stop" : "lab.train");
  const loss = lab.losses[lab.engine.step - 1];
  const trained = state.task === "next" ? say("lab.trained", {text: unitOf(lab.text)}) + " " : "";
  el("labSays").textContent = trained + say("lab.at", {parameters: lab.parameters, symbols: lab.symbols.map(c => label(c)).join(" "), step: lab.engine.step}) +
    (loss === undefined ? "" : " " + say("lab.at.loss", {loss: loss.toFixed(4)}));
  if (el("labGoalWrong").textContent && !lab.running) labGoal();
  drawDropped();
  el("labNoCommand").hidden = !lab.isSwitched;
  showCommand(labCommand());
}
/// What of the typed text the model does not get, and why.
function drawDropped() {
  const {typed, symbols} = lab, {context} = labConfig(), known = typed?.filter(c => symbols.includes(c)), unknown = typed && [...new Set(typed)].filter(c => !symbols.includes(c));
  const all = !typed ? [] : [unknown.length && say("lab.prompt.unknown", {characters: unknown.map(c => label(c)).join(" ")}),
    known.length > context && say("lab.prompt.long", {context, n: known.length}), !known.length && say("lab.prompt.none")];
  el("labPromptWrong").textContent = all.filter(Boolean).join(" ");
}
/// The command that computes what is shown: this training, this text, without these heads. No command does what the three switches do.
function labCommand() {
  if (lab.running || lab.isSwitched) return "";
  const quoted = /^\w+$/.test(lab.prompt) ? lab.prompt : `'${lab.prompt.replace(/'/g, "'\\''")}'`;
  return `${lab.engine.command()} --sample ${quoted}${lab.cut.size ? " --cut " + [...lab.cut].join(",") : ""}`;
}

function listenLab() {
  const on = (id, what, then) => el(id).addEventListener(what, then), redraw = to => { Object.assign(lab, to); drawLab(); };
  const go = work => () => isCurrent() ? labTry(work) : drawLab();
  for (const b of el("labLessons").children) b.onclick = () => change({...labLessons[b.dataset.lesson], rate: usualRate(labLessons[b.dataset.lesson].task)});
  on("labTask", "change", e => change({task: e.target.value, rate: usualRate(e.target.value), layers: e.target.value === "induction" ? 2 : state.layers}));
  for (const [id, name] of [["labHeads", "heads"], ["labLayers", "layers"], ["labRate", "rate"]]) on(id, "change", e => change({[name]: Number(e.target.value)}));
  on("labSeed", "change", () => { const seed = labSeed(); if (seed !== null) change({seed}); });
  on("labOwn", "change", e => redraw({own: labKept(e.target.value)}));
  on("labOwnSave", "click", () => download("text.txt", "text/plain", lab.own));
  on("labTrain", "click", go(() => lab.running ? stopTraining() : train()));
  on("labOne", "click", go(() => { stopTraining(); oneStep(); keepMoment(); drawLab(); }));
  on("labAgain", "click", () => labTry(() => { labStart(); drawLab(); }));
  on("labScrub", "input", e => labTry(() => { stopTraining(); showMoment(Number(e.target.value)); }));
  on("labPrompt", "input", e => {
    const typed = [...e.target.value], known = typed.filter(c => lab.symbols.includes(c)).slice(0, labConfig().context);
    redraw({typed, ...(known.length && {prompt: known.join(""), query: -1})});
  });
  on("labPrompt", "blur", () => drawLab());
  for (const [id, name, of] of [["labHeat", "heat", Number], ["labKind", "kind", String]]) on(id, "input", e => redraw({[name]: of(e.target.value)}));
  for (const [id, name] of [["labMask", "causal"], ["labScale", "scale"], ["labPositions", "positions"]]) on(id, "change", e => redraw({[name]: !e.target.checked}));
  listenMap();
}
