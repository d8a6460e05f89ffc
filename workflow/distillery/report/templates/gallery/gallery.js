// Filter, sort and enlarge. The page is whole without it: this draws the same samples anew.
const at = (id) => document.getElementById(id);
const { models, scored, forms, rows, perPage } = GALLERY;
// Of the image beside a prompt, in the place of a model's number.
const INPUT = -1;
const nameOf = (model) => (model === INPUT ? "input" : models[model].name);
const url = (row, model) => (model === INPUT ? row[5][0] || "data:," : `${models[model].folder}/${row[3][model][0].split("/").map(encodeURIComponent).join("/")}`);
const titles = Object.fromEntries([...(at("score")?.options ?? [])].map((it) => [it.value, it.text]));
const said = (name, value) => `${value.toFixed(forms[name][0])}${forms[name][1]}`;
const ticks = [...document.querySelectorAll("#models input")];
let shown = rows;
let opened = null;

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function figure(row, place, model) {
  const image = element("img", { loading: "lazy", src: url(row, model), alt: `${models[model].name}: ${row[2]}` });
  const link = element("a", { href: url(row, model) }, image);
  link.dataset.place = place;
  link.dataset.model = model;
  const scores = scored
    .map((name, number) => [name, row[3][model][number + 1]])
    .filter(([, value]) => value !== null)
    .map(([name, value]) => element("span", { textContent: `${titles[name]} ${said(name, value)} ` }));
  const mark = element("span", { className: `mark ${models[model].colour}`, textContent: models[model].glyph, ariaHidden: "true" });
  return element("figure", {}, link, element("figcaption", {}, mark, " ", element("b", { textContent: `${models[model].name} ` }), ...scores));
}

// The image beside the prompt, or what has become of its file.
function input(row, place) {
  const [file, lost] = row[5];
  if (lost) return inputFigure(element("span", { className: "lost", textContent: lost }));
  const image = element("img", { loading: "lazy", src: file, alt: `input: ${row[2]}` });
  const link = element("a", { href: file }, image);
  link.dataset.place = place;
  link.dataset.model = INPUT;
  return inputFigure(link);
}

function inputFigure(shown) {
  return element("figure", {}, shown, element("figcaption", {}, element("b", { textContent: "input" })));
}

const chosenModels = () => models.map((_, number) => number).filter((it) => !ticks.length || ticks[it].checked);

function article(row, place) {
  const head = element("h2", { textContent: `${row[2]} ` }, element("small", { textContent: `${row[0]}/${row[1]}` }));
  const shots = chosenModels().map((model) => figure(row, place, model));
  const strip = element("div", { className: "strip" }, ...(row[5] ? [input(row, place)] : []), ...shots);
  return element("article", {}, head, strip);
}

function nothing() {
  const clear = () => {
    at("words").value = "";
    if (at("category")) at("category").value = "";
    choose();
    at("words").focus();
  };
  const button = element("button", { type: "button", textContent: "Show all samples", onclick: clear });
  return element("p", {}, "Nothing matches. ", button);
}

function draw(page = 0) {
  const first = page * perPage;
  const width = chosenModels().length + (rows[0]?.[5] ? 1 : 0);
  document.body.style.setProperty("--columns", width);
  at("samples").replaceChildren(...shown.slice(first, first + perPage).map((row, number) => article(row, first + number)));
  const pages = Math.ceil(shown.length / perPage);
  const buttons = Array.from({ length: pages }, (_, number) => {
    const button = element("button", { type: "button", textContent: number + 1, onclick: () => (draw(number), scrollTo(0, 0)) });
    if (number === page) button.setAttribute("aria-current", "page");
    return element("li", {}, button);
  });
  at("pages").replaceChildren(element("ul", {}, ...(pages > 1 ? buttons : [])));
  at("about").textContent = `${shown.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} samples`;
  if (!shown.length) at("samples").replaceChildren(nothing());
}

function choose() {
  const words = at("words").value.toLowerCase().split(/\s+/).filter(Boolean);
  const category = at("category")?.value;
  const isOne = (row) => !category || row[4] === category;
  const hasWords = (row) => words.every((word) => `${row[2]} ${row[0]}/${row[1]}`.toLowerCase().includes(word));
  shown = rows.filter((row) => isOne(row) && hasWords(row));
  const place = scored.indexOf(at("score")?.value) + 1;
  for (const id of ["model", "descending"]) if (at(id)) at(id).disabled = place === 0;
  if (place > 0) {
    // One model, or "1-0": how much more the one has than the other.
    const [model, less] = at("model").value.split("-").map(Number);
    const sign = at("descending").checked ? -1 : 1;
    const value = (row) => {
      const values = [model, less ?? model].map((it) => row[3][it][place]);
      return values.includes(null) ? null : values[0] - (less === undefined ? 0 : values[1]);
    };
    // What has no score comes last, whichever the order.
    shown.sort((a, b) => (value(a) === null) - (value(b) === null) || sign * (value(a) - value(b)));
  }
  draw();
  keep();
}

// What both images scored, and how much more the right one did.
function tellScores(row, left, right) {
  const lines = scored.flatMap((name, number) => {
    // What was given beside the prompt has no scores.
    const [one, other] = [left, right].map((it) => row[3][it]?.[number + 1] ?? null);
    if (one === null && other === null) return [];
    const cells = [one, other].map((it) => (it === null ? "–" : said(name, it)));
    const more = one === null || other === null ? "–" : (other < one ? "" : "+") + said(name, other - one);
    return [element("tr", {}, element("th", { textContent: titles[name], scope: "row" }), ...[...cells, more].map((it) => element("td", { textContent: it })))];
  });
  at("scores").replaceChildren(...lines);
  at("scores").parentElement.hidden = !lines.length;
}

function zoom() {
  const times = Number(at("zoom")?.value ?? 0);
  const width = at("under").naturalWidth * times;
  const sides = at("how")?.value === "beside" ? 2 : 1;
  at("stage").style.inlineSize = times && width ? `${(sides * width) / devicePixelRatio}px` : "";
}

function open(place) {
  opened = Math.min(Math.max(place, 0), shown.length - 1);
  const row = shown[opened];
  const [left, right] = [Number(at("left").value), Number(at("right").value)];
  at("over").src = url(row, left);
  at("under").src = url(row, right);
  at("over").alt = `left, ${nameOf(left)}: ${row[2]}`;
  at("under").alt = `right, ${nameOf(right)}: ${row[2]}`;
  at("caption").textContent = `${row[2]} (${row[0]}/${row[1]}, ${opened + 1} of ${shown.length})`;
  at("previous").disabled = opened === 0;
  at("next").disabled = opened === shown.length - 1;
  tellScores(row, left, right);
  if (!at("viewer").open) at("viewer").showModal();
  keep();
}

// ---- the state is in the address, so that a link shows what one sees ----

const kept = ["words", "category", "score", "model", "left", "right", "how", "zoom"];
const first = Object.fromEntries(kept.filter(at).map((id) => [id, at(id).value]));

function keep() {
  const state = new URLSearchParams();
  // Models by their names: their numbers are those of this gallery alone.
  const name = (it) => (it.matches("select:not(#score)") ? it.selectedOptions[0].text : it.value);
  for (const id of Object.keys(first)) if (at(id).value !== first[id]) state.set(id, name(at(id)));
  if (at("descending")?.checked) state.set("descending", 1);
  const names = ticks.filter((it) => it.checked).map((it) => models[it.value].name);
  if (ticks.some((it) => it.checked !== it.defaultChecked)) state.set("models", names.join("|"));
  if (at("viewer").open) state.set("open", shown[opened].slice(0, 2).join("/"));
  history.replaceState(null, "", `${state}` ? `#${state}` : location.pathname);
}

function restore() {
  const state = new URLSearchParams(location.hash.slice(1));
  for (const id of Object.keys(first)) {
    const value = state.get(id) ?? first[id];
    const option = [...(at(id).options ?? [])].find((it) => it.value === value || it.text === value);
    at(id).value = at(id).options ? (option?.value ?? first[id]) : value;
  }
  if (at("descending")) at("descending").checked = state.has("descending");
  const names = state.get("models")?.split("|");
  for (const it of ticks) it.checked = names ? names.includes(models[it.value].name) : it.defaultChecked;
  if (ticks.length && !ticks.some((it) => it.checked)) ticks.forEach((it) => (it.checked = true));
  show();
  const place = state.get("open");
  choose();
  const found = place ? shown.findIndex((row) => `${row[0]}/${row[1]}` === place) : -1;
  if (found >= 0) open(found);
}

function show() {
  for (const name of ["beside", "difference", "amplified"]) at("viewer").classList.toggle(name, at("how")?.value === name);
  at("viewer").classList.toggle("zoomed", Number(at("zoom")?.value ?? 0) > 0);
  zoom();
}

// ---- what is pressed, dragged and typed ----

// Back to where the last image is, which may be on another page.
at("viewer").addEventListener("close", () => {
  const find = () => document.querySelector(`#samples a[data-place="${opened}"]`);
  if (!find()) draw(Math.floor(opened / perPage));
  find()?.focus();
  keep();
});

at("samples").addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  // The one on the left stays, as what all are compared with; what was given comes there itself.
  if (link.dataset.model === String(INPUT)) at("left").value = INPUT;
  else if (link.dataset.model !== at("left").value) at("right").value = link.dataset.model;
  open(Number(link.dataset.place));
});
for (const id of ["left", "right"]) at(id).addEventListener("change", () => open(opened));
for (const id of ["how", "zoom"]) at(id)?.addEventListener("change", () => (show(), keep()));
at("under").addEventListener("load", zoom);
// Clips stand side by side: they need not be at the same frame, so nothing lies over the other.
const slide = (share) => {
  at("slide").value = share;
  at("stage").style.setProperty("--left", `${at("slide").value}%`);
};
at("slide")?.addEventListener("input", () => slide(at("slide").value));
function drag(event) {
  if (!at("slide") || !event.buttons || at("how").value !== "slide") return;
  event.preventDefault();
  const { left, width } = at("stage").getBoundingClientRect();
  slide((100 * (event.clientX - left)) / width);
}
for (const type of ["pointerdown", "pointermove"]) at("stage").addEventListener(type, drag);
at("stage").addEventListener("dragstart", (event) => event.preventDefault());
at("previous").addEventListener("click", () => open(opened - 1));
at("next").addEventListener("click", () => open(opened + 1));
at("close").addEventListener("click", () => at("viewer").close());
at("viewer").addEventListener("click", (event) => event.target === at("viewer") && at("viewer").close());
addEventListener("beforeprint", () => [...document.images].forEach((image) => (image.loading = "eager")));

// A key chooses its way of looking, and again goes back to the slider.
const ways = { d: "difference", x: "amplified", s: "beside" };
const times = { 0: "0", 1: "1", 2: "2", 4: "4" };
at("viewer").addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select, #slide")) return;
  if (event.key === "ArrowLeft") open(opened - 1);
  if (event.key === "ArrowRight") open(opened + 1);
  const [way, scale] = [ways[event.key.toLowerCase()], times[event.key]];
  if (at("how") && way) at("how").value = at("how").value === way ? "slide" : way;
  if (at("zoom") && scale) at("zoom").value = scale;
  if (way || scale) show();
  keep();
});
at("tools").hidden = false;
at("tools").addEventListener("input", choose);
at("tools").addEventListener("submit", (event) => event.preventDefault());
addEventListener("hashchange", restore);
const page = [...document.querySelectorAll("#pages li a")].findIndex((link) => link.hasAttribute("aria-current"));
restore();
if (page > 0 && !location.hash.slice(1)) draw(page);
