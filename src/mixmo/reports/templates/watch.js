"use strict";
(() => {
  const { charts, colours } = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const root = document.documentElement;
  const stored = (key, value) => {
    try { return value === undefined ? localStorage.getItem(key) : localStorage.setItem(key, value); } catch { return null; }
  };
  const chosenTheme = stored("mixmo-theme");
  if (chosenTheme === "dark" || chosenTheme === "light") root.dataset.theme = chosenTheme;
  at("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    stored("mixmo-theme", root.dataset.theme);
  });

  const runs = new Map(); // name -> what the server sent
  const lines = new Map(); // name -> its row in the table
  const chosen = new Set();
  let touched = false, order = "updated", down = true;

  // Every text goes into the page as text, never as HTML: names of runs are whatever someone called a folder.
  const make = (tag, text, name) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (name) element.className = name;
    return element;
  };
  const fixed = (value, digits, factor = 1) => (value === null || value === undefined ? "–" : (factor * value).toFixed(digits));
  const span = (seconds) => {
    const s = Math.round(seconds);
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min`;
    if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
    return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
  };
  const address = (names) => `/report?${names.map((name) => `run=${encodeURIComponent(name)}`).join("&")}`;

  const spark = (run) => {
    const space = "http://www.w3.org/2000/svg", values = (run.curves.top1 || []), epochs = run.curves.epoch || [];
    const points = values.map((value, i) => [epochs[i], value]).filter(([, value]) => value !== null);
    const svg = document.createElementNS(space, "svg");
    svg.setAttribute("class", "spark");
    svg.setAttribute("viewBox", "0 0 100 30");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    const text = points.length ? `Top1 from ${fixed(points[0][1], 2, 100)} % to ${fixed(points.at(-1)[1], 2, 100)} %, epoch ${points.at(-1)[0]}` : "no curve yet";
    svg.setAttribute("aria-label", text);
    const title = document.createElementNS(space, "title");
    title.textContent = text;
    svg.append(title);
    if (points.length > 1) {
      const last = Math.max(run.epochs || 0, points.at(-1)[0]), low = Math.min(...points.map(([, v]) => v)), high = Math.max(...points.map(([, v]) => v));
      const line = document.createElementNS(space, "polyline");
      line.setAttribute("points", points.map(([x, y]) => `${((100 * x) / last).toFixed(1)},${(28 - (26 * (y - low)) / (high - low || 1)).toFixed(1)}`).join(" "));
      svg.append(line);
    }
    return svg;
  };

  const row = (run) => {
    const line = make("tr", undefined, run.state);
    const box = make("input");
    box.type = "checkbox";
    box.checked = chosen.has(run.run);
    box.setAttribute("aria-label", `choose ${run.run}`);
    box.addEventListener("change", () => { touched = true; box.checked ? chosen.add(run.run) : chosen.delete(run.run); drawSoon(); });
    const pick = make("td");
    pick.append(box);
    const head = make("th");
    head.scope = "row";
    const link = make("a", run.run);
    link.href = address([run.run]);
    link.target = "_blank";
    link.rel = "noopener";
    head.append(link, make("small", run.method + (run.members > 1 ? `, ${run.members} members` : "")));
    if (run.error) head.append(make("span", run.error, "error"));
    const state = make("td");
    state.append(make("span", run.state, `state ${run.state}`));
    const progress = make("td", undefined, "progress"), bar = make("div", undefined, "line"), part = make("i");
    part.style.width = `${run.epochs ? Math.min(100, (100 * run.epoch) / run.epochs) : 0}%`;
    bar.append(part);
    const left = run.left !== null && run.left !== undefined ? `, ${span(run.left)} left` : "";
    progress.append(bar, make("small", `epoch ${run.epoch}/${run.epochs || "?"}${left}`));
    const curve = make("td");
    curve.append(spark(run));
    const changed = make("td", "", "n when");
    line.append(pick, head, state, progress, make("td", fixed(run.top1, 2, 100), "n"), make("td", fixed(run.nll, 4), "n"),
      make("td", fixed(run.nllc, 4), "n"), make("td", fixed(run.ece, 4), "n"), curve, changed);
    return line;
  };
  const times = () => lines.forEach((line, name) => {
    const ago = Date.now() / 1000 - runs.get(name).updated;
    line.querySelector(".when").textContent = ago < 10 ? "now" : `${span(ago)} ago`;
  });

  const arrange = () => {
    const words = at("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const key = (run) => (typeof run[order] === "string" ? run[order].toLowerCase() : run[order]);
    const sorted = [...runs.values()].sort((one, two) => {
      const a = key(one), b = key(two);
      if (a === null || a === undefined || b === null || b === undefined) return (a ?? null) === null ? ((b ?? null) === null ? 0 : 1) : -1;
      return (a < b ? -1 : a > b ? 1 : one.run < two.run ? -1 : 1) * (down && a !== b ? -1 : 1);
    });
    const part = document.createDocumentFragment();
    sorted.forEach((run) => {
      const line = lines.get(run.run), text = `${run.run} ${run.method} ${run.state}`.toLowerCase();
      line.hidden = !words.every((word) => text.includes(word));
      part.append(line);
    });
    at("rows").append(part);
    at("empty").hidden = runs.size > 0;
    const count = (state) => [...runs.values()].filter((run) => run.state === state).length;
    at("counts").textContent = [`${runs.size} runs`, ...["training", "finished", "stopped", "damaged"].filter(count).map((state) => `${count(state)} ${state}`)].join(" · ");
  };
  document.querySelectorAll("th[data-key]").forEach((head) => {
    head.tabIndex = 0;
    const sort = () => {
      down = order === head.dataset.key ? !down : ["top1", "epoch", "updated"].includes(head.dataset.key);
      order = head.dataset.key;
      document.querySelectorAll("th[data-key]").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      arrange();
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); } });
  });
  at("filter").addEventListener("input", arrange);
  at("compare").addEventListener("click", () => window.open(address([...chosen]), "_blank", "noopener"));
  at("clear").addEventListener("click", () => {
    touched = true;
    chosen.clear();
    document.querySelectorAll("#rows input").forEach((box) => { box.checked = false; });
    drawSoon();
  });

  // Curves of the chosen runs, drawn by Vega if the server has it.
  let vega = null, soon = null, picked = "";
  const load = () => vega || (vega = new Promise((done, failed) => {
    const script = make("script");
    script.src = "/vega.js";
    script.onload = done;
    script.onerror = failed;
    document.head.append(script);
  }));
  const drawSoon = () => { clearTimeout(soon); soon = setTimeout(drawAll, 150); };
  const drawAll = async () => {
    const names = [...chosen].filter((name) => runs.has(name));
    at("compare").disabled = names.length < 2;
    at("clear").disabled = names.length < 1;
    at("curves").hidden = !names.length || !Object.keys(charts).length;
    if (at("curves").hidden) return;
    await load();
    const range = names.map((_, i) => `var(--c${i % colours})`);
    at("legend").replaceChildren(...names.map((name, i) => {
      const button = make("button", undefined, "key"), mark = make("span"), line = make("i");
      button.type = "button";
      mark.style.color = range[i];
      mark.append(line);
      button.append(mark, make("span", name));
      button.setAttribute("aria-pressed", String(picked === name));
      button.addEventListener("click", () => { picked = picked === name ? "" : name; drawAll(); });
      return button;
    }));
    await Promise.all(Object.entries(charts).map(([kind, base]) => {
      const spec = structuredClone(base);
      spec.layer.forEach((layer) => { layer.encoding.color.scale = { domain: names, range }; });
      spec.params[0].value = picked;
      spec.layer[1].encoding.tooltip.unshift({ field: "series", type: "nominal", title: " " });
      spec.datasets = { curves: names.flatMap((name) => {
        const curves = runs.get(name).curves;
        return (curves.epoch || []).map((x, i) => ({ x, y: curves[kind][i] === null ? null : (kind === "top1" ? 100 : 1) * curves[kind][i], series: name })).filter(({ y }) => y !== null);
      }) };
      return vegaEmbed(at(`chart-${kind}`), spec, { renderer: "svg", actions: false, tooltip: { theme: "custom" } });
    }));
  };

  const events = new EventSource("/events");
  events.onopen = () => { at("link").textContent = "live"; at("link").className = "state finished"; };
  events.onerror = () => { at("link").textContent = "not connected"; at("link").className = "state"; };
  events.onmessage = (message) => {
    const { rows, gone } = JSON.parse(message.data);
    let redraw = false;
    for (const name of gone) {
      runs.delete(name);
      lines.get(name)?.remove();
      lines.delete(name);
      redraw = chosen.delete(name) || redraw;
    }
    for (const run of rows) {
      const before = runs.get(run.run);
      runs.set(run.run, run);
      if (!touched && run.state === "training" && chosen.size < colours) { chosen.add(run.run); redraw = true; }
      redraw = redraw || (chosen.has(run.run) && JSON.stringify(before?.curves) !== JSON.stringify(run.curves));
      const line = row(run);
      lines.get(run.run)?.remove();
      lines.set(run.run, line);
    }
    arrange();
    times();
    if (redraw) drawSoon();
    document.body.dataset.ready = "true";
  };
  setInterval(times, 10000);
})();
