// Draws each chart from the JSON beside it, and applies the choices of the reader.
const views = new Map();
const shared = ["layer", "head"];
const options = { ast: true, renderer: "svg", actions: false, tooltip: { theme: matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light" } };

function draw(figure) {
  const place = figure.querySelector(".chart");
  const spec = JSON.parse(figure.querySelector("script").textContent);
  spec.config.legend.columns = place.clientWidth < 420 ? 1 : 2;
  const x = figure.querySelector("select[name=x]");
  const logarithmic = figure.querySelector("input[name=log]");
  for (const layer of spec.layer ?? [spec]) {
    if (x && layer.encoding.x) {
      layer.encoding.x.field = x.value;
      layer.encoding.x.title = x.selectedOptions[0].text;
    }
    if (logarithmic?.checked && layer.encoding.y) {
      layer.encoding.y.scale = { type: "log", nice: false, zero: false };
    }
  }
  return vegaEmbed(place, spec, options).then(({ view }) => {
    views.set(figure, view);
    hide(view);
    shared.forEach((name) => share(view, name));
  });
}

function hide(view) {
  const hidden = [...document.querySelectorAll(".controls input:not(:checked)")].map((box) => box.value);
  try {
    view.signal("hidden", hidden).runAsync();
  } catch {
    // This chart shows all variants.
  }
}

// Sliders of the same name move together.
function share(view, name) {
  try {
    view.addSignalListener(name, (_, value) => {
      for (const other of views.values()) {
        if (other !== view && other.getState({ signals: (signal) => signal === name }).signals[name] !== undefined) {
          if (other.signal(name) !== value) other.signal(name, value).runAsync();
        }
      }
    });
  } catch {
    // This chart has no such slider.
  }
}

const figures = [...document.querySelectorAll("figure")];
for (const figure of figures) {
  for (const choice of figure.querySelectorAll(".choices select, .choices input")) {
    choice.addEventListener("change", () => draw(figure));
  }
}
// Of the charts with a menu, one is shown; a hidden one has no width, and is drawn once it is chosen.
for (const menu of document.querySelectorAll(".menu")) {
  menu.querySelector("select[name=chart]").addEventListener("change", ({ target }) => {
    for (const figure of menu.querySelectorAll("figure")) {
      figure.hidden = figure.id !== target.value;
      if (!figure.hidden && !views.has(figure)) draw(figure);
    }
  });
}
for (const box of document.querySelectorAll(".controls input")) {
  box.addEventListener("change", () => views.forEach(hide));
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => (part.open = true)));
Promise.all(figures.filter((figure) => !figure.hidden).map(draw)).then(() => document.body.classList.add("drawn"));
