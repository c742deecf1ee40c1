// Page of attention weights: lines between tokens, a matrix, or the neurons of one head (`neurons.js`).
const data = JSON.parse(document.getElementById("weights").textContent);
const svg = document.getElementById("view");
const menu = (name) => document.getElementById(name);
const LABEL = 150, SPAN = 260, CLIP = 18, MOST_LINES = 2000;
const MANY = 40; // tokens from which on they stand closer together
const STEPS = 10000; // a weight is stored as a multiple of 1 / STEPS
let held = null; // the token whose weights are shown: {side, index}

function element(name, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function resize(width, height) {
  svg.setAttribute("width", Math.ceil(width));
  svg.setAttribute("height", Math.ceil(height));
}

const say = (text) => { menu("readout").textContent = text; };
const clipped = (text, room = CLIP) => (text.length > room ? `${text.slice(0, room - 1)}…` : text);
const dense = () => Math.max(data.queries.length, data.keys.length) > MANY;

function weights() {
  const heads = data.layers[menu("layer").value];
  const head = menu("head").value;
  return heads[0].map((row, t) => row.map((_, s) =>
    head === "mean" ? heads.reduce((sum, one) => sum + one[t][s], 0) / heads.length / STEPS : heads[head][t][s] / STEPS));
}

const largest = (rows) => rows.reduce((most, row) => row.reduce((one, value) => Math.max(one, Math.abs(value)), most), 0) || 1;

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

function label(text, attributes) {
  const node = element("text", { class: "token", ...attributes }, clipped(text));
  node.append(element("title", {}, text));
  return node;
}

// First and last token of each word of several tokens.
function wordsOf(ids) {
  const runs = [];
  ids.forEach((word, i) => {
    if (word === null || i === 0 || word !== ids[i - 1]) runs.push([i, i]); else runs.at(-1)[1] = i;
  });
  return runs.filter(([first, last]) => last > first);
}

const bracket = (path) => svg.append(element("path", { d: path, class: "word" }));

function token(text, x, y, anchor, side, index) {
  const node = label(text, { x, y, "text-anchor": anchor, tabindex: 0 });
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
  const values = weights(), maximum = largest(values), row = dense() ? 16 : 22;
  const drawn = values.flatMap((weightsOfQuery, t) => weightsOfQuery.map((weight, s) => ({ weight, t, s })))
    .filter(({ weight, t, s }) => Math.abs(weight) >= 0.005 && shown(t, s))
    .sort((one, other) => Math.abs(one.weight) - Math.abs(other.weight));
  const left = drawn.splice(0, Math.max(0, drawn.length - MOST_LINES)).length;
  for (const { weight, t, s } of drawn) {
    const line = element("line", { x1: LABEL + 6, y1: (t + 0.6) * row, x2: LABEL + SPAN - 6, y2: (s + 0.6) * row,
      "stroke-opacity": (Math.abs(weight) / maximum).toFixed(3), class: weight < 0 ? "weight minus" : "weight" });
    line.append(element("title", {}, `${data.queries[t]} → ${data.keys[s]}: ${weight.toFixed(4)}`));
    group.append(line);
  }
  say(left ? `The ${MOST_LINES} largest weights are drawn; ${left} smaller ones are not. Point at a token to see all of its own.` : "");
}

function drawHeads() {
  const row = dense() ? 16 : 22;
  resize(2 * LABEL + SPAN, (Math.max(data.queries.length, data.keys.length) + 0.5) * row);
  svg.append(element("g", { class: "lines" }));
  data.queries.forEach((text, t) => svg.append(token(text, LABEL, (t + 0.8) * row, "end", "query", t)));
  data.keys.forEach((text, s) => svg.append(token(text, LABEL + SPAN, (s + 0.8) * row, "start", "key", s)));
  for (const [first, last] of wordsOf(data.query_words)) bracket(`M${LABEL + 3} ${(first + 0.2) * row}V${(last + 1) * row}`);
  for (const [first, last] of wordsOf(data.key_words)) bracket(`M${LABEL + SPAN - 3} ${(first + 0.2) * row}V${(last + 1) * row}`);
  lines();
}

function drawMatrix() {
  const values = weights(), maximum = largest(values), cell = dense() ? 14 : 20;
  const top = 16 + 8 * Math.min(CLIP, Math.max(...data.keys.map((text) => text.length)));
  resize(LABEL + cell * data.keys.length + 20, top + cell * data.queries.length + 4);
  data.keys.forEach((text, s) => {
    const x = LABEL + (s + 0.75) * cell;
    svg.append(label(text, { x, y: top - 6, transform: `rotate(-90 ${x} ${top - 6})` }));
  });
  for (const [first, last] of wordsOf(data.query_words)) bracket(`M${LABEL - 3} ${top + first * cell + 1}V${top + (last + 1) * cell - 2}`);
  for (const [first, last] of wordsOf(data.key_words)) bracket(`M${LABEL + first * cell + 1} ${top - 3}H${LABEL + (last + 1) * cell - 2}`);
  values.forEach((row, t) => {
    svg.append(label(data.queries[t], { x: LABEL - 6, y: top + (t + 0.75) * cell, "text-anchor": "end" }));
    row.forEach((weight, s) => {
      const square = element("rect", { x: LABEL + s * cell, y: top + t * cell, width: cell - 1, height: cell - 1,
        class: weight < 0 ? "weight minus" : "weight", "fill-opacity": kept(t, s) ? (Math.abs(weight) / maximum).toFixed(3) : 0 });
      square.append(element("title", {}, `${data.queries[t]} → ${data.keys[s]}: ${weight.toFixed(4)}`));
      svg.append(square);
    });
  });
}

function draw() {
  svg.replaceChildren();
  say("");
  const view = menu("as").value;
  menu("query").parentElement.hidden = view !== "neurons";
  menu("head").querySelector("[value=mean]").disabled = view === "neurons";
  if (view === "neurons" && menu("head").value === "mean") menu("head").value = "0";
  svg.classList.toggle("dense", dense() && view !== "neurons");
  ({ heads: drawHeads, matrix: drawMatrix, neurons: drawNeurons })[view]();
}

function heads() {
  const chosen = menu("head").value, count = data.layers[menu("layer").value].length;
  menu("head").replaceChildren(new Option("mean of all", "mean"), ...Array.from({ length: count }, (_, h) => new Option(h, h)));
  menu("head").value = chosen !== "" && chosen < count ? chosen : "mean";
}

function start() {
  data.layers.forEach((layer, index) => { if (layer) menu("layer").append(new Option(index, index)); });
  menu("query").replaceChildren(...data.queries.map((text, t) => new Option(`${t}: ${text}`, t)));
  menu("query").value = data.queries.length - 1;
  menu("layer").value = data.layer;
  menu("as").value = data.queries.length > 20 ? "matrix" : "heads";
  heads();
  if (data.head !== null) menu("head").value = data.head;
  menu("layer").addEventListener("change", () => { heads(); draw(); });
  for (const name of ["head", "filter", "as", "query"]) menu(name).addEventListener("change", draw);
  draw();
}
