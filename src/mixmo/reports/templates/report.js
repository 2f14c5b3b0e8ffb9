"use strict";
(() => {
  const root = document.documentElement;
  const stored = (key, value) => {
    try { return value === undefined ? localStorage.getItem(key) : localStorage.setItem(key, value); } catch { return null; }
  };
  const chosen = stored("mixmo-theme");
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    stored("mixmo-theme", root.dataset.theme);
  });

  // Columns are shorter than rows; Vega wants rows.
  const content = JSON.parse(document.getElementById("data").textContent);
  const rows = (columns) => {
    const names = Object.keys(columns);
    return (columns[names[0]] || []).map((_, i) => Object.fromEntries(names.map((name) => [name, columns[name][i]])));
  };
  const views = new Map();
  const draw = (place) => {
    const { spec, data } = content.charts[Number(place.id.slice(5))];
    const datasets = Object.fromEntries(Object.entries(data).map(([name, key]) => [name, rows(content.data[key])]));
    return vegaEmbed(place, { ...spec, datasets }, { renderer: "svg", actions: false, tooltip: { theme: "custom" } })
      .then(({ view }) => { place.dataset.drawn = "true"; views.set(place, view); })
      .catch((error) => { place.textContent = `This chart cannot be drawn (${error.message}).`; console.error(error); });
  };
  const places = [...document.querySelectorAll(".chart")];
  const all = () => places.forEach((place) => { if (!place.dataset.begun) { place.dataset.begun = "true"; draw(place); } });
  if ("IntersectionObserver" in window) {
    const near = new IntersectionObserver((entries) => entries.forEach(({ isIntersecting, target }) => {
      if (!isIntersecting) return;
      near.unobserve(target);
      if (!target.dataset.begun) { target.dataset.begun = "true"; draw(target); }
    }), { rootMargin: "1200px" });
    places.forEach((place) => near.observe(place));
    addEventListener("beforeprint", all);
    (window.requestIdleCallback || setTimeout)(all);
  } else all();

  // A legend picks a series in its own chart, or in all that share it.
  document.querySelectorAll(".key").forEach((key) => key.addEventListener("click", () => {
    const legend = key.parentElement, picked = key.getAttribute("aria-pressed") !== "true";
    legend.querySelectorAll(".key").forEach((other) => other.setAttribute("aria-pressed", String(picked && other === key)));
    const around = legend.classList.contains("shared") ? legend.nextElementSibling : legend.parentElement;
    around.querySelectorAll(".chart").forEach((place) => views.get(place)?.signal("picked", picked ? key.dataset.series : "").run());
  }));

  // A click on a column's head sorts by it.
  const key = (cell) => {
    const text = cell.firstChild ? cell.firstChild.textContent.trim() : "";
    const value = parseFloat(text.replace(/,/g, "").replace("−", "-"));
    return Number.isNaN(value) ? text.toLowerCase() : value;
  };
  document.querySelectorAll("table.sortable").forEach((table) => table.querySelectorAll("thead th").forEach((head, place) => {
    head.tabIndex = 0;
    const sort = () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const body = table.tBodies[0];
      [...body.rows]
        .map((row) => [key(row.cells[place]), row])
        .sort(([a], [b]) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1) * (down ? -1 : 1))
        .forEach(([, row]) => body.append(row));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); } });
  }));

  // While a training keeps the report fresh.
  const seconds = Number(document.body.dataset.reload || 0);
  const pause = document.getElementById("pause");
  if (seconds && pause) {
    const kept = sessionStorage.getItem("mixmo-scroll");
    if (kept) scrollTo(0, Number(kept));
    let paused = false;
    pause.addEventListener("click", () => {
      paused = !paused;
      pause.textContent = paused ? "Resume" : "Pause";
      pause.setAttribute("aria-pressed", String(paused));
    });
    setInterval(() => {
      if (paused || document.hidden) return;
      sessionStorage.setItem("mixmo-scroll", String(scrollY));
      location.reload();
    }, seconds * 1000);
  }
})();
