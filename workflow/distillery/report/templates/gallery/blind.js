// Pairs of images of one prompt whose models are hidden; the answers are kept, counted and saved.
const at = (id) => document.getElementById(id);
const { models, rows } = GALLERY;
const columns = ["prompt_id", "prompt", "file_a", "file_b", "model_a", "model_b", "images_a", "images_b", "chosen"];
const digests = Object.fromEntries(models.map((it) => [it.key, it.digest]));
let pairs = [];
let answers = [];
let isLeft = true; // whether a stands on the left

const file = ({ row, model }) => `${models[model].folder}/${rows[row][3][model][0]}`;
const url = (image) => file(image).split("/").map(encodeURIComponent).join("/").replace(/^%2E%2E/, "..");
const fromRun = (image) => file(image).replace(/^\.\.\//, "");

function shuffle(list) {
  for (let last = list.length - 1; last > 0; last--) {
    const other = Math.floor(Math.random() * (last + 1));
    [list[last], list[other]] = [list[other], list[last]];
  }
  return list;
}

// All pairs that can be asked for: of two models from one noise, or any two images of a prompt.
function allPairs() {
  if (at("which").value === "noise") {
    const [a, b] = [Number(at("a").value), Number(at("b").value)];
    return a === b ? [] : rows.map((_, row) => [{ row, model: a }, { row, model: b }]);
  }
  const byPrompt = Map.groupBy(rows.map((row, number) => [row[0], number]), ([prompt]) => prompt);
  return [...byPrompt.values()].flatMap((group) => {
    const images = group.flatMap(([, row]) => models.map((_, model) => ({ row, model })));
    return images.flatMap((one, place) => images.slice(place + 1).map((other) => [one, other]));
  });
}

const name = ([a, b]) => `${fromRun(a)} ${fromRun(b)}`;
const storage = () => `distillery ${Object.values(digests).join("")} ${at("which").value} ${at("a")?.value} ${at("b")?.value}`;

function begin() {
  answers = JSON.parse(localStorage.getItem(storage()) ?? "[]");
  at("result").textContent = "";
  ask();
}

function ask() {
  const answered = new Set(answers.map((it) => `${it.file_a} ${it.file_b}`));
  const all = allPairs();
  pairs = shuffle(all.filter((pair) => !answered.has(name(pair))));
  at("progress").textContent = all.length ? `${answers.length} of ${all.length} pairs answered` : "Choose two models that differ.";
  at("back").disabled = !answers.length;
  for (const id of ["left", "right", "neither"]) at(id).disabled = !pairs.length;
  at("sides").hidden = !pairs.length;
  at("prompt").textContent = pairs.length ? rows[pairs[0][0].row][2] : all.length ? "All pairs are answered." : "";
  if (!pairs.length) return;
  isLeft = Math.random() < 0.5;
  const [a, b] = pairs[0];
  at("left").firstChild.src = url(isLeft ? a : b);
  at("right").firstChild.src = url(isLeft ? b : a);
}

function answer(side) {
  if (!pairs.length) return;
  const [a, b] = pairs[0];
  const chosen = side === "neither" ? side : (side === "left") === isLeft ? "a" : "b";
  const [one, other] = [models[a.model], models[b.model]];
  const cells = [rows[a.row][0], rows[a.row][2], fromRun(a), fromRun(b), one.key, other.key, one.digest, other.digest, chosen];
  answers.push(Object.fromEntries(columns.map((column, place) => [column, cells[place]])));
  keep();
}

function keep() {
  localStorage.setItem(storage(), JSON.stringify(answers));
  at("result").textContent = "";
  ask();
}

// Wilson 1927, of 95 %.
function wilson(share, number) {
  const penalty = 1.959964 ** 2 / number;
  const centre = (share + penalty / 2) / (1 + penalty);
  const reach = (1.959964 * Math.sqrt((share * (1 - share)) / number + penalty / (4 * number))) / (1 + penalty);
  return [Math.max(centre - reach, 0), Math.min(centre + reach, 1)];
}

function tell() {
  const byModels = Map.groupBy(answers, (it) => [it.model_a, it.model_b].join(" over "));
  const lines = [...byModels].map(([names, of]) => {
    const number = (chosen) => of.filter((it) => it.chosen === chosen).length;
    const [a, b] = [number("a"), number("b")];
    if (!(a + b)) return `${names}: none was better in ${number("neither")} pairs.`;
    const shown = [a / (a + b), ...wilson(a / (a + b), a + b)].map((it) => `${(100 * it).toFixed(1)} %`);
    return `${names}: ${a} of ${a + b}, ${shown[0]} (${shown[1]} to ${shown[2]}); ${number("neither")} could not be told apart.`;
  });
  at("result").textContent = lines.join(" ") || "Nothing was chosen yet.";
}

function save() {
  const cell = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const lines = [columns, ...answers.map((it) => columns.map((column) => it[column]))];
  const text = lines.map((line) => `${line.map(cell).join(",")}\n`).join("");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = `choices-${new Date().toISOString().replace(/[:.]/g, "-")}.csv`;
  link.click();
  URL.revokeObjectURL(link.href);
}

function parse(text) {
  const lines = [[]];
  for (const [, quoted, plain, end] of text.matchAll(/(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r?\n|$)/g)) {
    lines.at(-1).push(quoted?.replaceAll('""', '"') ?? plain);
    if (end !== ",") lines.push([]);
  }
  return lines.filter((line) => line.length === columns.length);
}

async function load() {
  const [head, ...lines] = parse((await at("load").files[0].text()).replace(/^\ufeff/, ""));
  const found = lines.map((line) => Object.fromEntries(columns.map((column, place) => [column, line[place]])));
  const isOwn = (it) => digests[it.model_a] === it.images_a && digests[it.model_b] === it.images_b;
  at("load").value = "";
  if (head?.join() !== columns.join() || !found.every(isOwn)) {
    at("result").textContent = "This file is refused: it is of other images than those here.";
    return;
  }
  const known = new Set(answers.map((it) => `${it.file_a} ${it.file_b}`));
  answers.push(...found.filter((it) => !known.has(`${it.file_a} ${it.file_b}`)));
  keep();
}

function back() {
  answers.pop();
  keep();
}

for (const side of ["left", "right", "neither"]) at(side).addEventListener("click", () => answer(side));
for (const [id, act] of Object.entries({ back, tell, save })) at(id).addEventListener("click", act);
at("load").addEventListener("change", load);
at("settings").addEventListener("change", begin);
at("settings").addEventListener("submit", (event) => event.preventDefault());
const keys = { ArrowLeft: "left", ArrowRight: "right", ArrowDown: "neither" };
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select, input")) return;
  if (keys[event.key]) answer(keys[event.key]);
  else if (event.key === "Backspace" && answers.length) back();
  else return;
  event.preventDefault();
});
begin();
