// The engine as JavaScript: `const engine = await loadEngine(bytes)`, bytes of engine.wasm. Arrays are Float32Array, row-major,
// copies that belong to the caller. Errors are thrown, with a sentence. What its functions are given and give: the comments below;
// letters: H heads, Tq queries, Tk keys, T characters of a text, V symbols.
"use strict";

const engineTasks = {next: "text", previous: "previous", same: "same", induction: "induction"};  // as the tool names them

async function loadEngine(bytes) {
  let wasm = null;
  const memory = () => new Uint8Array(wasm.memory.buffer);
  const textAt = at => {
    const all = memory();
    return new TextDecoder().decode(all.subarray(at, all.indexOf(0, at)));
  };
  const fail = at => { throw new Error(textAt(at).replace(/^\[[^\]]*\] /, "")); };
  const {module, instance} = await engineInstance(bytes, fail);
  wasm = instance.exports;
  wasm._initialize();

  // One call: `work` puts what goes in into the engine's memory, which is freed and unwound however the call ends.
  let stopped = "";  // what the engine stopped with: its memory is then not to be trusted
  const call = work => {
    if (stopped) throw new Error(stopped);
    const borrowed = [], stack = wasm.stackSave();
    const put = data => {
      if (data === undefined || data === null) return 0;
      const at = wasm.lesson_alloc(Math.max(data.byteLength, 1));
      borrowed.push(at);
      memory().set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), at);
      return at;
    };
    try {
      return work({floats: data => put(data && engineArray(Float32Array, data)), bytes: data => put(data && engineArray(Uint8Array, data)),
        ints: data => put(Int32Array.from(data)), text: data => put(new TextEncoder().encode(data + "\0"))});
    } catch (error) {
      if (!(error instanceof WebAssembly.RuntimeError)) throw error;
      stopped = "the engine stopped, load the page again: " + error.message;
      throw new Error(stopped);
    } finally {
      if (!stopped) for (const at of borrowed) wasm.lesson_free(at);
      wasm.stackRestore(stack);
    }
  };
  // The results at `at`, cut into parts: [[name, number of floats], ...].
  const parts = (at, sizes) => {
    const found = {};
    for (const [name, count] of sizes) {
      found[name] = new Float32Array(wasm.memory.buffer.slice(at, at + 4 * count));
      at += 4 * count;
    }
    return {found, at};
  };

  const engine = {parameters: 0, symbols: []};

  // q [H, Tq, dim], k [H, Tk, dim], v [H, Tk, vdim] -> scores = q.k, scaled (times scale, plus bias, -Infinity where hidden), weights
  // [H, Tq, Tk], out [H, Tq, vdim], lse [H, Tq]; with dout [H, Tq, vdim] dp, ds [H, Tq, Tk], dq, dk, dv. scale: 1 / sqrt(dim) if not given.
  engine.attend = ({heads, queries, keys, dim, vdim, q, k, v, scale, causal, hidden, bias, dout}) => call(put => {
    engineSizes({heads, queries, keys, dim, vdim});
    const pairs = heads * queries * keys, out = heads * queries * vdim;
    engineCount({q, k, v, hidden, bias, dout}, {q: heads * queries * dim, k: heads * keys * dim, v: heads * keys * vdim,
      hidden: queries * keys, bias: pairs, dout: out});
    const at = wasm.lesson_attend(heads, queries, keys, dim, vdim, put.floats(q), put.floats(k), put.floats(v), scale ?? 1 / Math.sqrt(dim),
      causal ? 1 : 0, put.bytes(hidden), put.floats(bias), put.floats(dout));
    const sizes = [["scores", pairs], ["scaled", pairs], ["weights", pairs], ["out", out], ["lse", heads * queries]];
    if (dout) sizes.push(["dp", pairs], ["ds", pairs], ["dq", q.length], ["dk", k.length], ["dv", v.length]);
    return parts(at, sizes).found;
  });

  // x [rows, inputs], w [outputs, inputs], b [outputs] or none -> y [rows, outputs] = x w^T + b
  engine.linear = ({rows, inputs, outputs, x, w, b}) => call(put => {
    engineSizes({rows, inputs, outputs});
    engineCount({x, w, b}, {x: rows * inputs, w: outputs * inputs, b: outputs});
    const at = wasm.lesson_linear(rows, inputs, outputs, put.floats(x), put.floats(w), put.floats(b));
    return parts(at, [["y", rows * outputs]]).found.y;
  });

  // A new model; what is not given (text: "") is as in `qkv train --task`. -> {parameters, symbols, text: what it learns, or letters}
  engine.start = ({text = "", task = "next", seed = 0, rate = 0, blocks = -1, ...sizes} = {}) => call(put => {
    if (!(task in engineTasks)) throw new Error("task must be one of " + Object.keys(engineTasks).join(", ") + ": got " + task);
    engineSizes(sizes);
    const {heads = 0, layers = 0, dim = 0, context = 0, batch = 0} = sizes;
    engine.parameters = wasm.lesson_start(put.text(text), put.text(engineTasks[task]), heads, layers, Number(blocks), dim, context, seed, rate, batch);
    engine.symbols = Array.from(textAt(wasm.lesson_symbols()));
    return {parameters: engine.parameters, symbols: engine.symbols, text: textAt(wasm.lesson_corpus())};
  });
  // -> the loss of the last of n steps
  engine.steps = n => call(() => wasm.lesson_steps(n));
  Object.defineProperty(engine, "step", {get: () => engine.parameters && call(() => wasm.lesson_step())});
  engine.save = () => call(() => wasm.lesson_save());
  engine.restore = moment => call(() => { wasm.lesson_restore(moment); });
  engine.forget = moment => call(() => { wasm.lesson_forget(moment); });

  // The text `prompt` through the model: per layer q, k, v [H, T, D], scores (times scale, -Infinity where hidden), weights and their
  // gradients [H, T, T] for the loss of this text, writes [H, T]: how long what a head adds is, shares [H, 2]: mean weights on the character
  // before, and on what came behind the same one earlier; next [T, V]: probabilities; loss: NaN where the task
  // asks for no character. cut: [[layer, head], ...] are left out.
  engine.trace = (prompt, {cut = [], causal = true, scale = true, positions = true} = {}) => call(put => {
    const tokens = Array.from(prompt), length = tokens.length, layers = [];
    let at = wasm.lesson_trace(put.text(prompt), put.ints(cut.flat()), cut.length, causal ? 1 : 0, scale ? 1 : 0, positions ? 1 : 0);
    const read = sizes => {
      const {found, at: end} = parts(at, sizes);
      at = end;
      return found;
    };
    const [count, heads, dim] = read([["sizes", 3]]).sizes, rows = heads * length * dim, pairs = heads * length * length;
    for (let layer = 0; layer < count; ++layer) {
      layers.push({heads, ...read([["q", rows], ["k", rows], ["v", rows], ["scores", pairs], ["weights", pairs], ["gradients", pairs],
        ["writes", heads * length], ["shares", heads * 2]])});
    }
    return {tokens, layers, ...read([["next", length * engine.symbols.length]]), loss: wasm.lesson_loss()};
  });

  // n characters that follow the prompt; temperature 0 takes the likeliest.
  engine.generate = (prompt, n, {temperature = 0, seed = 0, cut = []} = {}) => call(put =>
    textAt(wasm.lesson_generate(put.text(prompt), n, temperature, seed, put.ints(cut.flat()), cut.length)));

  // The loss of who knows by heart how the text goes on behind any `seen` characters.
  engine.knownLoss = seen => call(() => wasm.lesson_known_loss(seen));

  // The tool's command that repeats this training so far.
  engine.command = () => call(() => textAt(wasm.lesson_command()));
  return engine;
}

// Of emscripten's few imports none is needed but `fail`: the engine reads no file, no clock and no environment.
async function engineInstance(bytes, fail) {
  const module = await WebAssembly.compile(bytes), imports = {};
  for (const {module: from, name} of WebAssembly.Module.imports(module)) (imports[from] ??= {})[name] = () => 0;
  imports.engine.fail = fail;
  return {module, instance: await WebAssembly.instantiate(module, imports)};
}

const engineArray = (Type, data) => data instanceof Type ? data : Type.from(data);

function engineSizes(sizes) {
  for (const [name, size] of Object.entries(sizes)) {
    if (!Number.isInteger(size) || size < 1) throw new Error(name + " must be a whole number from 1: got " + size);
  }
}

function engineCount(arrays, counts) {
  for (const [name, array] of Object.entries(arrays)) {
    if (array && array.length !== counts[name]) throw new Error(name + " must hold " + counts[name] + " numbers: got " + array.length);
  }
}
