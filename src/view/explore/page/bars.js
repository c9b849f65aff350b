// A table of bars, in the explorer what comes next and which tokens a head pushes, in the lab what comes next.

/// rows: [name or element, value, ...], a value for each of `columns`; what is below 0 is drawn in the other colour. top: of a whole bar.
function drawBars(panel, title, columns, rows, write, top = Math.max(1e-30, ...rows.flatMap(([, ...values]) => values.map(x => Math.abs(x) || 0)))) {
  const table = make("table", {className: "likely"}), body = table.createTBody();
  panel.append(...title ? [make("h3", {textContent: title})] : [], table);
  if (columns.length > 1) table.createTHead().insertRow().append(make("td"), ...columns.map(textContent => make("th", {textContent})));
  for (const [name, ...values] of rows) {
    const row = addRow(body, values.map((x, n) => {
      const bar = make("i", {className: x < 0 ? "minus" : n ? "second" : ""});
      bar.style.width = `calc(${((Math.abs(x) || 0) / top).toFixed(3)} * var(--bar))`;
      return x === null ? [] : [bar, write(x)];
    }), "");
    row.firstChild.append(typeof name === "string" ? label(name, 24) : name);
  }
}
