// Primitives of the lesson's figures: panels {width, height, body}, where the body is SVG text. Colours are CSS variables, the page's or
// those that `saved` puts into a file. An element that can be dragged or tapped carries data-part="k:0"; a plane carries the pixels
// of a unit as data-plane, its origin is that of the group.
const draw = {
  colours: {
    light: {ink: "#1c1c22", ground: "#fafafc", faint: "#63636f", line: "#d6d6de", soft: "#ececf2", mark: "#c2410c", mark2: "#4b3f8f",
      h0: "#2563a8", h1: "#0d7a68", h2: "#b0307f", h3: "#8a6d00"},
    dark: {ink: "#ececf1", ground: "#16161c", faint: "#a2a2b0", line: "#3a3a46", soft: "#2a2a34", mark: "#ff9a4d", mark2: "#b3a8ff",
      h0: "#7fb8f5", h1: "#4fd1b5", h2: "#f490c8", h3: "#dfc25a"},
  },
  font: "system-ui,-apple-system,'Segoe UI','Noto Sans','PingFang SC','Microsoft YaHei','Noto Sans CJK SC','WenQuanYi Micro Hei',sans-serif",

  escape: s => String(s).replace(/[&<>"]/g, c => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})[c]),
  colour: name => !name || name === "none" ? "none" : name[0] === "#" ? name : `var(--${name})`,
  head: n => "h" + n % 4,
  /// A number as people write it: "2", "0.73", "−1.40".
  number: (x, digits = 2) => x === -Infinity ? "−∞" : (Number.isInteger(x) ? String(x) : x.toFixed(digits)).replace("-", "−"),
  pair: p => `(${Array.from(p, x => draw.number(x)).join(", ")})`,
  /// A token as its label: a blank is visible.
  token: t => t === " " ? "␣" : t,
  /// Rows of `width` numbers, of a flat array or of one that has rows.
  rows: (x, width) => x[0] && x[0].length !== undefined ? Array.from(x) :
    Array.from({length: x.length / width}, (_, i) => Array.from(x.slice(i * width, (i + 1) * width))),
  /// About what a text takes: a Chinese character an em.
  measure: (s, size = 13) => size * Array.from(String(s).replace(/_\{(\w+)\}/g, "$1")).reduce((sum, c) =>
    sum + (c > "⺀" ? 1 : /[il.,'|:;() ]/.test(c) ? .32 : /[mwMW%—]/.test(c) ? .9 : .58), 0),

  tag(name, attributes, body = "") {
    const written = Object.entries(attributes).filter(([, value]) => value !== undefined && value !== false)
      .map(([key, value]) => ` ${key}="${typeof value === "number" ? Math.round(value * 100) / 100 + 0 : draw.escape(value)}"`).join("");
    return `<${name}${written}${body === "" ? "/>" : `>${body}</${name}>`}`;
  },
  /// `W_{k}` gets its k below the line.
  text: (x, y, s, {size, anchor, colour, bold, halo} = {}) => draw.tag("text",
    {x, y, "font-size": size, "text-anchor": anchor, "font-weight": bold && 600, fill: colour && draw.colour(colour),
    ...halo && {stroke: "var(--ground)", "stroke-width": 4, "stroke-linejoin": "round", "paint-order": "stroke"}},
    draw.escape(s).replace(/_\{(\w+)\}/g, '<tspan dy="3" font-size="85%">$1</tspan><tspan dy="-3">\u200b</tspan>')),
  middle: (x, y, s, options) => draw.text(x, y, s, {anchor: "middle", ...options}),
  rect: (x, y, width, height, {fill = "none", stroke, opacity, rx, thick} = {}) =>
    draw.tag("rect", {x, y, width: Math.max(0, width), height: Math.max(0, height), rx,
    fill: draw.colour(fill), "fill-opacity": opacity, stroke: stroke && draw.colour(stroke), "stroke-width": thick}),
  path: (d, {stroke = "ink", thick = 1.5, fill = "none", opacity, dash} = {}) =>
    draw.tag("path", {d: d.replace(/-?\d+\.\d+(?:e-\d+)?/g, x => String(Math.round(x * 100) / 100 + 0)),
    fill: draw.colour(fill), stroke: draw.colour(stroke), "stroke-width": thick, opacity, "stroke-dasharray": dash, "stroke-linecap": "round"}),
  line: (x1, y1, x2, y2, options) => draw.path(`M${x1} ${y1}L${x2} ${y2}`, options),
  dot: (x, y, r, {fill = "ink", stroke, thick} = {}) => draw.tag("circle",
    {cx: x, cy: y, r, fill: draw.colour(fill), stroke: stroke && draw.colour(stroke), "stroke-width": thick}),
  /// A line with a head, which is no longer than the line.
  arrow(x1, y1, x2, y2, {stroke = "ink", thick = 1.5, opacity, dash} = {}) {
    const length = Math.hypot(x2 - x1, y2 - y1) || 1, size = Math.min(4 + 1.6 * thick, .7 * length), ux = (x2 - x1) / length, uy = (y2 - y1) / length;
    const bx = x2 - size * ux, by = y2 - size * uy, corner = side => `L${bx - side * size / 2 * uy} ${by + side * size / 2 * ux}`;
    return draw.line(x1, y1, bx, by, {stroke, thick, opacity, dash}) +
      draw.path(`M${x2} ${y2}${corner(1)}${corner(-1)}Z`, {stroke: "none", fill: stroke, opacity});
  },
  part: (key, label, body, {parts} = {}) => draw.tag("g", {"data-part": key, ...parts && {tabindex: "0", role: "button", "aria-label": label}}, body),
  /// A value's cell: its colour as strong as `share`; what is hidden is hatched.
  cell(x, y, width, height, {share = 0, colour = "h0", label, hidden, size = 12} = {}) {
    if (hidden) return draw.rect(x, y, width, height, {fill: "soft", stroke: "ground"}) + draw.hatch(x, y, width, height);
    return draw.rect(x, y, width, height, {fill: "soft", stroke: "ground"}) +
      (share > .004 ? draw.rect(x, y, width, height, {fill: colour, opacity: share, stroke: "ground"}) : "") +
      (label === undefined ? "" : draw.middle(x + width / 2, y + height / 2 + .36 * size, label,
        {size, colour: share > .85 ? "ground" : share > .55 ? draw.colours.dark.ground : "ink"}));
  },
  hatch(x, y, width, height, step = 5) {
    let d = "";
    for (let at = step; at < width + height; at += step)
      d += `M${x + Math.min(at, width)} ${y + Math.max(0, at - width)}L${x + Math.max(0, at - height)} ${y + Math.min(at, height)}`;
    return draw.path(d, {stroke: "faint", thick: .8, opacity: .55});
  },
  /// A table of cells. `labels` stand left of it, `tops` above; share(i, j), label(i, j), hidden(i, j) and colour(i, j) are asked for each cell.
  table(rows, columns, {width = 36, height = 24, labels, tops, title, share, label, hidden, colour, size = 12, chosen} = {}) {
    const left = labels ? Math.max(...labels.map(s => draw.measure(s, 12))) + 8 : 0, top = (title ? 22 : 0) + (tops ? 18 : 0);
    let body = title ? draw.text(left, 13, title, {bold: true}) : "";
    for (let i = 0; i < rows; ++i) {
      if (labels) body += draw.text(left - 7, top + (i + .5) * height + 4, labels[i],
          {size: 12, anchor: "end", colour: chosen === i ? "mark" : "faint", bold: chosen === i});
      for (let j = 0; j < columns; ++j) body += draw.cell(left + j * width, top + i * height, width, height,
          {share: share && share(i, j), label: label && label(i, j), hidden: hidden && hidden(i, j), colour: colour && colour(i, j), size});
    }
    for (let j = 0; tops && j < columns; ++j) body += draw.middle(left + (j + .5) * width, top - 6, tops[j], {size: 12, colour: "faint"});
    if (chosen !== undefined) body += draw.rect(left - 1, top + chosen * height - 1, columns * width + 2, height + 2, {stroke: "mark", thick: 2, rx: 3});
    return {width: Math.max(left + columns * width, title ? left + draw.measure(title, 14) : 0), height: top + rows * height, body, left, top};
  },
  /// Horizontal bars from a common zero, each with its label before and its number behind.
  bars(values, {labels, title, note, width = 160, high = Math.max(...values, 0), low = Math.min(...values, 0), colours, digits = 2, step = 30, parts,
    key = "bar"} = {}) {
    const left = labels ? Math.max(...labels.map(s => draw.measure(s))) + 10 : 0, top = title ? 30 : 4;
    const texted = values.map(x => draw.number(x, digits));
    const room = width - left - Math.max(...texted.map(s => draw.measure(s, 12))) - 8, unit = room / (high - low || 1), zero = left - low * unit;
    let body = title ? draw.text(0, 14, title, {bold: true}) : "";
    values.forEach((value, i) => {
      const y = top + i * step, end = zero + Math.max(low, value) * unit;
      body += draw.part(`${key}:${i}`, `${labels ? labels[i] : i} ${texted[i]}`, (labels ? draw.text(0, y + 15, labels[i]) : "") +
        (step > 30 ? draw.line(zero, y - 2, zero, y + 24, {stroke: "faint", thick: 1}) : "") +
        draw.rect(Math.min(zero, end), y + 2, Math.max(1, Math.abs(end - zero)), 18, {fill: colours ? colours[i] : draw.head(i), rx: 2}) +
          draw.text(Math.max(zero, end) + 6, y + 15, texted[i], {size: 12}), {parts});
    });
    if (step <= 30) body += draw.line(zero, top - 2, zero, top + values.length * step - 6, {stroke: "faint", thick: 1});
    const height = top + values.length * step + (note ? 16 : 0);
    return {width: Math.max(width, draw.measure(title || "", 14), note ? left + draw.measure(note, 12) : 0), height, body: body +
      (note ? draw.text(left, height - 4, note, {size: 12, colour: "faint"}) : "")};
  },
  /// A curve of losses, one of each step, over lines at whole losses; x(step) and y(loss) in it. bend: the power by which steps are spread.
  losses(losses, {width, high, top = Math.max(...losses), steps = losses.length, bend = 1, title} = {}) {
    const left = 34, up = title ? 26 : 12, every = Math.ceil(losses.length / width), x = step => left + (width - 10 - left) * (step / steps) ** bend,
      y = loss => up + high * (1 - Math.min(1, loss / top));
    const all = [losses[0], ...losses], points = losses.length ? all.map((loss, step) => [step, loss]).filter(([step]) => step % every === 0 || step === losses.length) : [];
    let body = title ? draw.text(0, 13, title, {bold: true}) : "";
    for (const loss of [0, 1, 2, 3]) if (loss <= top) body += draw.line(left, y(loss), width - 10, y(loss), {stroke: "line", thick: 1}) +
        draw.text(left - 8, y(loss) + 4, loss, {size: 11, anchor: "end", colour: "faint"});
    const curve = points.map(([step, loss], n) => `${n ? "L" : "M"}${x(step).toFixed(1)} ${y(loss).toFixed(1)}`).join("");
    return {left, x, y, width, height: up + high + 20, body: body + (curve && draw.path(curve, {stroke: "mark2", thick: 2}))};
  },
  /// A plane with its grid: at([x, y]) in pixels, vector and point in it, panel(body) when all is drawn. `range`: [low, high] of both axes.
  plane(size, points, {range, title} = {}) {
    const all = [0, ...points.flat()], smallest = Math.min(...all), top = title ? 26 : 4;
    const [low, high] = range || [smallest < 0 ? Math.floor(smallest - .25) : 0, Math.ceil(Math.max(...all) + .25)], unit = size / (high - low);
    const at = ([x, y]) => [x * unit, -y * unit], step = Math.ceil((high - low) / 8);
    let grid = "";
    for (let n = Math.ceil(low / step) * step; n <= high; n += step) {
      const style = {stroke: n === 0 ? "faint" : "line", thick: n === 0 ? 1.2 : 1};
      grid += draw.line(n * unit, -low * unit, n * unit, -high * unit, style) + draw.line(low * unit, -n * unit, high * unit, -n * unit, style);
      if (n !== 0) grid += draw.middle(n * unit, Math.min(14, -low * unit + 14), n, {size: 11, colour: "faint"}) +
          draw.text(-5, -n * unit + 4, n, {size: 11, anchor: "end", colour: "faint"});
    }
    const left = low < 0 ? 30 : 18;
    return {at, unit, panel: body => ({width: size + left + 30, height: top + size + (low < 0 ? 6 : 20),
      body: (title ? draw.text(0, 14, title, {bold: true}) : "") +
        draw.tag("g", {"data-plane": String(unit), transform: `translate(${(left - low * unit).toFixed(1)} ${(top + high * unit).toFixed(1)})`}, grid + body)}),
    vector(p, label, {colour, thick = 2.5, from = [0, 0], key, dash, parts} = {}) {
      const [x1, y1] = at(from), [x2, y2] = at(p), far = Math.hypot(x2 - x1, y2 - y1) || 1;
      const tip = label && draw.middle(x2 + (7 + draw.measure(label, 14) / 2) * (x2 - x1) / far, y2 + 14 * (y2 - y1) / far + 4, label,
        {bold: true, colour, halo: true});
      const drawn = draw.arrow(x1, y1, x2, y2, {stroke: colour, thick, dash}) + tip;
      return key ? draw.part(key, label, drawn + draw.tag("circle", {cx: x2, cy: y2, r: 14, fill: "transparent"}), {parts}) : drawn;
    }};
  },

  /// A panel of one line, and one below its title.
  note: (s, {size = 12, colour = "faint", ...rest} = {}) => ({width: draw.measure(s, size), height: size + 2,
    body: draw.text(0, size, s, {size, colour, ...rest})}),
  titled: (title, {width, height, body}, x = 0) => ({width: Math.max(width, x + draw.measure(title, 14)), height: height + 24,
    body: draw.text(x, 13, title, {bold: true}) + draw.moved(0, 24, body)}),

  moved: (x, y, body) => x || y ? draw.tag("g", {transform: `translate(${Math.round(x * 10) / 10} ${Math.round(y * 10) / 10})`}, body) : body,
  /// Panels from left to right, a new row where the width ends.
  flow(panels, width = 760, {gap = 28, down = 22} = {}) {
    const rows = [[]];
    let taken = 0;
    for (const panel of panels) {
      if (taken > 0 && taken + gap + panel.width > width) { rows.push([]); taken = 0; }
      taken += panel.width + (taken > 0 ? gap : 0);
      rows[rows.length - 1].push(panel);
    }
    let body = "", y = 0, most = 0;
    rows.forEach((row, i) => {
      let x = 0;
      for (const panel of row) { body += draw.moved(x, y, panel.body); x += panel.width + gap; }
      most = Math.max(most, x - gap);
      y += Math.max(...row.map(panel => panel.height)) + (i + 1 < rows.length ? down : 0);
    });
    return {width: most, height: y, body};
  },
  /// Stages [{panels, link}] from left to right, before each but the first an arrow with its link's words, a second line below it; downwards
  /// where the width ends.
  stages(stages, width = 800, {back} = {}) {
    const boxes = stages.map(({panels}) => draw.stack(panels)), links = stages.map(({link = ""}) => Math.max(16, ...link.split("\n").map(s => draw.measure(s, 12) + 4)));
    const height = Math.max(...boxes.map(box => box.height)), isWide = boxes.reduce((sum, box, i) => sum + box.width + (i && links[i] + 8), 0) <= width;
    let body = "", x = 0, y = 0, most = 0;
    boxes.forEach((box, i) => {
      const {link = "", panels} = stages[i], ends = isWide ? [[x + 4, height / 2], [x + 4 + links[i], height / 2]] : [[30, y + 2], [30, y + 30]];
      if (i) {
        const [[x1, y1], [x2, y2]] = back ? ends.reverse() : ends;
        body += draw.arrow(x1, y1, x2, y2, {stroke: "faint"});
        if (!isWide && link) body += draw.text(44, y + 20, link.replace("\n", " "), {size: 12, colour: "faint"});
        else if (link) link.split("\n").forEach((s, n) => {
          body += draw.middle(x + 4 + links[i] / 2, height / 2 + [-8, 17][n], s, {size: 12, colour: "faint"});
        });
        x += links[i] + 8;
        y += 38;
      }
      const shown = isWide ? box : draw.flow(panels, width, {gap: 16, down: 14});
      body += isWide ? draw.moved(x, (height - box.height) / 2, box.body) : draw.moved(0, y, shown.body);
      x += box.width;
      y += shown.height;
      most = Math.max(most, shown.width);
    });
    return isWide ? {width: x, height, body} : {width: Math.max(most, 200), height: y, body};
  },
  stack: (panels, gap = 14) => draw.flow(panels, 0, {down: gap}),
  /// The figure: words hold its title and what it shows for those who hear it.
  svg(name, words, panel, {width, parts} = {}) {
    const pad = 12, w = Math.ceil(Math.max(panel.width + 2 * pad, width && width < 500 ? width : 0)), h = Math.ceil(panel.height + 2 * pad);
    return draw.tag("svg", {xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${w} ${h}`, width: w, height: h, role: parts ? "group" : "img",
      class: "figure", "font-size": 13, "font-family": draw.font, fill: draw.colour("ink")},
      draw.tag("title", {}, draw.escape(words(`figure.${name}.title`))) + draw.tag("desc", {}, draw.escape(words(`figure.${name}.desc`))) +
        draw.moved(pad, pad, panel.body));
  },
  /// The same as a file of its own, with colours for light and dark.
  saved(svg) {
    const set = of => ":root{" + Object.entries(draw.colours[of]).map(([key, value]) => `--${key}:${value}`).join(";") + "}";
    return svg.replace("<title>", `<style>${set("light")}@media(prefers-color-scheme:dark){${set("dark")}}</style>` +
      `<rect width="100%" height="100%" rx="8" fill="var(--ground)"/><title>`)
      .replace(/(<\/?(?:g|desc|svg|title)\b)/g, "\n$1").trim() + "\n";
  },
  /// Numbers of variance 1, always the same.
  normal(count) {
    let seed = 1;
    const next = () => { seed = seed * 48271 % 2147483647; return seed / 2147483647; };
    return Float32Array.from({length: count}, () => Math.sqrt(-2 * Math.log(next())) * Math.cos(2 * Math.PI * next()));
  },
  /// Where in its plane a pointer is: [x, y].
  planePoint(element, event) {
    const plane = element.closest("[data-plane]"), p = new DOMPoint(event.clientX, event.clientY).matrixTransform(plane.getScreenCTM().inverse());
    return [p.x / plane.dataset.plane, -p.y / plane.dataset.plane];
  },
};
