// Neuron view of attention weights: one query, each key, their products, the score and the weight, of one head.
const GAP = 14, STRIP = 200, BAR = 90, LINE = 20, NAMES = 120, HEADER = 60;
const decoded = new Map(); // layers whose numbers were decoded

// Numbers are base64 of their bytes, in the byte order of every processor that runs a browser.
function numbers(Type, text) {
  return new Type(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
}

function neuronsOf(index) {
  if (!decoded.has(index)) {
    const layer = data.scores[index];
    decoded.set(index, { ...layer, q: numbers(Int16Array, layer.q), k: numbers(Int16Array, layer.k),
      scores: numbers(Float32Array, layer.scores), others: layer.others && numbers(Float32Array, layer.others) });
  }
  return decoded.get(index);
}

function vector(values, step, width, place) {
  return Array.from(values.subarray(place * width, (place + 1) * width), (value) => value * step);
}

const signed = (value, digits = 3) => value.toFixed(digits).replace("-", "−");

// A strip of cells, one for each channel. The strongest colour is that of `maximum`; `tell` describes a channel.
function strip(values, maximum, x, y, name, tell) {
  const group = element("g", { class: name }), width = STRIP / values.length;
  group.append(element("rect", { x, y, width: STRIP, height: LINE - 4, class: "ground" }));
  values.forEach((value, i) => group.append(element("rect", { x: (x + i * width).toFixed(2), y, width: width.toFixed(2),
    height: LINE - 4, class: value < 0 ? "minus" : "plus", "fill-opacity": (Math.abs(value) / maximum).toFixed(2) })));
  group.addEventListener("mousemove", (event) => {
    const box = group.getBoundingClientRect();
    const i = Math.min(values.length - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * values.length)));
    say(`channel ${i}: ${tell(i)}`);
  });
  group.addEventListener("mouseleave", () => say(""));
  return group;
}

function text(words, x, y, more) {
  return element("text", { x, y: y + 13, "text-anchor": "end", class: "number", ...more }, words);
}

// Headings and places of the columns after the two strips.
function columnsOf(layer) {
  const product = `q·k × ${layer.scale.toFixed(3)}`;
  const names = layer.others ? [product, "other terms", "score"] : [`score: ${product}`];
  const first = NAMES + 3 * GAP + 2 * STRIP, width = layer.others ? 84 : 130;
  return names.map((name, index) => ({ name, end: first + (index + 1) * width }));
}

function scoreLine(name, values, weight, y, columns, layer) {
  const line = element("g", { class: "key" }), bar = columns.at(-1).end + 2 * GAP;
  line.append(label(name, { x: NAMES, y: y + 13, "text-anchor": "end" }));
  columns.forEach((column, i) => line.append(text(values[i], column.end, y, i === columns.length - 1 ? { class: "number score" } : {})));
  line.append(element("rect", { x: bar, y, width: (Math.min(Math.abs(weight), 1) * BAR).toFixed(1), height: LINE - 4,
    class: weight < 0 ? "minus" : "plus" }));
  line.append(text(signed(weight), bar + BAR + 50, y, { class: "number share" }));
  return line;
}

function keyLine(one, s, y) {
  const { layer, head, t, columns, q, maxima } = one, k = one.k[s], products = one.products[s];
  const place = (head * layer.queries + t) * layer.keys + s, score = layer.scores[place];
  const hidden = !Number.isFinite(score), other = layer.others ? layer.others[place] : 0;
  const all = hidden ? ["", "", "hidden"] : [signed(score - other), signed(other), signed(score)];
  const weight = data.layers[menu("layer").value][head][t][s] / STEPS;
  const line = scoreLine(data.keys[s], all.slice(-columns.length), weight, y, columns, layer);
  const tell = (i) => `q ${signed(q[i])} × k ${signed(k[i])} = ${signed(products[i])}`;
  line.append(strip(k, maxima.k, NAMES + GAP, y, "k", tell));
  line.append(strip(products, maxima.products, NAMES + 2 * GAP + STRIP, y, "product", tell));
  return line;
}

// Why a layer or a token has no neurons here, or an empty text.
function missing(index, t) {
  if (!data.scores[index]) return `Layer ${index} has no neuron view: ${data.reasons[index]}.`;
  const { queries } = data.scores[index];
  return t < queries ? "" : `The neuron view has the first ${queries} queries only, for the size of this page.`;
}

function drawNeurons() {
  const index = menu("layer").value, t = Number(menu("query").value), head = Number(menu("head").value);
  const reason = missing(index, t);
  resize(0, 0);
  if (reason) { say(reason); return; }
  const layer = neuronsOf(index), columns = columnsOf(layer), places = Array.from({ length: layer.keys }, (_, s) => s);
  const q = vector(layer.q, layer.q_step, layer.width, head * layer.queries + t);
  const k = places.map((s) => vector(layer.k, layer.k_step, layer.width, head * layer.keys + s));
  const products = k.map((key) => key.map((value, i) => value * q[i]));
  const maxima = { k: largest(k), products: largest(products) };
  const rows = places.filter((s) => kept(t, s));
  if (!rows.length) say("The choice of texts hides every key of this query.");
  const bar = columns.at(-1).end + 2 * GAP, footer = layer.sinks ? 1 : 0;
  resize(bar + BAR + 60, HEADER + (rows.length + footer) * LINE + 8);
  svg.append(label(`q: ${data.queries[t]}`, { x: NAMES, y: 13, "text-anchor": "end" }));
  svg.append(strip(q, largest([q]), NAMES + GAP, 0, "q", (i) => `q ${signed(q[i])}`));
  const heading = (words, x, anchor) => svg.append(text(words, x, HEADER - 24, { "text-anchor": anchor, class: "heading" }));
  heading("key", NAMES, "end"); heading("k", NAMES + GAP, "start"); heading("q × k", NAMES + 2 * GAP + STRIP, "start");
  for (const column of columns) heading(column.name, column.end, "end");
  heading(layer.softmax ? "softmax" : "weight, no softmax", bar, "start");
  const one = { layer, head, t, columns, q, k, products, maxima };
  rows.forEach((s, i) => svg.append(keyLine(one, s, HEADER + i * LINE)));
  for (const [first, last] of wordsOf(rows.map((s) => data.key_words[s] ?? null))) {
    bracket(`M${NAMES + 6} ${HEADER + first * LINE}V${HEADER + (last + 1) * LINE - 4}`);
  }
  if (layer.sinks) {
    const values = ["", "", signed(layer.sinks[head])].slice(-columns.length);
    svg.append(scoreLine("(nothing)", values, layer.sink_weights[head][t], HEADER + rows.length * LINE, columns, layer));
  }
}

start();
