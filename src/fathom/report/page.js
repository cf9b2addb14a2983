// The page's own script: draws the charts in the colours of the theme, sorts tables, opens the contents.
(() => {
  "use strict";
  const root = document.documentElement;
  const narrow = matchMedia("(max-width: 1000px)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const finger = matchMedia("(pointer: coarse)");
  const plots = [...document.querySelectorAll(".plot")];
  const figures = new Map(plots.map((plot) => [plot, JSON.parse(plot.closest("figure").querySelector("script").textContent)]));
  const PAPER = { whole: 670, half: 320, shrunk: 0.75 }; // widths of a chart in print, and how much smaller its letters are

  // ---- charts

  let onPaper = false;

  /** A figure with each var(--name) replaced by the colour that name has at present. */
  function coloured(value, seen) {
    if (Array.isArray(value)) return value.map((each) => coloured(each, seen));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, coloured(each, seen)]));
    }
    if (typeof value !== "string" || !value.startsWith("var(--")) return value;
    if (!seen.has(value)) {
      const probe = document.body.appendChild(document.createElement("i"));
      probe.style.color = value;
      seen.set(value, getComputedStyle(probe).color);
      probe.remove();
    }
    return seen.get(value);
  }

  /** What a legend over the plot takes, so that the plot itself keeps its height on a phone. */
  function legendHeight({ data, layout }, width) {
    if (!layout.showlegend) return 0;
    const names = data.filter((trace) => trace.showlegend !== false).map((trace) => trace.name.length);
    const across = Math.max(1, Math.floor((width - 60) / (48 + 7 * Math.max(...names)))); // Plotly's columns are equal
    return 20 * Math.ceil(names.length / across);
  }

  function draw(plot) {
    const figure = figures.get(plot);
    const printed = plot.closest("figure").classList.contains("slim") ? PAPER.half : PAPER.whole;
    const room = onPaper ? printed / PAPER.shrunk : plot.parentElement.clientWidth;
    const width = Math.max(room, figure.least_width);
    const height = figure.height + legendHeight(figure, width);
    plot.style.width = `${width}px`;
    plot.style.height = `${height}px`;
    plot.style.zoom = onPaper ? printed / width : 1; // paper does not scroll
    const { data, layout } = coloured({ data: figure.data, layout: figure.layout }, new Map());
    const own = { width, height, uirevision: 1, dragmode: finger.matches ? false : "zoom" };
    const buttons = ["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"];
    const nested = data[0]?.type === "icicle"; // it zooms by a click, and has no axes to drag
    const config = { displaylogo: false, modeBarButtons: [nested ? ["toImage"] : buttons], doubleClick: "reset" };
    return Plotly.react(plot, data, { ...layout, ...own }, config).then(() => {
      plot.setAttribute("data-drawn", "");
      if (nested) keys(plot);
    });
  }

  /** The arrow keys walk an icicle: down to the largest part, up to the whole, left and right among its parts. */
  function keys(plot) {
    if (plot.hasAttribute("tabindex")) return;
    const { ids, parents, labels, customdata } = figures.get(plot).data[0];
    const said = plot.closest("figure").appendChild(document.createElement("p"));
    said.className = "note said";
    said.setAttribute("aria-live", "polite");
    plot.tabIndex = 0;
    plot.setAttribute("role", "application");
    let at = 0;
    const show = (index) => {
      at = index;
      const name = document.createElement("b");
      name.textContent = labels[at].replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");
      said.replaceChildren(name, `: ${customdata[at]}`);
    };
    const zoom = (index) => {
      if (index < 0) return;
      show(index);
      Plotly.restyle(plot, { level: ids[index] });
    };
    const beside = (step) => {
      const family = ids.map((_, index) => index).filter((index) => parents[index] === parents[at]);
      return family[(family.indexOf(at) + step + family.length) % family.length];
    };
    plot.addEventListener("keydown", (event) => {
      const steps = {
        ArrowDown: () => zoom(parents.indexOf(ids[at])),
        ArrowUp: () => zoom(ids.indexOf(parents[at])),
        ArrowLeft: () => zoom(beside(-1)),
        ArrowRight: () => zoom(beside(1)),
        Home: () => zoom(0),
      };
      if (!steps[event.key]) return;
      event.preventDefault();
      steps[event.key]();
    });
    plot.on("plotly_icicleclick", ({ points, nextLevel }) => show(Math.max(0, ids.indexOf(nextLevel ?? points[0].id))));
  }

  const drawAll = () => plots.forEach(draw);

  /** One chart at a time, so that the page answers while it fills. */
  function drawFrom(index) {
    if (index >= plots.length) return root.setAttribute("data-ready", "");
    return drawOnce(plots[index]).then(() => setTimeout(drawFrom, 0, index + 1));
  }

  const drawOnce = (plot) => (plot.hasAttribute("data-drawn") ? Promise.resolve() : draw(plot));
  const near = new IntersectionObserver((entries) => {
    entries.filter(({ isIntersecting }) => isIntersecting).forEach(({ target }) => drawOnce(target));
  }, { rootMargin: "400px" }); // whoever jumps ahead of the drawing need not wait for it
  plots.forEach((plot) => near.observe(plot));

  let waiting;
  let lastWidth = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === lastWidth) return; // a phone's address bar comes and goes with scrolling
    lastWidth = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 150);
  });

  // ---- theme

  let theme = null; // null follows the system
  try { theme = localStorage.getItem("fathom-theme"); } catch { /* a file may not be allowed to remember */ }
  const setTheme = (name) => (name ? root.setAttribute("data-theme", name) : root.removeAttribute("data-theme"));
  setTheme(theme);

  document.getElementById("theme").addEventListener("click", () => {
    theme = (theme || (dark.matches ? "dark" : "light")) === "dark" ? "light" : "dark";
    try { localStorage.setItem("fathom-theme", theme); } catch { /* as above */ }
    setTheme(theme);
    drawAll();
  });
  dark.addEventListener("change", drawAll);

  function print(begins) {
    onPaper = begins;
    setTheme(begins ? "light" : theme);
    drawAll();
  }
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));

  // ---- tables

  function sortKey(cell) {
    if (cell.hasAttribute("data-missing")) return null;
    const text = cell.dataset.v ?? cell.textContent;
    return cell.classList.contains("number") || cell.dataset.v ? Number(text.replace("−", "-")) : text;
  }

  function compared(one, other) {
    if (typeof one === "number" && typeof other === "number") return one - other;
    return String(one).localeCompare(String(other), "en", { numeric: true });
  }

  function sort(header) {
    const falling = header.getAttribute("aria-sort") === "ascending";
    const body = header.closest("table").tBodies[0];
    const rows = [...body.rows].map((row) => ({ row, key: sortKey(row.cells[header.cellIndex]) }));
    rows.sort((one, other) => {
      if (one.key === null || other.key === null) return (one.key === null) - (other.key === null); // last, both ways
      return falling ? compared(other.key, one.key) : compared(one.key, other.key);
    });
    header.parentElement.querySelectorAll("[aria-sort]").forEach((each) => each.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", falling ? "descending" : "ascending");
    body.append(...rows.map(({ row }) => row));
  }

  document.querySelectorAll("th button").forEach((button) => {
    button.addEventListener("click", () => sort(button.closest("th")));
  });

  /** A box that hides columns to its right says so with a faded edge. */
  function fade(box) {
    box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 2);
  }

  const boxes = [...document.querySelectorAll(".scroll")];
  boxes.forEach((box) => box.addEventListener("scroll", () => fade(box), { passive: true }));
  const resized = new ResizeObserver((entries) => entries.forEach(({ target }) => fade(target.closest(".scroll"))));
  boxes.forEach((box) => { resized.observe(box); resized.observe(box.firstElementChild); });

  // ---- contents

  const menu = document.getElementById("menu");
  const contents = document.getElementById("contents");
  const open = (wanted) => {
    menu.setAttribute("aria-expanded", String(wanted));
    contents.classList.toggle("open", wanted);
  };
  menu.addEventListener("click", () => open(menu.getAttribute("aria-expanded") !== "true"));
  contents.addEventListener("click", (event) => event.target.closest("a") && narrow.matches && open(false));
  addEventListener("keydown", (event) => event.key === "Escape" && open(false));

  const links = new Map([...contents.querySelectorAll("a")].map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries.filter(({ isIntersecting }) => isIntersecting)) {
      links.forEach((link) => link.removeAttribute("aria-current"));
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-10% 0px -80% 0px" });
  document.querySelectorAll("section[id]").forEach((section) => seen.observe(section));

  drawFrom(0);
})();
