// Numbers and tokens as text. Tokens are hostile: what hides or turns text is written out, and they only ever become text nodes.
const percent = w => Number.isNaN(w) ? "NaN" : w < 0 ? "\u2212" + percent(-w) : w === 0 ? "0" : w < 1e-4 ? (100 * w).toExponential(1) + " %" : +(100 * w).toPrecision(3) + " %";
const short = x => Number.isFinite(x) ? String(+x.toPrecision(4)) : String(x);

/// Controls, direction marks, zero-width and unassigned characters as U+XXXX; at most `most` characters.
function visible(text, most) {
  const all = [...text];
  const out = all.slice(0, most).map(c => {
    if (c === "\n") return "\u21b5";
    if (c === "\t") return "\u21e5";
    if (/[\p{C}\p{Zl}\p{Zp}]/u.test(c) && c !== "\u200d") return "U+" + c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    return c;
  }).join("");
  return (all.length > most ? out + "\u2026" : out) || "\u2205";
}
/// One line for labels: spaces are shown.
function label(text, most = 16) {
  const all = [...visible(text, most + 1).replace(/ /g, "\u2423")];
  return all.length > most ? all.slice(0, most - 1).join("") + "\u2026" : all.join("");
}

/// Column mass, shares of the largest weights, ... : the positions of the n largest.
function largest(values, n) {
  const best = [];
  for (let i = 0; i < values.length; ++i) {
    if (best.length === n && !(values[i] > values[best[n - 1]])) continue;
    let at = best.length;
    while (at > 0 && values[i] > values[best[at - 1]]) --at;
    best.splice(at, 0, i);
    if (best.length > n) best.pop();
  }
  return best;
}

/// A field of a CSV file; a leading = + - @ would be a formula in a spreadsheet.
const csvField = x => typeof x === "number" ? String(x) : '"' + (/^[=+\-@\t\r]/.test(x) ? "'" + x : x).replace(/"/g, '""') + '"';
const csvText = rows => rows.map(row => row.map(csvField).join(",")).join("\n") + "\n";
const escapeXml = text => text.replace(/[&<>"']/g, c => "&#" + c.charCodeAt(0) + ";");
