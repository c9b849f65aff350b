// The engine of docs/lesson.html, or of QKV_ENGINE (a .wasm), for tests in Node.
"use strict";
const fs = require("node:fs"), path = require("node:path"), vm = require("node:vm"), zlib = require("node:zlib");

const root = path.join(__dirname, "../..");
const page = vm.createContext({WebAssembly, TextDecoder, TextEncoder, Error});
for (const file of ["engine/engine.js", "figures/draw.js", "page/example.js", "page/pencil.js"]) vm.runInContext(fs.readFileSync(path.join(root, "lesson", file), "utf8"), page, {filename: file});

function engineBytes() {
  if (process.env.QKV_ENGINE) return fs.readFileSync(process.env.QKV_ENGINE);
  const [, text] = fs.readFileSync(path.join(root, "docs/lesson.html"), "utf8").match(/id="wasm">([^<]*)</);
  return zlib.gunzipSync(Buffer.from(text, "base64"));
}

/// Functions of the page, by name.
const of = name => vm.runInContext(name, page);
module.exports = {of, startEngine: () => of("loadEngine")(engineBytes())};
