// Head view and matrix of attention weights: lines between tokens, or cells, of a layer and a head.
const data = JSON.parse(document.getElementById("weights").textContent);
const svg = document.getElementById("view");
const menu = (name) => document.getElementById(name);
const ROW = 22, LABEL = 150, SPAN = 260, CELL = 20, TOP = 100;
let held = null; // the token whose weights are shown: {side, index}

function element(name, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function weights() {
  const heads = data.layers[menu("layer").value];
  if (menu("head").value !== "mean") return heads[menu("head").value];
  return heads[0].map((row, t) => row.map((_, s) => heads.reduce((sum, head) => sum + head[t][s], 0) / heads.length));
}

// Whether the filter keeps a pair of tokens: A and B are the first and the second text.
function kept(t, s) {
  const filter = menu("filter").value;
  if (filter === "all") return true;
  const side = (index) => (index < data.second ? "A" : "B");
  return filter === `${side(t)}${side(s)}`;
}

function shown(t, s) {
  return kept(t, s) && (held === null || (held.side === "query" ? held.index === t : held.index === s));
}

function token(text, x, y, anchor, side, index) {
  const node = element("text", { x, y, "text-anchor": anchor, class: "token", tabindex: 0 }, text);
  const hold = () => { held = { side, index }; lines(); };
  const release = () => { held = null; lines(); };
  node.addEventListener("mouseenter", hold); node.addEventListener("focus", hold);
  node.addEventListener("mouseleave", release); node.addEventListener("blur", release);
  return node;
}

function lines() {
  const group = svg.querySelector("g.lines");
  if (!group) return;
  group.replaceChildren();
  const values = weights(), maximum = Math.max(...values.flat()) || 1;
  values.forEach((row, t) => row.forEach((weight, s) => {
    if (weight < 0.005 || !shown(t, s)) return;
    const line = element("line", { x1: LABEL + 6, y1: (t + 0.6) * ROW, x2: LABEL + SPAN - 6, y2: (s + 0.6) * ROW,
      "stroke-opacity": (weight / maximum).toFixed(3), class: "weight" });
    line.append(element("title", {}, `${data.queries[t]} → ${data.keys[s]}: ${weight.toFixed(4)}`));
    group.append(line);
  }));
}

function drawHeads() {
  const rows = Math.max(data.queries.length, data.keys.length);
  svg.setAttribute("viewBox", `0 0 ${2 * LABEL + SPAN} ${(rows + 0.5) * ROW}`);
  svg.append(element("g", { class: "lines" }));
  data.queries.forEach((text, t) => svg.append(token(text, LABEL, (t + 0.8) * ROW, "end", "query", t)));
  data.keys.forEach((text, s) => svg.append(token(text, LABEL + SPAN, (s + 0.8) * ROW, "start", "key", s)));
  lines();
}

function drawMatrix() {
  const values = weights(), maximum = Math.max(...values.flat()) || 1;
  svg.setAttribute("viewBox", `0 0 ${LABEL + CELL * data.keys.length + 20} ${TOP + CELL * data.queries.length}`);
  data.keys.forEach((text, s) => {
    const x = LABEL + (s + 0.7) * CELL;
    svg.append(element("text", { x, y: TOP - 6, class: "token", transform: `rotate(-90 ${x} ${TOP - 6})` }, text));
  });
  values.forEach((row, t) => {
    svg.append(element("text", { x: LABEL - 6, y: TOP + (t + 0.7) * CELL, "text-anchor": "end", class: "token" },
      data.queries[t]));
    row.forEach((weight, s) => {
      const cell = element("rect", { x: LABEL + s * CELL, y: TOP + t * CELL, width: CELL - 1, height: CELL - 1,
        class: "weight", "fill-opacity": kept(t, s) ? (weight / maximum).toFixed(3) : 0 });
      cell.append(element("title", {}, `${data.queries[t]} → ${data.keys[s]}: ${weight.toFixed(4)}`));
      svg.append(cell);
    });
  });
}

function draw() {
  svg.replaceChildren();
  if (menu("as").value === "heads") drawHeads(); else drawMatrix();
}

function heads() {
  const chosen = menu("head").value, count = data.layers[menu("layer").value].length;
  menu("head").replaceChildren(new Option("mean of all", "mean"), ...Array.from({ length: count }, (_, h) => new Option(h, h)));
  menu("head").value = chosen !== "" && chosen < count ? chosen : "mean";
}

data.layers.forEach((layer, index) => { if (layer) menu("layer").append(new Option(index, index)); });
menu("layer").value = data.layer;
menu("as").value = data.queries.length > 20 ? "matrix" : "heads";
heads();
if (data.head !== null) menu("head").value = data.head;
menu("layer").addEventListener("change", () => { heads(); draw(); });
for (const name of ["head", "filter", "as"]) menu(name).addEventListener("change", draw);
draw();
