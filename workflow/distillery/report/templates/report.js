// What the report does beyond charts: one tab stop for each row of images, the current section in
// the bar, and everything unfolded on paper.
for (const strip of document.querySelectorAll(".strip, .lead, table.moments tr")) {
  const links = [...strip.querySelectorAll("a")];
  links.forEach((link, place) => (link.tabIndex = place ? -1 : 0));
  strip.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next = links[links.indexOf(event.target) + step];
    if (!step || !next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
}

const places = [...document.querySelectorAll("#sections a")].map((link) => [link, document.querySelector(link.hash)]);
function tellSection() {
  const passed = places.filter(([, place]) => place.getBoundingClientRect().top < innerHeight / 3);
  for (const [link] of places) link.removeAttribute("aria-current");
  (passed.at(-1) ?? places[0])[0].setAttribute("aria-current", "true");
}
addEventListener("scroll", tellSection, { passive: true });
tellSection();

let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const it of folded) it.open = true;
  for (const image of document.images) image.loading = "eager";
});
addEventListener("afterprint", () => folded.forEach((it) => (it.open = false)));
