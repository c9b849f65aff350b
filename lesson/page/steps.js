// One step of the lesson: what broke before it, question, text, what to compute by hand, a figure that is computed
// as it is drawn, and where to go on.
const stages = {};  // what a reader changed, by the step's id
// Where those articles are whose address is known.
const ARTICLES = {"001": "http://www.dtcms.com/a/329258.html", "003": "https://www.sshipanoo.com/blog/ai/llm-roadmap/%E9%A1%B9%E7%9B%AE04-attention/"};
let exampleOf = null, stopStep = () => {};

/// An element of a text whose `code` is marked.
function withCode(tag, text, properties = {}) {
  const node = make(tag, properties);
  node.append(...text.split("`").map((part, n) => n % 2 ? make("code", {textContent: part}) : part));
  return node;
}
const paragraph = text => withCode("p", text, {className: /^`[^`]*`$/.test(text) ? "formula" : ""});

function drawSteps(root, number = state.step) {
  stopStep();
  exampleOf ||= exampleNumbers(engine);
  const steps = stepsOf(), step = steps[number - 1], part = {...scoreSteps, ...layerSteps, ...learnSteps}[step.id], before = steps[number - 2];
  const stage = stages[step.id] ||= {typed: [], ...part.start()};
  const heading = make("h2");
  heading.append(make("span", {className: "n", textContent: number}), step.question);
  const figure = drawStage(step, part, stage);
  root.replaceChildren(...before ? [withCode("p", before.broke, {className: "broke"})] : [], heading, ...step.text.map(paragraph),
    drawPencil(step, stage, stage.open), figure, drawOnward(number, step),
    ...steps[number] ? [] : [withCode("p", step.broke, {className: "broke"})]);
}

/// The figure with its controls; both follow from the stage, and change it. One that shows the answer is covered until that is right, or the
/// figure is asked for.
function drawStage(step, part, stage) {
  const isOpen = stage.isOpen || part.open;  // its figure does not show what is to be computed by hand
  const node = make("figure", {className: isOpen ? "stage" : "stage covered"}), picture = make("div", {className: "picture"}),
    said = make("p", {className: "said", ariaLive: "polite"}), bar = make("div", {className: "controls"});
  let width = 0, waiting = 0;
  function show() {
    const held = picture.contains(document.activeElement) && document.activeElement.dataset.part;
    for (const control of controls.all) control.show();
    width = picture.clientWidth;
    picture.innerHTML = part.draw(stage, Math.max(280, width - 24));
    said.textContent = part.said(stage);
    if (held) picture.querySelector(`[data-part="${held}"]`)?.focus();
  }
  const later = () => { waiting ||= requestAnimationFrame(() => { waiting = 0; show(); }); }, controls = controlsOf(later);
  part.controls(stage, controls, later);
  controls.button(() => say("step.reset"), () => Object.assign(stage, part.start()));
  if (part.move) listenToParts(picture, part, stage, later);
  const size = new ResizeObserver(() => { if (picture.clientWidth !== width) show(); });
  size.observe(picture);
  stopStep = () => { size.disconnect(); cancelAnimationFrame(waiting); };
  Object.assign(stage, {redraw: later, show, open() { stage.isOpen = true; node.classList.remove("covered"); }});
  bar.append(...controls.all.map(control => control.node));
  const cover = make("p", {className: "cover", textContent: say("step.covered") + " "}),
    button = make("button", {type: "button", textContent: say("step.uncover")});
  button.onclick = () => { stage.open(); picture.tabIndex = -1; picture.focus(); };
  cover.append(button);
  node.append(cover, withCode("figcaption", step.try), bar, ...part.rule ? [make("p", {className: "note", textContent: say("step.rule")})] : [], picture, said);
  return node;
}

/// Parts of a picture move under the pointer, and by the arrow keys.
function listenToParts(picture, part, stage, changed) {
  let held = null;
  const partOf = event => event.target.closest?.("[data-part]"), byKeys = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1]};
  const move = (name, to) => { if (part.move(stage, name, to)) changed(); };
  picture.onpointerdown = event => {
    const found = partOf(event);
    if (!found?.closest("[data-plane]")) return;
    held = found.dataset.part;
    found.focus({preventScroll: true});
    picture.setPointerCapture(event.pointerId);
  };
  picture.onpointermove = event => {
    const found = held && picture.querySelector(`[data-part="${held}"]`);
    if (found) move(held, () => draw.planePoint(found, event));
  };
  picture.onpointerup = picture.onpointercancel = () => { held = null; };
  picture.onkeydown = event => {
    const by = byKeys[event.key], found = partOf(event);
    if (!by || !found) return;
    event.preventDefault();
    move(found.dataset.part, ([x, y]) => [x + by[0] / 4, y + by[1] / 4]);
  };
}

/// The commands, the exercises and the articles of a step.
function drawOnward(number, {command, exercise, articles}) {
  const list = make("dl", {className: "onward"});
  const add = (name, lines) => {
    if (!lines.length) return;
    const rows = lines.map(line => {
      const textContent = say("shell.copy"), row = make("dd"), button = make("button", {type: "button", textContent, ariaLabel: `${textContent}: ${line}`});
      button.onclick = () => copyFrom(row.firstChild, button);
      row.append(make("code", {textContent: line}), button);
      return row;
    });
    list.append(make("dt", {textContent: say(name)}), ...rows);
  };
  add("step.here", [`qkv lesson ${number}${state.lang === "zh" ? " --lang zh" : ""}`]);
  add("step.command", [command]);
  const fileOf = name => name.replaceAll("-", "_") + ".py";
  add("step.exercise", exercise.flatMap(name => [`qkv practice ${name} > ${fileOf(name)}`, `qkv judge ${fileOf(name)}`]));
  if (articles.length) list.append(make("dt", {textContent: say("step.articles")}),
    ...articles.map(name => {
      const row = make("dd", {textContent: `${name} \u00b7 `, lang: "zh-CN"}), textContent = say("step.article." + name);
      row.append(ARTICLES[name] ? make("a", {href: ARTICLES[name], textContent}) : textContent);
      return row;
    }));
  return list;
}
