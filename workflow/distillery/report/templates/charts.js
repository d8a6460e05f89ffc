// Puts each chart in the place of its still drawing once it comes near the window. Where Vega fails
// (an old browser, a page that forbids scripts), the still drawing stays.

const options = {
  actions: false,
  defaultStyle: false,
  ast: true, // Vega's interpreter: no eval
  mode: "vega-lite",
  renderer: "svg", // its colours are variables of the style sheet
  tooltip: { theme: "page", disableDefaultStyle: true, formatTooltip: tell },
};

// What a point holds; a number that was not measured there is "NaN".
function tell(values, escape) {
  const rows = Object.entries(values)
    .filter(([, value]) => value !== "NaN")
    .map(([name, value]) => `<tr><th>${escape(name)}</th><td>${escape(value)}</td></tr>`);
  return `<table>${rows.join("")}</table>`;
}

// A finger leaves at once, and Vega tells only what a pointer is over.
function tellTouched(event) {
  if (event.pointerType !== "touch") return;
  const { clientX, clientY, target } = event;
  for (const type of ["pointerover", "pointermove"]) {
    target.dispatchEvent(new PointerEvent(type, { bubbles: true, clientX, clientY }));
  }
}

function tellNothing() {
  document.querySelector(".vg-tooltip")?.classList.remove("visible");
}

async function show(figure) {
  const spec = JSON.parse(figure.querySelector("script").textContent);
  const place = figure.querySelector(".canvas");
  const still = place.firstElementChild;
  const live = document.createElement("div");
  live.ariaHidden = "true"; // the place has the chart's name; single bars and dots have none
  still.hidden = true;
  place.append(live);
  try {
    const { view } = await vegaEmbed(live, spec, options);
    still.remove();
    place.removeAttribute("tabindex"); // a still may scroll, a live chart fits
    live.addEventListener("click", tellTouched);
    const tools = figure.querySelector(".tools");
    if (tools) offer(tools, view);
  } catch (error) {
    live.remove();
    still.hidden = false;
    throw error;
  }
}

// Zoom without a wheel: for fingers and for the keyboard.
function offer(tools, view) {
  const [first, last] = view.scale("x").domain();
  const least = (last - first) / 1000;

  function see(from, to) {
    const length = Math.min(Math.max(to - from, least), last - first);
    const begin = Math.min(Math.max(from, first), last - length);
    const whole = length >= last - first;
    view.signal("zoom_x", whole ? null : [begin, begin + length]).runAsync();
  }

  const moves = {
    earlier: (from, to) => see(from - (to - from) / 2, to - (to - from) / 2),
    later: (from, to) => see(from + (to - from) / 2, to + (to - from) / 2),
    closer: (from, to) => see(from + (to - from) / 4, to - (to - from) / 4),
    wider: (from, to) => see(from - (to - from) / 2, to + (to - from) / 2),
    whole: () => see(first, last),
  };
  tools.addEventListener("click", (event) => {
    const move = moves[event.target.value];
    if (move) move(...view.scale("x").domain());
  });
  tools.hidden = false;
}

const near = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      show(target);
    }
  },
  { rootMargin: "400px" },
);
document.addEventListener("scroll", tellNothing, { passive: true });
for (const figure of document.querySelectorAll("figure.chart")) near.observe(figure);
