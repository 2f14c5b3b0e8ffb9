// The panel that mixes two images. Every change sends a request; during a request only the last change is kept.

import { $, addSamples, api, classesCard, element, markSample, memberColour, percent, predictFile, readable, sampleFile, showError } from "./dom.js";

const PLACED = { cut: ["x", "y"], horizontal: ["x"], vertical: ["y"] }; // sliders that a mask uses
const FIRST = { A: "flower", B: "rocket" };
const images = { A: null, B: null }; // {file, input, label}
let seed = 0;
let busy = false;
let again = false;

export function start(model) {
  if (model.not_mixable_because) {
    $("not-mixable").textContent = `Images cannot be mixed here: ${model.not_mixable_because}.`;
    $("not-mixable").hidden = false;
    $("mixable").hidden = true;
    return;
  }
  $("mask").append(...model.masks.map((name) => element("option", { value: name }, name)));
  $("mask").value = model.masks.includes("cut") ? "cut" : model.masks[0];
  for (const id of ["mask", "ratio", "x", "y"]) $(id).addEventListener("input", refresh);
  $("redraw").addEventListener("click", () => { seed += 1; refresh(); });
  $("swap").addEventListener("click", () => {
    [images.A, images.B] = [images.B, images.A];
    refresh();
  });
  for (const name of ["A", "B"]) {
    addSamples(samples(name), model.samples, (file) => choose(name, file));
    const input = $(`file-${name}`);
    input.addEventListener("change", () => {
      if (input.files.length) choose(name, input.files[0]);
      input.value = "";
    });
  }
  dragToPlace();
}

/** Load the first pair when the panel is first opened. */
export async function open() {
  if (images.A || $("mixable").hidden) return;
  const files = await Promise.all(["A", "B"].map((name) => sampleFile(`${FIRST[name]}.jpg`)));
  await choose("A", files[0]);
  await choose("B", files[1]);
}

export async function choose(name, file) {
  showError("");
  try {
    const { input, label } = await predictFile(file);
    images[name] = { file, input, label };
    await refresh();
  } catch (error) {
    showError(error.message);
  }
}

const slot = (name) => document.querySelector(`.slot[data-slot="${name}"]`);
const samples = (name) => slot(name).querySelector(".samples");

async function refresh() {
  showControls();
  if (!images.A || !images.B) return;
  if (busy) {
    again = true;
    return;
  }
  busy = true;
  $("mixable").setAttribute("aria-busy", "true");
  do {
    again = false;
    await ask();
  } while (again);
  busy = false;
  $("mixable").setAttribute("aria-busy", "false");
}

async function ask() {
  const begun = performance.now();
  const body = { images: [images.A.input, images.B.input], mask: $("mask").value, seed };
  for (const id of ["ratio", "x", "y"]) body[id] = Number($(id).value);
  try {
    const mixed = await api("/mix?top=5", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    show(mixed, performance.now() - begun);
    showError("");
  } catch (error) {
    showError(error.message);
  }
}

function showControls() {
  const used = PLACED[$("mask").value] ?? [];
  for (const axis of ["x", "y"]) {
    for (const part of document.querySelectorAll(`.controls .${axis}`)) part.hidden = !used.includes(axis);
    $(`${axis}-out`).textContent = percent(Number($(axis).value));
  }
  $("ratio-out").textContent = percent(Number($("ratio").value));
  $("redraw").hidden = used.length > 0 || $("mask").value === "linear";
  $("mixture").closest(".stage").classList.toggle("placed", used.length > 0);
  for (const name of ["A", "B"]) {
    if (!images[name]) continue;
    slot(name).querySelector("img.pixels").src = images[name].input;
    markSample(samples(name), images[name].file);
  }
}

function show(mixed, milliseconds) {
  $("mixture").src = mixed.picture;
  $("mixture").dataset.ratio = mixed.ratio;
  const drag = PLACED[$("mask").value] ? " Drag the picture to move the mask." : "";
  $("mix-hint").textContent = `${percent(mixed.ratio)} A, ${percent(1 - mixed.ratio)} B.${drag}`;
  const cards = { A: [], B: [] };
  mixed.heads.forEach(({ reads, classes }, member) => {
    const note = `reads ${reads}, alone: ${readable(images[reads].label)}`;
    cards[reads].push(classesCard(`Head ${member + 1}`, note, classes, memberColour(member)));
  });
  for (const name of ["A", "B"]) document.querySelector(`[data-heads="${name}"]`).replaceChildren(...cards[name]);
  $("read").replaceChildren(...mixed.heads.map(({ classes: [best] }, member) => {
    const chip = element("li", {}, element("span", { class: "dot" }), `Head ${member + 1}: ${readable(best.label)} ${percent(best.probability)}`);
    chip.style.setProperty("--hue", memberColour(member));
    return chip;
  }));
  $("timing").textContent = `One forward pass for both images, ${milliseconds.toFixed(0)} ms per request. The network mixes encodings, not pixels; the picture shows where each image is visible.`;
}

function dragToPlace() {
  const picture = $("mixture");
  const place = (event) => {
    const box = picture.getBoundingClientRect();
    const within = (value) => Math.min(1, Math.max(0, value)).toFixed(2);
    $("x").value = within((event.clientX - box.left) / box.width);
    $("y").value = within((event.clientY - box.top) / box.height);
    refresh();
  };
  picture.addEventListener("pointerdown", (event) => {
    if (!PLACED[$("mask").value]) return;
    picture.setPointerCapture(event.pointerId);
    place(event);
  });
  picture.addEventListener("pointermove", (event) => {
    if (picture.hasPointerCapture(event.pointerId)) place(event);
  });
}
