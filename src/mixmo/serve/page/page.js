// The page: theme, tabs, dropped and pasted images, and which panel gets them.

import { $, api, element, sampleFile, showError } from "./dom.js";
import * as mix from "./mix.js";
import * as predict from "./predict.js";

const TABS = ["predict", "mix"];

function startTheme() {
  const root = document.documentElement;
  const stored = localStorage.getItem("mixmo-theme");
  if (stored) root.dataset.theme = stored;
  $("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("mixmo-theme", root.dataset.theme);
  });
}

function openTab(name) {
  for (const tab of TABS) {
    $(tab).hidden = tab !== name;
    $(`tab-${tab}`).setAttribute("aria-selected", String(tab === name));
    $(`tab-${tab}`).tabIndex = tab === name ? 0 : -1;
  }
  showError("");
  if (name === "mix") mix.open();
}

function startTabs() {
  for (const name of TABS) {
    $(`tab-${name}`).addEventListener("click", () => openTab(name));
    $(`tab-${name}`).addEventListener("keydown", (event) => {
      if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      const other = TABS.find((tab) => tab !== name);
      openTab(other);
      $(`tab-${other}`).focus();
    });
  }
}

/** An image that is dropped or pasted goes to the open panel; in the mixing panel to the slot below the pointer. */
function take(files, target) {
  const file = [...files][0];
  if (!file) return;
  if ($("mix").hidden) predict.predict(file);
  else mix.choose(target?.closest?.("[data-slot]")?.dataset.slot ?? "A", file);
}

function startFiles() {
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    take(event.dataTransfer.files, event.target);
  });
  addEventListener("paste", (event) => take(event.clipboardData.files, document.activeElement));
}

function describe(model) {
  const top1 = model.scores.top1 ? `, Top1 ${(100 * model.scores.top1).toFixed(1)} %` : "";
  const on = model.dataset ? ` of ${model.dataset}${top1}` : "";
  const classes = model.classes.length ? `, ${model.classes.length} classes${on}` : on;
  const members = `${model.members} subnetwork${model.members === 1 ? "" : "s in one network"}`;
  const detail = element("span", { class: "detail" }, `${classes} · ${model.runtime} on ${model.device}`);
  $("model").replaceChildren(`${model.name} · ${members}`, detail);
  document.title = `mixmo: ${model.name}`;
}

startTheme();
startTabs();
startFiles();
try {
  const model = await api("/model");
  describe(model);
  predict.start(model);
  mix.start(model);
  if (model.samples.length) predict.predict(await sampleFile(model.samples.find((name) => name.startsWith("coffee")) ?? model.samples[0]));
} catch (error) {
  showError(error.message);
}
