// Every figure of the lesson with its real numbers (QKV_TOOL), wide and narrow, in both languages, and those of the documentation alone in
// English: well-formed, named, nothing outside its frame. node tests/lesson/figures_test.js
"use strict";
const assert = require("node:assert"), fs = require("node:fs"), path = require("node:path");
const {figure, lesson, numbers, of, root} = require("../../scripts/figures");
const draw = of("draw");

/// Calls visit(name, attributes, [x, y] of its origin, its text) for each element; throws where the text is no XML.
function walk(svg, visit) {
  const open = [];
  for (const [, shut, name, written, single, text] of svg.matchAll(/<(\/?)(\w+)((?:\s+[\w-]+="[^"<]*")*)\s*(\/?)>([^<]*)/g)) {
    if (shut) assert.strictEqual(open.pop().name, name, "elements are closed in their order");
    else {
      const attributes = Object.fromEntries([...written.matchAll(/([\w-]+)="([^"]*)"/g)].map(([, key, value]) => [key, value]));
      const [dx, dy] = attributes.transform ? attributes.transform.match(/^translate\((\S+) (\S+)\)$/).slice(1).map(Number) : [0, 0];
      const at = open.length ? open[open.length - 1].at : [0, 0], here = [at[0] + dx, at[1] + dy];
      visit(name, attributes, here, text);
      if (!single) open.push({name, at: here});
    }
    assert.ok(!/&(?!amp;|lt;|gt;|quot;)/.test(text), `an entity in ${text}`);
  }
  assert.strictEqual(open.length, 0, "every element is closed");
  assert.strictEqual(svg.replace(/<[^<>]*>/g, "").includes("<"), false, "every < begins an element");
}

const all = numbers();
let shown = 0;
for (const [name, given] of Object.entries(all)) for (const language of ["en", "zh"]) for (const width of [760, 336]) {
  if (language === "zh" && fs.existsSync(path.join(root, `lesson/pictures/${name}.js`))) continue;
  const svg = figure(name, given, language, {width, parts: true}), what = `${name} in ${language}, ${width} wide`;
  const [, , w, h] = svg.match(/viewBox="([^"]*)"/)[1].split(" ").map(Number);
  assert.ok(w <= width + 24, `${what}: ${w} wide`);
  assert.match(svg, /<title>[^<]{4,}<\/title><desc>[^<]{20,}<\/desc>/, what);
  assert.ok(!/NaN|undefined|Infinity/.test(svg), `${what}: a number that is none`);
  walk(svg, () => {});
  walk(svg.replace(/<\/?tspan[^>]*>/g, ""), (element, a, [x, y], text) => {
    for (const [, colour] of ((a.fill || "") + (a.stroke || "")).matchAll(/--(\w+)/g)) assert.ok(colour in draw.colours.light, `${what}: ${colour}`);
    if (element === "rect") assert.ok(x + +a.x >= 0 && x + +a.x + +a.width <= w && y + +a.y >= 0 && y + +a.y + +a.height <= h, `${what}: a rectangle outside`);
    if (element !== "text") return;
    const size = Number(a["font-size"] || 13), long = draw.measure(text.replace(/&\w+;/g, "&"), size), left = x +
      +a.x - ({middle: long / 2, end: long}[a["text-anchor"]] || 0);
    assert.ok(text.trim() && size >= 11, `${what}: "${text}" of size ${size}`);
    assert.ok(left >= -2 && left + long <= w + 2 && y + +a.y <= h && y + +a.y >= .7 * size,
      `${what}: "${text}" is outside: ${left} to ${left + long} of ${w}, ${y + +a.y} of ${h}`);
  });
  ++shown;
}
assert.deepStrictEqual(Object.keys(draw.colours.light), Object.keys(draw.colours.dark));
// The page's colours are those of the files.
const style = ["src/view/explore/page/style.css", "lesson/page/style.css"].map(name => fs.readFileSync(path.join(root, name), "utf8")).join("");
for (const of of Object.values(draw.colours)) for (const [name, colour] of Object.entries(of)) assert.ok(style.includes(`--${name}: ${colour};`),
    `the page's ${name} is not ${colour}`);
for (const language of ["en", "zh"]) assert.doesNotMatch(lesson(language), /^(?:\d+[.)]|[-+*>]) /m, "a sentence of the lesson became a list");
console.log(`${shown} figures`);
