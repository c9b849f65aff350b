// The explorer's pure functions without a browser: node tests/view/explorer_test.js. Also reads every script of the
// page for what it must not hold. Expected weights come from a softmax written out here.
"use strict";
const assert = require("node:assert"), fs = require("node:fs"), path = require("node:path"), vm = require("node:vm");

const folder = path.join(__dirname, "../../src/view/explore/page"), scripts = fs.readdirSync(folder).filter(name => name.endsWith(".js")).sort();
const sources = Object.fromEntries(scripts.map(name => [name, fs.readFileSync(path.join(folder, name), "utf8")]));
const page = vm.createContext({Blob, Response, DecompressionStream, atob, structuredClone, TextDecoder, URLSearchParams, matchMedia: () => ({matches: false})});
for (const name of ["base.js", "cells.js", "bars.js", "store.js", "check.js", "formula.js", "blocks.js", "link.js", "words.js", "map.js", "lines.js", "side.js", "overview.js", "save.js"]) vm.runInContext(sources[name], page, {filename: name});
new vm.Script(scripts.map(name => sources[name]).join("\n"));  // the page has them all: no name is declared twice
// vm's own functions and constants are not properties of its context: read them by name.
const of = name => vm.runInContext(name, page), plain = x => JSON.parse(JSON.stringify(x));

let seed = 1;
const random = () => { seed = (seed * 48271) % 2147483647; return seed / 2147483647 * 2 - 1; };
const numbers = (n, scale = 1) => Float32Array.from({length: n}, () => scale * random());
let cases = 0;
function near(got, wanted, what) {
  ++cases;
  assert.ok(Math.abs(got - wanted) <= 1e-6 * Math.abs(wanted) + 1e-12, `${what}: got ${got}, wanted ${wanted}`);
}

// --- formula.js against the textbook: scores, what is visible, softmax.
function textbook(s, sink) {
  const {D, Tq, Tk, q, k, f} = s, offset = f.offset ?? Tk - Tq, w = [], lse = new Float64Array(Tq);
  for (let i = 0; i < Tq; ++i) {
    const y = Array.from({length: Tk}, (_, j) => {
      let x = 0;
      for (let d = 0; d < D; ++d) x += q[i * D + d] * k[j * D + d];
      x *= f.scale;
      if (f.softcap) x = f.softcap * Math.tanh(x / f.softcap);
      const d = j - i - offset;
      if (s.slope !== null) x -= s.slope * Math.abs(d);
      if (s.table) { const R = (s.table.length - 1) / 2; x += s.table[R + Math.min(R, Math.max(-R, d))]; }
      if (s.bias) x += s.bias[i * Tk + j];
      return !s.intervals || j >= s.intervals[2 * i] && j < s.intervals[2 * i + 1] ? x : -Infinity;
    });
    const sum = y.reduce((all, x) => all + Math.exp(x), 0) + (sink === undefined ? 0 : Math.exp(sink));
    lse[i] = Math.log(sum);
    w.push(y.map(x => sum > 0 ? Math.exp(x) / sum : f.empty === "mean" ? 1 / Tk : 0));
  }
  return {w, lse};
}
const sizes = [[7, 7], [5, 12], [12, 5], [1, 9]];
const formulas = [{}, {softcap: 2}, {offset: 0}, {offset: 3, softcap: 1.5, empty: "mean"}];
// Of query i: the keys up to it, three about it, those of its document, none of every second query.
const seenKeys = [null, (i, Tk) => [0, Math.min(Tk, i + 1)], (i, Tk) => [Math.min(Tk, Math.max(0, i - 1)), Math.min(Tk, i + 2)], (i, Tk) => [Math.min(Tk, i - i % 3), Math.min(Tk, i - i % 3 + 3)], (i, Tk) => [0, i % 2 * Tk]];
for (const [Tq, Tk] of sizes) for (const D of [1, 4, 5]) for (const given of formulas) for (const [kind, keys] of seenKeys.entries()) for (const extra of ["", "slope", "table", "bias", "sink"]) {
  const s = {D, Tq, Tk, q: numbers(Tq * D, 2), k: numbers(Tk * D, 2), f: {scale: .7, ...given}, slope: extra === "slope" ? .3 : null, table: extra === "table" ? numbers(7) : null,
    bias: extra === "bias" ? numbers(Tq * Tk) : null, intervals: keys && Float32Array.from({length: 2 * Tq}, (_, n) => keys(n >> 1, Tk)[n & 1])};
  const {w, lse} = textbook(s, extra === "sink" ? .4 : undefined);
  s.lse = lse;
  const head = of("exactHead")(s), whole = head.tile(0, 0, Tq, Tk), what = JSON.stringify([Tq, Tk, D, given, kind, extra]);
  for (let i = 0; i < Tq; ++i) {
    const row = head.row(i);
    for (let j = 0; j < Tk; ++j) {
      near(head.weight(i, j), w[i][j], what);
      assert.strictEqual(whole[i * Tk + j], Math.fround(head.weight(i, j)), what);
      assert.strictEqual(row[j], whole[i * Tk + j], what);
      assert.strictEqual(head.column(j)[i], whole[i * Tk + j], what);
    }
  }
  const part = head.tile(Tq >> 1, Tk >> 1, Tq - (Tq >> 1), Tk - (Tk >> 1));
  assert.strictEqual(part.at(-1), whole.at(-1), what);
  const why = head.why(Tq - 1, Tk - 1);
  near(why.products.reduce((a, b) => a + b, 0), why.scaled, what);
  assert.strictEqual(why.weight, head.weight(Tq - 1, Tk - 1));
}

const broken = of("exactHead")({D: 1, Tq: 2, Tk: 3, q: Float32Array.of(NaN, 1), k: numbers(3), lse: Float32Array.of(NaN, 1), f: {scale: 1}, slope: null, table: null, bias: null, intervals: null});
assert.ok([...broken.row(0)].every(Number.isNaN) && Number.isNaN(broken.weight(0, 2)) && !broken.row(1).some(Number.isNaN));

// --- store.js: every type, against its definition.
const bits = new Float32Array(1), word = new Uint32Array(bits.buffer), planes = of("fromPlanes"), toNumbers = of("toNumbers");
assert.deepStrictEqual([...planes(Uint8Array.of(1, 2, 3, 4, 5, 6), 2)], [1, 4, 2, 5, 3, 6]);
for (const x of [0, 1, -2.5, 65504, 2 ** -24, 2 ** -14, Infinity]) {
  const e = Math.abs(x) < 2 ** -14 ? -14 : Math.min(16, Math.floor(Math.log2(Math.abs(x)))), m = x === Infinity ? 0 : Math.abs(x) < 2 ** -14 ? Math.abs(x) * 2 ** 24 : (Math.abs(x) / 2 ** e - 1) * 1024;
  const half = (x < 0 ? 32768 : 0) | (Math.abs(x) < 2 ** -14 ? 0 : e + 15) << 10 | m;
  assert.strictEqual(toNumbers(new Uint8Array(Uint16Array.of(half).buffer), "F16", null)[0], x);
  bits[0] = x;
  const brain = word[0] >>> 16;
  word[0] = brain << 16;
  assert.strictEqual(toNumbers(new Uint8Array(Uint16Array.of(brain).buffer), "BF16", null)[0], bits[0]);
}
const coded = toNumbers(Uint8Array.of(0, 254, 127, 255), "U8", Float32Array.of(1, .5));
assert.ok(coded[0] === 0 && coded[1] === 1 && Math.abs(coded[2] - .125) < 1e-7 && Number.isNaN(coded[3]));

// --- blocks.js: pooled cells hold every weight once.
const weights = numbers(30 * 50).map(Math.abs), stored = of("storedHead")(weights, 30, 50), cells = new Float64Array(7 * 9), region = {q0: 2, q1: 28, k0: 5, k1: 50};
for (const [i0, rows] of [[0, 16], [16, 14]]) for (const [j0, columns] of [[0, 20], [20, 20], [40, 10]]) of("pool")(cells, 7, 9, region, stored.tile(i0, j0, rows, columns), i0, j0, rows, columns);
let sum = 0;
for (let i = 2; i < 28; ++i) for (let j = 5; j < 50; ++j) sum += weights[i * 50 + j];
near(cells.reduce((a, b) => a + b, 0), sum, "pool");
const means = of("divide")(cells, 7, 9, 26), counts = [4, 4, 4, 3, 4, 4, 3];
counts.forEach((n, r) => near(means[r * 9], cells[r * 9] / Math.max(1, [...Array(26).keys()].filter(i => Math.floor(i * 7 / 26) === r).length), "divide"));

// --- blocks.js, save.js: of any length a column of ones has the mean 1 in every cell, and a cell's first position is the first that lies in it.
for (const length of [513, 700, 784, 1000, 1500, 3001, 4095, 8191]) {
  const across = {q0: 3, q1: 3 + length, k0: 0, k1: 1}, down = {q0: 0, q1: 1, k0: 3, k1: 3 + length}, binned = new Float64Array(512), summed = new Float64Array(512);
  of("pool")(binned, 512, 1, across, new Float32Array(length + 3).fill(1), 0, 0, length + 3, 1);
  assert.ok(of("divide")(binned, 512, 1, length).every(w => w === 1), `queries ${length}`);
  of("pool")(summed, 1, 512, down, new Float32Array(length + 3).fill(1), 0, 0, 1, length + 3);
  assert.deepStrictEqual([...summed], [...binned], `keys ${length}`);
  const {queries, keys} = of("numbersOfMap")({region: {...across, k0: 3, k1: 3 + length}, shown: {cells: [], height: 512, width: 512, what: ""}});
  const first = Array.from({length: 512}, (_, r) => 3 + [...binned].slice(0, r).reduce((a, b) => a + b, 0));
  assert.deepStrictEqual([[...queries], [...keys]], [first, first], `first positions of ${length}`);
}

// --- cells.js: a number in a cell keeps its size.
for (const [w, text] of [[0, ""], [NaN, ""], [.5, "0.5"], [.456, "0.46"], [-.456, "-0.46"], [-.0123, "-0.01"], [.0123, "0.012"], [99.7, "100"], [123, "123"], [1234.4, "1234"], [-12345, "-1e4"],
  [2e10, "2e10"], [1.234e-5, "1e-5"], [1.2e-7, "1e-7"], [-1.2e-7, "-1e-7"], [Infinity, "\u221e"], [-Infinity, "-\u221e"]]) assert.strictEqual(of("cellNumber")(w, false), text, String(w));
assert.deepStrictEqual([of("cellNumber")(.456, true), of("cellNumber")(0, true)], ["46", ""]);

// --- blocks.js: the difference of two heads.
const other = of("storedHead")(numbers(30 * 50).map(Math.abs), 30, 50), delta = of("differenceHead")(stored, other);
near(delta.weight(3, 7), other.weight(3, 7) - weights[3 * 50 + 7], "difference");
assert.deepStrictEqual([delta.row(3)[7], delta.column(7)[3]], Array(2).fill(Math.fround(other.weight(3, 7) - weights[3 * 50 + 7])));
assert.strictEqual(of("differenceHead")(stored, of("storedHead")(weights, 50, 30)), null);
const byBlocks = (R, C) => of("blockHead")(numbers(R * C), R, C, 30, 50);
assert.ok(of("differenceHead")(byBlocks(3, 5), byBlocks(3, 5)) && !of("differenceHead")(byBlocks(3, 5), byBlocks(5, 5)) && !of("differenceHead")(stored, byBlocks(3, 5)));

// --- blocks.js, map.js, lines.js: what is written of each key, what the mask hides, zoom by two fingers, the heaviest lines.
const norms = numbers(50).map(Math.abs), written = of("writtenHead")(stored, norms), blocks = byBlocks(3, 5), coarse = of("writtenHead")(blocks, norms);
near(written.weight(3, 7), weights[3 * 50 + 7] * norms[7], "written");
assert.deepStrictEqual([written.row(3)[7], written.column(7)[3], written.tile(2, 5, 4, 6)[8]], Array(3).fill(Math.fround(weights[3 * 50 + 7] * norms[7])));
near(coarse.weight(29, 49), blocks.weight(29, 49) * norms.slice(40).reduce((a, b) => a + b, 0) / 10, "written by blocks");
const causal = Float32Array.of(0, 1, 0, 2, 3, 3), shown = [...of("hide")(Float32Array.of(.5, 0, 1, 0, 0, 0), 0, 1, 2, causal)];
assert.deepStrictEqual(shown.map(w => Object.is(w, -0)), [true, true, false, true, true, true]);  // keys 1 and 2 of three queries, the last one sees none
assert.strictEqual(shown[2], 1);
assert.deepStrictEqual([...of("cropMap")(of("blockHead")(Float32Array.of(1, 0, .5, 0), 2, 2, 4, 4), {q0: 0, q1: 4, k0: 0, k1: 4}, 2, 2, Float32Array.of(0, 1, 0, 2, 0, 4, 0, 4))], [1, -0, .5, 0]);
const zoomed = of("zoomRegion")({q0: 0, q1: 100, k0: 0, k1: 100}, .4, .5, .5, 100, 100, .25, .75);
assert.deepStrictEqual(plain(zoomed), {q0: 20, q1: 60, k0: 40, k1: 80});  // the middle comes to a quarter from the left and from below
const names = (count, pixels) => plain(of("wordsOf")(0, count, pixels, 8, n => n === 100 ? "100" : "a token"));
assert.deepStrictEqual([names(59, 500).length, names(59, 250).length, names(59, 500)[58]], [59, 30, [58, "a\u2423token"]]);
assert.deepStrictEqual(names(2000, 500).slice(1, 4), [[50, "50 a\u2423token"], [100, "100"], [150, "150 a\u2423token"]]);
const heavy = of("heaviestOf")(stored, 5), sorted = [...weights].sort((a, b) => b - a);
assert.deepStrictEqual([...heavy.rows.values()].flatMap(row => [...row].filter(w => w > 0)).sort((a, b) => b - a), sorted.slice(0, 5));
assert.ok([...heavy.rows].every(([q, row]) => heavy.queries.includes(q) && row.every((w, j) => w === 0 || heavy.keys.includes(j) && w === weights[q * 50 + j])));
const alike = of("heaviestOf")(of("storedHead")(new Float32Array(400).fill(.05), 20, 20), 60);
assert.strictEqual([...alike.rows.values()].flatMap(row => [...row]).filter(w => w > 0).length, 60);  // of equal ones no more

page.state = {i: -1, pins: [150]};
assert.ok(!of("linesOf")({head: of("storedHead")(new Float32Array(200 * 70).fill(1 / 70), 200, 70)}).keys.includes(150));  // a query beyond the keys

// --- pattern.js, overview.js, side.js: numbers that heads are sorted by, kinds, axes.
near(of("cosine")([1, 2, 2], [2, 1, 2]), 8 / 9, "cosine");
const listed = {layers: [{heads: 2, head_info: [{kind: "self", "cut loss": .1}, {kind: "mixed", "cut loss": .5}]}, {heads: 1, head_info: [{kind: "self", "cut loss": .3}]}]};
const order = (...how) => plain(of("chosenHeads")(listed, ...how)).map(x => [x.layer, x.head]);
assert.deepStrictEqual(order("cut loss", []), [[0, 1], [1, 0], [0, 0]]);
assert.deepStrictEqual(order("pair", [], new Map([["1/0", .9], ["0/0", .2]])), [[1, 0], [0, 0], [0, 1]]);
assert.deepStrictEqual(order("cut loss", ["self"]), [[1, 0], [0, 0]]);
assert.strictEqual(of("kindOf")({kind: "mixed", "local share": .42, "previous share": .3, "diffuse share": .9}), "mixed, local 42\u00a0%");
assert.strictEqual(of("kindOf")({kind: "self", share: .5, "local share": .9}), "self 50\u00a0%");
const axis = (...all) => plain(of("axisOf")(...all));
assert.deepStrictEqual(axis([3.5, 4, NaN], "entropy", 60), {low: 3.5, top: Math.log(60), even: Math.log(60)});  // ln n stands above nearly even weights,
assert.deepStrictEqual(axis([.5, 1], "entropy", 60), {low: .5, top: 1, even: Math.log(60)});  // and is left out where they would vanish below it
assert.deepStrictEqual(axis([.5, 1], "first", 60), {low: 0, top: 1, even: 0});
assert.deepStrictEqual(axis([-.5, .4, -.2], "next token", 60), {low: -.5, top: .4, even: 0});
assert.deepStrictEqual(axis([-3, -1], "next token", 60), {low: -3, top: 0, even: 0});

// --- link.js: what is written is read; what is hostile falls back.
const file = {views: [{layers: [{heads: 4, q_len: 20, kv_len: 30}, {heads: 2, q_len: 20, kv_len: 30}]}, {layers: [{heads: 4, q_len: 20, kv_len: 30}]}]};
const parse = text => plain(of("parseLink")(text, file)), first = parse("");
const state = {...plain(first), layer: 1, head: 1, i: 3, j: 29, hold: true, anchor: [3, 29], paint: "writes", pins: [2, 19], region: {q0: 0, q1: 5, k0: 2, k1: 30}, tab: "why", beside: 1, diff: true, kinds: ["self", "first"], sort: "entropy"};
assert.deepStrictEqual([first.layer, first.head, first.i], [0, 0, 10]);
assert.deepStrictEqual(parse("#" + of("formatLink")(state, file)), state);
assert.strictEqual(of("formatLink")(first, file), "");
for (const bad of ["", "#", "layer=2&head=-1", "i=20&j=30", "pins=x,99,-1", "region=5,4,0,1", "region=0,21,0,1", "view=__proto__", "tab=constructor", "%", "layer=%zz", "sort=<script>", "i=1e3", "a=b=c&&&=&"]) {
  assert.deepStrictEqual(parse(bad), first, bad);
}
file.start = "region=0,5,0,5";
assert.strictEqual(parse("#" + of("formatLink")({...parse(""), region: null}, file)).region, null);  // of a page that opens with one
file.start = "view=1";
assert.deepStrictEqual([parse("").view, of("formatLink")(parse(""), file), parse(of("formatLink")(parse("view=0"), file)).view], [1, "", 0]);
file.start = "range=unit&layer=9";
file.views[0].layers[1].head_info = [{kind: "previous", share: .6}, {kind: "self", share: .7}];
file.views[0].layers[0].head_info = [{kind: "first", share: .99}, {kind: "mixed"}, {}, {}];
const opening = parse("");
file.views[1].layers[0].head_info = [{kind: "first", share: .9}, {kind: "mixed", "first share": .45}, {kind: "mixed", "local share": .3, "first share": .4}, {kind: "mixed"}];
assert.deepStrictEqual([parse("view=1").layer, parse("view=1").head], [0, 2]);
assert.deepStrictEqual([opening.layer, opening.head, opening.i, opening.range], [1, 1, 10, "unit"]);
for (const one of [opening, {...opening, layer: 0, head: 0, range: "max"}, {...opening, i: -1}, {...parse("view=1"), head: 2}]) assert.deepStrictEqual(parse(of("formatLink")(one, file)), one);

// --- words.js: nothing hidden, nothing that turns text, no formula in a spreadsheet.
const visible = of("visible"), label = of("label");
assert.strictEqual(visible("a\u202eb\u0000\n", 9), "aU+202EbU+0000\u21b5");
assert.strictEqual(visible("\uffff\u{1f600}", 9), "U+FFFF\u{1f600}");  // what no XML may hold
assert.strictEqual(visible("", 5), "\u2205");
assert.ok([...label("\u202e".repeat(50), 16)].length <= 16 && [...label("x".repeat(2000))].length === 16);
assert.strictEqual(of("csvText")([["=1+1", "a\"b", 2]]), "\"'=1+1\",\"a\"\"b\",2\n");
assert.strictEqual(of("escapeXml")("<a b='&'>"), "&#60;a b=&#39;&#38;&#39;&#62;");
assert.deepStrictEqual([of("percent")(1), of("percent")(.1), of("percent")(0), of("percent")(NaN), of("percent")(-.25)], ["100 %", "10 %", "0", "NaN", "\u221225 %"]);
assert.deepStrictEqual(plain(of("largest")(Float32Array.of(.1, .5, .2, .5, NaN), 3)), [1, 3, 2]);

// --- check.js: a sentence for each broken rule.
const shapes = {"0/0/map": [2, 4, 4], "0/0/q": [1, 8, 3], "0/0/k": [1, 8, 3], "0/0/lse": [1, 8]};
const good = () => ({texts: [{tokens: null, length: 8}], views: [{queries: 0, keys: 0, layers: [{heads: 2, kv_heads: 1, q_len: 8, kv_len: 8, formula: {scale: 1}, exact: [1], exact_kv: [0]}]}]});
const check = broken => of("checkFile")(broken, name => shapes[name] || null);
check(good());
const breaks = {
  "formula holds": l => { l.formula.alpha = 1; }, "finite scale": l => { l.formula.scale = "1"; }, "softcap must": l => { l.formula.softcap = -1; }, "offset must": l => { l.formula.offset = .5; },
  "multiple of kv_heads": l => { l.kv_heads = 3; }, "must begin with sizes": l => { l.q_len = 7; }, "list heads below": l => { l.exact = [2]; }, "exact_kv lacks": l => { l.heads = 4; l.kv_heads = 2; l.exact = [3]; },
  "one object per head": l => { l.head_info = [{}]; }, "head_info must have": l => { l.head_info = [{}, null]; }, "kind must be": l => { l.head_info = [{kind: "x"}, {}]; }, "lie within its text": l => { l.q_first = 3; }, "must be a number": l => { l.heads = "2"; },
  "one string per head": l => { l.head_names = ["only one"]; }, "name must be a string": l => { l.name = 3; }, "q_first must be a position": l => { l.q_first = -1; }, "kv_first must be": l => { l.kv_first = "1"; },
};
for (const [said, doIt] of Object.entries(breaks)) {
  const broken = good();
  doIt(broken.views[0].layers[0]);
  if (said === "exact_kv lacks") { delete shapes["0/0/map"]; }
  assert.throws(() => check(broken), error => error.message.includes(said), said);
  shapes["0/0/map"] = [2, 4, 4];
}
for (const [said, more] of [["of a whole view", {cut: {of: 0, heads: []}}], ["list heads", {cut: {of: 1, heads: [[0, 2]]}}], ["list tokens", {next: [{p: 1}]}], ["name must be a string", {name: {}}]]) {
  const broken = good();
  broken.views.push(structuredClone(broken.views[0]));
  Object.assign(broken.views[0], more);
  assert.throws(() => check(broken), error => error.message.includes(said), said);
}
for (const [name, sizes, wanted] of [["bias", [2, 8, 8], "1,8,8"], ["bias", [1, 8, 7], "1,8,8"], ["map_peak", [1], "2"], ["mass_peak", [8], "2"], ["weights_peak", [2], "1"]]) {
  const file = good();
  file.views[0].layers[0].weights = [0];
  shapes["0/0/" + name] = sizes;
  assert.throws(() => check(file), error => error.message.endsWith(`${name} must begin with sizes ${wanted}: got ${sizes}`), name);
  delete shapes["0/0/" + name];
}
for (const [said, more] of [["words must", {words: [1]}], ["words must", {words: "abc"}], ["notes must", {notes: "made"}], ["live needs", {live: {}}]]) {
  assert.throws(() => check({...good(), ...more}), error => error.message.startsWith(said), said);
}
check({...good(), words: ["a"], notes: ["b"], live: {names: []}});
assert.throws(() => check({texts: [], views: []}), /at least one view/);
assert.throws(() => check({...good(), texts: [{tokens: [1]}]}), /must be strings/);

// --- What no script of the page may hold: ways to turn text into markup or code, and ways to a network.
for (const [name, text] of Object.entries(sources)) {
  new vm.Script(text, {filename: name});
  assert.ok(/^\/\/ /.test(text), `${name} begins with what it is`);
  for (const banned of ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "fetch(", "XMLHttpRequest", "WebSocket", "import(", "sendBeacon", "localStorage", "console.", "debugger", "var "]) {
    const isAsking = name === "live.js" && banned === "fetch(";  // of the server that made the page: nothing but a name behind its own address
    assert.ok(isAsking ? text.split(banned).length === 2 && text.includes("fetch(name, ") : !text.includes(banned), `${name} holds ${banned}`);
  }
  for (const address of text.match(/https?:\/\/[^"'\s]+/g) || []) assert.ok(address === "http://www.w3.org/2000/svg", `${name} names ${address}`);
  const lines = text.split("\n");
  lines.forEach((line, n) => assert.ok(!/\s$/.test(line) && line.length <= 200, `${name}:${n + 1}: too long, or space at its end`));
}
// --- store.js: base64 without the browser's own decoder, zlib.
const bytes = Uint8Array.from({length: 1000}, (_, n) => n * n % 251), zipped = require("node:zlib").deflateSync(bytes).toString("base64");
of("inflate")(of("fromBase64")(zipped)).then(back => assert.deepStrictEqual([...back], [...bytes])).catch(error => { console.error(error); process.exit(1); });

console.log(`${cases} weights and sums, ${scripts.length} scripts`);
