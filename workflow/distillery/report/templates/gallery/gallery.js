// Filter, sort and enlarge. The page is whole without it: this draws the same samples anew.
const at = (id) => document.getElementById(id);
const { models, scored, rows, perPage } = GALLERY;
// Of the image beside a prompt, in the place of a model's number.
const INPUT = -1;
const nameOf = (model) => (model === INPUT ? "input" : models[model].name);
const url = (row, model) => (model === INPUT ? row[5][0] || "data:," : `${models[model].folder}/${row[3][model][0].split("/").map(encodeURIComponent).join("/")}`);
const titles = Object.fromEntries([...(at("score")?.options ?? [])].map((it) => [it.value, it.text]));
let shown = rows;
let opened = 0;

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
    .map((name, number) => [titles[name], row[3][model][number + 1]])
    .filter(([, value]) => value !== null)
    .map(([title, value]) => element("span", { textContent: `${title} ${Number(value.toPrecision(4))} ` }));
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

function article(row, place) {
  const head = element("h2", { textContent: `${row[2]} ` }, element("small", { textContent: `${row[0]}/${row[1]}` }));
  const shots = models.map((_, model) => figure(row, place, model));
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
    const model = Number(at("model").value);
    const sign = at("descending").checked ? -1 : 1;
    const value = (row) => row[3][model][place];
    // What has no score comes last, whichever the order.
    shown.sort((a, b) => (value(a) === null) - (value(b) === null) || sign * (value(a) - value(b)));
  }
  draw();
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
  if (!at("viewer").open) at("viewer").showModal();
}

// Back to where the last image is, which may be on another page.
at("viewer").addEventListener("close", () => {
  const find = () => document.querySelector(`#samples a[data-place="${opened}"]`);
  if (!find()) draw(Math.floor(opened / perPage));
  find()?.focus();
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
// Clips stand side by side: they need not be at the same frame, so nothing lies over the other.
at("slide")?.addEventListener("input", () => at("stage").style.setProperty("--left", `${at("slide").value}%`));
at("difference")?.addEventListener("change", () => at("viewer").classList.toggle("difference", at("difference").checked));
at("previous").addEventListener("click", () => open(opened - 1));
at("next").addEventListener("click", () => open(opened + 1));
at("close").addEventListener("click", () => at("viewer").close());
at("viewer").addEventListener("click", (event) => event.target === at("viewer") && at("viewer").close());
addEventListener("beforeprint", () => [...document.images].forEach((image) => (image.loading = "eager")));
at("viewer").addEventListener("keydown", (event) => {
  if (event.target.matches("select, #slide")) return;
  if (event.key === "ArrowLeft") open(opened - 1);
  if (event.key === "ArrowRight") open(opened + 1);
  if (event.key === "d") at("difference")?.click();
});
at("tools").hidden = false;
at("tools").addEventListener("input", choose);
at("tools").addEventListener("submit", (event) => event.preventDefault());
const page = [...document.querySelectorAll("#pages li a")].findIndex((link) => link.hasAttribute("aria-current"));
draw(Math.max(page, 0));
