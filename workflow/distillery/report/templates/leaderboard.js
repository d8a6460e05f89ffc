// Sorts the table by a column and filters its rows; without scripts it stays as it is.
const body = document.querySelector(".runs tbody");
const rows = [...body.rows];
const words = document.getElementById("words");

for (const head of document.querySelectorAll(".runs thead th:not(.fixed)")) {
  const column = head.cellIndex;
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const isFalling = head.getAttribute("aria-sort") !== "descending";
    for (const other of document.querySelectorAll("[aria-sort]")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", isFalling ? "descending" : "ascending");
    const value = (row) => row.cells[column].dataset.value;
    // What is not known comes last, whichever the order.
    rows.sort((a, b) => {
      if (!value(a) || !value(b)) return !value(a) - !value(b);
      const order = column ? value(a) - value(b) : value(a).localeCompare(value(b));
      return isFalling ? -order : order;
    });
    body.append(...rows);
  });
}

function filter() {
  const asked = words.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of rows) {
    const text = `${row.cells[0].textContent} ${row.querySelector(".settings").textContent}`.toLowerCase();
    row.hidden = !asked.every((word) => text.includes(word));
  }
  document.getElementById("about").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
}
words.addEventListener("input", filter);
document.getElementById("tools").addEventListener("submit", (event) => event.preventDefault());
document.getElementById("tools").hidden = false;
filter();
