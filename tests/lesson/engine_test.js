// The page's engine computes what the tool computes, bit by bit: trainings (losses, weights, continuations, shares of the next character)
// and attention with its gradients. QKV_TOOL=build/release/qkv node tests/lesson/engine_test.js
"use strict";
const assert = require("node:assert"), fs = require("node:fs"), os = require("node:os"), path = require("node:path"), {execFileSync, spawnSync} = require("node:child_process");
const {of, startEngine} = require("./engine");

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "qkv-lesson-"));
const tool = (...words) => execFileSync(process.env.QKV_TOOL, words, {cwd: folder, encoding: "utf8", maxBuffer: 1 << 26, env: {...process.env, QKV_LANG: "en"}});

// --- .npy of floats
function saveNpy(name, shape, data) {
  const header = `{'descr': '<f4', 'fortran_order': False, 'shape': (${shape.join(", ")},), }`, all = (10 + header.length + 64) & ~63;
  const start = Buffer.from("\x93NUMPY\x01\x00\0\0" + header.padEnd(all - 11) + "\n", "latin1");
  start.writeUInt16LE(all - 10, 8);
  fs.writeFileSync(path.join(folder, name), Buffer.concat([start, Buffer.from(data.buffer, data.byteOffset, data.byteLength)]));
}
function loadNpy(name) {
  const bytes = fs.readFileSync(path.join(folder, name)), at = 10 + bytes.readUInt16LE(8);
  assert.match(bytes.toString("latin1", 0, at), /<f4/);
  return new Float32Array(bytes.buffer.slice(bytes.byteOffset + at, bytes.byteOffset + bytes.length));
}
const bits = numbers => Buffer.from(numbers.buffer, numbers.byteOffset, numbers.byteLength).toString("hex");
const sameBits = (got, wanted, what) => assert.strictEqual(bits(got), bits(wanted), what);

let seed = 1;
const random = () => { seed = seed * 48271 % 2147483647; return 2 * seed / 2147483647 - 1; };
const numbers = (count, size = 1) => Float32Array.from({length: count}, () => size * random());

function compareTraining(engine, options, steps) {
  const {parameters, symbols} = engine.start(options), losses = Array.from({length: steps}, () => engine.steps(1)), what = engine.command();
  if (options.text) fs.writeFileSync(path.join(folder, "text.txt"), options.text);
  const [program, ...words] = what.split(" "), told = JSON.parse(tool(...words, "--json"));
  assert.strictEqual(program, "qkv");
  assert.strictEqual(told.isa, "scalar");
  assert.strictEqual(told.parameters, parameters, what);
  assert.strictEqual(told.model.vocab_size, symbols.length, what);
  assert.deepStrictEqual(losses, told.losses, what);
  const {text} = told.sample, trace = engine.trace(text), length = trace.tokens.length;
  for (const {layer, head, weights} of told.heads) {
    const from = head * length * length;
    sameBits(trace.layers[layer].weights.slice(from, from + length * length), Float32Array.from(weights.flat()), `${what}: layer ${layer}, head ${head}`);
  }
  if (told.continuation !== undefined) assert.strictEqual(engine.generate(text, 72, {temperature: 1, seed: options.seed ?? 0}), told.continuation, what);
  sameBits(trace.next.slice(-told.next.length), Float32Array.from(told.next), what);
}

function compareAttention(engine, {heads = 1, queries, keys, dim, vdim, causal = false, hide = false, biased = false, size = 1}) {
  const q = numbers(heads * queries * dim, size), k = numbers(heads * keys * dim, size), v = numbers(heads * keys * vdim), dout = numbers(heads * queries * vdim);
  const bias = biased ? numbers(heads * queries * keys) : undefined, words = ["attend", "--isa", "scalar", "--threads", "1"];
  const hidden = hide ? Uint8Array.from({length: queries * keys}, (_, n) => n % 3 === 1 ? 1 : 0) : undefined;
  const shapes = {q: [1, heads, queries, dim], k: [1, heads, keys, dim], v: [1, heads, keys, vdim], dout: [1, heads, queries, vdim]};
  for (const [name, data] of Object.entries({q, k, v, dout})) saveNpy(name + ".npy", shapes[name], data), words.push("--" + name, name + ".npy");
  for (const name of ["out", "lse", "weights", "dq", "dk", "dv"]) words.push("--" + name, name + ".npy");
  if (causal) words.push("--causal=bottom-right");
  if (biased) saveNpy("bias.npy", [1, heads, queries, keys], bias), words.push("--bias", "bias.npy");
  if (hide) saveNpy("drop.npy", [queries, keys], Float32Array.from(hidden)), words.push("--drop", "drop.npy", "--mask-axes", "qk");
  tool(...words);
  const got = engine.attend({heads, queries, keys, dim, vdim, q, k, v, causal, hidden, bias, dout}), what = JSON.stringify({heads, queries, keys, dim, vdim, causal, hide, biased, size});
  for (const name of ["out", "lse", "weights", "dq", "dk", "dv"]) sameBits(got[name], loadNpy(name + ".npy"), `${what}: ${name}`);
  // What backward does not keep, from the definition.
  const scale = 1 / Math.sqrt(dim);
  for (let h = 0; h < heads; ++h) for (let i = 0; i < queries; ++i) {
    const row = (of, width, n) => of.subarray((h * (of.length / heads / width) + n) * width, (h * (of.length / heads / width) + n + 1) * width);
    const dot = (a, b) => a.reduce((sum, x, n) => sum + x * b[n], 0), at = (h * queries + i) * keys;
    const dp = Array.from({length: keys}, (_, j) => dot(row(dout, vdim, i), row(v, vdim, j))), p = got.weights.subarray(at, at + keys), mean = dot(p, dp);
    for (let j = 0; j < keys; ++j) {
      const isHidden = (causal && j > i + keys - queries) || Boolean(hidden?.[i * keys + j]), score = dot(row(q, dim, i), row(k, dim, j));
      const near = (x, y, name) => assert.ok(Math.abs(x - y) <= 1e-5 * (1 + size * size) * (1 + Math.abs(y)), `${what}: ${name} ${x}, not ${y}`);
      near(got.scores[at + j], score, "scores");
      if (isHidden) assert.strictEqual(got.scaled[at + j], -Infinity, what);
      else near(got.scaled[at + j], score * scale + (bias ? bias[at + j] : 0), "scaled");
      near(got.dp[at + j], dp[j], "dp");
      near(got.ds[at + j], p[j] * (dp[j] - mean), "ds");
    }
  }
}

/// The numbers that the texts name, by the engine and by the tool's textbook.
function compareNumbers(engine) {
  const page = of("exampleNumbers")(engine), {numbers: told} = JSON.parse(tool("lesson", "--json"));
  assert.deepStrictEqual(Object.keys(page).sort(), Object.keys(told).sort());
  for (const [name, wanted] of Object.entries(told)) {
    assert.strictEqual(page[name].length, wanted.length, name);
    for (const [n, x] of wanted.entries()) assert.ok(Math.abs(page[name][n] - x) <= 1e-6 * (1 + Math.abs(x)), `${name}: ${page[name]}, not ${wanted}`);
  }
}

/// The layer backward, as step 11 draws it, by explain's textbook.
function compareBackward(engine) {
  const told = JSON.parse(tool("explain", "--backward", "--json")).backward, got = of("layerBackward")(engine, {}, Float32Array.from(told.dout.flat()));
  const side = name => told[name][0].map((row, i) => [...row, ...told[name][1][i]]);
  for (const [name, wanted] of Object.entries({dO: told.dO, dS: told.dS, dP: told.dP, dq: side("dQ"), dk: side("dK"), dv: side("dV"), dx: told.dx})) {
    const all = got[name].flat(3);
    wanted.flat(3).forEach((x, n, flat) => assert.ok(all.length === flat.length && Math.abs(all[n] - x) < 1e-6, `${name}: ${all}, not ${flat}`));
  }
}

/// The page and the tool take the same answers as right, and the same as the same mistake, at both sides of what is near enough.
function compareVerdicts(engine) {
  const numbers = of("exampleNumbers")(engine), {steps} = JSON.parse(fs.readFileSync(path.join(__dirname, "../../lesson/text/en.json"), "utf8"));
  let hints = 0;
  steps.forEach(({pencil}, n) => [[pencil.answer, .0095], [pencil.answer, .0105], ...pencil.hints.flatMap(({value}) => [[value, .0245], [value, .0255]])].forEach(([name, by]) => {
    const typed = numbers[name].map(x => x + by * (name === pencil.answer ? 1 : Math.max(1, Math.abs(x)))), words = ["lesson", String(n + 1), "--json", "--answer", typed.join()];
    const {stdout} = spawnSync(process.env.QKV_TOOL, words, {encoding: "utf8", env: {...process.env, QKV_LANG: "en"}}), told = JSON.parse(stdout);
    const {verdict, say, right} = of("judgeNumbers")(typed, pencil, numbers);
    assert.deepStrictEqual([told.right, told.hint, told.agreeing], [verdict === "right", say ?? null, right], `step ${n + 1}, ${name} + ${by}`);
    hints += say !== undefined;
  }));
  assert.ok(hints > 20);
}

/// Every error is a sentence, and the engine computes on.
function compareErrors(engine) {
  const fails = (work, says) => assert.throws(work, error => { assert.match(error.message, says); return true; });
  engine.start({});
  fails(() => engine.trace("abq"), /'q' at position 2; it has ' ' 'a'/);
  fails(() => engine.trace(""), /1 to 16 characters: got 0/);
  fails(() => engine.trace("ab".repeat(9)), /characters: got 18/);
  fails(() => engine.trace("ab", {cut: [[0, 1]]}), /head 1/);
  fails(() => engine.start({task: "sideways"}), /task must be one of next, previous/);
  fails(() => engine.start({heads: 3}), /num_heads must divide embed_dim: got 3/);
  fails(() => engine.start({text: "short"}), /text/);
  fails(() => engine.start({layers: 0}), /layers must be a whole number from 1: got 0/);
  fails(() => engine.restore(77), /no kept moment 77/);
  fails(() => engine.linear({rows: 1, inputs: 2, outputs: 1, x: [1], w: [1, 2]}), /x must hold 2 numbers: got 1/);
  for (const sizes of [{dim: 65536, layers: 2}, {dim: 8192}, {batch: 1e6}, {layers: 1e5}, {task: "previous", context: 1e6}]) fails(() => engine.start(sizes), /must be smaller/);
  for (const seed of [-1, 0.5, 1e20, NaN]) fails(() => engine.start({seed}), /seed must be a whole number/);
  for (const rate of [-1, NaN, Infinity]) fails(() => engine.start({rate}), /rate must be above 0/);
  const one = Float32Array.of(1), many = new Float32Array(4096);
  fails(() => engine.attend({heads: 1, queries: 4096, keys: 4096, dim: 1, vdim: 1, q: many, k: many, v: many}), /at most 8388608 numbers/);
  assert.strictEqual(engine.attend({heads: 1, queries: 1, keys: 1, dim: 1, vdim: 1, q: one, k: one, v: one}).out[0], 1);
  assert.strictEqual(engine.step, 0);
  for (let n = 0; n < 2000; ++n) try { engine.trace("?"); } catch { /* the memory that it leaves is small */ }
  assert.ok(engine.steps(3) < 3);
}

/// A kept moment comes back with all that training goes on from.
function compareMoments(engine) {
  engine.start({seed: 5});
  engine.steps(20);
  const moment = engine.save(), before = engine.trace("abc"), loss = engine.steps(10), after = engine.trace("abc");
  engine.restore(moment);
  assert.strictEqual(engine.step, 20);
  sameBits(engine.trace("abc").next, before.next, "restored");
  assert.strictEqual(engine.steps(10), loss);
  sameBits(engine.trace("abc").next, after.next, "trained again");
  engine.forget(moment);
  assert.throws(() => engine.restore(moment), /no kept moment/);
}

/// Of "aab", again and again: behind one a stands a or b, behind two characters nothing is left to guess.
function compareKnown(engine) {
  const expected = [Math.log(3) - 2 / 3 * Math.log(2), 2 / 3 * Math.log(2), 0];
  for (const text of ["aab", "\u6625\u6625\u7720"]) {  // by characters, whatever bytes they take
    engine.start({text: text.repeat(9)});
    expected.forEach((loss, seen) => assert.ok(Math.abs(engine.knownLoss(seen) - loss) < 1e-12, `known loss ${seen}`));
  }
}

/// What traces leave out, and the gradients of the weights: the slope of the loss.
function compareTraces(engine) {
  for (const blocks of [false, true]) {
    engine.start({heads: 2, layers: 2, blocks});
    engine.steps(60);
    const text = "abc abc", whole = engine.trace(text), cut = engine.trace(text, {cut: [[0, 0], [0, 1], [1, 0], [1, 1]]});
    assert.notStrictEqual(whole.loss, cut.loss);
    for (const {writes} of cut.layers) for (const x of writes) assert.strictEqual(x, 0, "a head that is cut writes nothing");
    const open = engine.trace(text, {causal: false}).layers[0], [T, D] = [7, 16];
    assert.ok(open.weights.slice(1, T).some(x => x > 0), "without the mask the first token attends to later ones");
    const {q, k, scores} = engine.trace(text, {scale: false}).layers[0];
    const product = Array.from({length: D}, (_, d) => q[(T - 1) * D + d] * k[2 * D + d]).reduce((a, b) => a + b);
    assert.ok(Math.abs(scores[(T - 1) * T + 2] - product) < 1e-3 * (1 + Math.abs(product)), "without the scale the score is q.k");
    assert.notStrictEqual(engine.trace(text, {positions: false}).loss, whole.loss);
    sameBits(engine.trace(text).next, whole.next, "nothing of it stays");
    assert.ok(Number.isNaN(engine.trace("a").loss), "behind one character nothing is there to compare with");
    assert.ok(whole.layers.every(({gradients}) => gradients.some(x => x !== 0)), "the loss depends on every layer's weights");
  }
}

(async () => {
  const engine = await startEngine();
  compareTraining(engine, {}, 800);
  compareTraining(engine, {task: "previous"}, 300);
  compareTraining(engine, {heads: 2, layers: 2, blocks: true}, 100);
  compareTraining(engine, {task: "induction"}, 40);
  compareTraining(engine, {task: "same", heads: 2}, 40);
  compareTraining(engine, {text: "to be or not to be, that is the question. ".repeat(5), heads: 4, dim: 16, context: 24, seed: 7, rate: 0.01, batch: 8}, 50);
  compareAttention(engine, {queries: 3, keys: 3, dim: 2, vdim: 2});
  compareAttention(engine, {heads: 3, queries: 5, keys: 9, dim: 7, vdim: 4, causal: true, biased: true});
  compareAttention(engine, {heads: 2, queries: 40, keys: 70, dim: 16, vdim: 24, hide: true});
  compareAttention(engine, {queries: 1, keys: 300, dim: 64, vdim: 64, size: 6});
  compareNumbers(engine);
  compareBackward(engine);
  compareVerdicts(engine);
  compareMoments(engine);
  compareKnown(engine);
  compareTraces(engine);
  compareErrors(engine);
  fs.rmSync(folder, {recursive: true});
  console.log("the engine has the tool's bits");
})();
