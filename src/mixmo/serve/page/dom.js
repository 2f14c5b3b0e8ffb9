// What both panels use: elements, bars, the API and its errors. Texts are set as text, never as HTML.

export const $ = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export const percent = (share) => `${(100 * share).toFixed(share > 0.9995 || share < 0.0995 ? 1 : 0)} %`;
export const readable = (label) => label.replaceAll("_", " ");
export const memberColour = (member) => `var(--member-${member % 4})`;

export function bar(share) {
  const filled = element("i");
  filled.style.setProperty("--value", Math.min(1, Math.max(0, share)));
  return element("span", { class: "bar", "aria-hidden": "true" }, filled);
}

/** A card with the most probable classes; `data-value` holds the exact probability. */
export function classesCard(title, note, classes, colour) {
  const rows = classes.map(({ label, probability }) => element("li", { "data-label": label, "data-value": probability },
    element("div", { class: "line" }, element("span", {}, readable(label)), element("span", { class: "number" }, percent(probability))),
    bar(probability)));
  const heading = element("h2", {}, element("span", { class: "dot" }), title, element("small", {}, note));
  const card = element("div", { class: "card" }, heading, element("ol", { class: "classes" }, ...rows));
  if (colour) card.style.setProperty("--hue", colour);
  return card;
}

/** A meter with its value in nats. */
export function meter(where, nats, most, name) {
  const share = most > 0 ? nats / most : 0;
  const shown = bar(share);
  const meter = element("div", { role: "meter", "aria-label": name, "aria-valuenow": nats.toFixed(4), "aria-valuemin": 0,
    "aria-valuemax": most.toFixed(4), "data-value": nats }, shown);
  where.replaceChildren(meter, element("small", { class: "number" }, `${nats.toFixed(2)} of at most ${most.toFixed(2)} nats`));
}

export function showError(sentence) {
  $("error").textContent = sentence;
  $("error").hidden = !sentence;
}

function token() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("token");
}

function askForToken() {
  return new Promise((resolve) => {
    $("ask").addEventListener("close", () => {
      sessionStorage.setItem("token", $("token").value);
      resolve();
    }, { once: true });
    if (!$("ask").open) $("ask").showModal();
  });
}

/** Call the API; an error is thrown with the sentence of the service. */
export async function api(path, options = {}) {
  const known = token();
  const headers = { ...options.headers, ...(known ? { Authorization: `Bearer ${known}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch {
    throw new Error("The service does not respond; is it still running?");
  }
  if (response.status === 401) {
    await askForToken();
    return api(path, options);
  }
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(content.error ?? `The service responded with status ${response.status}.`);
  return content;
}

/** Predict a file; the response contains the network's input too. */
export async function predictFile(file) {
  const form = new FormData();
  form.append("files", file, file.name || "pasted");
  return (await api("/predict?top=5&input=true", { method: "POST", body: form })).predictions[0];
}

export async function sampleFile(name) {
  const response = await fetch(`/samples/${encodeURIComponent(name)}`);
  return new File([await response.blob()], name, { type: "image/jpeg" });
}

/** Buttons with the samples; `choose` gets the file. */
export function addSamples(where, names, choose) {
  for (const name of names) {
    const title = name.replace(/\.\w+$/, "");
    const button = element("button", { type: "button", "aria-label": `Sample: ${title}`, title, "aria-pressed": "false", "data-sample": title },
      element("img", { src: `/samples/${encodeURIComponent(name)}`, alt: "" }));
    button.addEventListener("click", async () => choose(await sampleFile(name)));
    where.append(button);
  }
}

export function markSample(where, file) {
  for (const button of where.children) button.setAttribute("aria-pressed", String(file.name.startsWith(`${button.dataset.sample}.`)));
}
